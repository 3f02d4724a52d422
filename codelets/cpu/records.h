// What codelets and the host both know.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsesnn {

// Synapses of n_pre senders as rows: those of sender m are [starts[m], starts[m + 1]), their receivers ascending.
struct SparseRows {
  int n_pre = 0, n = 0;
  std::size_t n_synapses = 0, longest = 0;  // of all rows, of one
  const std::int64_t* starts = nullptr;     // [n_pre + 1]
  const std::uint32_t* receivers = nullptr;
  const std::uint32_t* places = nullptr;  // of each in the weight, which goes receiver by receiver
  // How a sum over the receivers of a row goes on behind each: bits below. The last of a tile says to how many of the
  // sums that wait it is added, one after the other.
  const std::uint8_t* folds = nullptr;
  const int* block_ends = nullptr;  // [n_blocks], the tile behind each block of which a sum is given
  int n_blocks = 0;

  static constexpr std::uint8_t more_of_tile = 0x80, ends_block = 0x40, most_folds = 0x3f;
};

// So many events early deliver_grad asks for a row of current gradients: so many a list of events has behind its last
// one, in bounds of what they point at.
inline constexpr int events_ahead = 16;

// So many ids behind its last one a list has that deliver reads, whatever they say.
inline constexpr int ids_ahead = 6;

// The numbers of one optimizer step; see adam.h. step_size = √c2·lr/c1, eps = √c2·ε.
struct AdamStep {
  float lr, one_minus_beta1, beta2, one_minus_beta2;  // of the doubles: 1 - 0.999f is off by 5e-5 of itself
  float eps, weight_decay, step_size;
  bool decoupled;
};

}  // namespace sparsesnn
