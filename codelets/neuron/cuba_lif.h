// Leaky integrate-and-fire with a synaptic current.
//
//   i_syn ← α·i_syn + i ;   v ← ρ(v) + g·i_syn                          ρ: see lif.h
//
//   δ[t] as in lif.h ;   ∂L/∂i = d[i_syn] ← α·d[i_syn] + g·δ[t]
//
// Cost: 6 to 8 flops a step forward, 4 or 5 backward.
#pragma once

#include "lif.h"

namespace sparsesnn::SPARSESNN_ISA {

constexpr const char* cuba_lif_name(Reset reset) {
  return reset == Reset::subtract          ? "cuba_lif.subtract"
         : reset == Reset::subtract_decays ? "cuba_lif.subtract_decays"
         : reset == Reset::zero            ? "cuba_lif.zero"
                                           : "cuba_lif.none";
}

template <Reset reset>
struct CubaLif {
  using M = Membrane<reset>;
  static constexpr const char* name = cuba_lif_name(reset);
  static constexpr const char* state_names[] = {"v", "i_syn"};
  static constexpr const char* parameter_names[] = {"beta", "alpha", "threshold"};
  static constexpr int n_states = 2, n_parameters = 3, n_constants = 1;
  static constexpr Index<0> v{}, beta{}, gain{};
  static constexpr Index<1> i_syn{}, alpha{};
  static constexpr Index<2> threshold{};
  static constexpr bool adds_q = M::adds_q, reads_x = M::reads_x, feeds_spikes = false, fused = false;

  template <class Z, class P, class C, class R, class S, class I>
  static void step(Z* z, const P& p, const C* c, R reset_by, S, const I& i) {
    z[i_syn] = p[alpha] * z[i_syn] + i;
    z[v] = M::rho(z[v], p[beta], p[threshold], reset_by) + c[gain] * z[i_syn];
  }

  template <class F>
  static void adjoint(F* d, const F* p, const F* c) {
    d[v] = p[beta] * d[v];
    d[i_syn] = p[alpha] * d[i_syn] + c[gain] * d[v];
  }

  template <class F>
  static void adjoint(F* d, const F* p, const F* c, F q) {
    d[v] = p[beta] * d[v] + q;
    d[i_syn] = p[alpha] * d[i_syn] + c[gain] * d[v];
  }

  template <class F>
  static F adjoint(F* d, const F* p, const F* c, const At<F>& at) {
    F by_spike;
    d[v] = M::listed(d[v], p[beta], p[threshold], at, by_spike);
    d[i_syn] = p[alpha] * d[i_syn] + c[gain] * d[v];
    return by_spike;
  }

  template <class F>
  static F d_current(const F* d, const F*, const F*) {
    return d[i_syn];
  }

  template <class F>
  static F by_parameter(int k, const F* d, const F* z, const F* p, const F*, Fired<F> s, F) {
    if (k == alpha) return d[i_syn] * z[i_syn];
    return d[v] * (k == beta ? M::by_beta(z[v], p[threshold], s) : M::by_threshold(p[beta], s));
  }
};

}  // namespace sparsesnn::SPARSESNN_ISA
