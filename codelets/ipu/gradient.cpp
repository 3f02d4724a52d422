// Gradients on a shard: of the state (StateGrad, ReadoutGrad), and of what it received (ListGrad).
//
//   δ[t] = γ(t)·δ[t+1] + [listed]·σ'·(e + ∂ρ/∂s·δ[t+1])          the last term unless the reset is detached
//   LIF, LI  ∂L/∂i = g·δ              CubaLIF    ∂L/∂i_syn ← α·∂L/∂i_syn + g·δ,  ∂L/∂i = ∂L/∂i_syn
//   d_weight[m, :] += ∂L/∂i[t+d]      for m that fired at t         share[slot] = weight[m, :]·∂L/∂i[t+d]
//
// d_current [D + 1, B, w]: ∂L/∂i of the last steps, D the longest delay; step t is in row t mod (D + 1).
#include "vertex.h"

namespace sparsesnn::ipu {
namespace {

// First of [begin, end) whose id is not below `id`; ids ascend there.
unsigned find(const unsigned short* ids, unsigned begin, unsigned end, unsigned id) {
  while (begin < end) {
    const unsigned middle = (begin + end) / 2;
    if (ids[middle] < id)
      begin = middle + 1;
    else
      end = middle;
    SPARSESNN_WORK(state_search, 1);
  }
  return begin;
}

// t mod n_rows: a tile has no divider, and there are few rows.
unsigned ring_row(unsigned t, unsigned n_rows) {
  unsigned row = t;
  if (n_rows == 1) return 0;
  if (n_rows == 2) return t & 1;
  while (row >= n_rows) row -= n_rows;
  return row;
}

}  // namespace

// list [B, stride], e [B, slots]: remote, the shard's own population at this step and ∂L/∂s at its slots. d_bias [6,
// w]: a worker's samples each; the optimiser adds them.
class StateGrad : public poplar::MultiVertex {
 public:
  poplar::Input<Ids> list;
  poplar::Input<Floats> e;
  poplar::Input<Floats> history;
  poplar::Input<Floats> parameters;
  poplar::InOut<Floats> d_v;
  poplar::InOut<Floats> d_i_syn;
  poplar::InOut<Floats> d_current;
  poplar::InOut<Floats> d_bias;
  poplar::InOut<Words> steps;
  unsigned n_steps, n_samples, n_neurons, first_neuron, stride, n_slots, n_rows, cuba, reset, detach_reset, surrogate;
  float slope, gain;

  bool compute(unsigned worker) {
    const unsigned t = steps[worker] - 1, width = (n_neurons + 1) & ~1u;
    steps[worker] = t;
    const bool last = t + 1 == n_steps;
    const float *beta = &parameters[0], *alpha = beta + width, *theta = alpha + width;
    float* sum = &d_bias[worker * width];
    if (last)
      for (unsigned k = 0; k < width; ++k) sum[k] = 0.0f;
    for (unsigned b = worker; b < n_samples; b += workers) {
      const float* v = &history[(t * n_samples + b) * width];
      float* delta = &d_v[b * width];
      float* out = &d_current[(ring_row(t, n_rows) * n_samples + b) * width];
      if (last)
        for (unsigned k = 0; k < width; ++k) delta[k] = 0.0f;
      for (unsigned k = 0; k < width; ++k) out[k] = 0.0f;
      const unsigned short* ids = &list[b * stride + list_ids];
      const unsigned n_spikes = list[b * stride], n_listed = list[b * stride + 1];
      listed_part(ids, 0, n_spikes, &e[b * n_slots], v, delta, beta, theta, out);
      listed_part(ids, n_spikes, n_listed, &e[b * n_slots], v, delta, beta, theta, out);
      for (unsigned k = 0; k < n_neurons; ++k) {
        delta[k] = tile::rho_by_v(reset, v[k], beta[k], theta[k]) * delta[k] + out[k];
        float d = gain * delta[k];
        if (cuba) {
          float& synaptic = d_i_syn[b * width + k];
          d += alpha[k] * (last ? 0.0f : synaptic);
          synaptic = d;
        }
        out[k] = d;
        sum[k] += d;
      }
      SPARSESNN_WORK(state_sample, 1);
      SPARSESNN_WORK(state_pair, width / 2);
    }
    return true;
  }

 private:
  // σ'·(e + ∂ρ/∂s·δ[t+1]) of the shard's neurons among slots [begin, end), into `out`.
  void listed_part(const unsigned short* ids, unsigned begin, unsigned end, const float* e_slots, const float* v,
                   const float* delta, const float* beta, const float* theta, float* out) const {
    for (unsigned j = find(ids, begin, end, first_neuron); j < end && ids[j] < first_neuron + n_neurons; ++j) {
      const unsigned k = ids[j] - first_neuron;
      const float sigma = tile::surrogate(surrogate, slope, v[k] - theta[k]);
      float q = sigma * e_slots[j];
      if (!detach_reset) q += sigma * tile::rho_by_spike(reset, v[k], beta[k], theta[k]) * delta[k];
      out[k] = q;
      SPARSESNN_WORK(state_id, 1);
    }
  }
};

SPARSESNN_VERTEX(StateGrad, list, e, history, parameters, d_v, d_i_syn, d_current, d_bias, steps, n_steps, n_samples,
                 n_neurons, first_neuron, stride, n_slots, n_rows, cuba, reset, detach_reset, surrogate, slope, gain)

// How potentials become logits; the numbers are those of `_DECODINGS` in sparsesnn/ipu_plan.py.
// `over_steps` decodes nothing: whoever owns the loss reads the potentials of all steps (host/src/ipu/passes.h).
enum Decoding : unsigned { over_max, over_mean, over_sum, over_last, over_steps };

// Once a batch: value [B, w] of each readout neuron over time; ties [B, w], how many steps hold the maximum.
class Decode : public poplar::MultiVertex {
 public:
  poplar::Input<Floats> history;
  poplar::Output<Floats> value;
  poplar::Output<Floats> ties;
  unsigned n_steps, n_samples, n_neurons, decoding;

  bool compute(unsigned worker) {
    const unsigned width = (n_neurons + 1) & ~1u;
    for (unsigned b = worker; b < n_samples; b += workers)
      for (unsigned k = 0; k < n_neurons; ++k) {
        float sum = 0.0f, most = history[b * width + k], n_most = 0.0f, v = 0.0f;
        for (unsigned t = 0; t < n_steps; ++t) {
          v = history[(t * n_samples + b) * width + k];
          sum += v;
          if (v > most) most = v, n_most = 0.0f;
          if (v == most) n_most += 1.0f;
        }
        const float n = static_cast<float>(n_steps);
        value[b * width + k] = decoding == over_max    ? most
                               : decoding == over_mean ? sum / n
                               : decoding == over_sum  ? sum
                                                       : v;
        ties[b * width + k] = n_most;
        SPARSESNN_WORK(reduce_pair, n_steps);
      }
    return true;
  }
};

SPARSESNN_VERTEX(Decode, history, value, ties, n_steps, n_samples, n_neurons, decoding)

// d_value [B, w]: ∂L/∂value of the decoded potential; over_steps: [T, B, w], of all of them, and then history, value
// and ties are not read.
class ReadoutGrad : public poplar::MultiVertex {
 public:
  poplar::Input<Floats> history;
  poplar::Input<Floats> value;
  poplar::Input<Floats> ties;
  poplar::Input<Floats> d_value;
  poplar::Input<Floats> parameters;
  poplar::InOut<Floats> d_v;
  poplar::InOut<Floats> d_current;
  poplar::InOut<Floats> d_bias;
  poplar::InOut<Words> steps;
  unsigned n_steps, n_samples, n_neurons, n_rows, decoding;
  float gain;

  bool compute(unsigned worker) {
    const unsigned t = steps[worker] - 1, width = (n_neurons + 1) & ~1u;
    steps[worker] = t;
    const bool last = t + 1 == n_steps;
    float* sum = &d_bias[worker * width];
    if (last)
      for (unsigned k = 0; k < width; ++k) sum[k] = 0.0f;
    for (unsigned b = worker; b < n_samples; b += workers) {
      float* out = &d_current[(ring_row(t, n_rows) * n_samples + b) * width];
      if (width > n_neurons) out[n_neurons] = 0.0f;
      for (unsigned k = 0; k < n_neurons; ++k) {
        const unsigned at = b * width + k;
        float d = d_value[decoding == over_steps ? t * n_samples * width + at : at];
        if (decoding == over_max)
          d = history[t * n_samples * width + at] == value[at] ? d / ties[at] : 0.0f;
        else if (decoding == over_mean)
          d = d / static_cast<float>(n_steps);
        else if (decoding == over_last && !last)
          d = 0.0f;
        d_v[at] = (last ? 0.0f : parameters[k] * d_v[at]) + d;
        out[k] = gain * d_v[at];
        sum[k] += out[k];
      }
      SPARSESNN_WORK(state_sample, 1);
      SPARSESNN_WORK(state_pair, width / 2);
    }
    return true;
  }
};

SPARSESNN_VERTEX(ReadoutGrad, history, value, ties, d_value, parameters, d_v, d_current, d_bias, steps, n_steps,
                 n_samples, n_neurons, n_rows, decoding, gain)

// Of the connections from the populations of one round. lists[k] [B, strides[k]] and buckets[k]: remote, source k at
// this step. shares[k] [B, slots[k]]: written at listed slots; one pair where nobody needs it (slots[k] = 0).
// gradients[k] [M, w]: worker i owns the rows m with m mod 6 = i. Order of sums: steps descending, samples ascending.
class ListGrad : public poplar::MultiVertex {
 public:
  ListOf<poplar::Input<Ids>> lists;
  ListOf<poplar::Input<Ids>> buckets;
  ListOf<poplar::Input<Floats>> weights;
  ListOf<poplar::InOut<Floats>> gradients;
  ListOf<poplar::Output<Floats>> shares;
  poplar::Input<Floats> d_current;
  poplar::InOut<Words> steps;
  Numbers strides;
  Numbers bucket_strides;
  Numbers slots;
  Numbers delays;
  unsigned n_sources, n_steps, n_samples, n_neurons, n_rows;

  bool compute(unsigned worker) {
    const unsigned t = steps[worker] - 1, n_pairs = (n_neurons + 1) / 2;
    steps[worker] = t;
    for (unsigned s = 0; s < n_sources; ++s) {
      const bool arrives = t + delays[s] < n_steps;
      const Pair* d = arrives ? pairs(&d_current[ring_row(t + delays[s], n_rows) * n_samples * 2 * n_pairs]) : nullptr;
      if (slots[s]) share_all(s, d, n_pairs, worker);
      if (arrives) add_rows(s, d, n_pairs, worker);
    }
    return true;
  }

 private:
  void share_all(unsigned s, const Pair* d_current_rows, unsigned n_pairs, unsigned worker) {
    for (unsigned b = worker; b < n_samples; b += workers) {
      const unsigned short* list = &lists[s][b * strides[s]];
      float* share = &shares[s][b * slots[s]];
      const unsigned n = list[1];
      for (unsigned j = 0; j < n; ++j) {
        float sum = 0.0f;
        if (d_current_rows) {
          const Pair *d = d_current_rows + b * n_pairs, *row = pairs(&weights[s][0]) + list[list_ids + j] * n_pairs;
          Pair lanes = row[0] * d[0];
          for (unsigned k = 1; k < n_pairs; ++k) lanes += row[k] * d[k];
          sum = lanes[0] + lanes[1];
        }
        share[j] = sum;
      }
      SPARSESNN_WORK(share_list, 1);
      SPARSESNN_WORK(share_id, n);
      SPARSESNN_WORK(share_pair, n * n_pairs);
    }
  }

  void add_rows(unsigned s, const Pair* d_current_rows, unsigned n_pairs, unsigned worker) {
    Pair* gradient = pairs(&gradients[s][0]);
    for (unsigned b = 0; b < n_samples; ++b) {
      const unsigned short* bucket = &buckets[s][b * bucket_strides[s]];
      const unsigned short* ids = bucket + bucket_ids + bucket[worker];
      const unsigned n = bucket[bucket_counts + worker];
      const Pair* d = d_current_rows + b * n_pairs;
      for (unsigned j = 0; j < n; ++j) {
        Pair* row = gradient + ids[j] * n_pairs;
        for (unsigned k = 0; k < n_pairs; ++k) row[k] += d[k];
      }
      SPARSESNN_WORK(weight_list, 1);
      SPARSESNN_WORK(weight_id, n);
      SPARSESNN_WORK(weight_pair, n * n_pairs);
    }
  }
};

SPARSESNN_VERTEX(ListGrad, lists, buckets, weights, gradients, shares, d_current, steps, strides, bucket_strides, slots,
                 delays, n_sources, n_steps, n_samples, n_neurons, n_rows)

// Adds rows of shares at listed slots: a group of shards on a reducer; all groups, and the loss's own part, on a
// collector. rows[k] [n, slots]: remote. lists [n, stride] or its counts alone (stride 2). direct [n, n_direct]: ∂L/∂s
// of every neuron, or one pair (n_direct = 0). sum [n, slots].
class Sum : public poplar::MultiVertex {
 public:
  ListOf<poplar::Input<Floats>> rows;
  poplar::Input<Ids> lists;
  poplar::Input<Floats> direct;
  poplar::Output<Floats> sum;
  unsigned n_rows, n_samples, stride, n_slots, n_direct;

  bool compute(unsigned worker) {
    for (unsigned s = 0; s < n_samples; ++s) {
      const unsigned n_pairs = (lists[s * stride + 1] + 1u) / 2, share = (n_pairs + workers - 1) / workers;
      const unsigned first = share * worker, last = first + share < n_pairs ? first + share : n_pairs;
      for (unsigned k = 2 * first; k < 2 * last && k < lists[s * stride + 1]; ++k) {
        float x = n_direct ? direct[s * n_direct + lists[s * stride + list_ids + k]] : 0.0f;
        for (unsigned r = 0; r < n_rows; ++r) x += rows[r][s * n_slots + k];
        sum[s * n_slots + k] = x;
      }
      SPARSESNN_WORK(reduce_row, n_rows);
      SPARSESNN_WORK(reduce_pair, n_rows * (last > first ? last - first : 0));
    }
    return true;
  }
};

SPARSESNN_VERTEX(Sum, rows, lists, direct, sum, n_rows, n_samples, stride, n_slots, n_direct)

}  // namespace sparsesnn::ipu
