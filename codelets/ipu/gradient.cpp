// Gradients on a shard: of the state (StateGrad), and of what it received (ListGrad).
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

unsigned count_bits(unsigned x) { return static_cast<unsigned>(__builtin_popcount(x)); }

// t mod n_rows: a tile has no divider, and there are few rows.
unsigned ring_row(unsigned t, unsigned n_rows) {
  unsigned row = t;
  if (n_rows == 1) return 0;
  if (n_rows == 2) return t & 1;
  while (row >= n_rows) row -= n_rows;
  return row;
}

}  // namespace

// Of a tile's shards. By spiking shard: lists [B, stride], e [B, slots]: remote, its own population at this step and
// ∂L/∂s at its slots. d_values [B, w]: by readout shard, ∂L/∂value, or over_steps [T, B, w]; else one pair. memory: of
// a readout what Forward decoded, [2, B, w]; a CubaLIF's synaptic currents of all steps where it learns α; else one
// pair. d_i_syn: of a CubaLIF. d_vectors [1 + learnt, 6, w]: of the bias, then of those of β, α, θ that learn; a
// worker's samples each, which the optimiser adds.
//
// regulariser [w + 2]: what Regularise found, where `regularised`; else one pair.
//
//   d_β += δ[t]·∂ρ/∂β(v[t-1])    d_α += ∂L/∂i_syn[t]·i_syn[t-1]
//   d_θ += δ[t]·∂ρ/∂θ(v[t-1]) - [listed]·σ'·(e + ∂ρ/∂s·δ[t+1])
class StateGrad : public poplar::MultiVertex {
 public:
  ListOf<poplar::Input<Ids>> lists;
  ListOf<poplar::Input<Floats>> e;
  ListOf<poplar::Input<Floats>> history;
  ListOf<poplar::Input<Floats>> parameters;
  ListOf<poplar::Input<Floats>> memory;
  ListOf<poplar::Input<Floats>> d_values;
  ListOf<poplar::Input<Floats>> regulariser;
  ListOf<poplar::InOut<Floats>> d_v;
  ListOf<poplar::InOut<Floats>> d_i_syn;
  ListOf<poplar::InOut<Floats>> d_current;
  ListOf<poplar::InOut<Floats>> d_vectors;
  poplar::InOut<Words> clock;
  Numbers shards;
  unsigned n_shards, n_turns, n_steps, n_samples;

  bool compute(unsigned worker) {
    const Moment now = backwards(&clock[0], worker, n_turns);
    for (unsigned k = 0; k < n_shards; ++k) {
      const StateShard& s = record<StateShard>(shards, k);
      if (s.turn != now.turn) continue;
      if (now.t + 1 == n_steps) clear(s, k, worker);
      for (unsigned b = worker; b < n_samples; b += workers) {
        if (s.readout)
          readout(s, k, now.t, b, worker);
        else
          spiking(s, k, now.t, b, worker);
        SPARSESNN_WORK(state_sample, 1);
        SPARSESNN_WORK(state_pair, even(s.n_neurons) / 2);
      }
    }
    return true;
  }

 private:
  // The row of d_vectors that this worker adds to; `vector` counts the bias and what learns.
  float* row(const StateShard& s, unsigned k, unsigned vector, unsigned worker) {
    return &d_vectors[k][(vector * workers + worker) * even(s.n_neurons)];
  }

  void clear(const StateShard& s, unsigned k, unsigned worker) {
    const unsigned width = even(s.n_neurons), n_vectors = 1 + count_bits(s.learns);
    for (unsigned i = 0; i < n_vectors; ++i)
      for (unsigned j = 0; j < width; ++j) row(s, k, i, worker)[j] = 0.0f;
  }

  void spiking(const StateShard& s, unsigned k, unsigned t, unsigned b, unsigned worker) {
    const bool last = t + 1 == n_steps;
    const unsigned width = even(s.n_neurons);
    const float *beta = &parameters[k][0], *alpha = beta + width, *theta = alpha + width;
    const float* v = &history[k][(rows_of(t, s.every).now * n_samples + b) * width];
    float* delta = &d_v[k][b * width];
    float* out = &d_current[k][(ring_row(t, s.n_rows) * n_samples + b) * width];
    float* bias = row(s, k, 0, worker);
    if (last)
      for (unsigned j = 0; j < width; ++j) delta[j] = 0.0f;
    for (unsigned j = 0; j < width; ++j) out[j] = 0.0f;
    const unsigned short* list = &lists[k][b * s.stride];
    const unsigned short* ids = list + list_ids;
    const bool regularised = s.regularised && static_cast<float>(b) < regulariser[k][width];
    const float* more = regularised ? &regulariser[k][0] : nullptr;
    listed_part(s, ids, 0, list[0], &e[k][b * s.n_slots], more, v, delta, beta, theta, out);
    listed_part(s, ids, list[0], list[1], &e[k][b * s.n_slots], more, v, delta, beta, theta, out);
    if (s.learns & learns_threshold) {  // of σ(v - θ); `out` holds no more than that yet
      float* d_theta = row(s, k, count_bits(s.learns), worker);
      for (unsigned j = 0; j < s.n_neurons; ++j) d_theta[j] -= out[j];
    }
    for (unsigned j = 0; j < s.n_neurons; ++j) {
      delta[j] = tile::rho_by_v(s.reset, v[j], beta[j], theta[j]) * delta[j] + out[j];
      float d = s.gain * delta[j];
      if (s.cuba) {
        float& synaptic = d_i_syn[k][b * width + j];
        d += alpha[j] * (last ? 0.0f : synaptic);
        synaptic = d;
      }
      out[j] = d;
      bias[j] += d;
    }
    if (s.learns && t) learn(s, k, t, b, worker, delta, out);
  }

  // What β, α and θ get through the decay of the step before; before step 0 all is 0.
  void learn(const StateShard& s, unsigned k, unsigned t, unsigned b, unsigned worker, const float* delta,
             const float* d_i) {
    const unsigned width = even(s.n_neurons), at = (rows_of(t, s.every).before * n_samples + b) * width;
    const float *beta = &parameters[k][0], *theta = beta + 2 * width, *before = &history[k][at];
    unsigned vector = 1;
    if (s.learns & learns_beta) {
      float* d = row(s, k, vector++, worker);
      for (unsigned j = 0; j < s.n_neurons; ++j) d[j] += delta[j] * tile::rho_by_beta(s.reset, before[j], theta[j]);
    }
    if (s.learns & learns_alpha) {
      float* d = row(s, k, vector++, worker);
      for (unsigned j = 0; j < s.n_neurons; ++j) d[j] += d_i[j] * memory[k][at + j];
    }
    if (s.learns & learns_threshold) {
      float* d = row(s, k, vector, worker);
      for (unsigned j = 0; j < s.n_neurons; ++j)
        d[j] += delta[j] * tile::rho_by_theta(s.reset, before[j], beta[j], theta[j]);
    }
    SPARSESNN_WORK(state_pair, count_bits(s.learns) * width / 2);
  }

  // σ'·(e + ∂ρ/∂s·δ[t+1]) of the shard's neurons among slots [begin, end), into `out`.
  static void listed_part(const StateShard& s, const unsigned short* ids, unsigned begin, unsigned end,
                          const float* e_slots, const float* more, const float* v, const float* delta,
                          const float* beta, const float* theta, float* out) {
    const unsigned after = s.first_neuron + s.n_neurons;
    for (unsigned j = find(ids, begin, end, s.first_neuron); j < end && ids[j] < after; ++j) {
      const unsigned k = ids[j] - s.first_neuron;
      const float sigma = tile::surrogate(s.surrogate, s.slope, v[k] - theta[k]);
      float q = sigma * (more ? e_slots[j] + more[k] : e_slots[j]);
      if (!s.detach_reset) q += sigma * tile::rho_by_spike(s.reset, v[k], beta[k], theta[k]) * delta[k];
      out[k] = q;
      SPARSESNN_WORK(state_id, 1);
    }
  }

  void readout(const StateShard& s, unsigned k, unsigned t, unsigned b, unsigned worker) {
    const bool last = t + 1 == n_steps;
    const unsigned width = even(s.n_neurons);
    const unsigned decoded = s.decoding == over_max ? 1 : 0;  // else neither of these is read
    const float *v = &history[k][decoded * (t * n_samples + b) * width], *value = &memory[k][decoded * b * width];
    const float* ties = value + decoded * n_samples * width;
    float *out = &d_current[k][(ring_row(t, s.n_rows) * n_samples + b) * width], *delta = &d_v[k][b * width];
    float* bias = row(s, k, 0, worker);
    if (width > s.n_neurons) out[s.n_neurons] = 0.0f;
    for (unsigned j = 0; j < s.n_neurons; ++j) {
      float d = d_values[k][(s.decoding == over_steps ? t * n_samples * width : 0) + b * width + j];
      if (s.decoding == over_max)
        d = v[j] == value[j] ? d / ties[j] : 0.0f;
      else if (s.decoding == over_mean)
        d = d / static_cast<float>(n_steps);
      else if (s.decoding == over_last && !last)
        d = 0.0f;
      delta[j] = (last ? 0.0f : parameters[k][j] * delta[j]) + d;
      out[j] = s.gain * delta[j];
      bias[j] += out[j];
    }
    if (s.learns && t) learn(s, k, t, b, worker, delta, out);
  }
};

SPARSESNN_VERTEX(StateGrad, lists, e, history, parameters, memory, d_values, regulariser, d_v, d_i_syn, d_current,
                 d_vectors, clock, shards, n_shards, n_turns, n_steps, n_samples)

// Of the connections into a tile's shards. By connection: lists [B, stride] and buckets: remote, its sender at this
// step; shares [B, slots]: written at listed slots; one pair where nobody needs it (n_slots = 0); gradients [M, w]:
// worker i owns the rows m with m mod 6 = i. d_current: by shard. Order of sums: steps descending, samples ascending.
// Weight: float or half.
template <class Weight>
class ListGrad : public poplar::MultiVertex {
 public:
  ListOf<poplar::Input<Ids>> lists;
  ListOf<poplar::Input<Ids>> buckets;
  ListOf<poplar::Input<Array<Weight, 4 * sizeof(Weight) / 2>>> weights;
  ListOf<poplar::InOut<Floats>> gradients;
  ListOf<poplar::Output<Floats>> shares;
  ListOf<poplar::Input<Floats>> d_current;
  poplar::InOut<Words> clock;
  Numbers sources;
  unsigned n_sources, n_turns, n_steps, n_samples;

  bool compute(unsigned worker) {
    const Moment now = backwards(&clock[0], worker, n_turns);
    for (unsigned k = 0; k < n_sources; ++k) {
      const ListGradSource& s = record<ListGradSource>(sources, k);
      if (s.turn != now.turn) continue;
      const unsigned n_pairs = even(s.n_neurons) / 2, at = now.t + s.delay;
      const bool arrives = at < n_steps;
      const Pair* d =
          arrives ? pairs(&d_current[s.current][ring_row(at, s.n_rows) * n_samples * 2 * n_pairs]) : nullptr;
      if (s.n_slots) share_all(s, k, d, n_pairs, worker);
      if (arrives) add_rows(s, k, d, n_pairs, worker);
    }
    return true;
  }

 private:
  void share_all(const ListGradSource& s, unsigned k, const Pair* d_current_rows, unsigned n_pairs, unsigned worker) {
    for (unsigned b = worker; b < n_samples; b += workers) {
      const unsigned short* list = &lists[k][b * s.stride];
      float* share = &shares[k][b * s.n_slots];
      const unsigned n = list[1];
      for (unsigned j = 0; j < n; ++j) {
        float sum = 0.0f;
        if (d_current_rows) {
          const Pair* d = d_current_rows + b * n_pairs;
          const Weight* row = &weights[k][2 * list[list_ids + j] * n_pairs];
          Pair lanes = weight_pair(row, 0) * d[0];
          for (unsigned i = 1; i < n_pairs; ++i) lanes += weight_pair(row, i) * d[i];
          sum = lanes[0] + lanes[1];
        }
        share[j] = sum;
      }
      SPARSESNN_WORK(share_list, 1);
      SPARSESNN_WORK(share_id, n);
      SPARSESNN_WORK(share_pair, n * n_pairs);
    }
  }

  void add_rows(const ListGradSource& s, unsigned k, const Pair* d_current_rows, unsigned n_pairs, unsigned worker) {
    Pair* gradient = pairs(&gradients[k][0]);
    for (unsigned b = 0; b < n_samples; ++b) {
      const unsigned short* bucket = &buckets[k][b * s.bucket_stride];
      const unsigned short* ids = bucket + bucket_ids + bucket[worker];
      const unsigned n = bucket[bucket_counts + worker];
      const Pair* d = d_current_rows + b * n_pairs;
      for (unsigned j = 0; j < n; ++j) {
        Pair* row = gradient + ids[j] * n_pairs;
        for (unsigned i = 0; i < n_pairs; ++i) row[i] += d[i];
      }
      SPARSESNN_WORK(weight_list, 1);
      SPARSESNN_WORK(weight_id, n);
      SPARSESNN_WORK(weight_pair, n * n_pairs);
    }
  }
};

SPARSESNN_VERTEX_OF(ListGrad, float, lists, buckets, weights, gradients, shares, d_current, clock, sources, n_sources,
                    n_turns, n_steps, n_samples)
SPARSESNN_VERTEX_OF(ListGrad, half, lists, buckets, weights, gradients, shares, d_current, clock, sources, n_sources,
                    n_turns, n_steps, n_samples)

// Adds rows of shares at listed slots: a group of shards on a reducer; all groups, and the loss's own part, on a
// collector. By group: rows [n, slots]: remote. lists [n, stride] or its counts alone (stride 2). direct [n, n_direct]:
// ∂L/∂s of every neuron, or one pair (n_direct = 0). sums [n, slots].
class Sum : public poplar::MultiVertex {
 public:
  ListOf<poplar::Input<Floats>> rows;
  ListOf<poplar::Input<Ids>> lists;
  ListOf<poplar::Input<Floats>> direct;
  ListOf<poplar::Output<Floats>> sums;
  poplar::InOut<Words> clock;
  Numbers groups;
  unsigned n_groups, n_turns;

  bool compute(unsigned worker) {
    const Moment now = backwards(&clock[0], worker, n_turns);
    for (unsigned k = 0; k < n_groups; ++k) {
      const SumGroup& g = record<SumGroup>(groups, k);
      if (g.turn == now.turn) add(g, k, worker);
    }
    return true;
  }

 private:
  void add(const SumGroup& g, unsigned group, unsigned worker) {
    for (unsigned s = 0; s < g.n_samples; ++s) {
      const unsigned short* list = &lists[group][s * g.stride];
      const unsigned n_pairs = (list[1] + 1u) / 2, share = (n_pairs + workers - 1) / workers;
      const unsigned first = share * worker, last = first + share < n_pairs ? first + share : n_pairs;
      for (unsigned k = 2 * first; k < 2 * last && k < list[1]; ++k) {
        float x = g.n_direct ? direct[group][s * g.n_direct + list[list_ids + k]] : 0.0f;
        for (unsigned r = g.first_row; r < g.first_row + g.n_rows; ++r) x += rows[r][s * g.n_slots + k];
        sums[group][s * g.n_slots + k] = x;
      }
      SPARSESNN_WORK(reduce_row, g.n_rows);
      SPARSESNN_WORK(reduce_pair, g.n_rows * (last > first ? last - first : 0));
    }
  }
};

SPARSESNN_VERTEX(Sum, rows, lists, direct, sums, clock, groups, n_groups, n_turns)

}  // namespace sparsesnn::ipu
