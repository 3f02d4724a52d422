#include "choices.h"

#include <cctype>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "codelets/cpu/records.h"
#include "memory.h"

namespace sparsesnn {

Choices choices;

namespace {

constexpr Choice known[] = {
    {"backward_rows", &Choices::backward_rows, 8, 1 << 20,
     "steps times samples whose current gradients the backward pass keeps between its two halves; twice as many where "
     "they are those of eight samples"},
    {"events_ahead", &Choices::events_ahead, 0, most_events_ahead,
     "so many events early deliver_grad asks for a row of current gradients"},
    {"senders_ahead", &Choices::senders_ahead, 0, 64,
     "so many senders early, at most, deliver_grad asks for a row of weights and of their gradient"},
    {"columns_kb", &Choices::columns_kb, 0, 1 << 20,
     "kilobytes of a tile's weights from several connections, above which deliver takes one connection at a time"},
    {"dense_share", &Choices::dense_share, 0, 101,
     "percent of a population's neurons listed (a spike counts a third), from which on the gradients of its lists "
     "come from a product over all of its neurons; 101: never"},
    {"huge_pages", &Choices::huge_pages, 0, 1, "1: arrays of 4 MB and more ask for huge pages (Linux)"},
};

void choose(const Choice& choice, const std::string& asked_by, std::string_view text) {
  int value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || value < choice.low || value > choice.high)
    throw std::invalid_argument(asked_by + " is '" + std::string(text) + "'; give a whole number from " +
                                std::to_string(choice.low) + " to " + std::to_string(choice.high) + " (" +
                                std::to_string(choice.standard()) + " without it): " + choice.meaning);
  if (choice.value == &Choices::huge_pages && choices.huge_pages != value) release_kept();
  choices.*choice.value = value;
}

}  // namespace

std::span<const Choice> known_choices() { return known; }

void set_choice(std::string_view name, int value) {
  std::string names;
  for (const Choice& choice : known) {
    if (name == choice.name) return choose(choice, choice.name, std::to_string(value));
    names += (names.empty() ? "" : ", ") + std::string(choice.name);
  }
  throw std::invalid_argument("there is no choice '" + std::string(name) + "'; allowed: " + names);
}

void set_choices_from_environment() {
  for (const Choice& choice : known) {
    std::string variable = std::string("SPARSESNN_") + choice.name;
    for (char& c : variable) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    const char* text = std::getenv(variable.c_str());
    if (text && *text) choose(choice, variable, text);
  }
}

}  // namespace sparsesnn
