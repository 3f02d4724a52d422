// A neuron as a handful of arrays: the step between spikes, its adjoint and its derivatives, for every model.
//
// A neuron carries S numbers, its states z. The first one, x, is compared with the threshold θ after each step, before
// any reset, so that the state shows which neurons fired: s = [x > θ]. A model is linear between spikes:
//
//   z ← A·z + s·(R·z + r) + s·f + B·i + c
//
// A, R: S×S; r, f, B, c: S. Each entry is a number per neuron, or absent.
//
// In order, rows are computed from last to first, and an entry of A right of the diagonal reads the new state; R, and
// all rows otherwise, read the states before the step. A reset is r and R; f is a spike's other effects. The step reads
// u = r + f. A row is a sum in this order:
//
//   A[r][r]·z[r]  +  [s]·(R[r][0]·x + … + u[r])  +  A[r][k]·z[k], k ≠ r ascending  +  B[r]·i  +  c[r]
//
// Backward, with d = ∂L/∂z of a step, which includes the paths through other states of the same step:
//
//   d ← (A + s·R + a·σ'·(R·z + r)·e₀ᵀ)ᵀ d + e₀·σ'·(e + f·d)
//   ∂L/∂i = B·d
//
// a: 1 if the reset passes the gradient of the spike, 0 if it is detached; σ' = σ'(x - θ) at listed neurons, else 0;
// e = ∂L/∂(list value). So the adjoint of a neuron that is not listed needs nothing but the arrays. An attached reset
// reads x, no other state. Derivatives by a parameter p read the arrays differentiated by it, ∂A/∂p and so on.
//
// A shape says which entries exist, at compile time: an absent entry costs nothing, and adding 0 in its place could
// change the sign of a zero. The entries of a shape have places in one table: A row by row, R, u, r (of rows with f),
// f, B, c, then whether rows run in order if the shape leaves that open, then θ. F is a vector, float or double.
//
// No header of the standard library and C++17: popc compiles this for tiles.
#pragma once

#include "codelets/number.h"

// A shape's loops over states and entries are unrolled at compile time, which GCC does not do by itself for large ones.
#ifndef SPARSESNN_INLINE
#define SPARSESNN_INLINE __attribute__((always_inline))
#endif

namespace sparsesnn::SPARSESNN_ISA {

enum class Rows { in_order, at_once, either };
enum class Role { fires, reads_out, either };

// A listed neuron at one step, or one that fired and was dropped (q = σ' = 0).
template <class F>
struct At {
  Fired<F> s;
  F sigma;    // σ'(x - θ)
  F q;        // σ'·e
  F x;        // if the adjoint reads it
  F through;  // a
};

constexpr int count_bits(unsigned bits) {
  int n = 0;
  for (; bits; bits &= bits - 1) ++n;
  return n;
}
constexpr bool has(unsigned bits, int k) { return bits >> k & 1; }
// The place of the first entry that exists; 31 if there is none.
constexpr int first_of(unsigned bits) { return bits ? count_bits((bits & -bits) - 1) : 31; }
// The place of entry k among those that exist.
constexpr int place_among(unsigned bits, int k) { return count_bits(bits & ((1u << k) - 1)); }

// Calls body with 0, …, n - 1 as constants, or with n - 1, …, 0.
template <int n, class Body>
SPARSESNN_INLINE inline void ascend(Body&& body) {
  if constexpr (n > 0) {
    ascend<n - 1>(body);
    body(Index<n - 1>());
  }
}
template <int n, class Body>
SPARSESNN_INLINE inline void descend(Body&& body) {
  if constexpr (n > 0) {
    body(Index<n - 1>());
    descend<n - 1>(body);
  }
}

template <class Shape>
struct Neuron : Shape {
  static constexpr int n_states = Shape::n_states, S = n_states;
  static constexpr unsigned A = Shape::A, R = Shape::R, u = Shape::u, f = Shape::f, B = Shape::B, c = Shape::c;
  static constexpr unsigned one = Shape::one;  // rows of B that are 1: i itself, without an entry
  static constexpr Rows rows = Shape::rows;

  static constexpr int first_R = count_bits(A), first_u = first_R + count_bits(R), first_r = first_u + count_bits(u),
                       first_f = first_r + count_bits(f), first_B = first_f + count_bits(f),
                       first_c = first_B + count_bits(B), order = first_c + count_bits(c),
                       threshold = order + (rows == Rows::either),
                       n_entries = threshold + (Shape::role != Role::reads_out);
  static constexpr int place_A(int r, int k) { return place_among(A, r * S + k); }
  static constexpr int place_R(int r, int k) { return first_R + place_among(R, r * S + k); }
  static constexpr int place_u(int r) { return first_u + place_among(u, r); }
  static constexpr int place_r(int r) { return has(f, r) ? first_r + place_among(f, r) : place_u(r); }
  static constexpr int place_f(int r) { return first_f + place_among(f, r); }
  static constexpr int place_B(int r) { return first_B + place_among(B, r); }
  static constexpr int place_c(int r) { return first_c + place_among(c, r); }
  static constexpr bool resets(int r) { return has(u, r) || (R >> (r * S) & ((1u << S) - 1)); }

  // Whether listing changes the adjoint by q alone, added to d[0], unless the reset passes a gradient.
  static constexpr bool adds_q = !R && !f;
  // The adjoint of a neuron depends on whether it fired; a spike acts on the state other than by the reset.
  static constexpr bool reads_spikes = R != 0, feeds_spikes = f != 0;
  static constexpr bool may_fire = Shape::role != Role::reads_out, may_read_out = Shape::role != Role::fires;

  // Whether A[r][k] reads the state k of the same step. A reset always reads the states before the step.
  static constexpr bool right_of_diagonal(int r, int k) { return rows != Rows::at_once && k > r; }

  // What passes between row r and state k: `now`, of the same step, if A[r][k] reads the new state, else `other`.
  template <int r, int k, class F>
  SPARSESNN_INLINE static F between(const F& now, const F& other, const F* p) {
    if constexpr (!right_of_diagonal(r, k))
      return other;
    else if constexpr (rows == Rows::in_order)
      return now;
    else
      return pick(Fired<F>::of(p[order], F{}), now, other);
  }

  // State k as A[r][k] reads it.
  template <int r, int k, class F>
  SPARSESNN_INLINE static F read(const F* now, const F* before, const F* p) {
    return between<r, k>(now[k], before[k], p);
  }

  // x + Σ over k ≠ r of term(k), for the entries of row r that exist.
  template <int r, class F, class Term>
  SPARSESNN_INLINE static F add_others(F x, Term&& term) {
    ascend<S>([&](auto state) SPARSESNN_INLINE {
      constexpr int k = state;
      if constexpr (k != r && has(A, r * S + k)) x = x + term(state);
    });
    return x;
  }

  // R[r]·z + last[r], with the entries of `of`, of a row that resets; has_last: whether `last` exists.
  template <int r, bool has_last, class F>
  SPARSESNN_INLINE static F reset_row(const F* of, const F* before, int last) {
    constexpr unsigned row = R >> (r * S) & ((1u << S) - 1);
    if constexpr (row == 0) {
      return of[last];
    } else {
      constexpr int first = first_of(row);
      F x = of[place_R(r, first)] * before[first];
      ascend<S>([&](auto state) SPARSESNN_INLINE {
        constexpr int k = state;
        if constexpr (k > first && has(row, k)) x = x + of[place_R(r, k)] * before[k];
      });
      if constexpr (has_last) x = x + of[last];
      return x;
    }
  }

  // One step, in place. `s` marks the neurons that fired in the step before.
  template <class F>
  SPARSESNN_INLINE static void step(F* z, const F* p, Fired<F> s, const F& i) {
    F before[S];
    for (int k = 0; k < S; ++k) before[k] = z[k];
    descend<S>([&](auto row) SPARSESNN_INLINE {
      constexpr int r = row;
      F x = p[place_A(r, r)] * before[r];
      if constexpr (resets(r)) x = x + where(s, reset_row<r, has(u, r)>(p, before, place_u(r)));
      x = add_others<r>(x, [&](auto k) SPARSESNN_INLINE { return p[place_A(r, k)] * read<r, k>(z, before, p); });
      if constexpr (has(one, r)) x = x + i;
      if constexpr (has(B, r)) x = x + p[place_B(r)] * i;
      if constexpr (has(c, r)) x = x + p[place_c(r)];
      z[r] = x;
    });
  }

  // d ← ∂L/∂z of a step from that of the step after. listed: `at` is a listed neuron; attached: its reset may pass a
  // gradient. Returns the part through σ', of which -1 times is the direct part of ∂L/∂θ.
  template <bool listed, bool attached, class F>
  SPARSESNN_INLINE static F pull(F* d, const F* p, const At<F>& at) {
    F after[S], by_reset{}, by_feed{};
    for (int k = 0; k < S; ++k) after[k] = d[k];
    if constexpr (listed && f != 0) {
      constexpr int first = first_of(f);
      by_feed = p[place_f(first)] * after[first];
      ascend<S>([&](auto row) SPARSESNN_INLINE {
        constexpr int r = row;
        if constexpr (r > first && has(f, r)) by_feed = by_feed + p[place_f(r)] * after[r];
      });
      by_feed = at.sigma * by_feed;
    }
    ascend<S>([&](auto state) SPARSESNN_INLINE {
      constexpr int k = state;
      // ∂z[r]/∂z[k] of the step after
      const auto coefficient = [&](auto row) SPARSESNN_INLINE {
        constexpr int r = row;
        F m{};
        if constexpr (has(A, r * S + k)) m = p[place_A(r, k)];
        if constexpr (listed && has(R, r * S + k) && !right_of_diagonal(r, k)) {
          if constexpr (has(A, r * S + k))
            m = m + where(at.s, p[place_R(r, k)]);
          else
            m = where(at.s, p[place_R(r, k)]);
        }
        if constexpr (listed && attached && k == 0 && resets(r)) {
          F by_s;
          if constexpr (has(R, r * S) && has(u, r))
            by_s = p[place_R(r, 0)] * at.x + p[place_r(r)];
          else if constexpr (has(R, r * S))
            by_s = p[place_R(r, 0)] * at.x;
          else
            by_s = p[place_r(r)];
          const F from_reset = at.through * by_s * at.sigma;
          by_reset = by_reset + from_reset * after[r];
          m = m + from_reset;
        }
        return m;
      };
      F x = coefficient(state) * after[k];
      ascend<S>([&](auto row) SPARSESNN_INLINE {
        constexpr int r = row;
        constexpr bool reads =
            has(A, r * S + k) ||
            (listed && ((has(R, r * S + k) && !right_of_diagonal(r, k)) || (attached && k == 0 && resets(r))));
        if constexpr (r != k && reads) x = x + coefficient(row) * between<r, k>(d[r], after[r], p);
        if constexpr (listed && has(R, r * S + k) && right_of_diagonal(r, k))
          x = x + where(at.s, p[place_R(r, k)]) * after[r];
      });
      if constexpr (k == 0 && listed) {
        if constexpr (f != 0)
          x = x + (at.q + by_feed);
        else
          x = x + at.q;
      }
      d[k] = x;
    });
    if constexpr (!listed) return F{};
    F by_spike = at.q;
    if constexpr (attached) by_spike = by_spike + by_reset;
    if constexpr (f != 0) by_spike = by_spike + by_feed;
    return by_spike;
  }

  template <class F>
  SPARSESNN_INLINE static void adjoint(F* d, const F* p) {
    pull<false, false>(d, p, At<F>{});
  }
  // If listing adds q alone: for all neurons, q = 0 of those that are not listed.
  template <class F>
  SPARSESNN_INLINE static void adjoint(F* d, const F* p, F q) {
    At<F> at{};
    at.q = q;
    pull<true, false>(d, p, at);
  }

  // ∂L/∂i of the step whose ∂L/∂z is d.
  template <class F>
  SPARSESNN_INLINE static F d_current(const F* d, const F* p) {
    constexpr int first = first_of(B | one);
    const auto term = [&](auto row) SPARSESNN_INLINE {
      constexpr int r = row;
      if constexpr (has(one, r))
        return d[r];
      else
        return p[place_B(r)] * d[r];
    };
    F x = term(Index<first>());
    ascend<S>([&](auto row) SPARSESNN_INLINE {
      constexpr int r = row;
      if constexpr (r > first && has(B | one, r)) x = x + term(row);
    });
    return x;
  }

  // ∂z/∂p of a step, in place, from the states before and after it. by: the entries differentiated by p.
  // ds: ∂s/∂p = σ'·∂(x - θ)/∂p of the step before at listed neurons, else 0; attached: the reset passes it on.
  template <bool spikes, class F>
  SPARSESNN_INLINE static void step_trace(F* trace, const F* before, const F* now, const F* p, const F* by, Fired<F> s,
                                          F ds, bool attached, const F& i) {
    F earlier[S];
    for (int k = 0; k < S; ++k) earlier[k] = trace[k];
    descend<S>([&](auto row) SPARSESNN_INLINE {
      constexpr int r = row;
      F x = by[place_A(r, r)] * before[r] + p[place_A(r, r)] * earlier[r];
      if constexpr (resets(r)) {
        F jump = reset_row<r, has(u, r)>(by, before, place_u(r));
        ascend<S>([&](auto state) SPARSESNN_INLINE {
          constexpr int k = state;
          if constexpr (has(R, r * S + k)) jump = jump + p[place_R(r, k)] * earlier[k];
        });
        x = x + where(s, jump);
      }
      if constexpr (spikes && resets(r)) {
        if (attached)
          x = x + ds * reset_row<r, has(u, r)>(p, before, place_u(r));
        else if constexpr (has(f, r))
          x = x + ds * p[place_f(r)];
      }
      x = add_others<r>(x, [&](auto k) SPARSESNN_INLINE {
        return by[place_A(r, k)] * read<r, k>(now, before, p) + p[place_A(r, k)] * read<r, k>(trace, earlier, p);
      });
      if constexpr (has(B, r)) x = x + by[place_B(r)] * i;
      if constexpr (has(c, r)) x = x + by[place_c(r)];
      trace[r] = x;
    });
  }

  // ∂L/∂p of a step whose ∂L/∂z is d, without θ's part in s = [x > θ].
  template <class F>
  SPARSESNN_INLINE static F by_parameter(const F* d, const F* before, const F* now, const F* p, const F* by, Fired<F> s,
                                         F i) {
    F sum{};
    ascend<S>([&](auto row) SPARSESNN_INLINE {
      constexpr int r = row;
      F x = by[place_A(r, r)] * before[r];
      if constexpr (resets(r)) x = x + where(s, reset_row<r, has(u, r)>(by, before, place_u(r)));
      x = add_others<r>(x, [&](auto k) SPARSESNN_INLINE { return by[place_A(r, k)] * read<r, k>(now, before, p); });
      if constexpr (has(B, r)) x = x + by[place_B(r)] * i;
      if constexpr (has(c, r)) x = x + by[place_c(r)];
      sum = sum + d[r] * x;
    });
    return sum;
  }
};

// ---- shapes, the smaller first: a model takes the first one that has all of its entries -----------------------------

// Bits of an S×S array, for entries [row][column].
constexpr unsigned square(int n_states, int r, int k) { return 1u << (r * n_states + k); }
constexpr unsigned all(int n) { return (1u << n) - 1; }

// The parts that most shapes share.
struct Usual {
  static constexpr unsigned R = 0, u = 0, f = 0, B = 1, c = 0, one = 0;
  static constexpr Rows rows = Rows::at_once;
  static constexpr Role role = Role::fires;
  static constexpr bool fused = true;  // worth a separate loop, which delivers and steps at once
};

struct Readout : Usual {
  static constexpr const char* name = "readout";
  static constexpr int n_states = 1;
  static constexpr unsigned A = 1;
  static constexpr Role role = Role::reads_out;
};

struct Subtract : Usual {
  static constexpr const char* name = "subtract";
  static constexpr int n_states = 1;
  static constexpr unsigned A = 1, u = 1;
};

struct Zero : Usual {
  static constexpr const char* name = "zero";
  static constexpr int n_states = 1;
  static constexpr unsigned A = 1, R = 1;
};

// A synaptic current, state 1, drives the potential.
template <bool zero>
struct Current : Usual {
  static constexpr const char* name = zero ? "current.zero" : "current.subtract";
  static constexpr int n_states = 2;
  static constexpr unsigned A = square(2, 0, 0) | square(2, 0, 1) | square(2, 1, 1), R = zero ? square(2, 0, 0) : 0,
                            u = zero ? 0 : 1, B = 0, one = 2;
  static constexpr Rows rows = Rows::in_order;
};

// State 1 reads the potential and the spikes, and acts on the potential.
template <bool zero>
struct Adaptive : Usual {
  static constexpr const char* name = zero ? "adaptive.zero" : "adaptive.subtract";
  static constexpr int n_states = 2;
  static constexpr unsigned A = all(4), R = zero ? square(2, 0, 0) | square(2, 1, 0) : 0, u = zero ? 2 : 3, f = 2;
  static constexpr Rows rows = Rows::in_order;
};

struct Rotating : Usual {
  static constexpr const char* name = "rotating";
  static constexpr int n_states = 2;
  static constexpr unsigned A = all(4), u = 3;
};

// Every entry.
template <int S>
struct Any : Usual {
  static constexpr const char* name = S == 1 ? "any 1" : S == 2 ? "any 2" : S == 3 ? "any 3" : "any 4";
  static constexpr int n_states = S;
  static constexpr unsigned A = all(S * S), R = A, u = all(S), f = u, B = u, c = u;
  static constexpr Rows rows = S == 1 ? Rows::at_once : Rows::either;
  static constexpr Role role = Role::either;
  static constexpr bool fused = S <= 2;
};

using Shapes = List<Neuron<Readout>, Neuron<Subtract>, Neuron<Zero>, Neuron<Any<1>>, Neuron<Current<false>>,
                    Neuron<Current<true>>, Neuron<Rotating>, Neuron<Adaptive<false>>, Neuron<Adaptive<true>>,
                    Neuron<Any<2>>, Neuron<Any<3>>, Neuron<Any<4>>>;

}  // namespace sparsesnn::SPARSESNN_ISA
