// The gradient of a shard's state.
//
//   d ← adjoint(d) ; ∂L/∂i = d_current(d)       of the neuron model, see codelets/neuron; d = ∂L/∂z
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
// pair. history: see `States`. memory: for a readout the decoded values of Forward, [2, B, w]; else one pair. d_states
// [states, B, w]: d. d_vectors [1 + learnt, 6, w]: of the bias, then of the trained parameters, in the model's order;
// each row from one worker's samples, added by the optimizer: by_parameter of each step, and for θ the part through σ'.
//
// regularizer [w + 2]: the output of Regularize, if `regularized`; else one pair.
class StateGrad : public poplar::MultiVertex {
 public:
  ListOf<poplar::Input<Ids>> lists;
  ListOf<poplar::Input<Floats>> e;
  ListOf<poplar::Input<Floats>> history;
  ListOf<poplar::Input<Floats>> parameters;
  ListOf<poplar::Input<Floats>> memory;
  ListOf<poplar::Input<Floats>> d_values;
  ListOf<poplar::Input<Floats>> regularizer;
  ListOf<poplar::InOut<Floats>> d_states;
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
      run(s, k, now.t, worker);
    }
    return true;
  }

 private:
  // The row of d_vectors that this worker adds to; `vector` counts the bias and the trained parameters.
  float* row(const StateShard& s, unsigned k, unsigned vector, unsigned worker) {
    return &d_vectors[k][(vector * workers + worker) * even(s.n_neurons)];
  }

  // The same for a trained parameter.
  float* row_of(const StateShard& s, unsigned k, unsigned parameter, unsigned worker) {
    return row(s, k, 1 + count_bits(s.learns & ((1u << parameter) - 1)), worker);
  }

  void clear(const StateShard& s, unsigned k, unsigned worker) {
    const unsigned width = even(s.n_neurons), n_vectors = 1 + count_bits(s.learns);
    for (unsigned i = 0; i < n_vectors; ++i)
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
    unsigned width, row, n_learnt = 0;
    bool first, last, learns;  // the first step, the last step
    float *d_states, *out, *bias, *d_threshold = nullptr;
    const float *x, *parameters;
    const float* before[max_states] = {};  // states of the step before, if they are kept
    const float* current = nullptr;
    float* d_learnt[max_parameters] = {};
    unsigned learnt[max_parameters] = {};
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
      Models::with(static_cast<int>(s.model), [&](auto model) { adjoint<decltype(model)>(sample); });
      if (sample.width > s.n_neurons) sample.out[s.n_neurons] = 0.0f;
      SPARSESNN_WORK(state_sample, 1);
      SPARSESNN_WORK(state_pair, sample.width / 2);
      SPARSESNN_WORK(operation, s.operations * s.n_neurons);
      SPARSESNN_WORK(state_pair, (sample.learns ? sample.n_learnt : 0) * sample.width / 2);
    }
  }

  Sample sample_of(const StateShard& s, unsigned k, unsigned t, unsigned b, unsigned worker) {
    const unsigned width = even(s.n_neurons), row = n_samples * width, at = b * width;
    const States states{s.kept, s.n_history, row};
    const Rows rows = rows_of(t, s.every);
    // before step 0 all states are 0, and with them the gradients of parameters that read no current
    const bool learns = s.learns && (t || states.keeps(s.n_states));
    Sample found{s,
                 width,
                 row,
                 0,
                 t == 0,
                 t + 1 == n_steps,
                 learns,
                 &d_states[k][at],
                 &d_current[k][ring_row(t, s.n_rows) * row + at],
                 this->row(s, k, 0, worker),
                 nullptr,
                 &history[k][s.readout ? 0 : rows.now * row + at],
                 &parameters[k][0]};
    if (s.learns >> s.threshold & 1) found.d_threshold = row_of(s, k, s.threshold, worker);
    if (!learns) return found;
    for (unsigned z = 0; z < s.n_states; ++z)
      if (t && states.keeps(z)) found.before[z] = &history[k][states.in_history(z) + rows.before * row + at];
    if (states.keeps(s.n_states)) found.current = &history[k][states.in_history(s.n_states) + rows.now * row + at];
    for (unsigned q = 0; s.learns >> q; ++q)
      if (s.learns >> q & 1)
        found.learnt[found.n_learnt] = q, found.d_learnt[found.n_learnt++] = row_of(s, k, q, worker);
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

  // All code that depends on the model: kept as small as possible.
  template <class M>
  static void adjoint(Sample& sample) {
    static_assert(M::n_states <= max_states && M::n_parameters <= max_parameters && M::n_constants <= max_constants);
    const float* c = sample.s.constants;
    for (unsigned j = 0; j < sample.s.n_neurons; ++j) {
      float d[M::n_states], p[M::n_parameters];
      for (unsigned z = 0; z < M::n_states; ++z) d[z] = sample.last ? 0.0f : sample.d_states[z * sample.row + j];
      for (unsigned q = 0; q < M::n_parameters; ++q) p[q] = sample.parameters[q * sample.width + j];
      float by_spike = 0.0f;
      if constexpr (M::threshold < 0) {
        M::adjoint(d, p, c, sample.out[j]);
      } else {
        const float x = sample.x[j];
        const float through = sample.s.detach_reset ? 0.0f : 1.0f;
        base::At<float> at{Fired<float>::of(x, p[M::threshold]), 0.0f, 0.0f, x, through};
        // a dropped spike differs from a silent neuron by its reset
        if (sample.listed(j, x - p[M::threshold], at) || at.s.is)
          by_spike = M::adjoint(d, p, c, at);
        else
          M::adjoint(d, p, c);
      }
      for (unsigned z = 0; z < M::n_states; ++z) sample.d_states[z * sample.row + j] = d[z];
      sample.out[j] = M::d_current(d, p, c);
      sample.bias[j] += sample.out[j];
      if constexpr (M::threshold >= 0)
        if (sample.d_threshold) sample.d_threshold[j] -= by_spike;
      if (!sample.learns) continue;
      float before[M::n_states];
      for (unsigned z = 0; z < M::n_states; ++z) before[z] = sample.before[z] ? sample.before[z][j] : 0.0f;
      Fired<float> fired{false};
      if constexpr (M::threshold >= 0)
        if (!sample.first) fired = Fired<float>::of(before[0], p[M::threshold]);
      const float i = sample.current ? sample.current[j] : 0.0f;
      for (unsigned q = 0; q < sample.n_learnt; ++q)
        sample.d_learnt[q][j] += M::by_parameter(static_cast<int>(sample.learnt[q]), d, before, p, c, fired, i);
    }
  }
};

SPARSESNN_VERTEX(StateGrad, lists, e, history, parameters, memory, d_values, regularizer, d_states, d_current,
                 d_vectors, clock, shards, n_shards, n_turns, n_steps, n_samples)

}  // namespace sparsesnn::ipu
