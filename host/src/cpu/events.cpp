#include "events.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "codelets/cpu/records.h"
#include "host/src/machine/thread_pool.h"
#include "host/src/ranks/sorted_lists.h"
#include "phases.h"

namespace sparsesnn {
namespace {

// Senders that are sorted at a time, so that their destinations fit in a core's L2 (65,536 senders, 1,024 rows and an
// activity of 2 % take half the time of a single pass; 16,384 and fewer take the same).
constexpr int senders_block = 8192;

// A list that arrives in the chunk; its spikes and its near-spikes, next..end-1 of each, are not sorted yet.
template <class Id>
struct Arriving {
  std::uint32_t row;
  const Id* ids;
  std::int64_t next[2], end[2];
  std::int64_t to_order;  // from the slot of an entry to its place in Events::order
};

// Counts the spikes of each sender in ends[2m], for lists with spikes only: one loop over contiguous lists.
template <class Id>
void count_spikes(const std::vector<Arriving<Id>>& lists, std::int32_t* ends) {
  for (std::size_t k = 0; k < lists.size();) {
    const Id* const ids = lists[k].ids;
    std::int64_t j = lists[k].next[0], end = lists[k].end[0];
    while (++k < lists.size() && lists[k].ids == ids && lists[k].next[0] == end) end = lists[k].end[0];
    for (; j < end; ++j) ++ends[2 * static_cast<std::size_t>(ids[j])];
  }
}

// A counting sort, one block of senders after the other: ids ascend, so every list continues where the block before
// ended, and the places that a block writes to stay in cache.
template <class Id>
Events sort_ids_by_sender(const SenderInput& from, const Chunk& chunk, int n_samples) {
  Events events;
  std::vector<Arriving<Id>> arriving;
  bool only_spikes = true;
  visit_rows(from, chunk, n_samples, [&](std::uint32_t row, const Lists& lists, std::int64_t list) {
    const std::int64_t begin = lists.offsets[list], near = begin + lists.n_spikes[list];
    const std::int64_t end = from.with_near ? lists.offsets[list + 1] : near;
    arriving.push_back({row,
                        static_cast<const Id*>(lists.ids),
                        {begin, near},
                        {near, end},
                        static_cast<std::int64_t>(events.n) - begin});
    only_spikes = only_spikes && end == near;
    if (from.with_near) events.lists.push_back({begin, events.n});
    events.n += static_cast<std::size_t>(end - begin);
  });
  events.lists.push_back({0, events.n});
  events.rows = Array<std::uint32_t>(events.n + events_ahead);
  std::fill_n(events.rows.data() + events.n, events_ahead, 0u);
  events.order = Array<std::uint32_t>(from.with_near ? events.n : 0);
  const float* values = from.lists.values;
  if (values) events.values = Array<float>(events.n);
  events.starts = Array<std::int32_t>::zeros(2 * static_cast<std::size_t>(from.n_pre) + 1);
  std::int32_t* const ends = events.starts.data() + 1;  // the end of each sender's events, once they are placed
  std::int32_t n = 0;
  const bool in_one_go = from.n_pre <= senders_block;
  for (int m0 = 0, m1; m0 < from.n_pre; m0 = m1) {
    m1 = std::min(from.n_pre, m0 + senders_block);
    const auto each_event = [&](bool last, auto&& body) {
      for (Arriving<Id>& list : arriving) {
        if (in_one_go) {  // one loop: its end is predicted more often than those of two
          for (std::int64_t j = list.next[0]; j < list.end[1]; ++j)
            body(2 * static_cast<std::size_t>(list.ids[j]) + (j >= list.end[0]), list, j);
          continue;
        }
        for (int kind = 0; kind < 2; ++kind) {
          std::int64_t j = list.next[kind];
          for (; j < list.end[kind] && static_cast<int>(list.ids[j]) < m1; ++j)
            body(2 * static_cast<std::size_t>(list.ids[j]) + kind, list, j);
          if (last) list.next[kind] = j;
        }
      }
    };
    if (in_one_go && only_spikes)
      count_spikes(arriving, ends);
    else
      each_event(false, [&](std::size_t group, const Arriving<Id>&, std::int64_t) { ++ends[group]; });
    for (int g = 2 * m0; g < 2 * m1; ++g) n += std::exchange(ends[g], n);
    const auto place = [&](auto graded) {
      each_event(true, [&](std::size_t group, const Arriving<Id>& list, std::int64_t slot) {
        const std::int32_t at = ends[group]++;
        events.rows[at] = list.row;
        if (from.with_near) events.order[list.to_order + slot] = static_cast<std::uint32_t>(at);
        if constexpr (graded()) events.values[at] = values[slot];
      });
    };
    values ? place(std::true_type()) : place(std::false_type());
  }
  return events;
}

// Calls visit(tile, place, slot, spike) for all listed neurons of the chunk in backward order of its rows: groups of
// samples ascending, steps descending, samples ascending.
template <class Id, class Visit>
void visit_listed(const Id* ids, const LayerSpec& spec, const LayerSaved& saved, const Chunk& chunk, int n_samples,
                  Visit&& visit) {
  const int w = spec.tile_width, shift = std::countr_zero(static_cast<unsigned>(w));
  const bool silenced = spec.stores_silenced();
  for (int g = chunk.b0; g < chunk.b1; g += group_samples)
    for (int t = chunk.t1 - 1; t >= chunk.t0; --t)
      for (int b = g; b < std::min(chunk.b1, g + group_samples); ++b) {
        const std::int64_t list = static_cast<std::int64_t>(t) * n_samples + b;
        const std::uint32_t row = chunk.row(t, b) * static_cast<std::uint32_t>(w);
        const auto place = [&](std::uint32_t id) { return row + (id & static_cast<std::uint32_t>(w - 1)); };
        const std::int64_t offset = saved.lists.offsets[list], n_spikes = saved.lists.n_spikes[list];
        for (std::int64_t j = offset; j < saved.lists.offsets[list + 1]; ++j)
          visit(static_cast<int>(ids[j] >> shift), place(ids[j]), j, j - offset < n_spikes);
        if (!silenced) continue;
        for (std::int64_t j = saved.silenced_offsets[list]; j < saved.silenced_offsets[list + 1]; ++j)
          visit(static_cast<int>(saved.silenced_ids[j] >> shift), place(saved.silenced_ids[j]), std::int64_t{-1}, true);
      }
}

template <class Id>
Listed sort_ids_by_tile(const Id* ids, const LayerSpec& spec, const LayerSaved& saved, const float* d_values,
                        float* d_slots, std::int64_t n_slots, const Chunk& chunk, int n_samples) {
  const int n_tiles = spec.n_tiles();
  Listed listed;
  listed.starts = Array<std::int32_t>::zeros(n_tiles + 1);
  std::int32_t* starts = listed.starts.data();
  const int w = spec.tile_width, shift = std::countr_zero(static_cast<unsigned>(w));
  for (int t = chunk.t0; t < chunk.t1; ++t) {
    const std::int64_t row = static_cast<std::int64_t>(t) * n_samples, *offsets = saved.lists.offsets + row;
    for (std::int64_t j = offsets[chunk.b0]; j < offsets[chunk.b1]; ++j) ++starts[ids[j] >> shift];
    if (!spec.stores_silenced()) continue;
    offsets = saved.silenced_offsets + row;
    for (std::int64_t j = offsets[chunk.b0]; j < offsets[chunk.b1]; ++j) ++starts[saved.silenced_ids[j] >> shift];
  }
  std::int32_t n = 0;
  for (int p = 0; p <= n_tiles; ++p) n += std::exchange(starts[p], n);
  const bool by_q = spec.adds_q(), fixed = spec.fixed;
  listed.grads = Array<ListedGrad>(by_q ? n : 0);
  listed.states = Array<ListedState>(by_q ? 0 : n);
  const float *sigma = saved.fields, *x = spec.records_x() ? sigma + n_slots : nullptr;
  const auto q_of = [=](std::int64_t slot) {
    const float q = sigma[slot] * d_values[slot];
    if (d_slots) d_slots[slot] = q;
    return q;
  };
  if (by_q) {
    visit_listed(ids, spec, saved, chunk, n_samples,
                 [=, to = listed.grads.data()](int tile, std::uint32_t place, std::int64_t slot, bool) {
                   ListedGrad* const one = to + starts[tile]++;
                   __builtin_prefetch(one + 16, 1);
                   *one = {place, q_of(slot)};
                 });
  } else {
    visit_listed(ids, spec, saved, chunk, n_samples,
                 [=, to = listed.states.data()](int tile, std::uint32_t place, std::int64_t slot, bool spike) {
                   ListedState& one = to[starts[tile]++];
                   if (slot < 0)
                     one = {place, 0.0f, 0.0f, 0.0f, true};
                   else
                     one = {place, q_of(slot), sigma[slot], x ? x[slot] : 0.0f, spike && !fixed};
                 });
  }
  for (int p = n_tiles; p > 0; --p) starts[p] = starts[p - 1];  // each now holds the next one's start
  starts[0] = 0;
  return listed;
}

}  // namespace

Array<float> value_grads(const SourceInput& from, int n_steps, int n_samples, std::size_t n_blocks) {
  const std::int64_t arrive = std::int64_t{std::clamp(n_steps - from.delay, 0, from.n_list_steps)} * n_samples,
                     n_lists = std::int64_t{from.n_list_steps} * n_samples;
  const std::int64_t begin = from.lists.offsets[arrive], end = from.lists.offsets[n_lists];
  Array<float> grads(static_cast<std::size_t>(end) * n_blocks);
  for (std::size_t k = 0; k < n_blocks; ++k)
    for (std::int64_t j = begin; j < end; ++j) grads[k * end + j] = 0.0f;
  return grads;
}

void put_in_lists(const Events& events, const std::vector<const float*>& sums, float* d_value, std::size_t n_values) {
  const PhaseTimer timer(Phase::sum_shares);
  constexpr std::size_t piece = 64;  // lists
  const std::size_t n_lists = events.lists.size() - 1;
  parallel_for(static_cast<int>((n_lists + piece - 1) / piece), [&](int item, int) {
    for (std::size_t k = 0; k < sums.size(); ++k)
      for (std::size_t l = item * piece; l < std::min(n_lists, (item + 1) * piece); ++l) {
        const Events::List& list = events.lists[l];
        const std::uint32_t* order = events.order.data() + list.first;
        const std::size_t n = events.lists[l + 1].first - list.first;
        float* const to = d_value + k * n_values;
        for (std::size_t j = 0; j < n; ++j) to[list.slot + j] = sums[k][order[j]];
      }
  });
}

void sort_value_grads(const SourceInput& from, int n_samples, Array<float>& grads) {
  const std::size_t n = from.lists.offsets[std::int64_t{from.n_list_steps} * n_samples];
  if (from.sorted && grads.size() && n)
    grads = from.sorted->from_slots(from.lists, static_cast<std::int64_t>(n), grads.data(), grads.size() / n);
}

Events sort_by_sender(const SenderInput& from, const Chunk& chunk, int n_samples) {
  return from.lists.wide ? sort_ids_by_sender<std::uint32_t>(from, chunk, n_samples)
                         : sort_ids_by_sender<std::uint16_t>(from, chunk, n_samples);
}

Listed sort_by_tile(const LayerSpec& spec, const LayerSaved& saved, const float* d_values, float* d_slots,
                    std::int64_t n_slots, const Chunk& chunk, int n_samples) {
  return with_ids(saved.lists.wide, saved.lists.ids, [&](auto* ids) {
    return sort_ids_by_tile(ids, spec, saved, d_values, d_slots, n_slots, chunk, n_samples);
  });
}

}  // namespace sparsesnn
