// Gradient of step, for one tile at one step and sample (a row), of any shape (codelets/neuron.h).
//
//   d ← adjoint(d)           d = ∂L/∂z, backward over t; listed neurons differ from the others
//   ∂L/∂i = d_current(d)
//
// Rows of numbers mark the listed neurons, and are 0 elsewhere, so that one loop computes all neurons, a vector at a
// time. Cost: that of the shape's adjoint over the row.
#pragma once

#include "codelets/neuron.h"
#include "simd.h"
#include "step.h"

namespace sparsesnn::SPARSESNN_ISA {

// The running gradients of a tile's neurons (of one sample); the entries of all neurons, and the tile's first one.
template <class M>
struct TileGrads {
  float* d[M::n_states];
  const float* const* entries;
  std::size_t first;
};

// Rows of W numbers a neuron: of a listed one, and one that fired but was dropped (q = σ' = 0).
template <int W>
struct ListedRows {
  alignas(64) float q[W] = {}, sigma[W] = {}, fired[W] = {}, x[W] = {};

  void put(int k, float q_k, float sigma_k, bool fired_k, float x_k) {
    q[k] = q_k, sigma[k] = sigma_k, fired[k] = fired_k ? 1.0f : 0.0f, x[k] = x_k;
  }
  void clear(int k) { q[k] = sigma[k] = fired[k] = x[k] = 0.0f; }
};

// All neurons of a tile; `adjoint(k, d, p)` computes a vector of them from k on. d_current: written; `copy`, if not
// null, gets the same.
template <class M, int W, class Adjoint>
inline void grad_all(const TileGrads<M>& n, float* d_current, float* copy, Adjoint&& adjoint) {
  for (int k = 0; k < W; k += vector_width) {
    Vector d[M::n_states], p[M::n_entries];
    for (int s = 0; s < M::n_states; ++s) d[s] = load(n.d[s] + k);
    load_entries<M>(p, n.entries, n.first + k);
    adjoint(k, d, p);
    for (int s = 0; s < M::n_states; ++s) store(n.d[s] + k, d[s]);
    const Vector by_current = M::d_current(d, p);
    store(d_current + k, by_current);
    if (copy) store(copy + k, by_current);
  }
}

// d_current and `copy` as above.
template <class M, int W>
inline void grad_row(const TileGrads<M>& n, float* d_current, float* copy, const ListedRows<W>& listed, bool detached) {
  const auto at = [&](int k) SPARSESNN_INLINE {
    return At<Vector>{Fired<Vector>::of(load(listed.fired + k), Vector{}), load(listed.sigma + k), load(listed.q + k),
                      load(listed.x + k), broadcast(1.0f)};
  };
  if (detached)
    grad_all<M, W>(n, d_current, copy, [&](int k, Vector* d, const Vector* p) SPARSESNN_INLINE {
      M::template pull<true, false>(d, p, at(k));
    });
  else
    grad_all<M, W>(n, d_current, copy, [&](int k, Vector* d, const Vector* p) SPARSESNN_INLINE {
      M::template pull<true, true>(d, p, at(k));
    });
}

// If listing adds q alone, which is 0 for an unlisted neuron; `d_current` may be `q`. `copy` as above.
template <class M, int W>
inline void grad_row(const TileGrads<M>& n, const float* q, float* d_current, float* copy) {
  grad_all<M, W>(n, d_current, copy,
                 [q](int k, Vector* d, const Vector* p) SPARSESNN_INLINE { M::adjoint(d, p, load(q + k)); });
}

}  // namespace sparsesnn::SPARSESNN_ISA
