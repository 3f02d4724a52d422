// Vectors of the widest kind in the instruction set, and the fixed order of sums.
//
// This header and all codelets are compiled once per instruction set, each time into its own namespace (SPARSESNN_ISA),
// so that the linker can never mix two builds of one inline function. For the same reason the codelets use no
// containers of the standard library.
//
// Contract on floating point: no result depends on the vector width. Element-wise operations do not by nature (no
// contraction into fused multiply-adds: the build sets -ffp-contract=off). A dot product runs over 16 lanes, lane l
// summing elements l, l + 16, l + 32, ... in ascending order; the lanes are then added pairwise by halves.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "codelets/number.h"

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

// A weight stored in two bytes: the upper half of its float32, rounded to nearest even.
struct Bf16 {
  std::uint16_t bits;
};

#if defined(__AVX512F__) && SPARSESNN_VECTOR_BYTES == 64
// The masked forms give the same instructions; in the others GCC 12 warns of an uninitialized variable.
inline constexpr __mmask16 all_lanes = 0xffff;
#endif

inline Vector load(const Bf16* p) {
#if defined(__AVX512F__) && SPARSESNN_VECTOR_BYTES == 64
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return (Vector)_mm512_maskz_slli_epi32(all_lanes, _mm512_maskz_cvtepu16_epi32(all_lanes, bits), 16);
#elif defined(__AVX2__) && SPARSESNN_VECTOR_BYTES == 32
  return (Vector)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16);
#else
  std::uint32_t bits[vector_width];
  for (int l = 0; l < vector_width; ++l) bits[l] = static_cast<std::uint32_t>(p[l].bits) << 16;
  Vector x;
  std::memcpy(&x, bits, sizeof(x));
  return x;
#endif
}

// A finite x stored as Bf16 and loaded again.
inline Vector round_to_bf16(Vector x) {
  typedef std::uint32_t Bits __attribute__((vector_size(SPARSESNN_VECTOR_BYTES)));
  Bits bits;
  std::memcpy(&bits, &x, sizeof(x));
  bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

inline void store(float* p, Vector x) { std::memcpy(p, &x, sizeof(x)); }

// The first n lanes, 0 to vector_width of them, the others 0; reads nothing past them.
inline Vector load_first(const float* p, int n) {
#if defined(__AVX512F__) && SPARSESNN_VECTOR_BYTES == 64
  return (Vector)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
#elif defined(__AVX2__) && SPARSESNN_VECTOR_BYTES == 32
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return (Vector)_mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane));
#else
  Vector x{};
  for (int l = 0; l < n; ++l) x[l] = p[l];
  return x;
#endif
}

// Writes the first n lanes; otherwise like load_first.
inline void store_first(float* p, Vector x, int n) {
#if defined(__AVX512F__) && SPARSESNN_VECTOR_BYTES == 64
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), (__m512)x);
#elif defined(__AVX2__) && SPARSESNN_VECTOR_BYTES == 32
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  _mm256_maskstore_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane), (__m256)x);
#else
  for (int l = 0; l < n; ++l) p[l] = x[l];
#endif
}

// The number of lanes in the k-th vector of a row of n numbers.
inline int lanes_of(int n, int k) {
  const int left = n - k * vector_width;
  return left < 0 ? 0 : left < vector_width ? left : vector_width;
}

// One number for each of W neurons.
template <int W>
struct Columns {
  Vector x[W / vector_width];
};

// The first `n` of W columns of a row, the others 0.
template <int W>
inline void load_columns(Vector (&x)[W / vector_width], const float* row, int n) {
  for (int k = 0; k < W / vector_width; ++k)
    x[k] = n < W ? load_first(row + k * vector_width, lanes_of(n, k)) : load(row + k * vector_width);
}

template <int W>
inline void store_columns(float* row, const Vector (&x)[W / vector_width], int n) {
  for (int k = 0; k < W / vector_width; ++k)
    if (n < W)
      store_first(row + k * vector_width, x[k], lanes_of(n, k));
    else
      store(row + k * vector_width, x[k]);
}

inline Vector broadcast(float x) { return Vector{} + x; }

inline Vector square_root(Vector x) {
#if defined(__AVX512F__) && SPARSESNN_VECTOR_BYTES == 64
  return (Vector)_mm512_maskz_sqrt_ps(all_lanes, (__m512)x);
#elif defined(__AVX__) && SPARSESNN_VECTOR_BYTES == 32
  return (Vector)_mm256_sqrt_ps((__m256)x);
#elif defined(__SSE__) && SPARSESNN_VECTOR_BYTES == 16
  return (Vector)_mm_sqrt_ps((__m128)x);
#else
  for (int l = 0; l < vector_width; ++l) x[l] = __builtin_sqrtf(x[l]);
  return x;
#endif
}

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

// Writes x[l] for each set bit l, ascending, and returns the next position; may write up to a whole vector. Defined
// only if the instruction set `compresses`; elsewhere a loop over the bits is cheaper.
#if defined(__AVX512F__) && SPARSESNN_VECTOR_BYTES == 64
inline constexpr bool compresses = true;
inline float* store_selected(float* out, Vector x, std::uint32_t bits) {
  _mm512_storeu_ps(out, _mm512_maskz_compress_ps(static_cast<__mmask16>(bits), (__m512)x));
  return out + __builtin_popcount(bits & 0xffffu);
}
#else
inline constexpr bool compresses = false;
float* store_selected(float* out, Vector x, std::uint32_t bits);
#endif

// out ← (a - b)[k] for each set bit k of W, ascending; returns the next position. Like store_selected, it may write up
// to a vector past that.
template <int W>
inline float* differences_at(float* out, const float* a, const float* b, std::uint64_t bits) {
  if constexpr (compresses) {
    for (int k = 0; k < W; k += vector_width)
      out = store_selected(out, load(a + k) - load(b + k), static_cast<std::uint32_t>(bits >> k));
  } else {
    // Most words hold four bits at most: four are always written, without an unpredictable branch.
    const int n = __builtin_popcountll(bits);
    const auto put = [&](int j) {
      const int k = __builtin_ctzll(bits | 1ull << (W - 1));
      out[j] = a[k] - b[k];
      bits &= bits - 1;
    };
    for (int j = 0; j < 4; ++j) put(j);
    for (int j = 4; j < n; ++j) put(j);
    out += n;
  }
  return out;
}

// Which neurons of a vector fired.
template <>
struct Fired<Vector> {
  typedef std::int32_t Lanes __attribute__((vector_size(SPARSESNN_VECTOR_BYTES)));
  Lanes is;  // -1 or 0

  static Fired of(Vector x, Vector threshold) { return {x > threshold}; }
};

inline Vector where(Fired<Vector> fired, Vector x) {
  Fired<Vector>::Lanes bits;
  std::memcpy(&bits, &x, sizeof(bits));
  bits &= fired.is;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

inline Vector pick(Fired<Vector> fired, Vector a, Vector b) { return where(fired, a) + where({~fired.is}, b); }

// The 16 lanes of a dot product, added by halves down to one vector: l += l + 8, then by 4 and so on while wider than
// that.
inline Vector fold_lanes(Vector (&lanes)[dot_vectors]) {
  for (int half = dot_vectors / 2; half >= 1; half /= 2)
    for (int k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  return lanes[0];
}

// Sums the lanes of one vector by halves.
inline float sum_lanes(Vector x) {
  float lane[vector_width];
  store(lane, x);
  for (int half = vector_width / 2; half >= 1; half /= 2)
    for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
  return lane[0];
}

// One level of sum_rows: x and y hold groups of `Group` lanes, one group a row; adds the halves of each group and puts
// the groups of y after those of x.
template <int Group, int... Lane>
inline Vector fold_groups(Vector x, Vector y, std::integer_sequence<int, Lane...>) {
  constexpr int half = Group / 2, groups = vector_width / Group;
  constexpr auto source = [](int lane) {
    const int row = lane / half;
    return (row / groups) * vector_width + (row % groups) * Group + lane % half;
  };
  return __builtin_shufflevector(x, y, source(Lane)...) + __builtin_shufflevector(x, y, source(Lane) + half...);
}

template <int Group>
inline void fold_rows(Vector* rows) {
  if constexpr (Group > 1) {
    for (int r = 0; r < Group / 2; ++r)
      rows[r] = fold_groups<Group>(rows[2 * r], rows[2 * r + 1], std::make_integer_sequence<int, vector_width>());
    fold_rows<Group / 2>(rows);
  }
}

#if SPARSESNN_VECTOR_BYTES == 32
typedef float Half __attribute__((vector_size(16)));

inline Half add_halves(const Vector& x) {
  Half low, high;
  std::memcpy(&low, &x, sizeof(low));
  std::memcpy(&high, reinterpret_cast<const char*>(&x) + sizeof(low), sizeof(high));
  return low + high;
}

// The sums of four rows, in half-width registers: shuffles across the halves of a full one are slow.
inline Half sum_four(const Vector* rows) {
  const Half a = add_halves(rows[0]), b = add_halves(rows[1]), c = add_halves(rows[2]), d = add_halves(rows[3]);
  const Half ab = __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
  const Half cd = __builtin_shufflevector(c, d, 0, 1, 4, 5) + __builtin_shufflevector(c, d, 2, 3, 6, 7);
  return __builtin_shufflevector(ab, cd, 0, 2, 4, 6) + __builtin_shufflevector(ab, cd, 1, 3, 5, 7);
}
#endif

// Lane r of the result is sum_lanes(rows[r]), to the bit; `rows` is overwritten. Two shuffles a row instead of a chain.
inline Vector sum_rows(Vector (&rows)[vector_width]) {
#if SPARSESNN_VECTOR_BYTES == 32
  return __builtin_shufflevector(sum_four(rows), sum_four(rows + 4), 0, 1, 2, 3, 4, 5, 6, 7);
#else
  fold_rows<vector_width>(rows);
  return rows[0];
#endif
}

// The same, written to memory, where the halves need not be joined.
inline void store_sums(float* out, Vector (&rows)[vector_width]) {
#if SPARSESNN_VECTOR_BYTES == 32
  for (int r = 0; r < vector_width; r += 4) {
    const Half sums = sum_four(rows + r);
    std::memcpy(out + r, &sums, sizeof(sums));
  }
#else
  store(out, sum_rows(rows));
#endif
}

}  // namespace sparsesnn::SPARSESNN_ISA
