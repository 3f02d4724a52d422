// Deliver: spikes into currents.
//
//   current[n] += Σ_{m in ids} weight[m, n]          for the W neurons of one tile
//
// weight: [M, W], the tile's columns, packed, so that one id reads one contiguous row; owned by the tile.
// ids: ascending; the sum runs in their order. current: W floats, kept in registers over the whole list.
// Cost: 4·W bytes read and W additions an id.
#pragma once

#include "simd.h"

namespace sparsesnn::SPARSESNN_ISA {

template <int W, class Id>
inline void deliver(float* current, const float* weight, const Id* ids, std::int64_t n_ids) {
  constexpr int n_vectors = W / vector_width;
  Vector sum[n_vectors];
  for (int k = 0; k < n_vectors; ++k) sum[k] = load(current + k * vector_width);
  for (std::int64_t j = 0; j < n_ids; ++j) {
    const float* row = weight + static_cast<std::size_t>(ids[j]) * W;
    for (int k = 0; k < n_vectors; ++k) sum[k] += load(row + k * vector_width);
  }
  for (int k = 0; k < n_vectors; ++k) store(current + k * vector_width, sum[k]);
}

}  // namespace sparsesnn::SPARSESNN_ISA
