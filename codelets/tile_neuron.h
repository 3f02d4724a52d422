// One neuron's arithmetic in plain C++, for machines whose tiles have no wide vectors: the scalar form of lif.h and
// surrogate.h, with the same operations in the same order, so that potentials and spikes agree to the last bit where
// no multiply-add is contracted.
//
//   ρ(v)   subtract β·v - θ·s,  with decay β·(v - θ·s),  zero β·v·(1 - s),  none β·v,      s = v > θ
//
// No header of the standard library: popc compiles this for tiles.
#pragma once

namespace sparsesnn::tile {

// The numbers of Reset in host/src/layer.h and of KINDS in sparsesnn/surrogate.py.
enum Reset : unsigned { reset_subtract, reset_subtract_decays, reset_zero, reset_none };
enum SurrogateKind : unsigned { fast_sigmoid, straight_through, sigmoid, atan, triangle, boxcar, exponential };

inline float exp_of(float x);  // as the machine has it; defined by whoever includes this

inline float rho(unsigned reset, float v, float beta, float theta) {
  const bool fired = v > theta;
  switch (reset) {
    case reset_subtract:
      return beta * v - (fired ? theta : 0.0f);
    case reset_subtract_decays:
      return beta * (v - (fired ? theta : 0.0f));
    case reset_zero:
      return beta * (v - (fired ? v : 0.0f));
    default:
      return beta * v;
  }
}

// γ = ∂ρ/∂v at v
inline float rho_by_v(unsigned reset, float v, float beta, float theta) {
  return reset == reset_zero && v > theta ? 0.0f : beta;
}

// ∂ρ/∂s at v
inline float rho_by_spike(unsigned reset, float v, float beta, float theta) {
  switch (reset) {
    case reset_subtract:
      return -theta;
    case reset_subtract_decays:
      return -beta * theta;
    case reset_zero:
      return -beta * v;
    default:
      return 0.0f;
  }
}

// ∂ρ/∂β at v
inline float rho_by_beta(unsigned reset, float v, float theta) {
  const bool fired = v > theta;
  switch (reset) {
    case reset_subtract_decays:
      return v - (fired ? theta : 0.0f);
    case reset_zero:
      return fired ? 0.0f : v;
    default:
      return v;
  }
}

// ∂ρ/∂θ at v
inline float rho_by_theta(unsigned reset, float v, float beta, float theta) {
  if (v <= theta) return 0.0f;
  return reset == reset_subtract ? -1.0f : reset == reset_subtract_decays ? -beta : 0.0f;
}

// σ'(x), x = v - θ
inline float surrogate(unsigned kind, float slope, float x) {
  const float distance = x < 0.0f ? -x : x;
  switch (kind) {
    case fast_sigmoid: {
      const float y = slope * distance + 1.0f;
      return 1.0f / (y * y);
    }
    case sigmoid: {
      const float e = exp_of(-slope * distance);  // σ' is even; this side cannot overflow
      return slope * e / ((1.0f + e) * (1.0f + e));
    }
    case atan: {
      const float y = 1.57079632679489662f * slope * x;
      return slope * 0.5f / (1.0f + y * y);
    }
    case triangle: {
      const float y = 1.0f - slope * distance;
      return y > 0.0f ? y : 0.0f;
    }
    case boxcar:
      return distance < 0.5f / slope ? slope : 0.0f;
    case exponential:
      return exp_of(-slope * distance);
    default:
      return 1.0f;
  }
}

}  // namespace sparsesnn::tile
