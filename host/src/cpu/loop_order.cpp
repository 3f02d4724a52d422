#include "loop_order.h"

#include <algorithm>

#include "codelets/cpu/caches.h"
#include "dense_shares.h"
#include "host/src/machine/choices.h"
#include "host/src/machine/thread_pool.h"
#include "host/src/maps/windows.h"
#include "host/src/training/group_sums.h"

namespace sparsesnn {
namespace {

bool runs_by_sample(const LayerSpec& spec, const LayerInput& input) {
  return input.by_sample || !input.loops.empty() || spec.needs_step_order() || input.reads_rows();
}

// Tile by tile, weights of sources are read once for many steps, and the weights of the loops then have the cache
// alone. That outweighs the extra reads and writes if all weights together do not fit in a core's L2 cache, and more
// than a few spikes arrive in a step.
bool sums_sources_first(const LayerSpec& spec, const LayerInput& input) {
  const std::int64_t n_lists = static_cast<std::int64_t>(input.n_steps) * input.n_samples;
  std::size_t n_pre = input.loops.size() * static_cast<std::size_t>(spec.n_all());
  std::int64_t n_arrive = 0;
  for (const SourceInput& from : input.sources) {
    if (from.packed) return false;
    n_pre += static_cast<std::size_t>(from.n_pre);
    n_arrive += from.lists.offsets[static_cast<std::int64_t>(from.n_list_steps) * input.n_samples];
  }
  return !input.reads_rows() && n_pre * spec.n_padded() * sizeof(float) > row_bytes_in_l2 && n_lists >= waiting_rows &&
         n_arrive > few_arrivals * n_lists;
}

ListGradients list_gradients(const LayerInput& input, const SourceInput& from, bool wanted) {
  if (!wanted) return ListGradients::none;
  if (from.windows) return ListGradients::windows;
  const bool dense = !from.rows && listed_densely(from.lists, from.n_pre, from.delay, input.n_steps, input.n_samples);
  return dense ? ListGradients::product : ListGradients::shares;
}

// One tile without loops and trained parameters of neurons that fire, whose weights and their gradient together stay in
// a core's L2 cache, and without a source that lists most of its neurons.
bool goes_by_list(const LayerSpec& spec, const LayerInput& input, const Wanted& wanted,
                  const std::vector<ListGradients>& sources) {
  if (spec.n_tiles() != 1 || input.reads_rows() || wanted.currents) return false;
  // Traces belong to slots, loops to samples; and the groups of samples are all that threads can share.
  if (spec.fires && (spec.n_learnt() || !input.loops.empty() || count_groups(input.n_samples) < num_threads()))
    return false;
  std::size_t n_pre = 0;
  for (const SourceInput& from : input.sources) n_pre += static_cast<std::size_t>(from.n_pre);
  return std::find(sources.begin(), sources.end(), ListGradients::product) == sources.end() &&
         n_pre * spec.tile_width * sizeof(float) <= readout_bytes;
}

// Smaller weights are read equally fast sample by sample, and threads need not wait for one another.
bool returns_by_product(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved) {
  const auto plain = [](const LoopInput& loop) { return !loop.rows && !loop.axonal; };
  const std::size_t n = static_cast<std::size_t>(spec.n);
  return !input.loops.empty() && n * n * sizeof(float) > recurrent_bytes &&
         std::all_of(input.loops.begin(), input.loops.end(), plain) &&
         listed_densely(saved.lists, spec.n, 0, input.n_steps, input.n_samples);
}

}  // namespace

ForwardPolicy forward_policy(const LayerSpec& spec, const LayerInput& input) {
  if (runs_by_row(spec, input)) return {LoopOrder::by_row};
  if (!runs_by_sample(spec, input)) return {LoopOrder::by_tile};
  return {LoopOrder::by_sample, sums_sources_first(spec, input)};
}

bool BackwardPolicy::has_product() const {
  return loops_by_product || std::find(sources.begin(), sources.end(), ListGradients::product) != sources.end();
}

bool BackwardPolicy::keeps_all_tiles() const { return order != LoopOrder::by_tile || has_product(); }

BackwardPolicy backward_policy(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved,
                               const Wanted& wanted) {
  if (runs_by_row(spec, input)) return {LoopOrder::by_row, {}};
  std::vector<ListGradients> sources;
  for (std::size_t k = 0; k < input.sources.size(); ++k)
    sources.push_back(list_gradients(input, input.sources[k], wanted.value[k]));
  if (goes_by_list(spec, input, wanted, sources)) return {LoopOrder::by_list, {}};
  // By tile, there must be one for every thread.
  const bool by_tile = spec.fires && input.loops.empty() && !input.reads_rows() && spec.n_tiles() >= num_threads();
  return {by_tile ? LoopOrder::by_tile : LoopOrder::by_sample, std::move(sources),
          returns_by_product(spec, input, saved)};
}

}  // namespace sparsesnn
