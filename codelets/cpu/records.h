// Records that codelets and the host share.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsesnn {

// Synapses of n_pre senders as rows: those of sender m are [starts[m], starts[m + 1]), their receivers ascending.
struct SparseRows {
  int n_pre = 0, n = 0;
  std::size_t n_synapses = 0, longest = 0;  // in all rows, in the longest
  const std::int64_t* starts = nullptr;     // [n_pre + 1]
  const std::uint32_t* receivers = nullptr;
  const std::uint32_t* places = nullptr;  // of each synapse in the weight, which is ordered by receiver
  // How a sum over the receivers of a row continues after each of them: the bits below. The last receiver of a tile
  // also holds the number of pending sums that it is added to, one after the other.
  const std::uint8_t* folds = nullptr;
  const int* block_ends = nullptr;  // [n_blocks], the tile after each block that has a sum
  int n_blocks = 0;

  static constexpr std::uint8_t more_of_tile = 0x80, ends_block = 0x40, most_folds = 0x3f;
};

// deliver_grad prefetches a row of current gradients this many events ahead; a list of events is padded by as many, all
// within bounds of the rows.
inline constexpr int events_ahead = 16;

// A list that deliver reads is padded by this many ids, of any value.
inline constexpr int ids_ahead = 6;

// The numbers of one optimizer step; see adam.h. step_size = √c2·lr/c1, eps = √c2·ε.
struct AdamStep {
  float lr, one_minus_beta1, beta2, one_minus_beta2;  // from doubles: 1 - 0.999f has a relative error of 5e-5
  float eps, weight_decay, step_size;
  bool decoupled;
};

}  // namespace sparsesnn
