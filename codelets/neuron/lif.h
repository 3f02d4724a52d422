// Leaky integrate-and-fire.
//
//   v ← ρ(v) + g·i
//   ρ(v)     subtract β·v - θ·s,  with decay β·(v - θ·s),  zero β·v·(1 - s),  none β·v
//
//   δ[t] = γ·δ[t+1] + q                       δ = ∂L/∂v,  γ = ∂ρ/∂v, and ∂ρ/∂s·σ' unless the reset is detached
//   ∂L/∂i = g·δ
//
// Cost: 4 to 6 flops a step forward, 2 or 3 backward.
#pragma once

#include "neuron.h"

namespace sparsesnn::SPARSESNN_ISA {

// ρ, the rest of the previous step's potential, and its derivatives; models with another current share it.
template <Reset reset>
struct Membrane {
  static constexpr bool adds_q = reset != Reset::zero, reads_x = reset == Reset::zero;

  template <class V, class B, class T, class S>
  static auto rho(const V& v, const B& beta, const T& theta, S s) {
    if constexpr (reset == Reset::subtract) return beta * v - where(s, theta);
    if constexpr (reset == Reset::subtract_decays) return beta * (v - where(s, theta));
    if constexpr (reset == Reset::zero) return beta * (v - where(s, v));
    if constexpr (reset == Reset::none) return beta * v;
  }

  // δ[t] from δ[t+1] of a listed neuron; adds the part through σ' to `by_spike`.
  template <class F>
  static F listed(F delta, F beta, F theta, const At<F>& at, F& by_spike) {
    F gamma = beta, by_s = F(0);  // ∂ρ/∂v, ∂ρ/∂s
    if constexpr (reset == Reset::subtract) by_s = -theta;
    if constexpr (reset == Reset::subtract_decays) by_s = -beta * theta;
    if constexpr (reset == Reset::zero) gamma = beta - where(at.s, beta), by_s = -beta * at.x;
    const F from_reset = at.through * by_s * at.sigma;
    by_spike = at.q + from_reset * delta;
    return (gamma + from_reset) * delta + at.q;
  }

  template <class F>
  static F by_beta(F v, F theta, Fired<F> s) {
    if constexpr (reset == Reset::subtract_decays) return v - where(s, theta);
    if constexpr (reset == Reset::zero) return v - where(s, v);
    return v;
  }

  template <class F>
  static F by_threshold(F beta, Fired<F> s) {
    if constexpr (reset == Reset::subtract) return -where(s, F(1));
    if constexpr (reset == Reset::subtract_decays) return -where(s, beta);
    return F(0);
  }
};

constexpr const char* lif_name(Reset reset) {
  return reset == Reset::subtract          ? "lif.subtract"
         : reset == Reset::subtract_decays ? "lif.subtract_decays"
         : reset == Reset::zero            ? "lif.zero"
                                           : "lif.none";
}

template <Reset reset>
struct Lif {
  using M = Membrane<reset>;
  static constexpr const char* name = lif_name(reset);
  static constexpr const char* state_names[] = {"v"};
  static constexpr const char* parameter_names[] = {"beta", "threshold"};
  static constexpr int n_states = 1, n_parameters = 2, n_constants = 1;
  static constexpr Index<0> v{}, beta{}, gain{};
  static constexpr Index<1> threshold{};
  static constexpr bool adds_q = M::adds_q, reads_x = M::reads_x, feeds_spikes = false;
  static constexpr bool fused = reset != Reset::zero;

  template <class Z, class P, class C, class R, class S, class I>
  static void step(Z* z, const P& p, const C* c, R reset_by, S, const I& i) {
    z[v] = M::rho(z[v], p[beta], p[threshold], reset_by) + c[gain] * i;
  }

  template <class F>
  static void adjoint(F* d, const F* p, const F*) {
    d[v] = p[beta] * d[v];
  }

  template <class F>
  static void adjoint(F* d, const F* p, const F*, F q) {
    d[v] = p[beta] * d[v] + q;
  }

  template <class F>
  static F adjoint(F* d, const F* p, const F*, const At<F>& at) {
    F by_spike;
    d[v] = M::listed(d[v], p[beta], p[threshold], at, by_spike);
    return by_spike;
  }

  template <class F>
  static F d_current(const F* d, const F*, const F* c) {
    return c[gain] * d[v];
  }

  template <class F>
  static F by_parameter(int k, const F* d, const F* z, const F* p, const F*, Fired<F> s, F) {
    return d[v] * (k == beta ? M::by_beta(z[v], p[threshold], s) : M::by_threshold(p[beta], s));
  }
};

}  // namespace sparsesnn::SPARSESNN_ISA
