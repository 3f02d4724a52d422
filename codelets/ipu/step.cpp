// Forward: deliver, step and select for the neurons of a tile's shards, one time step.
//
//   i[b] = bias + Σ_sources Σ_{m in list} weight[m, :]     ids ascending, one addition after the other
//   z[b] ← step(z[b], i[b])                     of the shape of the neurons, see codelets/neuron.h; x: the first state
//   masks[b] = the neurons with x > θ; the others with x > θ_grad
//
// lists[k] [B, stride]: remote, from the collectors of source k; weights[k] [M, w]: the shard's columns; both in the
// order of `sources`. By shard: entries [rows, w]: those of the shape, then θ_grad if it fires. bias [w]. history,
// memory: see `States`; history has all steps, or two if nothing is trained, or those of one segment and the ends of
// others (`every`, see `Rows`). The current is summed in the place of the new x. memory of a readout begins with [2, B,
// w], if it decodes: its value over time so far and the number of steps that hold the maximum. One pair if it is not
// needed. masks [B, words]: see `Masks`. Cost: 4·w bytes read and w additions an id.
#include "vertex.h"

namespace sparsesnn::ipu {

// Weight: float or half.
template <class Weight>
class Forward : public poplar::MultiVertex {
 public:
  ListOf<poplar::Input<Ids>> lists;
  ListOf<poplar::Input<Array<Weight, 4 * sizeof(Weight) / 2>>> weights;
  ListOf<poplar::Input<Floats>> entries;
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
      if (now.again && s.readout) continue;  // it has decoded all steps already
      if (s.turn == now.turn) run(s, k, now.t, worker);
    }
    return true;
  }

 private:
  void run(const ForwardShard& s, unsigned k, unsigned t, unsigned worker) {
    const unsigned width = even(s.n_neurons);
    for (unsigned b = worker; b < n_samples; b += workers) {
      float* x = &history[k][(rows(s, t).now * n_samples + b) * width];
      for (unsigned j = 0; j < width; ++j) x[j] = bias[k][j];
      for (unsigned i = s.first_source; i < s.first_source + s.n_sources; ++i) {
        const ForwardSource& source = record<ForwardSource>(sources, i);
        if (t >= source.delay) deliver(pairs(x), &weights[i][0], &lists[i][b * source.stride], width / 2);
      }
      step(s, k, b, t, width);
      if (s.readout && s.decoding != over_steps) decode(s, k, b, t, x, width);
      if (s.every) keep_end(s, k, b, t, width);
    }
  }

  static Rows rows(const ForwardShard& s, unsigned t) {
    const bool two = !s.every && s.n_rows == 2;
    return two ? Rows{t & 1, (t & 1) ^ 1} : rows_of(t, s.every);
  }
  static unsigned n_ends(const ForwardShard& s) { return s.every ? s.n_rows - s.every : 0; }
  // The block of a state that is not kept.
  float* memory_of(const ForwardShard& s, unsigned k, unsigned state) {
    const unsigned row = n_samples * even(s.n_neurons);
    return &memory[k][s.n_decoded * row + States{s.kept, s.n_rows, row}.in_memory(state, n_ends(s))];
  }

  // Keeps the last step of a segment, if another segment follows.
  void keep_end(const ForwardShard& s, unsigned k, unsigned b, unsigned t, unsigned width) {
    const Place p = place_of(t, s.every);
    if (p.step + 1 < s.every || t + 1 == s.n_steps) return;
    const States states{s.kept, s.n_rows, n_samples * width};
    const auto copy = [&](float* block, unsigned from, unsigned to) {
      for (unsigned j = 0; j < width; ++j)
        block[(to * n_samples + b) * width + j] = block[(from * n_samples + b) * width + j];
      SPARSESNN_WORK(reduce_pair, width / 2);
    };
    for (unsigned z = 0; z < s.n_states; ++z) {
      if (states.keeps(z))
        copy(&history[k][states.in_history(z)], p.step, s.every + p.segment);
      else
        copy(memory_of(s, k, z), 0, 1 + p.segment);
    }
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

  // Writes the masks of a sample, neuron by neuron.
  struct Bits {
    unsigned* words;
    unsigned n_neurons, fired = 0, near = 0;

    void add(unsigned k, bool fires, bool lists) {
      fired |= static_cast<unsigned>(fires) << (k % 32);
      near |= static_cast<unsigned>(!fires && lists) << (k % 32);
      if (k % 32 != 31 && k + 1 < n_neurons) return;
      if (n_neurons <= packed_neurons) {
        words[0] = fired | near << packed_neurons;
      } else {
        words[k / 32] = fired;
        words[(n_neurons + 31) / 32 + k / 32] = near;
      }
      fired = near = 0;
    }
  };

  // The states of a sample, before a step and after it. The row of the new x holds the current.
  struct Sample {
    float* now[max_states];
    const float* before[max_states];
    float* current;  // its place if it is kept
    const float* entries;
    unsigned n_neurons, width;
    bool fires, first;  // first: the first step
    Bits bits;
  };

  void step(const ForwardShard& s, unsigned shard, unsigned b, unsigned t, unsigned width) {
    const States states{s.kept, s.n_rows, n_samples * width};
    const Rows of_history = rows(s, t);
    // the current row if one step is kept; at the start of a segment, the row of the end of the one before it
    const Rows of_memory{0, s.every && !place_of(t, s.every).step ? place_of(t, s.every).segment : 0};
    Bits bits{&masks[shard][s.readout ? 0 : mask_words(s.n_neurons) * b], s.n_neurons};
    Sample sample{{}, {}, nullptr, &entries[shard][0], s.n_neurons, width, !s.readout, t == 0, bits};
    for (unsigned z = 0; z < s.n_states; ++z) {
      float* block = states.keeps(z) ? &history[shard][states.in_history(z)] : memory_of(s, shard, z);
      const Rows r = states.keeps(z) ? of_history : of_memory;
      sample.now[z] = block + (r.now * n_samples + b) * width;
      sample.before[z] = block + (t ? r.before * n_samples + b : 0) * width;
    }
    if (states.keeps(s.n_states))
      sample.current = &history[shard][states.in_history(s.n_states) + (of_history.now * n_samples + b) * width];
    Shapes::with(static_cast<int>(s.shape), [&](auto shape) { advance<decltype(shape)>(sample); });
    SPARSESNN_WORK(step_sample, 1);
    SPARSESNN_WORK(step_pair, width / 2);
    SPARSESNN_WORK(step_state, (s.n_states - 1) * width / 2);
    SPARSESNN_WORK(operation, s.operations * s.n_neurons);
    SPARSESNN_WORK(select_word, s.readout ? 0 : mask_words(s.n_neurons));
  }

  // All code that depends on the shape: kept as small as possible.
  template <class M>
  static void advance(Sample& sample) {
    static_assert(M::n_states <= max_states);
    for (unsigned k = 0; k < sample.n_neurons; ++k) {
      float z[M::n_states], p[M::n_entries];
      for (unsigned q = 0; q < M::n_states; ++q) z[q] = sample.first ? 0.0f : sample.before[q][k];
      for (unsigned q = 0; q < M::n_entries; ++q) p[q] = sample.entries[q * sample.width + k];
      const float i = sample.now[0][k];
      if (sample.current) sample.current[k] = i;
      Fired<float> fired{false};  // before step 0 no neuron has, even if θ is negative
      if constexpr (M::may_fire)
        if (sample.fires && !sample.first) fired = Fired<float>::of(z[0], p[M::threshold]);
      M::step(z, p, fired, i);
      for (unsigned q = 0; q < M::n_states; ++q) sample.now[q][k] = z[q];
      if constexpr (M::may_fire)
        if (sample.fires)
          sample.bits.add(k, z[0] > p[M::threshold], z[0] > sample.entries[M::n_entries * sample.width + k]);
    }
  }

  // Decodes a readout: the value over time, and the number of steps that hold the maximum.
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

SPARSESNN_VERTEX_OF(Forward, float, lists, weights, entries, bias, history, memory, masks, clock, shards, sources,
                    n_shards, n_turns, n_samples, every)
SPARSESNN_VERTEX_OF(Forward, half, lists, weights, entries, bias, history, memory, masks, clock, shards, sources,
                    n_shards, n_turns, n_samples, every)

}  // namespace sparsesnn::ipu
