// Surrogate derivatives σ'(x), x = v - threshold; the table with sources is in sparsesnn/surrogate.py.
//
// F is float or double. σ' is even, and written so that the side that could overflow is never computed.
#pragma once

#include "number.h"

namespace sparsesnn::SPARSESNN_ISA {

struct FastSigmoid {
  static constexpr const char* name = "fast_sigmoid";
  template <class F>
  static F derivative(F slope, F x) {
    const F y = slope * magnitude(x) + F(1);
    return F(1) / (y * y);
  }
};

struct StraightThrough {
  static constexpr const char* name = "straight_through";
  template <class F>
  static F derivative(F, F) {
    return F(1);
  }
};

struct Sigmoid {
  static constexpr const char* name = "sigmoid";
  template <class F>
  static F derivative(F slope, F x) {
    const F e = exp_of(-slope * magnitude(x));
    return slope * e / ((F(1) + e) * (F(1) + e));
  }
};

struct Atan {
  static constexpr const char* name = "atan";
  template <class F>
  static F derivative(F slope, F x) {
    const F y = F(1.57079632679489661923) * slope * x;
    return slope * F(0.5) / (F(1) + y * y);
  }
};

struct Triangle {
  static constexpr const char* name = "triangle";
  template <class F>
  static F derivative(F slope, F x) {
    const F y = F(1) - slope * magnitude(x);
    return y > F(0) ? y : F(0);
  }
};

struct Boxcar {
  static constexpr const char* name = "boxcar";
  template <class F>
  static F derivative(F slope, F x) {
    return magnitude(x) < F(0.5) / slope ? slope : F(0);
  }
};

struct Exponential {
  static constexpr const char* name = "exponential";
  template <class F>
  static F derivative(F slope, F x) {
    return exp_of(-slope * magnitude(x));
  }
};

using Surrogates = List<FastSigmoid, StraightThrough, Sigmoid, Atan, Triangle, Boxcar, Exponential>;

// σ'(x) of the surrogate in place `kind`.
template <class F>
inline F surrogate(int kind, F slope, F x) {
  F y = F(0);
  Surrogates::with(kind, [&](auto s) { y = s.derivative(slope, x); });
  return y;
}

// x ← σ'(x), n numbers; the surrogate is chosen once, not per number.
template <class F>
inline void surrogate_all(int kind, F slope, F* x, long n) {
  Surrogates::with(kind, [&](auto s) {
    for (long k = 0; k < n; ++k) x[k] = s.derivative(slope, x[k]);
  });
}

}  // namespace sparsesnn::SPARSESNN_ISA
