// Gradients of deliver, list by list, for one tile whose weights and their gradient stay in cache: a row (t, b) of
// ∂L/∂i stays in registers while the list that arrived then is processed.
//
//   d_value[m] = Σ_n weight[m, n]·d_current[n]     of each m that is listed, spike or near-spike
//   sum[m, n] += d_current[n]                      of each m that fired; times value if lists are graded
//
// Nothing is sorted. Given the rows of a group of samples in the order of deliver_grad.h, the bits are the same.
//
// weight, sum: [M, W], rows padded to the tile; `sum` belongs to the caller's thread. d_value: in the order of the
// lists. Cost: 4·W bytes read for each listed neuron, 8·W read and written for each spike, all in cache.
#pragma once

#include "deliver_grad.h"

namespace sparsesnn::SPARSESNN_ISA {

// A list with the row that it is multiplied by. weight (with `dots`) and sum may be null: not computed.
template <int W, bool graded, class Id>
inline void deliver_grad_list(const float* d_current, const Id* ids, std::int64_t n_spikes, std::int64_t n_listed,
                              const float* values, const float* weight, float* sum, PendingDots& dots) {
  constexpr int n_vectors = W / vector_width;
  Vector d[n_vectors];
  for (int k = 0; k < n_vectors; ++k) d[k] = load(d_current + k * vector_width);
  const auto add_dot = [&](std::size_t row) {
    Vector w[n_vectors];
    for (int k = 0; k < n_vectors; ++k) w[k] = load(weight + row + k * vector_width);
    dots.add(dot<W>(w, d));
  };
  for (std::int64_t j = 0; j < n_spikes; ++j) {
    const std::size_t row = static_cast<std::size_t>(ids[j]) * W;
    if (weight) add_dot(row);
    if (!sum) continue;
    float* const to = sum + row;
    for (int k = 0; k < n_vectors; ++k) {
      const Vector before = load(to + k * vector_width);
      if constexpr (graded)
        store(to + k * vector_width, before + broadcast(values[j]) * d[k]);
      else
        store(to + k * vector_width, before + d[k]);
    }
  }
  if (!weight) return;
  for (std::int64_t j = n_spikes; j < n_listed; ++j) add_dot(static_cast<std::size_t>(ids[j]) * W);
}

}  // namespace sparsesnn::SPARSESNN_ISA
