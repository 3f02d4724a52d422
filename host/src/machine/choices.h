// Thresholds at which the engine takes another path to the same bits. Users do not set them; tests do, so that small
// networks take every path (tests/engine/test_choices.py).
#pragma once

#include <string_view>

namespace sparsesnn {

// Up to this many spikes arriving in a step on average, no input currents of a recurrent layer are summed first.
inline constexpr int few_arrivals = 6;

struct Choices {
  // Steps times samples whose current gradients the backward pass keeps between its two halves; twice as many if they
  // are those of eight samples.
  int backward_rows = 2048;
  // Kilobytes of a tile's weights from several connections, above which deliver takes one connection at a time.
  int columns_kb = 512;
  // Percent of a population's neurons listed (a spike counts a third), from which on the gradients of its lists come
  // from a product over all of its neurons; 101: never.
  int dense_share = 45;
};

// The limits in use. Written only between passes.
extern Choices choices;

// Sets a limit and returns its old value. Throws std::invalid_argument for an unknown name or a value out of range.
int set_choice(std::string_view name, int value);

}  // namespace sparsesnn
