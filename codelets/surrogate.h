// Surrogate derivatives σ'(x), x = v - threshold; the table with sources is in sparsesnn/surrogate.py.
#pragma once

#include <cmath>

#include "simd.h"

namespace sparsesnn::SPARSESNN_ISA {

enum class SurrogateKind : int { fast_sigmoid, straight_through, sigmoid, atan, triangle, boxcar };

inline float surrogate(SurrogateKind kind, float slope, float x) {
  switch (kind) {
    case SurrogateKind::fast_sigmoid: {
      const float y = slope * __builtin_fabsf(x) + 1.0f;
      return 1.0f / (y * y);
    }
    case SurrogateKind::straight_through:
      return 1.0f;
    case SurrogateKind::sigmoid: {
      const float e = __builtin_expf(-slope * __builtin_fabsf(x));  // σ' is even; this side cannot overflow
      return slope * e / ((1.0f + e) * (1.0f + e));
    }
    case SurrogateKind::atan: {
      const float y = 1.57079632679489662f * slope * x;
      return slope * 0.5f / (1.0f + y * y);
    }
    case SurrogateKind::triangle: {
      const float y = 1.0f - slope * __builtin_fabsf(x);
      return y > 0.0f ? y : 0.0f;
    }
    case SurrogateKind::boxcar:
      return __builtin_fabsf(x) < 0.5f / slope ? slope : 0.0f;
  }
  return 0.0f;
}

}  // namespace sparsesnn::SPARSESNN_ISA
