// Resonator: the state rotates and shrinks, so that a neuron responds to one frequency of its input; a spike subtracts
// θ from v.
//
//   (v, y) ← β·R·(v - θ·s, y) + (g·i, 0)         R turns by an angle φ with tan(φ/2) = k:
//                                                cos = (1 - k²) / (1 + k²),   sin = 2·k / (1 + k²)
//
// Source: the C-SiLIF neuron of Fabre et al. 2025, u ← λ·(u - s/2) + b·i with λ complex, where v = 2·Re u and
// y = 2·Im u. Cost: 13 flops and a division a step forward, the same backward.
#pragma once

#include "neuron.h"

namespace sparsesnn::SPARSESNN_ISA {

struct Resonator {
  static constexpr const char* name = "resonator";
  static constexpr const char* state_names[] = {"v", "y"};
  static constexpr const char* parameter_names[] = {"beta", "turn", "threshold"};
  static constexpr int n_states = 2, n_parameters = 3, n_constants = 1;
  static constexpr Index<0> v{}, beta{}, gain{};
  static constexpr Index<1> y{}, turn{};
  static constexpr Index<2> threshold{};
  static constexpr bool adds_q = true, reads_x = false, feeds_spikes = false, fused = false;

  template <class K>
  struct Rotation {
    K inverse, sine, cosine;

    explicit Rotation(const K& k) : inverse(inverse_of_one_plus_square(k)), sine(k * inverse), cosine(inverse) {
      cosine = inverse - k * sine;
      sine = sine + sine;
    }
  };
  template <class K>
  static Rotation<K> rotation(const K& k) {
    return Rotation<K>(k);
  }

  template <class Z, class P, class C, class R, class S, class I>
  static void step(Z* z, const P& p, const C* c, R reset_by, S, const I& i) {
    const auto by = rotation(p[turn]);
    const auto along = p[beta] * by.cosine, across = p[beta] * by.sine;
    const Z r = z[v] - where(reset_by, p[threshold]);
    const Z y_next = across * r + along * z[y];
    z[v] = along * r - across * z[y] + c[gain] * i;
    z[y] = y_next;
  }

  template <class F>
  static void adjoint(F* d, const F* p, const F*) {
    const auto by = rotation(p[turn]);
    const F along = p[beta] * by.cosine, across = p[beta] * by.sine, d_v = d[v];
    d[v] = along * d_v + across * d[y];
    d[y] = along * d[y] - across * d_v;
  }

  template <class F>
  static void adjoint(F* d, const F* p, const F* c, F q) {
    adjoint(d, p, c);
    d[v] = d[v] + q;
  }

  template <class F>
  static F adjoint(F* d, const F* p, const F* c, const At<F>& at) {
    adjoint(d, p, c);
    const F by_spike = at.q - at.sigma * (at.through * (p[threshold] * d[v]));
    d[v] = d[v] + by_spike;
    return by_spike;
  }

  template <class F>
  static F d_current(const F* d, const F*, const F* c) {
    return c[gain] * d[v];
  }

  template <class F>
  static F by_parameter(int k, const F* d, const F* z, const F* p, const F*, Fired<F> s, F) {
    const auto by = rotation(p[turn]);
    const F r = z[v] - where(s, p[threshold]);
    const F turned_v = by.cosine * r - by.sine * z[y], turned_y = by.sine * r + by.cosine * z[y];
    if (k == beta) return d[v] * turned_v + d[y] * turned_y;
    if (k == turn) return (by.inverse + by.inverse) * (p[beta] * (d[y] * turned_v - d[v] * turned_y));
    return -where(s, p[beta] * (by.cosine * d[v] + by.sine * d[y]));
  }
};

}  // namespace sparsesnn::SPARSESNN_ISA
