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

// The largest numbers of states, parameters and constants of a neuron model.
inline constexpr unsigned max_states = 2, max_parameters = 5, max_constants = 2;

// A shard in Forward. model: its place in codelets/neuron/models.h; a readout's decoding is that of `Decoding` in
// vertex.h. n_rows: of the history; every: see `Rows`, kept: see `States` in vertex.h. operations: see StateShard.
struct ForwardShard {
  unsigned turn, first_source, n_sources, n_neurons, n_rows, every, kept, model, n_states, readout, decoding, n_steps;
  unsigned operations;
  float constants[max_constants];
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

// A shard in StateGrad. n_rows: of d_current; n_history: of the history; threshold: its place among the parameters, 31
// if there is none.
struct StateShard {
  unsigned turn, n_neurons, first_neuron, stride, n_slots, n_rows, n_history, model, n_states, threshold, readout;
  unsigned detach_reset, surrogate;
  unsigned learns;       // a bit for each parameter of the model
  unsigned every, kept;  // see `Rows` and `States` in vertex.h
  unsigned regularized;
  unsigned decoding;
  unsigned operations;  // of floats, beyond those of a decay for each state; counted on the emulated machine alone
  float slope;
  float constants[max_constants];
};

// Lists of some samples of a population whose activity is regularized; and a shard of it.
struct CountedCollector {
  unsigned n_samples, first_sample, stride, n_neurons;
};
struct RegularizedShard {
  unsigned first, n_collectors, n_neurons, n_population;
};

// One trained value a neuron: a bias or a parameter of a shard; or one value for a whole population (`shared`). low,
// high: the range to which it is clamped when read.
struct TrainedVector {
  unsigned n, shared, counts_in_norm, n_used;
  float low, high;
};

}  // namespace sparsesnn::ipu
