// One step of Adam (Kingma & Ba 2015), or of AdamW (Loshchilov & Hutter 2019), on n parameters.
//
//   AdamW  w ← w - lr·λ·w          Adam  d ← d + λ·w                        λ = weight decay
//   m ← m + (1-β1)·(d - m)         s ← β2·s + (1-β2)·d²
//   w ← w - (lr/c1)·m / (√s/√c2 + ε)                                        c1 = 1-β1^step, c2 = 1-β2^step
//
// The last fraction is multiplied by √c2 above and below, which leaves one division.
// w, m, s: read and written; d: ∂L/∂w, read. No aliasing. Element-wise, so no order of sums. Cost: 16 bytes in, 12 out.
#pragma once

#include "records.h"
#include "simd.h"

namespace sparsesnn::SPARSESNN_ISA {

inline Vector adam_vector(Vector w, Vector d, Vector& m, Vector& s, const AdamStep& a) {
  if (a.decoupled)
    w -= broadcast(a.lr * a.weight_decay) * w;
  else if (a.weight_decay != 0.0f)
    d += broadcast(a.weight_decay) * w;
  m += broadcast(a.one_minus_beta1) * (d - m);
  s = broadcast(a.beta2) * s + broadcast(a.one_minus_beta2) * d * d;
  return w - broadcast(a.step_size) * m / (square_root(s) + broadcast(a.eps));
}

inline void adam(float* w, float* m, float* s, const float* d, std::size_t n, const AdamStep& a) {
  std::size_t k = 0;
  for (; k + vector_width <= n; k += vector_width) {
    Vector m_new = load(m + k), s_new = load(s + k);
    store(w + k, adam_vector(load(w + k), load(d + k), m_new, s_new, a));
    store(m + k, m_new);
    store(s + k, s_new);
  }
  if (k == n) return;
  float rest[4][vector_width] = {};  // the last numbers, padded with zeros to a vector
  const std::size_t n_bytes = (n - k) * sizeof(float);
  const float* from[4] = {w + k, d + k, m + k, s + k};
  for (int i = 0; i < 4; ++i) std::memcpy(rest[i], from[i], n_bytes);
  Vector m_new = load(rest[2]), s_new = load(rest[3]);
  store(rest[0], adam_vector(load(rest[0]), load(rest[1]), m_new, s_new, a));
  store(rest[2], m_new);
  store(rest[3], s_new);
  std::memcpy(w + k, rest[0], n_bytes);
  std::memcpy(m + k, rest[2], n_bytes);
  std::memcpy(s + k, rest[3], n_bytes);
}

}  // namespace sparsesnn::SPARSESNN_ISA
