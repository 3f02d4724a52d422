// The operations in which the step of neurons is written, so that one source serves float, double and vectors of floats
// (simd.h).
//
// No header of the standard library and C++17: popc compiles this for tiles, NVRTC for GPUs.
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

#ifdef __CUDACC__  // NVRTC has no __builtin functions; logarithms are not needed
inline float sqrt_of(float x) { return sqrtf(x); }
inline float magnitude(float x) { return fabsf(x); }
inline unsigned bits_of(float x) { return __float_as_uint(x); }
inline float number_of(unsigned bits) { return __uint_as_float(bits); }
#else
#ifdef __IPU__
inline float sqrt_of(float x) { return ::ipu::sqrt(x); }
inline float log_of(float x) { return ::ipu::log(x); }
#else
inline float sqrt_of(float x) { return __builtin_sqrtf(x); }
inline float log_of(float x) { return __builtin_logf(x); }
#endif
inline float magnitude(float x) { return __builtin_fabsf(x); }
// A number as its bits, and back.
inline unsigned bits_of(float x) {
  unsigned bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float number_of(unsigned bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}
#ifndef __POPC__  // a tile has no double precision
inline double exp_of(double x) { return __builtin_exp(x); }
inline double magnitude(double x) { return __builtin_fabs(x); }
#endif
#endif

// a if `is`, else b, without a branch: GCC makes branches of two conditional expressions in a row, and then does not
// vectorize the loop.
inline float choose(bool is, float a, float b) {
  const unsigned mask = 0u - static_cast<unsigned>(is);
  return number_of((bits_of(a) & mask) | (bits_of(b) & ~mask));
}

// e^x, the same bits on every machine: the functions of libraries differ from one another. The error is below 0.983 of
// the last place of a result. 0 below x = -86.99 (results under 1.7e-38): no number on the way to a result is
// subnormal, except where it is too small to matter, so that machines without subnormal numbers agree. Infinity where
// e^x overflows; NaN stays NaN. Without branches, so that compilers vectorize loops over it.
//
// x = k ln 2 + r, |r| <= ln 2 / 2; ln 2 = 0x1.63p-1 - 0x1.bd0106p-13, whose first part times k is exact. The sum is
// 2 e^r, whose terms from r² on are a minimax polynomial, relative error 3.1e-9. It is multiplied by 2^(k - 1), whose
// bits are those of +0 if k is -126.
inline float exp_of(float x) {
  constexpr float magic = 0x1.8p23f;  // x + magic is rounded to a whole number, and ends in its bits
  x = choose(x < -87.5f, -87.5f, x);
  x = choose(x > 89.0f, 89.0f, x);
  const float shifted = x * 0x1.715476p0f + magic, k = shifted - magic;
  const float r = (x - k * 0x1.63p-1f) - k * -0x1.bd0106p-13f;
  float sum = 0x1.6a241ap-9f;
  sum = sum * r + 0x1.1239f2p-6f;
  sum = sum * r + 0x1.5558f2p-4f;
  sum = sum * r + 0x1.555492p-2f;
  sum = sum * r + 0x1.fffffcp-1f;
  sum = sum * (r * r) + (r + r) + 2.0f;
  return sum * number_of((bits_of(shifted) + 126) << 23);
}

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
