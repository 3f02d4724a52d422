// The gradient of a shard's state.
//
//   d ← adjoint(d) ; ∂L/∂i = d_current(d)       of the shape of the neurons, see codelets/neuron.h; d = ∂L/∂z
//   ∂L/∂(entry of the arrays) += d[row]·value   of the entries that depend on trained parameters, see EntryTerm
//
// d_current: see `ring_row`.
#include "vertex.h"

namespace sparsesnn::ipu {
namespace {

// The first of [begin, end) whose id is not below `id`; ids ascend there.
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

}  // namespace

// The state gradients of a tile's shards. By spiking shard: lists [B, stride], e [B, slots]: remote, its own population
// at this step and ∂L/∂s at its slots. d_values [B, w]: by readout shard, ∂L/∂value, or over_steps [T, B, w]; else one
// pair. entries: those of Forward. history: see `States`. memory: for a readout the decoded values of Forward, [2, B,
// w]; else one pair. d_states [states, B, w]: d. d_vectors [1 + terms, 6, w]: of the bias, then of entries; each row
// from one worker's samples, to be added.
//
// regularizer [w + 2]: the output of Regularize, if `regularized`; else one pair.
class StateGrad : public poplar::MultiVertex {
 public:
  ListOf<poplar::Input<Ids>> lists;
  ListOf<poplar::Input<Floats>> e;
  ListOf<poplar::Input<Floats>> history;
  ListOf<poplar::Input<Floats>> entries;
  ListOf<poplar::Input<Floats>> memory;
  ListOf<poplar::Input<Floats>> d_values;
  ListOf<poplar::Input<Floats>> regularizer;
  ListOf<poplar::InOut<Floats>> d_states;
  ListOf<poplar::InOut<Floats>> d_current;
  ListOf<poplar::InOut<Floats>> d_vectors;
  poplar::InOut<Words> clock;
  Numbers shards;
  Numbers terms;
  unsigned n_shards, n_turns, n_steps, n_samples;

  bool compute(unsigned worker) {
    const Moment now = backwards(&clock[0], worker, n_turns);
    for (unsigned k = 0; k < n_shards; ++k) {
      const StateShard& s = record<StateShard>(shards, k);
      if (s.turn != now.turn) continue;
      if (now.t + 1 == n_steps) clear(s, k, worker);
      run(s, k, now.t, worker);
    }
    return true;
  }

 private:
  // The row of d_vectors that this worker adds to; `vector` counts the bias and the terms.
  float* row(const StateShard& s, unsigned k, unsigned vector, unsigned worker) {
    return &d_vectors[k][(vector * workers + worker) * even(s.n_neurons)];
  }

  void clear(const StateShard& s, unsigned k, unsigned worker) {
    const unsigned width = even(s.n_neurons);
    for (unsigned i = 0; i < 1 + s.n_terms; ++i)
      for (unsigned j = 0; j < width; ++j) row(s, k, i, worker)[j] = 0.0f;
  }

  // Part of a list: slots of the shard's neurons, whose ids ascend.
  struct Slots {
    const unsigned short* ids;
    unsigned at, end;

    // Whether the next slot is that of neuron `id`; neurons ascend too.
    bool take(unsigned id) {
      if (at == end || ids[at] != id) return false;
      ++at;
      return true;
    }
  };

  // The inputs of a model's functions for one sample, and the places of the results.
  struct Sample {
    const StateShard& s;
    unsigned width, row;
    bool first, last;  // the first step, the last step
    float *d_states, *out, *d_vectors;
    const float *x, *entries;
    const EntryTerm* terms;
    const float *before[max_states] = {}, *after[max_states] = {};  // the states around the step, if they are kept
    const float* current = nullptr;
    Slots spikes{}, near{};
    const float *e = nullptr, *more = nullptr;

    // Fills in the contribution of a neuron's slot to its gradient, if it has one.
    bool listed(unsigned j, float distance, base::At<float>& at) {
      const bool spike = spikes.take(s.first_neuron + j);
      if (!spike && !near.take(s.first_neuron + j)) return false;
      const float value = e[(spike ? spikes : near).at - 1];
      at.sigma = base::surrogate(static_cast<int>(s.surrogate), s.slope, distance);
      at.q = at.sigma * (more ? value + more[j] : value);
      SPARSESNN_WORK(state_id, 1);
      return true;
    }
  };

  void run(const StateShard& s, unsigned k, unsigned t, unsigned worker) {
    for (unsigned b = worker; b < n_samples; b += workers) {
      Sample sample = sample_of(s, k, t, b, worker);
      if (s.readout)
        decoded(s, k, t, b, sample);
      else
        find_slots(s, k, b, sample);
      Shapes::with(static_cast<int>(s.shape), [&](auto shape) { adjoint<decltype(shape)>(sample); });
      if (sample.width > s.n_neurons) sample.out[s.n_neurons] = 0.0f;
      SPARSESNN_WORK(state_sample, 1);
      SPARSESNN_WORK(state_pair, sample.width / 2);
      SPARSESNN_WORK(operation, s.operations * s.n_neurons);
      SPARSESNN_WORK(state_pair, s.n_terms * sample.width / 2);
    }
  }

  Sample sample_of(const StateShard& s, unsigned k, unsigned t, unsigned b, unsigned worker) {
    const unsigned width = even(s.n_neurons), row = n_samples * width, at = b * width;
    const States states{s.kept, s.n_history, row};
    const Rows rows = rows_of(t, s.every);
    Sample found{s,
                 width,
                 row,
                 t == 0,
                 t + 1 == n_steps,
                 &d_states[k][at],
                 &d_current[k][ring_row(t, s.n_rows) * row + at],
                 this->row(s, k, 0, worker),
                 &history[k][s.readout ? 0 : rows.now * row + at],
                 &entries[k][0],
                 &record<EntryTerm>(terms, s.first_term)};
    if (!s.n_terms) return found;
    for (unsigned z = 0; z < s.n_states; ++z) {
      if (!states.keeps(z)) continue;
      const float* block = &history[k][states.in_history(z) + at];
      if (t) found.before[z] = block + rows.before * row;
      found.after[z] = block + rows.now * row;
    }
    if (states.keeps(s.n_states)) found.current = &history[k][states.in_history(s.n_states) + rows.now * row + at];
    return found;
  }

  void find_slots(const StateShard& s, unsigned k, unsigned b, Sample& sample) {
    const unsigned short *list = &lists[k][b * s.stride], *ids = list + list_ids;
    sample.spikes = {ids, find(ids, 0, list[0], s.first_neuron), list[0]};
    sample.near = {ids, find(ids, list[0], list[1], s.first_neuron), list[1]};
    sample.e = &e[k][b * s.n_slots];
    if (s.regularized && static_cast<float>(b) < regularizer[k][sample.width]) sample.more = &regularizer[k][0];
  }

  // ∂L/∂x of a readout at this step, into the place of ∂L/∂i.
  void decoded(const StateShard& s, unsigned k, unsigned t, unsigned b, Sample& sample) {
    const unsigned width = sample.width, over = s.decoding == over_max ? 1 : 0;  // otherwise neither is read
    const float *x = &history[k][over * (t * n_samples + b) * width], *value = &memory[k][over * b * width];
    const float* ties = value + over * n_samples * width;
    for (unsigned j = 0; j < s.n_neurons; ++j) {
      float q = d_values[k][(s.decoding == over_steps ? t * n_samples * width : 0) + b * width + j];
      if (s.decoding == over_max)
        q = x[j] == value[j] ? q / ties[j] : 0.0f;
      else if (s.decoding == over_mean)
        q = q / static_cast<float>(n_steps);
      else if (s.decoding == over_last && !sample.last)
        q = 0.0f;
      sample.out[j] = q;
    }
  }

  // All code that depends on the shape: kept as small as possible.
  template <class M>
  static void adjoint(Sample& sample) {
    static_assert(M::n_states <= max_states);
    for (unsigned j = 0; j < sample.s.n_neurons; ++j) {
      float d[max_states + 1], p[M::n_entries];
      for (unsigned z = 0; z < M::n_states; ++z) d[z] = sample.last ? 0.0f : sample.d_states[z * sample.row + j];
      for (unsigned q = 0; q < M::n_entries; ++q) p[q] = sample.entries[q * sample.width + j];
      Fired<float> fired{false};  // in the step before
      float by_spike = 0.0f;
      if constexpr (M::may_read_out)
        if (sample.s.readout) M::adjoint(d, p, sample.out[j]);
      if constexpr (M::may_fire)
        if (!sample.s.readout) {
          const float x = sample.x[j], theta = p[M::threshold];
          base::At<float> at{Fired<float>::of(x, theta), 0.0f, 0.0f, x, sample.s.detach_reset ? 0.0f : 1.0f};
          // a dropped spike differs from a silent neuron by its reset
          if (sample.listed(j, x - theta, at) || at.s.is)
            by_spike = M::template pull<true, true>(d, p, at);
          else
            M::adjoint(d, p);
          if (sample.before[0]) fired = Fired<float>::of(sample.before[0][j], theta);
        }
      for (unsigned z = 0; z < M::n_states; ++z) sample.d_states[z * sample.row + j] = d[z];
      sample.out[j] = M::d_current(d, p);
      sample.d_vectors[j] += sample.out[j];
      d[by_threshold] = -by_spike;
      if (sample.s.n_terms) add_terms(sample, j, d, fired.is);
    }
  }

  // The gradients of entries, of a neuron.
  static void add_terms(Sample& sample, unsigned j, const float* d, bool fired) {
    float values[n_values];
    for (unsigned z = 0; z < max_states; ++z) {
      values[value_before + z] = sample.before[z] ? sample.before[z][j] : 0.0f;
      values[value_after + z] = sample.after[z] ? sample.after[z][j] : 0.0f;
    }
    values[value_current] = sample.current ? sample.current[j] : 0.0f;
    values[value_one] = 1.0f;
    values[value_zero] = 0.0f;
    for (unsigned k = 0; k < sample.s.n_terms; ++k) {
      const EntryTerm& term = sample.terms[k];
      if (term.gated && !fired) continue;
      sample.d_vectors[(1 + k) * workers * sample.width + j] += d[term.row] * values[term.value];
    }
  }
};

SPARSESNN_VERTEX(StateGrad, lists, e, history, entries, memory, d_values, regularizer, d_states, d_current, d_vectors,
                 clock, shards, terms, n_shards, n_turns, n_steps, n_samples)

}  // namespace sparsesnn::ipu
