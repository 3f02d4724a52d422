// The dense baseline's neuron dynamics over a chunk of a sequence, forward and backward, every neuron computed.
//
// This code runs between the matrix products, which are the caller's. The backward pass needs the potentials of the
// chunk, which a forward pass over the same currents computes again, so only the currents are kept between forward and
// backward. Source: Liang et al., "Accelerating Spatiotemporal Supervised Training of Large-Scale Spiking Neural
// Networks on GPU" (DATE 2022): keep x alone, fuse the rest over time.
//
// F is float or double. Arrays are dense and row-major: [T, B, N], [B, N] or [N]. Nothing here depends on the number of
// threads or the instruction set, to the last bit: a neuron of a sample is computed from its own past alone, and sums
// over samples are left to the caller.
#pragma once

#include "host/src/cpu/layer.h"

namespace sparsesnn {

// The dynamics of a population; `surrogate`: index in codelets/surrogate.h.
template <class F>
struct DensePopulation {
  const NeuronShape* shape;
  bool fires, detach_reset;
  int surrogate;
  F slope;
  int n_steps, n_samples, n;                      // T of the chunk, B, N
  bool fresh;                                     // a sequence begins: no neuron has fired before its first step
  const F* entries[max_entries];                  // [N] each, in the shape's order
  int n_learnt;                                   // trained parameters whose gradients are wanted
  const F* derivatives[max_learnt][max_entries];  // of the entries by each of them, [N]
  const F* grad_threshold;                        // [N]; null for a readout
};

// Advances all states by a step (codelets/neuron.h).
template <class F>
struct DenseForward {
  const F* current;      // [T, B, N]
  F* state[max_states];  // [B, N], running
  F* out;                // [T, B, N], spikes as 0 and 1, for a readout potentials; or null
  bool* fired;           // [T, B, N], the spikes as a byte each; or null, as always for a readout
  // [T + 1, B, N] each or null all: row 0 is the state before the chunk, row t + 1 that after step t
  F* rows[max_states];
};

// d_state by the adjoint of a step, with q = σ'(x - θ)·d_out at listed neurons.
template <class F>
struct DenseBackward {
  const F* rows[max_states];  // as a forward pass wrote them; a readout reads them only for d_parameters
  const F* d_out;             // [T, B, N]
  F* d_state[max_states];     // [B, N], running
  F* d_current;               // [T, B, N]
  // [B, N], the sums over the steps of the chunk are added; null if not wanted
  F *d_bias, *d_parameters[max_learnt];
  const F* current;  // as the forward pass read it, for d_parameters; else null
};

template <class F>
void dense_forward(const DensePopulation<F>& population, const DenseForward<F>& arrays);

template <class F>
void dense_backward(const DensePopulation<F>& population, const DenseBackward<F>& arrays);

// The passes over neurons n0..n1-1 of one sample, built once per instruction set.
template <class F>
struct DensePasses {
  void (*forward)(const DensePopulation<F>&, const DenseForward<F>&, int sample, int n0, int n1);
  void (*backward)(const DensePopulation<F>&, const DenseBackward<F>&, int sample, int n0, int n1);
};

struct DenseKernels {
  DensePasses<float> f32;
  DensePasses<double> f64;
};

}  // namespace sparsesnn
