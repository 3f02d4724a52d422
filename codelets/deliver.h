// Deliver: spikes into currents.
//
//   current[n] += Σ_{m in ids} weight[m, n]          for the W neurons of one tile
//
// weight: [M, W], the tile's columns, packed, so that one id reads one contiguous row; owned by the tile. float or
// Bf16, summed as float32. ids: ascending; the sum runs in their order. current: W floats, kept in registers over the
// whole list. Cost: 4·W bytes (2·W as Bf16) read and W additions an id. Graded lists add value·weight[m, n].
#pragma once

#include "simd.h"

namespace sparsesnn::SPARSESNN_ISA {

template <int W, class Weight, class Id>
inline void deliver(float* current, const Weight* weight, const Id* ids, std::int64_t n_ids) {
  constexpr int n_vectors = W / vector_width;
  Vector sum[n_vectors];
  for (int k = 0; k < n_vectors; ++k) sum[k] = load(current + k * vector_width);
  for (std::int64_t j = 0; j < n_ids; ++j) {
    const Weight* row = weight + static_cast<std::size_t>(ids[j]) * W;
    for (int k = 0; k < n_vectors; ++k) sum[k] += load(row + k * vector_width);
  }
  for (int k = 0; k < n_vectors; ++k) store(current + k * vector_width, sum[k]);
}

// The same for spikes that carry a value each: products are rounded, then added.
template <int W, class Weight, class Id>
[[gnu::noinline]] void deliver_graded(float* current, const Weight* weight, const Id* ids, const float* values,
                                      std::int64_t n_ids) {
  constexpr int n_vectors = W / vector_width;
  Vector sum[n_vectors];
  for (int k = 0; k < n_vectors; ++k) sum[k] = load(current + k * vector_width);
  for (std::int64_t j = 0; j < n_ids; ++j) {
    const Weight* row = weight + static_cast<std::size_t>(ids[j]) * W;
    const Vector value = broadcast(values[j]);
    for (int k = 0; k < n_vectors; ++k) sum[k] += value * load(row + k * vector_width);
  }
  for (int k = 0; k < n_vectors; ++k) store(current + k * vector_width, sum[k]);
}

// The same as `deliver` for whole rows of a weight [M, n] that lies beyond L2: a row is read from end to end, as the
// prefetcher likes it, four rows at a time to keep more of it under way. n is a multiple of 16; current lies in L1.
template <class Weight, class Id>
inline void deliver_rows(float* current, const Weight* weight, int n, const Id* ids, std::int64_t n_ids) {
  const std::size_t stride = static_cast<std::size_t>(n);
  std::int64_t j = 0;
  for (; j + 4 <= n_ids; j += 4) {
    const Weight *a = weight + ids[j] * stride, *b = weight + ids[j + 1] * stride, *c = weight + ids[j + 2] * stride,
                 *d = weight + ids[j + 3] * stride;
    for (int k = 0; k < n; k += vector_width)
      store(current + k, (((load(current + k) + load(a + k)) + load(b + k)) + load(c + k)) + load(d + k));
  }
  for (; j < n_ids; ++j) {
    const Weight* row = weight + ids[j] * stride;
    for (int k = 0; k < n; k += vector_width) store(current + k, load(current + k) + load(row + k));
  }
}

template <class Weight, class Id>
[[gnu::noinline]] void deliver_graded_rows(float* current, const Weight* weight, int n, const Id* ids,
                                           const float* values, std::int64_t n_ids) {
  for (std::int64_t j = 0; j < n_ids; ++j) {
    const Weight* row = weight + ids[j] * static_cast<std::size_t>(n);
    const Vector value = broadcast(values[j]);
    for (int k = 0; k < n; k += vector_width) store(current + k, load(current + k) + value * load(row + k));
  }
}

}  // namespace sparsesnn::SPARSESNN_ISA
