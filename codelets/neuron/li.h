// Leaky integrator that never fires, a readout.
//
//   v ← β·v + g·i ;   δ[t] = β·δ[t+1] + ∂L/∂v[t] ;   ∂L/∂i = g·δ ;   ∂L/∂β += δ[t]·v[t-1]
#pragma once

#include "neuron.h"

namespace sparsesnn::SPARSESNN_ISA {

struct Li {
  static constexpr const char* name = "li";
  static constexpr const char* state_names[] = {"v"};
  static constexpr const char* parameter_names[] = {"beta"};
  static constexpr int n_states = 1, n_parameters = 1, n_constants = 1, threshold = -1;
  static constexpr Index<0> v{}, beta{}, gain{};
  static constexpr bool adds_q = true, reads_x = false, feeds_spikes = false, fused = true;

  template <class Z, class P, class C, class R, class S, class I>
  static void step(Z* z, const P& p, const C* c, R, S, const I& i) {
    z[v] = p[beta] * z[v] + c[gain] * i;
  }

  template <class F>
  static void adjoint(F* d, const F* p, const F*) {
    d[v] = p[beta] * d[v];
  }

  // q: ∂L/∂(potential)
  template <class F>
  static void adjoint(F* d, const F* p, const F*, F q) {
    d[v] = p[beta] * d[v] + q;
  }

  template <class F>
  static F d_current(const F* d, const F*, const F* c) {
    return c[gain] * d[v];
  }

  template <class F>
  static F by_parameter(int, const F* d, const F* z, const F*, const F*, Fired<F>, F) {
    return d[v] * z[v];
  }
};

}  // namespace sparsesnn::SPARSESNN_ISA
