// Forward: deliver, step and select for the neurons of one shard, one time step.
//
//   i[b] = bias + Σ_sources Σ_{m in list} weight[m, :]     ids ascending, one addition after the other
//   LIF v ← ρ(v) + g·i     CubaLIF i_syn ← α·i_syn + i ; v ← ρ(v) + g·i_syn     LI v ← β·v + g·i
//   masks[b] = which neurons have v > θ; which others have v > θ_grad
//
// lists[k] [B, stride]: remote, what the collectors of source k sent. weights[k] [M, w]: the shard's columns.
// parameters [4, w]: β, α, θ, θ_grad. history [rows, B, w]: potentials of all steps, or of two where nothing is
// trained; the current is summed up in the place of the new potential. i_syn [B, w]. masks [B, 2, words]. steps: t, one
// copy a worker. Cost: 4·w bytes read and w additions an id.
#include "vertex.h"

namespace sparsesnn::ipu {

class Forward : public poplar::MultiVertex {
 public:
  ListOf<poplar::Input<Ids>> lists;
  ListOf<poplar::Input<Floats>> weights;
  poplar::Input<Floats> parameters;
  poplar::Input<Floats> bias;
  poplar::InOut<Floats> history;
  poplar::InOut<Floats> i_syn;
  poplar::Output<Words> masks;
  poplar::InOut<Words> steps;
  Numbers strides;
  Numbers delays;
  unsigned n_sources, n_samples, n_neurons, n_rows, cuba, readout, reset;
  float gain;

  bool compute(unsigned worker) {
    const unsigned t = steps[worker], width = (n_neurons + 1) & ~1u;
    steps[worker] = t + 1;
    const unsigned row = n_rows == 2 ? t & 1 : t, row_before = n_rows == 2 ? row ^ 1 : t - 1;
    for (unsigned b = worker; b < n_samples; b += workers) {
      float* v = &history[(row * n_samples + b) * width];
      const float* v_before = t ? &history[(row_before * n_samples + b) * width] : nullptr;
      for (unsigned k = 0; k < width; ++k) v[k] = bias[k];
      for (unsigned s = 0; s < n_sources; ++s)
        if (t >= delays[s]) deliver(pairs(v), pairs(&weights[s][0]), &lists[s][b * strides[s]], width / 2);
      step(b, t, v, v_before, width);
    }
    return true;
  }

 private:
  // Four pairs stay in registers over the whole list.
  static void deliver(Pair* current, const Pair* weight, const unsigned short* list, unsigned n_pairs) {
    const unsigned n = list[0];
    const unsigned short* ids = list + list_ids;
    unsigned k = 0;
    for (; k + 4 <= n_pairs; k += 4) {
      Pair a = current[k], b = current[k + 1], c = current[k + 2], d = current[k + 3];
      for (unsigned j = 0; j < n; ++j) {
        const Pair* row = weight + ids[j] * n_pairs + k;
        a += row[0], b += row[1], c += row[2], d += row[3];
      }
      current[k] = a, current[k + 1] = b, current[k + 2] = c, current[k + 3] = d;
    }
    for (; k < n_pairs; ++k) {
      Pair a = current[k];
      for (unsigned j = 0; j < n; ++j) a += weight[ids[j] * n_pairs + k];
      current[k] = a;
    }
    SPARSESNN_WORK(deliver_list, 1);
    SPARSESNN_WORK(deliver_id, n);
    SPARSESNN_WORK(deliver_pair, n * n_pairs);
  }

  // `v` holds the current and receives the potential.
  void step(unsigned b, unsigned t, float* v, const float* v_before, unsigned width) {
    const float *beta = &parameters[0], *alpha = beta + width, *theta = alpha + width, *theta_grad = theta + width;
    const unsigned n_words = (n_neurons + 31) / 32;
    unsigned* fired = &masks[readout ? 0 : 2 * n_words * b];
    unsigned fired_bits = 0, near_bits = 0;
    for (unsigned k = 0; k < n_neurons; ++k) {
      float i = v[k];
      if (cuba) {
        float& synaptic = i_syn[b * width + k];
        i += alpha[k] * (t ? synaptic : 0.0f);
        synaptic = i;
      }
      const float before = v_before ? v_before[k] : 0.0f;
      v[k] = tile::rho(reset, before, beta[k], theta[k]) + gain * i;
      if (v[k] > theta[k])
        fired_bits |= 1u << (k % 32);
      else if (v[k] > theta_grad[k])
        near_bits |= 1u << (k % 32);
      if (readout || (k % 32 != 31 && k + 1 < n_neurons)) continue;
      fired[k / 32] = fired_bits;
      fired[n_words + k / 32] = near_bits;
      fired_bits = near_bits = 0;
    }
    SPARSESNN_WORK(step_sample, 1);
    SPARSESNN_WORK(step_pair, width / 2);
    SPARSESNN_WORK(step_cuba, cuba * width / 2);
    SPARSESNN_WORK(select_word, readout ? 0 : 2 * n_words);
  }
};

SPARSESNN_VERTEX(Forward, lists, weights, parameters, bias, history, i_syn, masks, steps, strides, delays, n_sources,
                 n_samples, n_neurons, n_rows, cuba, readout, reset, gain)

}  // namespace sparsesnn::ipu
