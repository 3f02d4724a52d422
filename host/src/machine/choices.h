// What suits one machine and not another: choices of speed alone, which change no bit of any result. Each is an
// environment variable, SPARSESNN_ and its name in capitals, read when the module is imported; `sparsesnn bench tune`
// measures them. Not here: the width of a tile, which decides the order of sums.
#pragma once

#include <span>
#include <string_view>

namespace sparsesnn {

struct Choices {
  int backward_rows = 2048;  // see `known_choices`
  int events_ahead = 16;
  int senders_ahead = 2;
  int columns_kb = 512;
  int dense_share = 45;
  int huge_pages = 0;
};

// Those in use. Written only between passes.
extern Choices choices;

struct Choice {
  const char* name;
  int Choices::* value;
  int low, high;
  const char* meaning;

  int standard() const { return Choices().*value; }
};

std::span<const Choice> known_choices();

// Throws std::invalid_argument where there is no such choice or the value is out of range.
void set_choice(std::string_view name, int value);
void set_choices_from_environment();

}  // namespace sparsesnn
