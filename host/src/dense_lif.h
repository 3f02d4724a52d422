// The dense baseline's neuron dynamics over a chunk of a sequence, forward and backward, every neuron computed.
//
// What runs here is what lies between the matrix products: the products are the caller's. The backward pass needs the
// potentials of the chunk, which a forward pass over the same currents writes anew, so only the currents are kept
// between forward and backward. Source: Liang et al., "Accelerating Spatiotemporal Supervised Training of Large-Scale
// Spiking Neural Networks on GPU" (DATE 2022): keep x alone, fuse the rest over time.
//
// F is float or double. Arrays are dense and row-major: [T, B, N], [B, N] or [N]. Nothing here depends on the number
// of threads or the instruction set, to the last bit: a neuron of a sample is computed from its own past alone, and
// sums over samples are left to the caller.
#pragma once

#include "layer.h"

namespace sparsesnn {

enum class Model : int { lif, cuba_lif, li };
enum class Reset : int { subtract, subtract_decays, zero, none };

// What defines the dynamics; `surrogate` as in codelets/surrogate.h.
template <class F>
struct DensePopulation {
  Model model;
  Reset reset;
  bool detach_reset;
  int surrogate;
  F slope, gain;
  int n_steps, n_samples, n;  // T of the chunk, B, N
  // [N] each; alpha is null but for CubaLIF, threshold and grad_threshold are null for LI
  const F *alpha, *beta, *threshold, *grad_threshold;
};

//   CubaLIF  i ← i_syn ← α·i_syn + i          all      v ← ρ(v) + g·i          LI: ρ(v) = β·v
template <class F>
struct DenseForward {
  const F* current;        // [T, B, N]
  const F *scale, *shift;  // [N] or null both: the current is scale·current + shift (batch norm, folded)
  F *v, *i_syn;            // [B, N], running; i_syn is null but for CubaLIF
  F* out;                  // [T, B, N], spikes as 0 and 1, LI: potentials; or null
  bool* fired;             // [T, B, N], the spikes as a byte each; or null, as always for LI
  // [T + 1, B, N] or null: row 0 is the state before the chunk, row t + 1 the one after step t
  F *v_rows, *i_syn_rows;
};

//   q = σ'(v - θ)·d_out at listed neurons      δ ← γ·δ + q      d_current = g·δ, CubaLIF: α·d_current[t+1] + g·δ
template <class F>
struct DenseBackward {
  const F *v_rows, *i_syn_rows;  // as a forward pass wrote them; LI reads v_rows only for d_beta
  const F* d_out;                // [T, B, N]
  F *delta, *d_i;                // [B, N], running: δ, and d_current of CubaLIF (else null)
  F* d_current;                  // [T, B, N]
  // [B, N], summed over the steps of the chunk on top of what is there; null where nobody asked
  F *d_bias, *d_alpha, *d_beta, *d_threshold;
  const F* current;  // as the forward pass read it; for d_scale [B, N] = Σ_t d_current·current, else both null
  F* d_scale;
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
