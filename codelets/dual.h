// Dual numbers: a value and its derivative by one parameter, which a step carries along (forward differentiation).
//
// Mixed with a plain number, a constant, they cost exactly what the chain rule costs: a number that does not depend on
// the parameter is plain. F is a vector, float or double.
#pragma once

#include "number.h"

namespace sparsesnn::SPARSESNN_ISA {

template <class F>
struct Dual {
  F x, dx;
};

template <class F>
inline Dual<F> operator+(const Dual<F>& a, const Dual<F>& b) {
  return {a.x + b.x, a.dx + b.dx};
}
template <class F>
inline Dual<F> operator+(const Dual<F>& a, const F& b) {
  return {a.x + b, a.dx};
}
template <class F>
inline Dual<F> operator+(const F& a, const Dual<F>& b) {
  return {a + b.x, b.dx};
}
template <class F>
inline Dual<F> operator-(const Dual<F>& a, const Dual<F>& b) {
  return {a.x - b.x, a.dx - b.dx};
}
template <class F>
inline Dual<F> operator-(const Dual<F>& a, const F& b) {
  return {a.x - b, a.dx};
}
template <class F>
inline Dual<F> operator-(const F& a, const Dual<F>& b) {
  return {a - b.x, -b.dx};
}
template <class F>
inline Dual<F> operator*(const Dual<F>& a, const Dual<F>& b) {
  return {a.x * b.x, a.dx * b.x + a.x * b.dx};
}
template <class F>
inline Dual<F> operator*(const Dual<F>& a, const F& b) {
  return {a.x * b, a.dx * b};
}
template <class F>
inline Dual<F> operator*(const F& a, const Dual<F>& b) {
  return {a * b.x, a * b.dx};
}

template <class F>
inline Dual<F> one_minus(const Dual<F>& x) {
  return {one_minus(x.x), -x.dx};
}

template <class F>
inline Dual<F> inverse_of_one_plus_square(const Dual<F>& x) {
  const F y = inverse_of_one_plus_square(x.x);
  return {y, -2.0f * x.x * y * y * x.dx};
}

// A spike that passes on its derivative by the parameter, σ'·∂(x - θ).
template <class F>
struct Fired<Dual<F>> {
  Fired<F> is;
  F d;
};

template <class F>
inline Dual<F> where(const Fired<Dual<F>>& fired, const Dual<F>& x) {
  return {where(fired.is, x.x), where(fired.is, x.dx) + fired.d * x.x};
}
template <class F>
inline Dual<F> where(const Fired<Dual<F>>& fired, const F& x) {
  return {where(fired.is, x), fired.d * x};
}
template <class F>
inline Dual<F> where(const Fired<F>& fired, const Dual<F>& x) {
  return {where(fired, x.x), where(fired, x.dx)};
}

// Parameters, one of which is the variable of the derivatives.
template <class F, int learnt>
struct Learnt {
  const F* values;

  template <int k>
  auto operator[](Index<k>) const {
    if constexpr (k == learnt)
      return Dual<F>{values[k], F{} + 1.0f};
    else
      return values[k];
  }
};

}  // namespace sparsesnn::SPARSESNN_ISA
