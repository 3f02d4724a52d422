// Adaptive leaky integrate-and-fire: spikes and the potential feed a second state w, which pulls the potential down.
//
//   order symplectic   r = reset(v, s) ;   w ← ρ·w + (1-ρ)·q·(a·r + b·s) ;   v ← β·r + (1-β)·(g·i - w)
//   order explicit     r = reset(v, s) ;   v ← β·r + (1-β)·(g·i - w) ;       w ← ρ·w + (1-ρ)·q·(a·r + b·s)
//   order sparch       w ← ρ·w + (1-ρ)·q·(a·v + b·s) ;   v ← β·(v - θ·s) + (1-β)·(g·i - w)
//
//   reset  zero v·(1 - s),  subtract v - θ·s
//
// Symplectic: v reads the new w. The state w is that of the step before, so that a step first completes it.
// Sources: Baronig et al. 2025 (symplectic, explicit); Bittar & Garner 2022 (sparch, here with the scale (1-ρ)·q).
//
// d[w] includes the gradient through v in the same step, if v reads the new w.
// Cost: about 14 flops a step forward, 12 backward.
#pragma once

#include "neuron.h"

namespace sparsesnn::SPARSESNN_ISA {

enum class Order { symplectic, explicit_, sparch };

constexpr const char* ad_lif_name(Order order, Reset reset) {
  if (order == Order::sparch) return "ad_lif.sparch";
  if (order == Order::symplectic) return reset == Reset::zero ? "ad_lif.symplectic.zero" : "ad_lif.symplectic.subtract";
  return reset == Reset::zero ? "ad_lif.explicit.zero" : "ad_lif.explicit.subtract";
}

template <Order order, Reset reset>
struct AdLif {
  static constexpr const char* name = ad_lif_name(order, reset);
  static constexpr const char* state_names[] = {"v", "w"};
  static constexpr const char* parameter_names[] = {"beta", "rho", "a", "b", "threshold"};
  static constexpr int n_states = 2, n_parameters = 5, n_constants = 2;
  static constexpr Index<0> v{}, beta{}, gain{};
  static constexpr Index<1> w{}, rho{}, q{};
  static constexpr Index<2> a{};
  static constexpr Index<3> b{};
  static constexpr Index<4> threshold{};
  static constexpr bool adds_q = false, reads_x = reset == Reset::zero, feeds_spikes = true, fused = false;

  template <class V, class T, class S>
  static auto after_reset(const V& x, const T& theta, S s) {
    if constexpr (reset == Reset::zero)
      return x - where(s, x);
    else
      return x - where(s, theta);
  }

  template <class Z, class P, class C, class R, class S, class I>
  static void step(Z* z, const P& p, const C* c, R reset_by, S spike, const I& i) {
    const Z r = after_reset(z[v], p[threshold], reset_by), w_before = z[w];
    if constexpr (order == Order::sparch)
      z[w] = p[rho] * z[w] + one_minus(p[rho]) * c[q] * (p[a] * z[v] + where(spike, p[b]));
    else
      z[w] = p[rho] * z[w] + one_minus(p[rho]) * c[q] * (p[a] * r + where(spike, p[b]));
    if constexpr (order == Order::explicit_)
      z[v] = p[beta] * r + one_minus(p[beta]) * (c[gain] * i - w_before);
    else
      z[v] = p[beta] * r + one_minus(p[beta]) * (c[gain] * i - z[w]);
  }

  // ∂L/∂v through r (for sparch, through v itself), and from a spike through w.
  template <class F>
  struct Back {
    F r, spike;

    Back(const F* d, const F* p, const F* c) {
      const F scale = one_minus(p[rho]) * c[q] * d[w];
      r = p[beta] * d[v] + scale * p[a];
      spike = scale * p[b];
    }
  };

  // d[w] from its value before, and from d[v] before and after.
  template <class F>
  static void pull_w(F* d, const F* p, F d_v_before) {
    d[w] = p[rho] * d[w] - one_minus(p[beta]) * (order == Order::explicit_ ? d_v_before : d[v]);
  }

  template <class F>
  static void adjoint(F* d, const F* p, const F* c) {
    const F before = d[v];
    d[v] = Back<F>(d, p, c).r;
    pull_w(d, p, before);
  }

  template <class F>
  static F adjoint(F* d, const F* p, const F* c, const At<F>& at) {
    const F before = d[v];
    const Back<F> back(d, p, c);
    F kept = back.r, by_reset;
    if constexpr (order == Order::sparch)
      by_reset = -p[threshold] * (p[beta] * before);
    else if constexpr (reset == Reset::zero)
      kept = back.r - where(at.s, back.r), by_reset = -at.x * back.r;
    else
      by_reset = -p[threshold] * back.r;
    const F by_spike = at.q + at.sigma * (back.spike + at.through * by_reset);
    d[v] = kept + by_spike;
    pull_w(d, p, before);
    return by_spike;
  }

  template <class F>
  static F d_current(const F* d, const F* p, const F* c) {
    return one_minus(p[beta]) * c[gain] * d[v];
  }

  template <class F>
  static F by_parameter(int k, const F* d, const F* z, const F* p, const F* c, Fired<F> s, F i) {
    const F r = after_reset(z[v], p[threshold], s), read = order == Order::sparch ? z[v] : r;
    const F inner = p[a] * read + where(s, p[b]), scale = one_minus(p[rho]) * c[q];
    const F w_read = order == Order::explicit_ ? z[w] : p[rho] * z[w] + scale * inner;
    if (k == beta) return d[v] * (r - (c[gain] * i - w_read));
    if (k == rho) return d[w] * (z[w] - c[q] * inner);
    if (k == a) return d[w] * scale * read;
    if (k == b) return where(s, d[w] * scale);
    if (reset == Reset::zero) return F(0);
    return -where(s, order == Order::sparch ? p[beta] * d[v] : p[beta] * d[v] + d[w] * scale * p[a]);
  }
};

}  // namespace sparsesnn::SPARSESNN_ISA
