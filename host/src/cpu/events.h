// The inputs that a backward pass gathers, in the order of its kernels: a counting sort per chunk.
#pragma once

#include <algorithm>
#include <vector>

#include "engine.h"

namespace sparsesnn {

// The events of one chunk from one sender, sorted by sending neuron (codelets/cpu/deliver_grad.h).
struct Events {
  Array<std::int32_t> starts;  // [2·M + 1]
  Array<std::uint32_t> rows;   // the row of each event in the chunk
  Array<float> values;         // its value, for graded lists
  std::size_t n = 0;

  // The inverse, if the gradient of list values is wanted: the lists, and the event of each of their entries.
  struct List {
    std::int64_t slot;  // of its first entry
    std::size_t first;  // its place in `order`
  };
  std::vector<List> lists;     // and a sentinel
  Array<std::uint32_t> order;  // [n]
};

// A sender, in the backward pass's form.
struct SenderInput {
  Lists lists;
  int n_pre, delay;
  bool with_near;     // near-spikes matter only if the gradient of the list values is wanted
  Lists before = {};  // for the layer itself: its lists of the n_before steps before the first
  int n_before = 0;
};

// Allocates the gradient of the values of a source's lists, [K, values]: 0 for lists that arrive after the last step,
// the others not written yet.
Array<float> value_grads(const SourceInput& from, int n_steps, int n_samples, std::size_t n_blocks);

// Reorders sums from the order of events to that of the lists, [sums][n_values], list by list: threads that wrote all
// over the lists would contend for cache lines.
void put_in_lists(const Events& events, const std::vector<const float*>& sums, float* d_value, std::size_t n_values);

// Reorders gradients of list values, [K, values], into the order of the source's sorted lists, if it has any.
void sort_value_grads(const SourceInput& from, int n_samples, Array<float>& grads);

// The listed slots of one chunk, sorted by tile, within a tile in backward order of rows.
struct Listed {
  Array<ListedGrad> grads;     // if q is sufficient (LayerSpec::adds_q), else
  Array<ListedState> states;   // with dropped spikes, if those are stored
  Array<std::int32_t> starts;  // [P + 1]
};

// Calls visit(row, lists, list) for all lists that arrive in the chunk: groups of samples ascending, steps descending,
// samples ascending.
template <class Visit>
void visit_rows(const SenderInput& from, const Chunk& chunk, int n_samples, Visit&& visit) {
  for (int g = chunk.b0; g < chunk.b1; g += group_samples)
    for (int t = chunk.t1 - 1; t >= chunk.t0; --t) {
      const bool earlier = t < from.delay;
      const int step = t - from.delay + (earlier ? from.n_before : 0);
      if (step < 0) continue;
      const Lists& lists = earlier ? from.before : from.lists;
      const std::int64_t first = static_cast<std::int64_t>(step) * n_samples;
      const std::uint32_t row = chunk.row(t, g);
      for (int b = g; b < std::min(chunk.b1, g + group_samples); ++b)
        visit(row + static_cast<std::uint32_t>(b - g), lists, first + b);
    }
}

Events sort_by_sender(const SenderInput& from, const Chunk& chunk, int n_samples);

// Also writes q of every slot into `d_slots`, unless null.
Listed sort_by_tile(const LayerSpec& spec, const LayerSaved& saved, const float* d_values, float* d_slots,
                    std::int64_t n_slots, const Chunk& chunk, int n_samples);

}  // namespace sparsesnn
