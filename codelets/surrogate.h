// Surrogate derivatives σ'(x), x = v - threshold; the table with sources is in sparsesnn/surrogate.py.
#pragma once

#include <type_traits>

#include "simd.h"

namespace sparsesnn::SPARSESNN_ISA {

enum class SurrogateKind : int { fast_sigmoid, straight_through, sigmoid, atan, triangle, boxcar };

template <SurrogateKind kind>
inline float surrogate(float slope, float x) {
  if constexpr (kind == SurrogateKind::fast_sigmoid) {
    const float y = slope * __builtin_fabsf(x) + 1.0f;
    return 1.0f / (y * y);
  } else if constexpr (kind == SurrogateKind::sigmoid) {
    const float e = __builtin_expf(-slope * __builtin_fabsf(x));  // σ' is even; this side cannot overflow
    return slope * e / ((1.0f + e) * (1.0f + e));
  } else if constexpr (kind == SurrogateKind::atan) {
    const float y = 1.57079632679489662f * slope * x;
    return slope * 0.5f / (1.0f + y * y);
  } else if constexpr (kind == SurrogateKind::triangle) {
    const float y = 1.0f - slope * __builtin_fabsf(x);
    return y > 0.0f ? y : 0.0f;
  } else if constexpr (kind == SurrogateKind::boxcar) {
    return __builtin_fabsf(x) < 0.5f / slope ? slope : 0.0f;
  }
  return 1.0f;  // straight-through
}

// Calls body with the kind as a constant, so that the choice is made once and not per neuron.
template <class Body>
inline void with_kind(SurrogateKind kind, Body&& body) {
  using Kind = SurrogateKind;
  switch (kind) {
    case Kind::fast_sigmoid:
      return body(std::integral_constant<Kind, Kind::fast_sigmoid>());
    case Kind::straight_through:
      return body(std::integral_constant<Kind, Kind::straight_through>());
    case Kind::sigmoid:
      return body(std::integral_constant<Kind, Kind::sigmoid>());
    case Kind::atan:
      return body(std::integral_constant<Kind, Kind::atan>());
    case Kind::triangle:
      return body(std::integral_constant<Kind, Kind::triangle>());
    case Kind::boxcar:
      return body(std::integral_constant<Kind, Kind::boxcar>());
  }
}

// x ← σ'(x), n numbers.
inline void surrogate_all(SurrogateKind kind, float slope, float* x, std::int64_t n) {
  with_kind(kind, [&](auto constant) {
    for (std::int64_t k = 0; k < n; ++k) x[k] = surrogate<constant()>(slope, x[k]);
  });
}

}  // namespace sparsesnn::SPARSESNN_ISA
