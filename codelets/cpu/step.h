// Step: one time step of the neurons of one tile and one sample, of any model (neuron/neuron.h).
//
//   z ← step(z, i)           fired: x > θ           listed: fired, or x > θ_grad
//
// If parameters are trained, the derivatives of the states by them, their traces, are carried along as dual numbers, so
// that the backward pass needs them only at listed neurons, ∂L/∂p = Σ σ'·e·∂(x - θ)/∂p, and no state is stored. They
// pass through the spikes of listed neurons, times σ'. Source: the chain rule along one neuron; the same traces as
// e-prop's eligibility vectors (Bellec et al. 2020).
//
// W neurons; pointers to W floats of the tile and sample, no aliasing; in the usual step currents in registers. Cost:
// that of the model; no memory but the states (and as much again for each trained parameter).
#pragma once

#include "codelets/dual.h"
#include "codelets/neuron/neuron.h"
#include "simd.h"

namespace sparsesnn::SPARSESNN_ISA {

// A model's states, parameters and constants as its functions read them, over vectors.
template <class M>
struct TileNeurons {
  float* state[M::n_states];
  const float* parameter[M::n_parameters];
  Vector constant[M::n_constants];

  void load_states(Vector* z, int k) const {
    for (int s = 0; s < M::n_states; ++s) z[s] = load(state[s] + k);
  }
  void store_states(const Vector* z, int k) const {
    for (int s = 0; s < M::n_states; ++s) store(state[s] + k, z[s]);
  }
  void load_parameters(Vector* p, int k) const {
    for (int q = 0; q < M::n_parameters; ++q) p[q] = load(parameter[q] + k);
  }
};

struct Masks {
  std::uint64_t fired = 0, listed = 0;  // one bit per neuron
};

// One step of a readout: θ_grad is not read, and no neuron fires. `n_columns` of its neurons exist; their potentials go
// to `out`.
template <class M, int W>
inline void step_readout(const TileNeurons<M>& n, const Columns<W>& current, int n_columns, float* out) {
  constexpr Fired<Vector> nobody{};
  Vector potentials[W / vector_width];
  for (int k = 0; k < W; k += vector_width) {
    Vector z[M::n_states], p[M::n_parameters];
    n.load_states(z, k);
    n.load_parameters(p, k);
    M::step(z, p, n.constant, nobody, nobody, current.x[k / vector_width]);
    n.store_states(z, k);
    potentials[k / vector_width] = z[0];
  }
  store_columns<W>(out, potentials, n_columns);
}

// `fresh`: the first step of a sequence: no neuron has fired before it, even if θ is negative and the potential 0.
template <class M, int W>
inline Masks step(const TileNeurons<M>& n, const float* grad_threshold, const float* current, bool fresh) {
  const Vector never = broadcast(__FLT_MAX__);
  Masks masks;
  for (int k = 0; k < W; k += vector_width) {
    Vector z[M::n_states], p[M::n_parameters];
    n.load_states(z, k);
    n.load_parameters(p, k);
    const Vector theta = p[M::threshold];
    const Fired<Vector> fired = Fired<Vector>::of(z[0], fresh ? never : theta);
    M::step(z, p, n.constant, fired, fired, load(current + k));
    n.store_states(z, k);
    masks.fired |= static_cast<std::uint64_t>(mask_greater(z[0], theta)) << k;
    masks.listed |= static_cast<std::uint64_t>(mask_greater(z[0], load(grad_threshold + k))) << k;
  }
  masks.listed |= masks.fired;
  return masks;
}

// The same for a model that is `fused`, with the usual record, x - θ of each listed neuron, in the same pass. Returns
// the position of the next record.
template <class M, int W>
inline float* step_and_record(const TileNeurons<M>& n, const float* grad_threshold, const Columns<W>& current,
                              Masks& masks, float* record) {
  masks = {};
  for (int k = 0; k < W; k += vector_width) {
    Vector z[M::n_states], p[M::n_parameters];
    n.load_states(z, k);
    n.load_parameters(p, k);
    const Vector theta = p[M::threshold];
    const Fired<Vector> fired = Fired<Vector>::of(z[0], theta);
    M::step(z, p, n.constant, fired, fired, current.x[k / vector_width]);
    n.store_states(z, k);
    const std::uint32_t fires = mask_greater(z[0], theta), lists = fires | mask_greater(z[0], load(grad_threshold + k));
    if constexpr (compresses) record = store_selected(record, z[0] - theta, lists);
    masks.fired |= static_cast<std::uint64_t>(fires) << k;
    masks.listed |= static_cast<std::uint64_t>(lists) << k;
  }
  if constexpr (!compresses) record = differences_at<W>(record, n.state[0], n.parameter[M::threshold], masks.listed);
  return record;
}

// The traces of parameter `learnt`, before the states are updated. slope: σ' of the step before at listed neurons, else
// 0; null if no derivative passes through spikes. `detached`: none passes through the reset.
template <class M, int learnt, int W>
inline void step_traces(const TileNeurons<M>& n, float* const* trace, const float* slope, bool detached,
                        const float* current, bool fresh) {
  const Vector never = broadcast(__FLT_MAX__);
  for (int k = 0; k < W; k += vector_width) {
    Vector p[M::n_parameters];
    n.load_parameters(p, k);
    Dual<Vector> z[M::n_states];
    for (int s = 0; s < M::n_states; ++s) z[s] = {load(n.state[s] + k), load(trace[s] + k)};
    const Learnt<Vector, learnt> parameters{p};
    const Vector i = load(current + k);
    const Fired<Vector> fired = Fired<Vector>::of(z[0].x, fresh ? never : p[M::threshold]);
    if (!slope) {
      M::step(z, parameters, n.constant, fired, fired, i);
    } else {
      Vector by_parameter = z[0].dx;  // ∂(x - θ)
      if (learnt == M::threshold) by_parameter -= broadcast(1.0f);
      const Fired<Dual<Vector>> spike{fired, load(slope + k) * by_parameter};
      if (detached)
        M::step(z, parameters, n.constant, fired, spike, i);
      else
        M::step(z, parameters, n.constant, spike, spike, i);
    }
    for (int s = 0; s < M::n_states; ++s) store(trace[s] + k, z[s].dx);
  }
}

}  // namespace sparsesnn::SPARSESNN_ISA
