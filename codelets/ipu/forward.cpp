// Forward: deliver, step and select for the neurons of a tile's shards, one time step.
//
//   i[b] = bias + Σ_sources Σ_{m in list} weight[m, :]     ids ascending, one addition after the other
//   LIF v ← ρ(v) + g·i     CubaLIF i_syn ← α·i_syn + i ; v ← ρ(v) + g·i_syn     LI v ← β·v + g·i
//   masks[b] = which neurons have v > θ; which others have v > θ_grad
//
// lists[k] [B, stride]: remote, what the collectors of source k sent; weights[k] [M, w]: the shard's columns; both in
// the order of `sources`. By shard: parameters [4, w]: β, α, θ, θ_grad. bias [w]. history [rows, B, w]: potentials of
// all steps, or of two where nothing is trained, or of one segment and the ends of others (`every`, see `Rows`); the
// current is summed up in the place of the new potential. memory: a CubaLIF's i_syn [B, w], or of all steps [T, B, w]
// where it learns α; a readout's [2, B, w], its value over time so far and how many steps hold the maximum; else one
// pair. masks [B, words]: see `Masks`. Cost: 4·w bytes read and w additions an id.
#include "vertex.h"

namespace sparsesnn::ipu {

// Weight: float or half.
template <class Weight>
class Forward : public poplar::MultiVertex {
 public:
  ListOf<poplar::Input<Ids>> lists;
  ListOf<poplar::Input<Array<Weight, 4 * sizeof(Weight) / 2>>> weights;
  ListOf<poplar::Input<Floats>> parameters;
  ListOf<poplar::Input<Floats>> bias;
  ListOf<poplar::InOut<Floats>> history;
  ListOf<poplar::InOut<Floats>> memory;
  ListOf<poplar::Output<Words>> masks;
  poplar::InOut<Words> clock;
  Numbers shards;
  Numbers sources;
  unsigned n_shards, n_turns, n_samples, every;

  bool compute(unsigned worker) {
    const Moment now = forwards(&clock[0], worker, n_turns, every);
    for (unsigned k = 0; k < n_shards; ++k) {
      const ForwardShard& s = record<ForwardShard>(shards, k);
      if (now.again && s.readout) continue;  // it has decoded all steps
      if (s.turn == now.turn) run(s, k, now.t, worker);
    }
    return true;
  }

 private:
  void run(const ForwardShard& s, unsigned k, unsigned t, unsigned worker) {
    const unsigned width = even(s.n_neurons);
    const bool two = !s.every && s.n_rows == 2;
    const Rows rows = two ? Rows{t & 1, (t & 1) ^ 1} : rows_of(t, s.every);
    for (unsigned b = worker; b < n_samples; b += workers) {
      float* v = &history[k][(rows.now * n_samples + b) * width];
      const float* v_before = t ? &history[k][(rows.before * n_samples + b) * width] : nullptr;
      for (unsigned j = 0; j < width; ++j) v[j] = bias[k][j];
      for (unsigned i = s.first_source; i < s.first_source + s.n_sources; ++i) {
        const ForwardSource& source = record<ForwardSource>(sources, i);
        if (t >= source.delay) deliver(pairs(v), &weights[i][0], &lists[i][b * source.stride], width / 2);
      }
      step(s, k, b, t, v, v_before, width);
      if (s.readout && s.decoding != over_steps) decode(s, k, b, t, v, width);
      if (s.every) keep_end(s, k, b, t, width);
    }
  }

  // The last step of a segment is kept, where another one follows.
  void keep_end(const ForwardShard& s, unsigned k, unsigned b, unsigned t, unsigned width) {
    const Place p = place_of(t, s.every);
    if (p.step + 1 < s.every || t + 1 == s.n_steps) return;
    const auto copy = [&](float* rows, unsigned from, unsigned to) {
      for (unsigned j = 0; j < width; ++j)
        rows[(to * n_samples + b) * width + j] = rows[(from * n_samples + b) * width + j];
      SPARSESNN_WORK(reduce_pair, width / 2);
    };
    copy(&history[k][0], p.step, s.every + p.segment);
    if (s.cuba == keeps_all_i_syn) copy(&memory[k][0], p.step, s.every + p.segment);
    if (s.cuba == keeps_last_i_syn) copy(&memory[k][0], 0, 1 + p.segment);
  }

  // Four pairs stay in registers over the whole list.
  static void deliver(Pair* current, const Weight* weight, const unsigned short* list, unsigned n_pairs) {
    const unsigned n = list[0];
    const unsigned short* ids = list + list_ids;
    unsigned k = 0;
    for (; k + 4 <= n_pairs; k += 4) {
      Pair a = current[k], b = current[k + 1], c = current[k + 2], d = current[k + 3];
      for (unsigned j = 0; j < n; ++j) {
        const Weight* row = weight + 2 * ids[j] * n_pairs;
        a += weight_pair(row, k), b += weight_pair(row, k + 1);
        c += weight_pair(row, k + 2), d += weight_pair(row, k + 3);
      }
      current[k] = a, current[k + 1] = b, current[k + 2] = c, current[k + 3] = d;
    }
    for (; k < n_pairs; ++k) {
      Pair a = current[k];
      for (unsigned j = 0; j < n; ++j) a += weight_pair(weight + 2 * ids[j] * n_pairs, k);
      current[k] = a;
    }
    SPARSESNN_WORK(deliver_list, 1);
    SPARSESNN_WORK(deliver_id, n);
    SPARSESNN_WORK(deliver_pair, n * n_pairs);
  }

  // `v` holds the current and receives the potential.
  void step(const ForwardShard& s, unsigned shard, unsigned b, unsigned t, float* v, const float* v_before,
            unsigned width) {
    const float *beta = &parameters[shard][0], *alpha = beta + width, *theta = alpha + width,
                *theta_grad = theta + width;
    const unsigned n_words = mask_words(s.n_neurons);
    unsigned* words = &masks[shard][s.readout ? 0 : n_words * b];
    float* i_syn = &memory[shard][0];
    const float* i_syn_before = i_syn;
    if (s.cuba) {
      // of one step that is kept, the row of the moment; at the start of a segment, of the end of the one before it
      Rows rows{0, 0};
      if (s.cuba == keeps_all_i_syn)
        rows = t ? rows_of(t, s.every) : Rows{0, 0};
      else if (s.every && !place_of(t, s.every).step)
        rows.before = place_of(t, s.every).segment;
      i_syn += (rows.now * n_samples + b) * width;
      i_syn_before += (rows.before * n_samples + b) * width;
    }
    unsigned fired_bits = 0, near_bits = 0;
    for (unsigned k = 0; k < s.n_neurons; ++k) {
      float i = v[k];
      if (s.cuba) {
        i += alpha[k] * (t ? i_syn_before[k] : 0.0f);
        i_syn[k] = i;
      }
      // before step 0 nobody has fired, even where θ is negative
      v[k] = (v_before ? tile::rho(s.reset, v_before[k], beta[k], theta[k]) : 0.0f) + s.gain * i;
      if (v[k] > theta[k])
        fired_bits |= 1u << (k % 32);
      else if (v[k] > theta_grad[k])
        near_bits |= 1u << (k % 32);
      if (s.readout || (k % 32 != 31 && k + 1 < s.n_neurons)) continue;
      if (s.n_neurons <= packed_neurons) {
        words[0] = fired_bits | near_bits << packed_neurons;
      } else {
        words[k / 32] = fired_bits;
        words[n_words / 2 + k / 32] = near_bits;
      }
      fired_bits = near_bits = 0;
    }
    SPARSESNN_WORK(step_sample, 1);
    SPARSESNN_WORK(step_pair, width / 2);
    SPARSESNN_WORK(step_cuba, (s.cuba ? 1 : 0) * width / 2);
    SPARSESNN_WORK(select_word, s.readout ? 0 : n_words);
  }

  // Of a readout: the value over time, and how many steps hold the maximum.
  void decode(const ForwardShard& s, unsigned shard, unsigned b, unsigned t, const float* v, unsigned width) {
    float *value = &memory[shard][b * width], *ties = value + n_samples * width;
    const bool last = t + 1 == s.n_steps;
    for (unsigned k = 0; k < s.n_neurons; ++k) {
      const float before = t ? value[k] : 0.0f;
      if (s.decoding == over_max) {
        const bool more = !t || v[k] > before;
        ties[k] = more ? 1.0f : ties[k] + (v[k] == before ? 1.0f : 0.0f);
        value[k] = more ? v[k] : before;
      } else if (s.decoding == over_last) {
        value[k] = v[k];
      } else {
        const float sum = before + v[k];
        value[k] = s.decoding == over_mean && last ? sum / static_cast<float>(s.n_steps) : sum;
      }
    }
    SPARSESNN_WORK(reduce_pair, width / 2);
  }
};

SPARSESNN_VERTEX_OF(Forward, float, lists, weights, parameters, bias, history, memory, masks, clock, shards, sources,
                    n_shards, n_turns, n_samples, every)
SPARSESNN_VERTEX_OF(Forward, half, lists, weights, parameters, bias, history, memory, masks, clock, shards, sources,
                    n_shards, n_turns, n_samples, every)

}  // namespace sparsesnn::ipu
