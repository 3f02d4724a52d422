// The dense passes over a block of neurons of one sample, compiled once per instruction set.
//
// Plain loops over neurons, which the compiler turns into vectors: every neuron does the same, nothing is gathered.
// Cost a neuron and step: forward about 8 flops on 2 to 4 values of memory, backward about 20 on 4 to 6.
#include "dense_lif.h"

#ifndef SPARSESNN_ISA
#define SPARSESNN_ISA base
#endif

// Says that no iteration of the loop reads what another wrote, which the compiler cannot know of our pointers.
#if defined(__clang__)
#define SPARSESNN_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define SPARSESNN_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace sparsesnn::SPARSESNN_ISA {
namespace {

// Neurons a block at most, so that the rows in work stay in the first-level cache.
constexpr int max_block = 1024;

inline float exp_of(float x) { return __builtin_expf(x); }
inline double exp_of(double x) { return __builtin_exp(x); }
inline float abs_of(float x) { return __builtin_fabsf(x); }
inline double abs_of(double x) { return __builtin_fabs(x); }

template <class F>
inline std::size_t row(const DensePopulation<F>& p, int t, int sample) {
  return (static_cast<std::size_t>(t) * p.n_samples + sample) * p.n;
}

// out[k] = σ'(v[k] - θ[k]) where the neuron is listed (v > θ_grad, or it fired), else 0.
template <class F, int kind>
void surrogate_row(F slope, const F* v, const F* theta, const F* theta_grad, F* out, int n) {
  SPARSESNN_INDEPENDENT
  for (int k = 0; k < n; ++k) {
    const F x = v[k] - theta[k];
    F y = 1;  // straight-through
    if constexpr (kind == 0) {
      const F z = slope * abs_of(x) + F(1);
      y = F(1) / (z * z);
    } else if constexpr (kind == 2) {
      const F e = exp_of(-slope * abs_of(x));  // σ' is even; this side cannot overflow
      y = slope * e / ((F(1) + e) * (F(1) + e));
    } else if constexpr (kind == 3) {
      const F z = F(1.57079632679489661923) * slope * x;
      y = slope * F(0.5) / (F(1) + z * z);
    } else if constexpr (kind == 4) {
      const F z = F(1) - slope * abs_of(x);
      y = z > F(0) ? z : F(0);
    } else if constexpr (kind == 5) {
      y = abs_of(x) < F(0.5) / slope ? slope : F(0);
    }
    out[k] = (v[k] > theta_grad[k]) | (v[k] > theta[k]) ? y : F(0);
  }
}

template <class F>
void listed_surrogate(const DensePopulation<F>& p, const F* v, int n0, F* out, int n) {
  const F *theta = p.threshold + n0, *theta_grad = p.grad_threshold + n0;
  switch (p.surrogate) {
    case 0:
      return surrogate_row<F, 0>(p.slope, v, theta, theta_grad, out, n);
    case 1:
      return surrogate_row<F, 1>(p.slope, v, theta, theta_grad, out, n);
    case 2:
      return surrogate_row<F, 2>(p.slope, v, theta, theta_grad, out, n);
    case 3:
      return surrogate_row<F, 3>(p.slope, v, theta, theta_grad, out, n);
    case 4:
      return surrogate_row<F, 4>(p.slope, v, theta, theta_grad, out, n);
    default:
      return surrogate_row<F, 5>(p.slope, v, theta, theta_grad, out, n);
  }
}

// The part of v[t] that comes from v[t-1].
template <class F, Reset reset>
inline F rho(F v, F beta, F theta) {
  const bool fired = v > theta;
  if constexpr (reset == Reset::subtract) return beta * v - (fired ? theta : F(0));
  if constexpr (reset == Reset::subtract_decays) return beta * (v - (fired ? theta : F(0)));
  if constexpr (reset == Reset::zero) return beta * (fired ? F(0) : v);
  return beta * v;
}

template <class F, Reset reset, bool cuba>
void forward_block(const DensePopulation<F>& p, const DenseForward<F>& a, int sample, int n0, int n1) {
  const int n = n1 - n0;
  const F *beta = p.beta + n0, *theta = p.threshold + n0, *alpha = cuba ? p.alpha + n0 : nullptr;
  const F *scale = a.scale ? a.scale + n0 : nullptr, *shift = a.scale ? a.shift + n0 : nullptr;
  const std::size_t here = row(p, 0, sample) + n0;
  F* const v_end = a.v + here;
  F* const i_end = cuba ? a.i_syn + here : nullptr;
  const auto copy = [n](const F* from, F* to) {
    for (int k = 0; k < n; ++k) to[k] = from[k];
  };
  if (a.v_rows) copy(v_end, a.v_rows + here);
  if (a.i_syn_rows) copy(i_end, a.i_syn_rows + here);
  // The state moves from row to row where rows are kept, and in place where not.
  const F *v = v_end, *i_syn = i_end;
  for (int t = 0; t < p.n_steps; ++t) {
    const std::size_t at = row(p, t, sample) + n0, next = row(p, t + 1, sample) + n0;
    const F* current = a.current + at;
    F* v_next = a.v_rows ? a.v_rows + next : v_end;
    F* i_next = a.i_syn_rows ? a.i_syn_rows + next : i_end;
    SPARSESNN_INDEPENDENT
    for (int k = 0; k < n; ++k) {
      F i = scale ? scale[k] * current[k] + shift[k] : current[k];
      if constexpr (cuba) i = i_next[k] = alpha[k] * i_syn[k] + i;
      v_next[k] = rho<F, reset>(v[k], beta[k], theta[k]) + p.gain * i;
    }
    if (a.out) {
      F* out = a.out + at;
      SPARSESNN_INDEPENDENT
      for (int k = 0; k < n; ++k) out[k] = v_next[k] > theta[k] ? F(1) : F(0);
    }
    if (a.fired) {
      bool* fired = a.fired + at;
      SPARSESNN_INDEPENDENT
      for (int k = 0; k < n; ++k) fired[k] = v_next[k] > theta[k];
    }
    v = v_next;
    i_syn = i_next;
  }
  if (v != v_end) copy(v, v_end);
  if (cuba && i_syn != i_end) copy(i_syn, i_end);
}

template <class F>
void forward_readout(const DensePopulation<F>& p, const DenseForward<F>& a, int sample, int n0, int n1) {
  F* v = a.v + row(p, 0, sample);
  const auto copy_to = [&](F* rows, int t) {
    if (rows)
      for (int k = n0; k < n1; ++k) rows[row(p, t, sample) + k] = v[k];
  };
  copy_to(a.v_rows, 0);
  for (int t = 0; t < p.n_steps; ++t) {
    const F* current = a.current + row(p, t, sample);
    SPARSESNN_INDEPENDENT
    for (int k = n0; k < n1; ++k)
      v[k] = p.beta[k] * v[k] + p.gain * (a.scale ? a.scale[k] * current[k] + a.shift[k] : current[k]);
    copy_to(a.out, t);
    copy_to(a.v_rows, t + 1);
  }
}

template <class F, Reset reset, bool cuba>
void backward_block(const DensePopulation<F>& p, const DenseBackward<F>& a, int sample, int n0, int n1) {
  alignas(64) F sigma[max_block], by_threshold[max_block];
  const int n = n1 - n0;
  const F *beta = p.beta + n0, *theta = p.threshold + n0, *alpha = cuba ? p.alpha + n0 : nullptr;
  const std::size_t here = row(p, 0, sample) + n0;
  F* const delta = a.delta + here;
  F* const d_i = cuba ? a.d_i + here : nullptr;
  const F through = p.detach_reset ? F(0) : F(1);
  const auto sum = [here](F* total) { return total ? total + here : nullptr; };
  F *const d_bias = sum(a.d_bias), *const d_alpha = sum(a.d_alpha), *const d_beta = sum(a.d_beta),
           *const d_threshold = sum(a.d_threshold);
  for (int t = p.n_steps - 1; t >= 0; --t) {
    const std::size_t at = row(p, t, sample) + n0;
    const F* before = a.v_rows + at;                     // v[t-1]
    const F* v = a.v_rows + row(p, t + 1, sample) + n0;  // v[t]
    const F* d_out = a.d_out + at;
    F* d_current = a.d_current + at;
    listed_surrogate(p, v, n0, sigma, n);
    SPARSESNN_INDEPENDENT
    for (int k = 0; k < n; ++k) {
      const bool fired = v[k] > theta[k];
      F gamma = beta[k], by_spike = 0;  // ∂ρ/∂v and ∂ρ/∂s
      if constexpr (reset == Reset::zero) {
        gamma = fired ? F(0) : beta[k];
        by_spike = -beta[k] * v[k];
      } else if constexpr (reset == Reset::subtract) {
        by_spike = -theta[k];
      } else if constexpr (reset == Reset::subtract_decays) {
        by_spike = -beta[k] * theta[k];
      }
      const F from_reset = through * by_spike * sigma[k], q = sigma[k] * d_out[k], later = delta[k];
      by_threshold[k] = -(q + from_reset * later);
      const F now = (gamma + from_reset) * later + q;
      delta[k] = now;
      F d = p.gain * now;
      if constexpr (cuba) d = d_i[k] = alpha[k] * d_i[k] + d;
      d_current[k] = d;
    }
    if (d_bias) SPARSESNN_INDEPENDENT
    for (int k = 0; k < n; ++k) d_bias[k] += d_current[k];
    if (a.d_scale) {
      F* d_scale = a.d_scale + here;
      const F* current = a.current + at;
      SPARSESNN_INDEPENDENT
      for (int k = 0; k < n; ++k) d_scale[k] += d_current[k] * current[k];
    }
    if (cuba && d_alpha) {
      const F* i_before = a.i_syn_rows + at;
      SPARSESNN_INDEPENDENT
      for (int k = 0; k < n; ++k) d_alpha[k] += d_current[k] * i_before[k];
    }
    if (d_beta) SPARSESNN_INDEPENDENT
    for (int k = 0; k < n; ++k) {
      const bool fired = before[k] > theta[k];
      F by_beta = before[k];
      if constexpr (reset == Reset::zero) by_beta = fired ? F(0) : before[k];
      if constexpr (reset == Reset::subtract_decays) by_beta = fired ? before[k] - theta[k] : before[k];
      d_beta[k] += delta[k] * by_beta;
    }
    if (d_threshold) SPARSESNN_INDEPENDENT
    for (int k = 0; k < n; ++k) {
      const bool fired = before[k] > theta[k];
      F by_theta = 0;
      if constexpr (reset == Reset::subtract) by_theta = fired ? F(-1) : F(0);
      if constexpr (reset == Reset::subtract_decays) by_theta = fired ? -beta[k] : F(0);
      d_threshold[k] += by_threshold[k] + delta[k] * by_theta;
    }
  }
}

template <class F>
void backward_readout(const DensePopulation<F>& p, const DenseBackward<F>& a, int sample, int n0, int n1) {
  const std::size_t here = row(p, 0, sample);
  F* delta = a.delta + here;
  for (int t = p.n_steps - 1; t >= 0; --t) {
    const std::size_t at = row(p, t, sample);
    for (int k = n0; k < n1; ++k) {
      delta[k] = p.beta[k] * delta[k] + a.d_out[at + k];
      a.d_current[at + k] = p.gain * delta[k];
    }
    if (a.d_bias)
      for (int k = n0; k < n1; ++k) a.d_bias[here + k] += a.d_current[at + k];
    if (a.d_scale)
      for (int k = n0; k < n1; ++k) a.d_scale[here + k] += a.d_current[at + k] * a.current[at + k];
    if (a.d_beta)
      for (int k = n0; k < n1; ++k) a.d_beta[here + k] += delta[k] * a.v_rows[at + k];
  }
}

// Calls body<reset, cuba>; the choice is made once a block.
template <class F, bool cuba>
void forward_reset(const DensePopulation<F>& p, const DenseForward<F>& a, int sample, int n0, int n1) {
  switch (p.reset) {
    case Reset::subtract:
      return forward_block<F, Reset::subtract, cuba>(p, a, sample, n0, n1);
    case Reset::subtract_decays:
      return forward_block<F, Reset::subtract_decays, cuba>(p, a, sample, n0, n1);
    case Reset::zero:
      return forward_block<F, Reset::zero, cuba>(p, a, sample, n0, n1);
    case Reset::none:
      return forward_block<F, Reset::none, cuba>(p, a, sample, n0, n1);
  }
}

template <class F, bool cuba>
void backward_reset(const DensePopulation<F>& p, const DenseBackward<F>& a, int sample, int n0, int n1) {
  switch (p.reset) {
    case Reset::subtract:
      return backward_block<F, Reset::subtract, cuba>(p, a, sample, n0, n1);
    case Reset::subtract_decays:
      return backward_block<F, Reset::subtract_decays, cuba>(p, a, sample, n0, n1);
    case Reset::zero:
      return backward_block<F, Reset::zero, cuba>(p, a, sample, n0, n1);
    case Reset::none:
      return backward_block<F, Reset::none, cuba>(p, a, sample, n0, n1);
  }
}

template <class F>
void forward(const DensePopulation<F>& p, const DenseForward<F>& a, int sample, int n0, int n1) {
  if (p.model == Model::li) return forward_readout(p, a, sample, n0, n1);
  if (p.model == Model::lif) return forward_reset<F, false>(p, a, sample, n0, n1);
  return forward_reset<F, true>(p, a, sample, n0, n1);
}

template <class F>
void backward(const DensePopulation<F>& p, const DenseBackward<F>& a, int sample, int n0, int n1) {
  for (int first = n0; first < n1; first += max_block) {
    const int last = first + max_block < n1 ? first + max_block : n1;
    if (p.model == Model::li)
      backward_readout(p, a, sample, first, last);
    else if (p.model == Model::lif)
      backward_reset<F, false>(p, a, sample, first, last);
    else
      backward_reset<F, true>(p, a, sample, first, last);
  }
}

}  // namespace

extern const DenseKernels dense_kernels;
const DenseKernels dense_kernels{{forward<float>, backward<float>}, {forward<double>, backward<double>}};

}  // namespace sparsesnn::SPARSESNN_ISA
