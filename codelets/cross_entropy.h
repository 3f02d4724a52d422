// The cross-entropy of one row of logits and its gradient, as defined in sparsesnn/loss.py.
//
//   most = max logits     exps[c] = e^(logits[c] - most)     loss = Σ_c target[c]·(ln Σ exps - (logits[c] - most))
//   ∂loss/∂logits[c] = exps[c] / Σ exps · Σ target - target[c]
//
// Plain arithmetic in double precision without functions of a library, rounded once at the end: the same bits on every
// machine. Sums run over the classes, ascending. A row is anything that `[c]` reads; `target(c)` is the target of class
// c. The tiles of an IPU have no double precision: ipu/loss.cpp is their loss.
//
// Cost a class: about 50 operations in the loss, 20 more in the gradient.
#pragma once

#include "number.h"

namespace sparsesnn::SPARSESNN_ISA {

// A number as its bits, and back.
#ifdef __CUDACC__
inline unsigned long long bits_of(double x) { return static_cast<unsigned long long>(__double_as_longlong(x)); }
inline double number_of(unsigned long long bits) { return __longlong_as_double(static_cast<long long>(bits)); }
#else
inline unsigned long long bits_of(double x) {
  unsigned long long bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline double number_of(unsigned long long bits) {
  double x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}
#endif

// e^(x - most), x not above `most`; NaN stays NaN. x - most = k ln 2 + r, and the series of e^r, whose remainder is
// below 2^-56; 0 below -708. Without branches or loops, so that compilers vectorize a loop over it.
inline double exp_below(float x, double most) {
  constexpr double magic = 0x1.8p52, log2_e = 0x1.71547652b82fep0, ln2_high = 0x1.62e42fefap-1,
                   ln2_low = 0x1.cf79abc9e3b3ap-40;
  const double y = x - most, shifted = y * log2_e + magic, k = shifted - magic;
  const double r = (y - k * ln2_high) - k * ln2_low;
  double sum = 1.0 / 6227020800;
  sum = sum * r + 1.0 / 479001600;
  sum = sum * r + 1.0 / 39916800;
  sum = sum * r + 1.0 / 3628800;
  sum = sum * r + 1.0 / 362880;
  sum = sum * r + 1.0 / 40320;
  sum = sum * r + 1.0 / 5040;
  sum = sum * r + 1.0 / 720;
  sum = sum * r + 1.0 / 120;
  sum = sum * r + 1.0 / 24;
  sum = sum * r + 1.0 / 6;
  sum = sum * r + 1.0 / 2;
  sum = sum * r + 1.0;
  sum = sum * r + 1.0;
  const double product = sum * number_of((bits_of(shifted) + 1023) << 52);  // 2^k: `shifted` ends in k
  const double otherwise = y != y ? y : 0.0;
  return y >= -708.0 ? product : otherwise;
}

// ln x for x >= 1: x = 2^e m, and 2 artanh((m - 1) / (m + 1)).
inline double log_of_sum(double x) {
  if (!(x < 0x1p1000)) return x;
  const unsigned long long bits = bits_of(x);
  int e = static_cast<int>(bits >> 52) - 1023;
  double m = number_of((bits & 0x000fffffffffffff) | 0x3ff0000000000000);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++e;
  }
  const double f = (m - 1.0) / (m + 1.0), f2 = f * f;
  double sum = 0.0;
  for (int k = 21; k > 0; k -= 2) sum = sum * f2 + 1.0 / k;
  return e * 0x1.62e42fefa39efp-1 + 2.0 * f * sum;
}

// The largest logit; NaN if there is one.
template <class Row>
inline float largest(const Row& logits, int n_classes) {
  float most = logits[0];
  for (int c = 1; c < n_classes; ++c) {
    const float x = logits[c];
    most = x > most || x != x ? x : most;
  }
  return most;
}

// The target of a class that has `share` of the sample: 1 if it is the label. class_weight: 1 if there are none.
inline double target_of(double share, double label_smoothing, int n_classes, double class_weight) {
  return class_weight * (share * (1.0 - label_smoothing) + label_smoothing / n_classes);
}

template <class Row, class Exps, class Target>
inline double row_loss(const Row& logits, const Exps& exps, int n_classes, double most, Target target) {
  double sum = 0.0, loss = 0.0;
  for (int c = 0; c < n_classes; ++c) sum += exps[c];
  const double log_sum = log_of_sum(sum);
  // a class without a share adds nothing, even if its logit is -infinity
  for (int c = 0; c < n_classes; ++c)
    if (const double share = target(c)) loss += share * (log_sum - (logits[c] - most));
  return sum != sum ? sum : loss;
}

// d_logits[c] ← scale · ∂loss/∂logits[c].
template <class Exps, class Target, class Gradient>
inline void row_gradient(const Exps& exps, int n_classes, double scale, Target target, Gradient& d_logits) {
  double sum = 0.0, shares_sum = 0.0;
  for (int c = 0; c < n_classes; ++c) {
    sum += exps[c];
    shares_sum += target(c);
  }
  for (int c = 0; c < n_classes; ++c)
    d_logits[c] = static_cast<float>(scale * (exps[c] / sum * shares_sum - target(c)));
}

}  // namespace sparsesnn::SPARSESNN_ISA
