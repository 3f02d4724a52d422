#include "choices.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace sparsesnn {

Choices choices;

int set_choice(std::string_view name, int value) {
  constexpr std::pair<std::string_view, int Choices::*> known[] = {{"backward_rows", &Choices::backward_rows},
                                                                   {"columns_kb", &Choices::columns_kb},
                                                                   {"dense_share", &Choices::dense_share}};
  for (const auto& [of, choice] : known)
    if (name == of && value >= 0 && value <= 1 << 20) return std::exchange(choices.*choice, value);
  throw std::invalid_argument("set_choice: " + std::string(name) + " = " + std::to_string(value) +
                              "; allowed: backward_rows, columns_kb or dense_share, from 0 to 1048576");
}

}  // namespace sparsesnn
