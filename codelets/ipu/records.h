// The records with which the host describes a vertex's items to it: one declaration, read by both.
//
// A tile has one vertex per phase, whatever it holds: shards of several populations, several collectors. The numbers of
// an item travel as vertex state, an array of unsigned, one record after the other. Only 4-byte members and no library,
// because popc compiles this too.
//
// A phase may take turns: populations joined by delay 0 run one after another, and if a compute set for each would need
// too many vertices, one compute set is executed `n_turns` times a step. An item runs in its own turn.
#pragma once

namespace sparsesnn::ipu {

// The workers of a tile for which rows, buckets and clocks are laid out. A codelet checks its machine (`workers` in
// vertex.h), the host its target; both refuse another number.
inline constexpr unsigned n_workers = 6;

// The largest number of states of a neuron model.
inline constexpr unsigned max_states = 4;

// A shard in Forward. shape: its index in codelets/neuron.h; a readout's decoding is that of `Decoding` in vertex.h.
// n_rows: of the history; n_decoded: rows [B, w] of the memory in front of the states; every: see `Rows`, kept: see
// `States` in vertex.h. operations: see StateShard.
struct ForwardShard {
  unsigned turn, first_source, n_sources, n_neurons, n_rows, n_decoded, every, kept, shape, n_states, readout, decoding;
  unsigned n_steps, operations;
};
struct ForwardSource {
  unsigned stride, delay;
};

// Lists of some samples of one population. first_shard: of its masks; first_out: of the lists it sends; seed: its
// population's place among the seeds.
struct CompactCollector {
  unsigned turn, n_samples, first_sample, capacity, first_shard, n_shards, first_out, n_outs, fixed, seed;
};
// shift: the sent lists were made this many steps before the current one, in addition to the lags.
struct FetchCollector {
  unsigned n_samples, stride, bucket_stride, first_out, n_outs, shift;
};

// One connection into one shard.
struct ListGradSource {
  unsigned turn, stride, bucket_stride, n_slots, delay, n_neurons, n_rows, current;  // current: index of d_current
};

// Rows of shares, added for some samples.
struct SumGroup {
  unsigned turn, first_row, n_rows, n_samples, stride, n_slots, n_direct;
};

// A shard in StateGrad. n_rows: of d_current; n_history: of the history; first_term, n_terms: of the entries of its
// arrays that have a gradient.
struct StateShard {
  unsigned turn, n_neurons, first_neuron, stride, n_slots, n_rows, n_history, shape, n_states, readout;
  unsigned detach_reset, surrogate;
  unsigned first_term, n_terms;
  unsigned every, kept;  // see `Rows` and `States` in vertex.h
  unsigned regularized;
  unsigned decoding;
  unsigned operations;  // of floats, beyond those of a decay for each state; counted on the emulated machine alone
  float slope;
};

// The gradient of one entry of a neuron's arrays, per step: d[row] times a value. Values are the states before the
// step, those after it, the input current, 1 and 0. An entry of a reset counts (`gated`) if the neuron fired in the
// step before. d[by_threshold] is the gradient of the threshold, through the spikes.
inline constexpr unsigned value_before = 0, value_after = max_states, value_current = 2 * max_states,
                          value_one = value_current + 1, value_zero = value_one + 1, n_values = value_zero + 1,
                          by_threshold = max_states;
struct EntryTerm {
  unsigned row, value, gated;
};

// Lists of some samples of a population whose activity is regularized; and a shard of it.
struct CountedCollector {
  unsigned n_samples, first_sample, stride, n_neurons;
};
struct RegularizedShard {
  unsigned first, n_collectors, n_neurons, n_population;
};

// One trained value a neuron: a bias or a parameter of a shard; or one value for a whole population (`shared`). n_rows:
// of its gradient, which are added. low, high: the range to which it is clamped when read.
struct TrainedVector {
  unsigned n, n_rows, shared, counts_in_norm, n_used;
  float low, high;
};

// Formulas of a shard. An operand is an index among its constants, then its parameters, then its sums, then the results
// of its steps. n_sums: gradients of entries, each six rows.
struct FormulaShard {
  unsigned n_neurons, first_constant, n_constants, n_parameters, n_sums, first_step, n_steps, first_result, n_results;
};
enum Operation : unsigned { op_add, op_subtract, op_multiply, op_divide };
struct FormulaStep {
  unsigned operation, a, b;
};

}  // namespace sparsesnn::ipu
