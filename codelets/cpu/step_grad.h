// Gradient of step, for one tile at one step and sample (a row), of any model (neuron/neuron.h).
//
//   d ← adjoint(d)           d = ∂L/∂z, backward over t; listed neurons differ from the others
//   ∂L/∂i = d_current(d)
//
// All neurons are computed at once as if none were listed; listed ones are then recomputed one by one from their values
// before. Cost: that of the model's adjoint over the row, and as much for each listed neuron.
#pragma once

#include "codelets/neuron/neuron.h"
#include "simd.h"

namespace sparsesnn::SPARSESNN_ISA {

// A model's running gradients, parameters and constants, for a tile (and sample).
template <class M>
struct TileGrads {
  float* d[M::n_states];
  const float* parameter[M::n_parameters];
  float constant[M::n_constants];
};

// A listed neuron of a tile, or one that fired but found no slot: q = sigma = 0.
struct ListedNeuron {
  int k;
  At<float> at;
};

// All neurons of a tile; `adjoint(k, d, p, c)` computes a vector of them from k on. d_current: written; `copy`, if not
// null, gets the same.
template <class M, int W, class Adjoint>
inline void grad_all(const TileGrads<M>& n, float* d_current, float* copy, Adjoint&& adjoint) {
  Vector c[M::n_constants];
  for (int j = 0; j < M::n_constants; ++j) c[j] = broadcast(n.constant[j]);
  for (int k = 0; k < W; k += vector_width) {
    Vector d[M::n_states], p[M::n_parameters];
    for (int s = 0; s < M::n_states; ++s) d[s] = load(n.d[s] + k);
    for (int q = 0; q < M::n_parameters; ++q) p[q] = load(n.parameter[q] + k);
    adjoint(k, d, p, c);
    for (int s = 0; s < M::n_states; ++s) store(n.d[s] + k, d[s]);
    const Vector by_current = M::d_current(d, p, c);
    store(d_current + k, by_current);
    if (copy) store(copy + k, by_current);
  }
}

// d_current and `copy` as above.
template <class M, int W>
inline void grad_row(const TileGrads<M>& n, float* d_current, float* copy, const ListedNeuron* listed, int n_listed) {
  float before[W][M::n_states];
  for (int j = 0; j < n_listed; ++j)
    for (int s = 0; s < M::n_states; ++s) before[j][s] = n.d[s][listed[j].k];
  grad_all<M, W>(n, d_current, copy, [](int, Vector* d, Vector* p, Vector* c) { M::adjoint(d, p, c); });
  for (int j = 0; j < n_listed; ++j) {
    const int k = listed[j].k;
    float* d = before[j];
    float p[M::n_parameters];
    for (int q = 0; q < M::n_parameters; ++q) p[q] = n.parameter[q][k];
    M::adjoint(d, p, n.constant, listed[j].at);
    for (int s = 0; s < M::n_states; ++s) n.d[s][k] = d[s];
    d_current[k] = M::d_current(d, p, n.constant);
    if (copy) copy[k] = d_current[k];
  }
}

// For models to which listing adds q alone, which is 0 for an unlisted neuron; `d_current` may be `q`. `copy` as above.
template <class M, int W>
inline void grad_row(const TileGrads<M>& n, const float* q, float* d_current, float* copy) {
  grad_all<M, W>(n, d_current, copy, [q](int k, Vector* d, Vector* p, Vector* c) { M::adjoint(d, p, c, load(q + k)); });
}

}  // namespace sparsesnn::SPARSESNN_ISA
