// The inputs of the kernels of layers with windows as input (window_forward_kernels.cpp, window_backward_kernels.cpp);
// see windows.h.
//
// A row is cut into blocks of `window_block` neurons. Steps at which no spikes reach a block are deferred until some
// do; they are then done in one pass, states in registers, with the same operations as step by step: bits do not depend
// on the deferral. A neuron that would be listed in such a step ends the shortcut.
#pragma once

#include "host/src/cpu/layer.h"
#include "windows.h"

namespace sparsesnn {

inline constexpr int window_block = 32;
inline constexpr int most_window_sources = 16;

// The floats of a row in the arrays below: whole blocks, and the numbers after their end that runs may touch.
constexpr std::size_t window_row_floats(int length) {
  return static_cast<std::size_t>((length + window_block - 1) / window_block) * window_block + 64;
}
constexpr int window_blocks(int length) { return (length + window_block - 1) / window_block; }

// A source, as the rows of one sample read it.
struct RowSource {
  Lists lists;
  int delay;
  const float* weight;          // packed
  const std::uint32_t* starts;  // RowStarts
  std::size_t stride;
  int n_pre_rows;
  const HeardRow *heard, *heard_end;  // by the current row
  const std::uint32_t* run_starts;    // Windows::run_starts
  const RowRun *runs, *clipped;       // to the extent added, whole or not; to the extent that they reach neurons
  std::int32_t* seen;                 // by place, the step at which its blocks were last checked; backward 2·t + alive
};

struct WindowPass {
  const LayerSpec* spec;
  NeuronArrays neuron;
  int n_steps, n_samples, length, n_sources;
};

struct Padded;  // packing.h
void set_up(WindowPass& pass, const LayerSpec& spec, const LayerInput& input, const Padded& neuron);

// One worker's view of the sources.
class RowSources {
 public:
  // `near`: for each source, whether near-spikes are wanted, because its entries get gradients.
  RowSources(const LayerInput& input, const PackedWindows& packed, const std::vector<bool>& near);
  void find(int sample);
  const RowSource* of_row(int row);

 private:
  const LayerInput& input_;
  const std::vector<bool> near_;
  std::vector<RowSource> sources_;
  std::vector<RowStarts> starts_;
  Array<std::int32_t> seen_;
};

struct WindowForward : WindowPass {
  float* state[max_states];  // [B, N], in place
  bool nobody_fired;         // before the first step, although a θ is negative
  bool starts_silent;        // no neuron has fired before the first step, according to the states
};

// Memory of one worker for a row: arrays of `window_row_floats`; currents have a margin before and after (WindowRows).
struct WindowForwardRoom {
  float *state[max_states], *trace[max_learnt][max_states], *entry[max_entries];
  float* derivative[max_learnt][max_entries];
  float *grad_threshold, *bias, *current, *slope;  // slope: null unless derivatives pass through spikes
  std::int32_t *next, *reached;                    // per block: the next step to be done; blocks that a step reaches
  bool* fired;                                     // per block: whether a neuron fired in the step before that
  SlotBuffer* records;                             // per block; see WindowRecord
};

// A listed neuron: this, then its fields (LayerSpec::n_fields).
struct WindowRecord {
  std::int32_t t;
  std::uint32_t id;  // the neuron, and whether it fired: 2·n + fired
};
inline constexpr int window_record_floats = sizeof(WindowRecord) / sizeof(float);

struct WindowBackward : WindowPass {
  float* d_value[most_window_sources];        // of each source's entries, or null
  std::int64_t first_d[most_window_sources];  // where the gradient of its weights begins in `d_weight`; -1: not wanted
  Lists lists, silenced;                      // the layer's own, and its dropped spikes, or none
  const float* fields;                        // [n_fields][slots] of the layer's own lists
  std::int64_t n_slots;
  const float* d_slots;  // [slots], σ'·e
};

// The entries of the layer's own lists in the rows of one sample (RowStarts).
struct OwnRows {
  const std::uint32_t *listed, *silenced;
  std::size_t listed_stride, silenced_stride;
  int n_rows;
};

// The bytes of the rows for the listed neurons of a block (ListedRows of codelets/cpu/step_grad.h).
inline constexpr std::size_t window_listed_bytes = 4 * window_block * sizeof(float);

struct WindowBackwardRoom {
  float *d_state[max_states], *entry[max_entries];
  float *d_current, *q;
  float* d_bias;  // sums, or null
  std::int32_t *next, *reached,
      *n_listed;    // per block: the earliest step done; blocks with entries; the number of entries
  bool* alive;      // per block: whether it has received any gradient
  void* listed;     // [blocks] of ListedRows
  float* d_weight;  // of all sources, packed: this sample's sums
};

}  // namespace sparsesnn
