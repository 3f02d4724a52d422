// One call of a layer with Python's arrays.
#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/src/cpu/axonal_delays.h"
#include "host/src/cpu/packing.h"
#include "host/src/cpu/sparse_rows.h"
#include "host/src/maps/windows.h"
#include "host/src/ranks/exchange.h"
#include "host/src/ranks/sorted_lists.h"
#include "python_arrays.h"

namespace sparsesnn {

using PackedWeights = std::vector<std::optional<In<unsigned char>>>;

struct PySource {
  std::shared_ptr<PyLists> lists;
  int n_pre;
  int delay;
  In<float> weight;
  std::optional<In<unsigned char>> packed;
  std::shared_ptr<SparseRowsOf> rows;   // of sparse synapses, else null
  std::shared_ptr<Windows> windows;     // of a convolution, else null
  std::shared_ptr<SortedLists> sorted;  // as in SourceInput
};

struct PyLoop {
  In<float> weight;
  int delay;
  std::optional<In<unsigned char>> packed;
  std::shared_ptr<SparseRowsOf> rows;     // as PySource::rows
  std::optional<In<std::int32_t>> steps;  // of axonal delays, [N]
  std::optional<In<float>> fraction;      // likewise, if they lie between steps
};

// A weight [M, N], or one number for each sparse synapse of `rows`, which must be those of this layer.
inline std::vector<std::size_t> weight_shape(const LayerSpec& spec, int n_pre, const SparseRowsOf* rows,
                                             bool by_blocks) {
  if (!rows) return {static_cast<std::size_t>(n_pre), static_cast<std::size_t>(spec.n)};
  if (rows->n_pre != n_pre || rows->n != spec.n || rows->tile_width != spec.tile_width || rows->first != spec.first ||
      rows->by_blocks != by_blocks)
    throw InputError("ShapeError",
                     "layer: the rows of sparse synapses were made for another layer: " + std::to_string(rows->n_pre) +
                         " senders and " + std::to_string(rows->n) + " receivers; give those for " +
                         std::to_string(n_pre) + " and " + std::to_string(spec.n));
  return {rows->n_synapses};
}

inline const void* packed_data(const std::optional<In<unsigned char>>& packed, int n_pre, const LayerSpec& spec) {
  if (!packed) return nullptr;
  if (packed->size() != packed_bytes(n_pre, spec))
    throw InputError("ShapeError", "LayerCall: a packed weight has " + std::to_string(packed->size()) +
                                       " bytes; pack_rows fills " + std::to_string(packed_bytes(n_pre, spec)));
  return packed->data();
}

// A float32 array [N], or one number for all neurons, or null.
inline PerNeuron per_neuron(const std::optional<In<float>>& array, std::size_t n, const char* name) {
  if (array && array->ndim() == 0) return {array->data(), true};
  return floats(array, {n}, name);
}

// Throws if `got` is not the number of a shape's `what`, `want`.
inline void check_count(const NeuronShape& shape, std::size_t got, std::size_t want, const char* what) {
  if (got == want) return;
  throw InputError("ShapeError", "layer: " + std::to_string(got) + " " + what + " are given; the shape '" + shape.name +
                                     "' has " + std::to_string(want));
}

// One layer call. Holds references to the arrays, so that the pointers in `input` stay valid. They are checked in the
// engine's first call; the backward pass checks that the lists are unchanged.
struct PyLayer {
  LayerSpec spec;
  int n_steps, n_samples;
  std::vector<PySource> sources;
  std::vector<std::string> state_names;  // for errors
  std::vector<In<float>> entries;
  std::vector<std::vector<std::optional<In<float>>>> derivatives;
  std::optional<In<float>> grad_threshold, bias;
  std::vector<PyLoop> loops;
  std::optional<std::vector<In<float>>> state;
  std::shared_ptr<PyLists> own_before;
  std::shared_ptr<LayerRanks> ranks;  // as in LayerInput
  std::optional<LayerInput> checked;
  // Set for a call: currents [T, B, N] or, the same at all steps, [B, N] of the whole population.
  std::optional<In<float>> currents = std::nullopt;
  bool gives_potentials = false;  // as in LayerInput

  // The expected shape of a source's weight.
  std::vector<std::size_t> shape_of(const PySource& from) const {
    if (from.windows) {
      if (from.windows->n_pre() != from.n_pre)
        throw InputError("ShapeError", "layer: windows read " + std::to_string(from.windows->n_pre()) +
                                           " neurons; the source has " + std::to_string(from.n_pre));
      return from.windows->weight_shape();
    }
    return weight_shape(spec, from.n_pre, from.rows.get(), ranks != nullptr);
  }
  std::vector<std::size_t> shape_of(const PyLoop& from) const {
    return weight_shape(spec, spec.n_all(), from.rows.get(), ranks != nullptr);
  }

  const LayerInput& input() {
    if (checked) {
      for (const PySource& from : sources) from.lists->check_held("input");
      if (own_before) own_before->check_held("state history");
    } else {
      checked = checked_input();
    }
    return *checked;
  }

  // The packed weights of every source and every loop; set before the engine's call.
  void take_packed(PackedWeights packed) {
    if (packed.size() != sources.size() + loops.size())
      throw InputError("ShapeError", "LayerCall: give a packed weight, or None, for every source and loop");
    for (std::size_t k = 0; k < packed.size(); ++k)
      (k < sources.size() ? sources[k].packed : loops[k - sources.size()].packed) = std::move(packed[k]);
  }

  LayerInput checked_input() const {
    const std::size_t n = static_cast<std::size_t>(spec.n), samples = static_cast<std::size_t>(n_samples);
    LayerInput in;
    in.n_steps = n_steps;
    in.n_samples = n_samples;
    in.ranks = ranks.get();
    for (const PySource& from : sources) {
      SourceInput source;
      source.n_pre = from.n_pre;
      source.delay = from.delay;
      source.constant = from.lists->constant;
      source.lists = checked_lists(*from.lists, from.n_pre, n_samples, &source.n_list_steps, "input");
      if (!n_samples) source.n_list_steps = n_steps;  // no samples: nothing is read
      source.sorted = from.sorted.get();
      check_shape(from.weight, shape_of(from), "weight");
      source.weight = from.weight.data();
      source.rows = from.rows.get();
      source.windows = from.windows.get();
      source.packed = packed_data(from.packed, from.n_pre, spec);
      in.sources.push_back(source);
    }
    int longest = 0;
    for (const PyLoop& from : loops) {
      if (from.delay < 1)
        throw InputError("ShapeError",
                         "LayerCall: a loop has delay " + std::to_string(from.delay) + "; allowed: 1 or more");
      LoopInput loop;
      loop.delay = from.delay;
      loop.weight = from.weight.data();
      check_shape(from.weight, shape_of(from), "recurrent_weight");
      loop.rows = from.rows.get();
      loop.packed = packed_data(from.packed, spec.n_all(), spec);
      if (from.steps) {
        const std::vector<std::size_t> all{static_cast<std::size_t>(spec.n_all())};
        check_shape(*from.steps, all, "steps");
        loop.axonal = axonal_delays(from.steps->data(), floats(from.fraction, all, "fraction"), spec.n_all());
      }
      in.loops.push_back(loop);
      longest = std::max(longest, from.delay);
    }
    const NeuronShape& shape = *spec.shape;
    const std::size_t n_entries = shape.entries.size();
    check_count(shape, entries.size(), n_entries, "entries");
    for (std::size_t k = 0; k < n_entries; ++k) in.entries[k] = per_neuron(entries[k], n, shape.entries[k].c_str());
    for (const auto& by : derivatives) {
      check_count(shape, by.size(), n_entries, "derivatives");
      in.derivatives.emplace_back();
      for (std::size_t k = 0; k < n_entries; ++k)
        in.derivatives.back().push_back(per_neuron(by[k], n, shape.entries[k].c_str()));
    }
    in.grad_threshold = per_neuron(grad_threshold, n, "grad_threshold");
    in.bias = per_neuron(bias, n, "bias");
    in.gives_potentials = gives_potentials;
    if (currents) {
      const std::size_t row = static_cast<std::size_t>(spec.n_all());
      const bool constant = currents->ndim() == 2;
      check_shape(*currents,
                  constant ? std::vector{samples, row} : std::vector{static_cast<std::size_t>(n_steps), samples, row},
                  "currents");
      in.currents = {currents->data() + spec.first, row, constant};
    }
    if (state) {
      check_count(shape, state->size(), static_cast<std::size_t>(shape.n_states), "states");
      for (int k = 0; k < shape.n_states; ++k)
        in.state[k] = floats((*state)[k], {samples, n}, ("state " + state_names.at(k)).c_str());
    }
    if (own_before) {
      in.own_before = checked_lists(*own_before, spec.n, n_samples, &in.n_before, "state history");
      if (n_samples && in.n_before < longest)
        throw InputError("ShapeError", "state history has " + std::to_string(in.n_before) +
                                           " steps; it must cover the longest delay of a loop, " +
                                           std::to_string(longest));
    }
    return in;
  }
};

}  // namespace sparsesnn
