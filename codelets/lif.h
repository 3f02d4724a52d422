// Step: one time step of the neuron dynamics of one tile and one sample.
//
//   LIF      v ← ρ(v) + g·i                     CubaLIF   i_syn ← α·i_syn + i ;  v ← ρ(v) + g·i_syn
//   LI       v ← β·v + g·i
//   ρ(v)     subtract β·v - θ·s,  with decay β·(v - θ·s),  zero β·v·(1 - s),  none β·v,      s = v > θ
//
// The reset acts on the state: s is read off v itself, so a spike that found no slot resets its neuron too.
//
// Where β, α or θ learn, the derivatives of v by them run along (γ = ∂v[t]/∂v[t-1], r = the reset's part of it):
//
//   ∂v/∂β ← γ·∂v/∂β + ∂ρ/∂β       ∂v/∂θ ← γ·∂v/∂θ + ∂ρ/∂θ - r
//   ∂i_syn/∂α ← α·∂i_syn/∂α + i_syn       ∂v/∂α ← γ·∂v/∂α + g·∂i_syn/∂α
//
// so that the backward pass needs them only at listed neurons, ∂L/∂β = Σ σ'·e·∂v/∂β, and no potential is stored.
// Source: the chain rule along one neuron; the same traces as e-prop's eligibility vectors (Bellec et al. 2020).
//
// All pointers: W floats of the tile and sample, no aliasing. Cost: about 10 flops a neuron, no memory but the state.
#pragma once

#include "../host/src/layer.h"
#include "simd.h"

namespace sparsesnn::SPARSESNN_ISA {

struct StepState {
  float *v, *i_syn, *v_by_alpha, *i_syn_by_alpha, *v_by_beta, *v_by_threshold, *reset_gamma;
};

struct StepParameters {
  const float *alpha, *beta, *threshold, *grad_threshold;
  float gain;
};

// The part of v[t] that comes from v[t-1].
template <Reset reset>
inline Vector rho(Vector v, Vector beta, Vector theta) {
  if constexpr (reset == Reset::subtract) return beta * v - where_greater(v, theta, theta);
  if constexpr (reset == Reset::subtract_decays) return beta * (v - where_greater(v, theta, theta));
  if constexpr (reset == Reset::zero) return beta * (v - where_greater(v, theta, v));
  return beta * v;
}

// The derivative traces; to be called before v and i_syn move on.
template <Reset reset, int W>
inline void step_traces(const StepState& s, const StepParameters& p) {
  for (int k = 0; k < W; k += vector_width) {
    const Vector v = load(s.v + k), beta = load(p.beta + k), theta = load(p.threshold + k);
    const Vector from_reset = s.reset_gamma ? load(s.reset_gamma + k) : Vector{};
    const Vector kept = reset == Reset::zero ? beta - where_greater(v, theta, beta) : beta;
    const Vector gamma = kept + from_reset;
    if (s.v_by_beta) {
      Vector by_beta = v;  // ∂ρ/∂β
      if (reset == Reset::subtract_decays) by_beta = v - where_greater(v, theta, theta);
      if (reset == Reset::zero) by_beta = v - where_greater(v, theta, v);
      store(s.v_by_beta + k, gamma * load(s.v_by_beta + k) + by_beta);
    }
    if (s.v_by_threshold) {
      Vector by_theta = Vector{} - from_reset;  // ∂ρ/∂θ - r
      if (reset == Reset::subtract) by_theta -= where_greater(v, theta, broadcast(1.0f));
      if (reset == Reset::subtract_decays) by_theta -= where_greater(v, theta, beta);
      store(s.v_by_threshold + k, gamma * load(s.v_by_threshold + k) + by_theta);
    }
    if (s.v_by_alpha) {
      const Vector i_by_alpha = load(p.alpha + k) * load(s.i_syn_by_alpha + k) + load(s.i_syn + k);
      store(s.i_syn_by_alpha + k, i_by_alpha);
      store(s.v_by_alpha + k, gamma * load(s.v_by_alpha + k) + broadcast(p.gain) * i_by_alpha);
    }
  }
}

template <Reset reset, int W>
inline void step_reset(const StepState& s, const StepParameters& p, const float* current, std::uint64_t& fired,
                       std::uint64_t& listed) {
  if (s.v_by_alpha || s.v_by_beta || s.v_by_threshold) step_traces<reset, W>(s, p);
  const Vector gain = broadcast(p.gain);
  fired = listed = 0;
  for (int k = 0; k < W; k += vector_width) {
    Vector i = load(current + k);
    if (s.i_syn) {
      i += load(p.alpha + k) * load(s.i_syn + k);
      store(s.i_syn + k, i);
    }
    const Vector theta = load(p.threshold + k);
    const Vector v = rho<reset>(load(s.v + k), load(p.beta + k), theta) + gain * i;
    store(s.v + k, v);
    fired |= static_cast<std::uint64_t>(mask_greater(v, theta)) << k;
    listed |= static_cast<std::uint64_t>(mask_greater(v, load(p.grad_threshold + k))) << k;
  }
  listed |= fired;
}

// LIF without derivative traces, with the usual record, v - θ of each listed neuron, in the same pass. Returns where
// the next record goes.
template <Reset reset, int W>
inline float* step_and_record(float* state_v, const StepParameters& p, const float* current, std::uint64_t& fired,
                              std::uint64_t& listed, float* record) {
  const Vector gain = broadcast(p.gain);
  fired = listed = 0;
  for (int k = 0; k < W; k += vector_width) {
    const Vector theta = load(p.threshold + k);
    const Vector v = rho<reset>(load(state_v + k), load(p.beta + k), theta) + gain * load(current + k);
    store(state_v + k, v);
    const std::uint32_t fires = mask_greater(v, theta), lists = fires | mask_greater(v, load(p.grad_threshold + k));
    if constexpr (compresses) record = store_selected(record, v - theta, lists);
    fired |= static_cast<std::uint64_t>(fires) << k;
    listed |= static_cast<std::uint64_t>(lists) << k;
  }
  if constexpr (!compresses) record = differences_at<W>(record, state_v, p.threshold, listed);
  return record;
}

// LIF and CubaLIF (i_syn not null). `fired` and `listed` get one bit per neuron.
template <int W>
inline void step(Reset reset, const StepState& s, const StepParameters& p, const float* current, std::uint64_t& fired,
                 std::uint64_t& listed) {
  switch (reset) {
    case Reset::subtract:
      return step_reset<Reset::subtract, W>(s, p, current, fired, listed);
    case Reset::subtract_decays:
      return step_reset<Reset::subtract_decays, W>(s, p, current, fired, listed);
    case Reset::zero:
      return step_reset<Reset::zero, W>(s, p, current, fired, listed);
    case Reset::none:
      return step_reset<Reset::none, W>(s, p, current, fired, listed);
  }
}

// LI: integrates, never fires.
template <int W>
inline void step_readout(float* v, const StepParameters& p, const float* current) {
  const Vector gain = broadcast(p.gain);
  for (int k = 0; k < W; k += vector_width) store(v + k, load(p.beta + k) * load(v + k) + gain * load(current + k));
}

// ∂ρ/∂s at v, one neuron: what the reset itself contributes to the gradient of a spike.
inline float rho_by_spike(Reset reset, float v, float beta, float theta) {
  switch (reset) {
    case Reset::subtract:
      return -theta;
    case Reset::subtract_decays:
      return -beta * theta;
    case Reset::zero:
      return -beta * v;
    case Reset::none:
      return 0.0f;
  }
  return 0.0f;
}

}  // namespace sparsesnn::SPARSESNN_ISA
