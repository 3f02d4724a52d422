// Gradients of the weights of a shard, and of the lists that it read (ListGrad), which Sum adds up.
//
//   d_weight[m, :] += ∂L/∂i[t+d]      for m that fired at t         share[slot] = weight[m, :]·∂L/∂i[t+d]
//
// d_current: see `ring_row`.
#include "vertex.h"

namespace sparsesnn::ipu {

// The connections into a tile's shards. By connection: lists [B, stride] and buckets: remote, its sender at this step;
// shares [B, slots]: written at listed slots; one pair if they are not needed (n_slots = 0); gradients [M, w]: worker i
// owns the rows m with m mod 6 = i. d_current: by shard. Order of sums: steps descending, samples ascending. Weight:
// float or half.
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
