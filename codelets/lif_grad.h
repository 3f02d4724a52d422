// Gradient of step, for one sample and `n` neurons, a multiple of 16.
//
//   δ[t] = γ(t)·δ[t+1] + q[t] at listed neurons,  δ[t] = β·δ[t+1] elsewhere         δ = ∂L/∂v,  q = σ'·e
//   LIF      ∂L/∂i = g·δ              CubaLIF    ∂L/∂i_syn ← α·∂L/∂i_syn + g·δ,  ∂L/∂i = ∂L/∂i_syn
//
// d_v, d_i_syn: running over t, backwards. d_current: written; `copy`, if not null, gets the same.
// Cost: one pass over N plus the listed slots.
#pragma once

#include "simd.h"

namespace sparsesnn::SPARSESNN_ISA {

inline void decay_all(float* d_v, const float* beta, int n) {
  for (int k = 0; k < n; k += vector_width) store(d_v + k, load(d_v + k) * load(beta + k));
}

inline void current_grad(float* d_current, float* copy, const float* d_v, float* d_i_syn, const float* alpha,
                         float gain, int n) {
  const Vector g = broadcast(gain);
  for (int k = 0; k < n; k += vector_width) {
    Vector d = g * load(d_v + k);
    if (d_i_syn) {
      d += load(alpha + k) * load(d_i_syn + k);
      store(d_i_syn + k, d);
    }
    store(d_current + k, d);
    if (copy) store(copy + k, d);
  }
}

// One row of one tile where no neuron's γ differs from β. row: in, q (0 where not listed); out, ∂L/∂i.
template <int W>
inline void step_grad(float* row, float* d_v, float* d_i_syn, const float* alpha, const float* beta, float gain) {
  const Vector g = broadcast(gain);
  for (int k = 0; k < W; k += vector_width) {
    const Vector v = load(beta + k) * load(d_v + k) + load(row + k);
    store(d_v + k, v);
    Vector d = g * v;
    if (d_i_syn) {
      d += load(alpha + k) * load(d_i_syn + k);
      store(d_i_syn + k, d);
    }
    store(row + k, d);
  }
}

}  // namespace sparsesnn::SPARSESNN_ISA
