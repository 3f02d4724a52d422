// Vectors of the widest kind that the instruction set has, and the fixed order of sums.
//
// This header and all codelets are compiled once per instruction set, each time into a namespace of its own
// (SPARSESNN_ISA), so that the linker can never mix two builds of one inline function. For the same reason the
// codelets use no containers of the standard library.
//
// Contract on floating point: every result is independent of the vector width. Element-wise work is so by nature
// (no contraction into fused multiply-adds: the build sets -ffp-contract=off). A dot product runs over 16 lanes,
// lane l summing elements l, l + 16, l + 32, ... in ascending order; the lanes are then added pairwise by halves.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef SPARSESNN_ISA
#define SPARSESNN_ISA base
#endif
#ifndef SPARSESNN_VECTOR_BYTES
#define SPARSESNN_VECTOR_BYTES 16
#endif

namespace sparsesnn::SPARSESNN_ISA {

inline constexpr int vector_width = SPARSESNN_VECTOR_BYTES / 4;
inline constexpr int dot_lanes = 16;
inline constexpr int dot_vectors = dot_lanes / vector_width;

typedef float Vector __attribute__((vector_size(SPARSESNN_VECTOR_BYTES)));

inline Vector load(const float* p) {
  Vector x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

inline void store(float* p, Vector x) { std::memcpy(p, &x, sizeof(x)); }

inline Vector broadcast(float x) { return Vector{} + x; }

// One bit per lane, set where a > b; false for NaN.
inline std::uint32_t mask_greater(Vector a, Vector b) {
#if defined(__AVX512F__) && SPARSESNN_VECTOR_BYTES == 64
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ);
#elif defined(__AVX__) && SPARSESNN_VECTOR_BYTES == 32
  return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GT_OQ)));
#elif defined(__SSE__) && SPARSESNN_VECTOR_BYTES == 16
  return static_cast<std::uint32_t>(_mm_movemask_ps(_mm_cmpgt_ps((__m128)a, (__m128)b)));
#else
  std::uint32_t mask = 0;
  for (int lane = 0; lane < vector_width; ++lane) mask |= static_cast<std::uint32_t>(a[lane] > b[lane]) << lane;
  return mask;
#endif
}

// x where a > b, else 0.
inline Vector where_greater(Vector a, Vector b, Vector x) {
  auto mask = a > b;  // lanes of -1 and 0
  decltype(mask) bits;
  std::memcpy(&bits, &x, sizeof(bits));
  bits &= mask;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// The sum of the 16 lanes: l += l + 8, then l + 4, l + 2, l + 1.
inline float sum_lanes(const Vector (&lanes)[dot_vectors]) {
  float x[dot_lanes];
  for (int k = 0; k < dot_vectors; ++k) store(x + k * vector_width, lanes[k]);
  for (int half = dot_lanes / 2; half >= 1; half /= 2)
    for (int l = 0; l < half; ++l) x[l] += x[l + half];
  return x[0];
}

}  // namespace sparsesnn::SPARSESNN_ISA
