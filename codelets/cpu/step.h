// Step: one time step of the neurons of one tile and one sample, of any shape (codelets/neuron.h).
//
//   z ← step(z, i)           fired: x > θ           listed: fired, or x > θ_grad
//
// If parameters are trained, the derivatives of the states by them, their traces, are carried along, so that the
// backward pass needs them only at listed neurons, ∂L/∂p = Σ σ'·e·∂(x - θ)/∂p, and no state is stored. They pass
// through the spikes of listed neurons, times σ'. Source: the chain rule along one neuron; the same traces as e-prop's
// eligibility vectors (Bellec et al. 2020).
//
// W neurons; pointers to W floats of the tile and sample, no aliasing; in the usual step currents in registers. Cost:
// that of the shape; no memory but the states (and as much again for each trained parameter).
#pragma once

#include "codelets/neuron.h"
#include "simd.h"

namespace sparsesnn::SPARSESNN_ISA {

// Loads a vector of each entry of a shape, from neuron k on.
template <class M>
SPARSESNN_INLINE inline void load_entries(Vector* p, const float* const* entries, std::size_t k) {
  ascend<M::n_entries>([&](auto q) SPARSESNN_INLINE { p[q] = load(entries[q] + k); });
}

// The states of a tile's neurons; the entries of all neurons, and the tile's first one.
template <class M>
struct TileNeurons {
  float* state[M::n_states];
  const float* const* entries;
  std::size_t first;

  SPARSESNN_INLINE void load_states(Vector* z, int k) const {
    for (int s = 0; s < M::n_states; ++s) z[s] = load(state[s] + k);
  }
  SPARSESNN_INLINE void store_states(const Vector* z, int k) const {
    for (int s = 0; s < M::n_states; ++s) store(state[s] + k, z[s]);
  }
  SPARSESNN_INLINE void load_parameters(Vector* p, int k) const { load_entries<M>(p, entries, first + k); }
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
    Vector z[M::n_states], p[M::n_entries];
    n.load_states(z, k);
    n.load_parameters(p, k);
    M::step(z, p, nobody, current.x[k / vector_width]);
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
    Vector z[M::n_states], p[M::n_entries];
    n.load_states(z, k);
    n.load_parameters(p, k);
    const Vector theta = p[M::threshold];
    const Fired<Vector> fired = Fired<Vector>::of(z[0], fresh ? never : theta);
    M::step(z, p, fired, load(current + k));
    n.store_states(z, k);
    masks.fired |= static_cast<std::uint64_t>(mask_greater(z[0], theta)) << k;
    masks.listed |= static_cast<std::uint64_t>(mask_greater(z[0], load(grad_threshold + k))) << k;
  }
  masks.listed |= masks.fired;
  return masks;
}

// The same with the usual record, x - θ of each listed neuron, in the same pass. Returns the position of the next
// record.
template <class M, int W>
inline float* step_and_record(const TileNeurons<M>& n, const float* grad_threshold, const Columns<W>& current,
                              Masks& masks, float* record) {
  masks = {};
  for (int k = 0; k < W; k += vector_width) {
    Vector z[M::n_states], p[M::n_entries];
    n.load_states(z, k);
    n.load_parameters(p, k);
    const Vector theta = p[M::threshold];
    M::step(z, p, Fired<Vector>::of(z[0], theta), current.x[k / vector_width]);
    n.store_states(z, k);
    const std::uint32_t fires = mask_greater(z[0], theta), lists = fires | mask_greater(z[0], load(grad_threshold + k));
    if constexpr (compresses) record = store_selected(record, z[0] - theta, lists);
    masks.fired |= static_cast<std::uint64_t>(fires) << k;
    masks.listed |= static_cast<std::uint64_t>(lists) << k;
  }
  if constexpr (!compresses)
    record = differences_at<W>(record, n.state[0], n.entries[M::threshold] + n.first, masks.listed);
  return record;
}

// The traces of trained parameters: of each, the states of all neurons and the entries, both differentiated by it.
template <int max_states>
struct Traces {
  int n;
  float* const (*states)[max_states];
  const float* const* const* entries;
  const float*
      slope;      // σ' of the step before at listed neurons of the tile, else 0; null if none passes through spikes
  bool detached;  // none passes through the reset
};

// `step`, which advances the traces too; `state`: the place of the tile's numbers in their states.
template <class M, int W, int max_states>
inline Masks step_with_traces(const TileNeurons<M>& n, const float* grad_threshold, const Traces<max_states>& traces,
                              std::size_t state, const float* current, bool fresh) {
  const Vector never = broadcast(__FLT_MAX__);
  Masks masks;
  for (int k = 0; k < W; k += vector_width) {
    Vector p[M::n_entries], before[M::n_states], z[M::n_states];
    n.load_parameters(p, k);
    n.load_states(before, k);
    n.load_states(z, k);
    const Vector i = load(current + k), slope = traces.slope ? load(traces.slope + k) : Vector{};
    const Fired<Vector> fired = Fired<Vector>::of(before[0], fresh ? never : p[M::threshold]);
    M::step(z, p, fired, i);
    n.store_states(z, k);
    masks.fired |= static_cast<std::uint64_t>(mask_greater(z[0], p[M::threshold])) << k;
    masks.listed |= static_cast<std::uint64_t>(mask_greater(z[0], load(grad_threshold + k))) << k;
    for (int q = 0; q < traces.n; ++q) {
      Vector d_p[M::n_entries], d_z[M::n_states];
      load_entries<M>(d_p, traces.entries[q], n.first + k);
      for (int s = 0; s < M::n_states; ++s) d_z[s] = load(traces.states[q][s] + state + k);
      if (traces.slope)
        M::template step_trace<true>(d_z, before, z, p, d_p, fired, slope * (d_z[0] - d_p[M::threshold]),
                                     !traces.detached, i);
      else
        M::template step_trace<false>(d_z, before, z, p, d_p, fired, Vector{}, false, i);
      for (int s = 0; s < M::n_states; ++s) store(traces.states[q][s] + state + k, d_z[s]);
    }
  }
  masks.listed |= masks.fired;
  return masks;
}

}  // namespace sparsesnn::SPARSESNN_ISA
