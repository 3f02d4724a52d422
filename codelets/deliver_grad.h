// Gradients of deliver.
//
//   d_weight[m, n] += d_current[n]                     for m that fired
//   d_value[slot]   = Σ_n weight[m, n]·d_current[n]    for every listed m: spikes and near-spikes
//
// weight, d_weight: [M, W], the tile's columns; only this tile writes its d_weight. d_value: the tile's share; the
// engine adds the shares of all tiles in ascending order. One pass over the list serves both gradients.
// Cost: 4·W bytes read (weight) and 8·W read and written (d_weight) an id, 2·W multiply-adds.
#pragma once

#include "simd.h"

namespace sparsesnn::SPARSESNN_ISA {

// Σ a[n]·b[n] over W elements in the fixed order of simd.h; b is held in registers by the caller.
template <int W>
inline float dot(const float* a, const Vector (&b)[W / vector_width]) {
  Vector lanes[dot_vectors];
  for (int k = 0; k < dot_vectors; ++k) lanes[k] = load(a + k * vector_width) * b[k];
  for (int k = dot_vectors; k < W / vector_width; ++k) lanes[k % dot_vectors] += load(a + k * vector_width) * b[k];
  return sum_lanes(lanes);
}

template <int W>
inline void load_tile(Vector (&x)[W / vector_width], const float* p) {
  for (int k = 0; k < W / vector_width; ++k) x[k] = load(p + k * vector_width);
}

// `d_weight` or `d_value` may be null: that gradient is not wanted.
template <int W, class Id>
inline void deliver_grad(const float* d_current, const float* weight, float* d_weight, float* d_value, const Id* ids,
                         std::int64_t n_spikes, std::int64_t n_listed) {
  Vector d[W / vector_width];
  load_tile<W>(d, d_current);
  for (std::int64_t j = 0; j < n_listed; ++j) {
    const std::size_t row = static_cast<std::size_t>(ids[j]) * W;
    if (d_value) d_value[j] = dot<W>(weight + row, d);
    if (d_weight && j < n_spikes)
      for (int k = 0; k < W / vector_width; ++k) {
        float* p = d_weight + row + k * vector_width;
        store(p, load(p) + d[k]);
      }
  }
}

}  // namespace sparsesnn::SPARSESNN_ISA
