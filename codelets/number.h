// The operations in which the step of neurons is written, so that one source serves float, double and vectors of floats
// (simd.h).
//
// No header of the standard library and C++17: popc compiles this for tiles.
#pragma once

#ifndef SPARSESNN_ISA
#define SPARSESNN_ISA base
#endif

#ifdef __IPU__
#include <ipu_vector_math>
#endif

namespace sparsesnn::SPARSESNN_ISA {

// A number as a type: a loop over such numbers is unrolled, and its body may use them as constants.
template <int k>
struct Index {
  constexpr operator int() const { return k; }
};

// Whether neurons fired: x > θ, strictly; false for NaN. Vectors have their own.
template <class F>
struct Fired {
  bool is;

  static Fired of(F x, F threshold) { return {x > threshold}; }
};

// x of neurons that fired, else 0.
template <class F>
inline F where(Fired<F> fired, F x) {
  return fired.is ? x : F(0);
}

// a of neurons that fired, else b.
template <class F>
inline F pick(Fired<F> fired, F a, F b) {
  return fired.is ? a : b;
}

#ifdef __CUDACC__  // NVRTC has no __builtin functions
inline float exp_of(float x) { return expf(x); }
inline float sqrt_of(float x) { return sqrtf(x); }
inline float magnitude(float x) { return fabsf(x); }
#else
#ifdef __IPU__
inline float exp_of(float x) { return ::ipu::exp(x); }
inline float sqrt_of(float x) { return ::ipu::sqrt(x); }
inline float log_of(float x) { return ::ipu::log(x); }
#else
inline float exp_of(float x) { return __builtin_expf(x); }
inline float sqrt_of(float x) { return __builtin_sqrtf(x); }
inline float log_of(float x) { return __builtin_logf(x); }
#endif
inline float magnitude(float x) { return __builtin_fabsf(x); }

#ifndef __POPC__  // a tile has no double precision
inline double exp_of(double x) { return __builtin_exp(x); }
inline double magnitude(double x) { return __builtin_fabs(x); }
#endif
#endif

// A list of types. `List<A, B>::each(visit)` calls visit(index, A()), visit(1, B()); `with(k, body)` calls body for the
// k-th.
template <class... Entry>
struct List {
  static constexpr int size = sizeof...(Entry);

  template <class Visit>
  static void each(Visit&& visit) {
    int k = 0;
    (visit(k++, Entry()), ...);
  }

  template <class Body>
  static void with(int index, Body&& body) {
    int k = 0;
    ((k++ == index ? body(Entry()) : void()), ...);
  }
};

// The place of `name` in a list of types that have one, or -1.
template <class Names>
inline int find(const char* name) {
  int found = -1;
  Names::each([&](int k, auto entry) {
    const char *a = name, *b = entry.name;
    while (*a && *a == *b) ++a, ++b;
    if (*a == *b) found = k;
  });
  return found;
}

}  // namespace sparsesnn::SPARSESNN_ISA
