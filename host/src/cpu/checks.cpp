#include <algorithm>
#include <atomic>
#include <cmath>

#include "engine.h"
#include "host/src/machine/thread_pool.h"
#include "host/src/maps/windows.h"

namespace sparsesnn {
namespace {

// Whether the ids of lists i0..i1-1 are in range and ascend within each run, spikes or near-spikes of one list: a scan
// without branches, then a check of each border between runs, the only places where an id may be followed by one that
// is not larger.
template <class Id>
bool ids_are_good(const Lists& lists, const Id* ids, std::int64_t i0, std::int64_t i1, int n_neurons) {
  const std::int64_t begin = lists.offsets[i0], end = lists.offsets[i1];
  Id largest = 0;
  for (std::int64_t j = begin; j < end; ++j) largest = std::max(largest, ids[j]);
  if (begin < end && largest >= static_cast<std::uint32_t>(n_neurons)) return false;
  std::int64_t n_falls = 0, n_allowed = 0, last = begin;
  constexpr std::int64_t piece = 32768;  // short enough for a narrow counter, which the compiler can vectorize
  for (std::int64_t from = begin + 1; from < end; from += piece) {
    const std::int64_t to = std::min(end, from + piece);
    Id falls = 0;
    for (std::int64_t j = from; j < to; ++j) falls = static_cast<Id>(falls + (ids[j] <= ids[j - 1]));
    n_falls += falls;
  }
  const auto look = [&](std::int64_t border) {
    if (border == last || border >= end) return;
    n_allowed += ids[border] <= ids[border - 1];
    last = border;
  };
  for (std::int64_t i = i0; i < i1; ++i) {
    look(lists.offsets[i]);
    look(lists.offsets[i] + lists.n_spikes[i]);
  }
  return n_falls == n_allowed;
}

}  // namespace

void check_lists(const Lists& lists, std::int64_t n_lists, std::int64_t n_ids, int n_neurons, const char* name) {
  const auto fail = [&](std::int64_t i, const std::string& what) {
    throw InputError("SpikeListError", std::string(name) + ": list " + std::to_string(i) + " " + what);
  };
  if (lists.offsets[0] != 0 || lists.offsets[n_lists] != n_ids)
    fail(0,
         "to " + std::to_string(n_lists) + ": offsets must run from 0 to the number of ids, " + std::to_string(n_ids));
  for (std::int64_t i = 0; i < n_lists; ++i) {
    const std::int64_t begin = lists.offsets[i], end = lists.offsets[i + 1], n_spikes = lists.n_spikes[i];
    if (begin < 0 || end < begin || end > n_ids) fail(i, "has offsets that do not rise");
    if (n_spikes < 0 || n_spikes > end - begin)
      fail(i, "has " + std::to_string(end - begin) + " ids but says " + std::to_string(n_spikes) + " spikes");
  }
  for (std::int64_t i = 0; lists.values && i < n_lists; ++i)
    for (std::int64_t j = lists.offsets[i]; j < lists.offsets[i + 1]; ++j)
      if (!std::isfinite(lists.values[j]))
        fail(i, "holds value " + std::to_string(lists.values[j]) + "; give finite numbers");
  constexpr std::int64_t piece = 1024;
  std::atomic<bool> good = true;
  parallel_for(static_cast<int>((n_lists + piece - 1) / piece), [&](int k, int) {
    const std::int64_t i0 = k * piece, i1 = std::min(n_lists, i0 + piece);
    with_ids(lists.wide, lists.ids, [&](auto* ids) {
      if (!ids_are_good(lists, ids, i0, i1, n_neurons)) good = false;
    });
  });
  if (good) return;
  for (std::int64_t i = 0; i < n_lists; ++i) {
    const auto check_run = [&](std::int64_t from, std::int64_t to) {
      std::int64_t before = -1;
      for (std::int64_t j = from; j < to; ++j) {
        const std::int64_t id = lists.wide ? static_cast<const std::int32_t*>(lists.ids)[j]
                                           : static_cast<const std::uint16_t*>(lists.ids)[j];
        if (id < 0 || id >= n_neurons)
          fail(i, "holds id " + std::to_string(id) + "; allowed: 0 to " + std::to_string(n_neurons - 1));
        if (id <= before)
          fail(i, "does not ascend: id " + std::to_string(id) + " after " + std::to_string(before) +
                      "; sort the ids of each list, without duplicates");
        before = id;
      }
    };
    const std::int64_t begin = lists.offsets[i], near = begin + lists.n_spikes[i];
    check_run(begin, near);
    check_run(near, lists.offsets[i + 1]);
  }
}

namespace {

void check_windows(const LayerSpec& spec, const LayerInput& input) {
  for (const SourceInput& source : input.sources) {
    if (!source.windows) continue;
    if (input.ranks)
      throw InputError("ShapeError", "layer: a shard has windows as input; allowed for whole populations only");
    if (source.windows->n_post() != spec.n)
      throw InputError("ShapeError", "layer: windows give maps of " + std::to_string(source.windows->n_post()) +
                                         " neurons; the layer has " + std::to_string(spec.n));
  }
}

}  // namespace

void check_layer(const LayerSpec& spec, const LayerInput& input) {
  if (spec.n < 1 || input.n_steps < 0 || input.n_samples < 0)
    throw InputError("ShapeError", "layer: n, n_steps and n_samples must not be negative, and n at least 1");
  if (spec.tile_width != 16 && spec.tile_width != 32 && spec.tile_width != 64)
    throw InputError("ShapeError", "layer: tile_width is " + std::to_string(spec.tile_width) + "; allowed: 16, 32, 64");
  if (!spec.shape) throw InputError("ShapeError", "layer: the spec names no shape of neurons");
  const NeuronShape& shape = *spec.shape;
  for (std::size_t k = 0; k < shape.entries.size(); ++k)
    if (!input.entries[k])
      throw InputError("ShapeError",
                       "layer: the entry " + shape.entries[k] + " is missing; the shape '" + shape.name + "' has it");
  if (input.derivatives.size() != static_cast<std::size_t>(spec.n_learnt()))
    throw InputError("ShapeError", "layer: got derivatives by " + std::to_string(input.derivatives.size()) +
                                       " parameters; " + std::to_string(spec.n_learnt()) + " are trained");
  if (spec.fires && !input.grad_threshold)
    throw InputError("ShapeError", "layer: grad_threshold is missing; the neurons fire");
  if (spec.capacity < 0 || spec.capacity > spec.n_all() || (spec.fixed && !spec.capacity))
    throw InputError("ShapeError", "layer: capacity " + std::to_string(spec.capacity) + " for " +
                                       std::to_string(spec.n_all()) +
                                       " neurons; give 1 to n, and one with fixed activity");
  for (const SourceInput& source : input.sources)
    if (source.constant ? source.n_list_steps != 1 && input.n_samples
                        : source.n_list_steps < input.n_steps - source.delay)
      throw InputError("ShapeError", "layer: a source covers " + std::to_string(source.n_list_steps) + " steps, " +
                                         std::to_string(source.constant ? 1 : input.n_steps - source.delay) +
                                         " are read");
  for (const SourceInput& source : input.sources)
    if (source.constant && source.delay)
      throw InputError("ShapeError",
                       "layer: constant lists have a delay of " + std::to_string(source.delay) + "; allowed: 0");
  if (input.gives_potentials && spec.fires && spec.n_learnt())
    throw InputError("DescriptionError",
                     "layer: its potentials are an output with a gradient, and a parameter of its neurons is trained; "
                     "allowed: one of them; train weights and bias alone, or use the backend 'dense'");
  check_windows(spec, input);
}

}  // namespace sparsesnn
