// Gradients of list values if most neurons are listed: from a product over all of them.
#pragma once

#include <vector>

#include "events.h"
#include "host/src/cpu/kernels/kernels.h"
#include "host/src/training/tile_sums.h"

namespace sparsesnn {

// The gradients of a source's lists: one sum for each of the blocks of tiles [K][n_values] or, not `by_blocks`, the sum
// of all [n_values].
struct ListGrads {
  const std::vector<TileBlock>& blocks;
  bool by_blocks;
  float* d_value;
  std::size_t n_values;
};

// Whether products over all neurons take less time than those for the listed ones alone. Padding rows of the last group
// count as well: a product includes them. A spike counts a third of a near-spike, because the gradient of its weights
// reads the same row of ∂L/∂i anyway.
bool listed_densely(const Lists& lists, int n_pre, int delay, int n_steps, int n_samples);

// ∂L/∂value of all entries that arrive in a chunk. weight: [M, N]; d_current: [P][rows][W]. Same bits as the sums of
// shares that weight_grad makes.
void dense_list_grads(const Kernels& kernels, const LayerSpec& spec, const Chunk& chunk, int n_samples,
                      const SenderInput& from, const float* weight, const float* d_current, const ListGrads& to);

// The same for one step `t` of one group of samples, `b` the first: for all entries that arrive then.
void dense_step_grads(const Kernels& kernels, const LayerSpec& spec, const Chunk& chunk, int t, int b, int n_samples,
                      const SenderInput& from, const float* weight, const float* d_current, const ListGrads& to);

}  // namespace sparsesnn
