// Compressed rows of a layer's sparse synapses, made once.
#pragma once

#include <algorithm>

#include "codelets/cpu/records.h"
#include "packing.h"

namespace sparsesnn {

class SparseRowsOf : public SparseRows {
 public:
  // From the synapses [offsets[n], offsets[n + 1]) of each receiver n, whose senders ascend. tile_width, first: as in
  // the layer; by_blocks: sums over receivers are needed for every block of its tiles (tile_sums.h), else one for all.
  // Throws InputError if the arrays break these rules.
  SparseRowsOf(int n_pre, const std::int64_t* offsets, int n, const std::int32_t* senders, std::size_t n_senders,
               int tile_width, int first, bool by_blocks);

  int tile_width, first;
  bool by_blocks;

 private:
  Array<std::int64_t> starts_;
  Array<std::uint32_t> receivers_, places_;
  Array<std::uint8_t> folds_;
  std::vector<int> block_ends_;
};

// A weight in the order of the rows, rounded where the layer reads bfloat16. Throws for NaN and infinity.
Packed pack_rows_of(const SparseRows& rows, const float* weight, bool bf16, const char* name);

// The loops of a layer in the form that passes sample by sample read.
struct PackedLoops {
  std::vector<Packed> packed;
  std::vector<Loop> loops;
  int longest = 0;  // delay, axonal ones included

  PackedLoops(const LayerSpec& spec, const LayerInput& input);
  // The number of steps whose current gradients a backward pass over n_steps keeps.
  int n_kept(int n_steps) const { return std::max(1, std::min(longest, n_steps)); }
};

}  // namespace sparsesnn
