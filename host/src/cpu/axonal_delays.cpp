#include "axonal_delays.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "host/src/machine/thread_pool.h"
#include "host/src/training/group_sums.h"

namespace sparsesnn {
namespace {

// A move of lists.
struct Move {
  const Lists& lists;
  int n_steps, n_samples, n_neurons;
  const AxonalDelays& delays;
  int n_out;  // steps of the result
  int more;   // steps added to the delay of every entry

  float fraction(std::uint32_t m) const { return delays.fraction ? delays.fraction[m] : 0.0f; }

  // Calls visit(slot, step, m, fired) for all entries of a sample.
  template <class Id, class Visit>
  void each_entry(const Id* ids, int b, Visit&& visit) const {
    for (int t = 0; t < n_steps; ++t) {
      const std::int64_t list = static_cast<std::int64_t>(t) * n_samples + b, begin = lists.offsets[list];
      const std::int64_t near = begin + lists.n_spikes[list], end = lists.offsets[list + 1];
      for (std::int64_t j = begin; j < end; ++j) visit(static_cast<std::int32_t>(j), t, ids[j], int(j < near));
    }
  }

  // Calls body(step of the result) if part 0 or 1 of an entry of step t arrives within the result.
  template <class Body>
  void arrive(int t, std::uint32_t m, int part, Body&& body) const {
    const std::int64_t step = static_cast<std::int64_t>(t) + more + delays.steps[m] + part;
    if (step >= 0 && step < n_out) body(static_cast<std::size_t>(step));
  }
};

// The numbers of entries and of spikes that arrive at sample b, [steps of the result][n_samples].
template <class Id>
void count_sample(const Move& move, const Id* ids, int b, std::int32_t* n_listed, std::int32_t* n_spikes) {
  struct Last {
    std::int32_t step, fired;
  };
  const Array<Last> lasts = Array<Last>::filled(move.n_neurons, {-2, 0});  // entry of each neuron
  Last* const last = lasts.data();
  const std::size_t stride = move.n_samples;
  move.each_entry(ids, b, [&, last](std::int32_t, int t, std::uint32_t m, int fired) {
    const int apart = move.fraction(m) > 0.0f, joined = move.delays.fraction && last[m].step + 1 == t;
    const int counted = joined & last[m].fired & apart;
    last[m] = {t, fired};
    move.arrive(t, m, 0, [=](std::size_t step) {
      n_listed[step * stride + b] += 1 - joined;
      n_spikes[step * stride + b] += fired & ~counted;
    });
    if (move.delays.fraction)
      move.arrive(t, m, 1, [=](std::size_t step) {
        ++n_listed[step * stride + b];
        n_spikes[step * stride + b] += fired & apart;
      });
  });
}

// Writes the entries that arrive at sample b to its lists in `out`, whose offsets and numbers of spikes are set.
template <class Id>
void fill_sample(const Move& move, const Id* ids, int b, DelayedLists& out) {
  struct Entry {
    std::int32_t slot, step, fired;
  };
  const Lists& lists = move.lists;
  // By id, within an id by step: a counting sort.
  const Array<std::int32_t> starts = Array<std::int32_t>::zeros(static_cast<std::size_t>(move.n_neurons) + 2);
  std::int32_t* const next = starts.data() + 1;  // where an id's next entry goes
  move.each_entry(ids, b, [=](std::int32_t, int, std::uint32_t m, int) { ++next[m + 1]; });
  for (int m = 0; m < move.n_neurons; ++m) next[m + 1] += next[m];
  const Array<Entry> by_id(static_cast<std::size_t>(next[move.n_neurons]));
  Entry* const entries = by_id.data();
  move.each_entry(ids, b,
                  [=](std::int32_t slot, int t, std::uint32_t m, int fired) { entries[next[m]++] = {slot, t, fired}; });
  // The next near-spike and the next spike of each list.
  const Array<std::int64_t> places(2 * static_cast<std::size_t>(move.n_out));
  std::int64_t* const place = places.data();
  for (std::size_t t = 0; t < static_cast<std::size_t>(move.n_out); ++t) {
    const std::size_t list = t * move.n_samples + b;
    place[2 * t + 1] = out.offsets[list];
    place[2 * t] = out.offsets[list] + out.n_spikes[list];
  }
  Id* const moved = reinterpret_cast<Id*>(out.ids.data());
  float* const values = out.values.data();
  std::int32_t* const slots[2] = {out.slots[0].data(), out.slots[1].data()};
  for (std::uint32_t m = 0; m < static_cast<std::uint32_t>(move.n_neurons); ++m) {
    const float f = move.fraction(m);
    // The sum of part f of the entry `later` and part 1 - f of the entry `earlier`, which fired a step after it; or one
    // of the two alone.
    const auto put = [&](std::size_t t, const Entry* later, const Entry* earlier) {
      const int fired = (later ? later->fired & int(f > 0.0f) : 0) | (earlier ? earlier->fired : 0);
      const std::int64_t slot = place[2 * t + fired]++;
      moved[slot] = static_cast<Id>(m);
      float value = 0.0f;
      const auto add = [&](int part, const Entry* entry, float weight) {
        if (!entry) return;
        slots[part][entry->slot] = static_cast<std::int32_t>(slot);
        const float brought = weight * (lists.values ? lists.values[entry->slot] : 1.0f);
        value += entry->fired ? brought : 0.0f;
      };
      add(1, later, f);
      add(0, earlier, 1.0f - f);
      if (values) values[slot] = value;
    };
    const Entry* const end = entries + starts[m + 1];
    const Entry* before = nullptr;  // the entry a step earlier
    for (const Entry* entry = entries + starts[m]; entry < end; ++entry) {
      move.arrive(entry->step, m, 0, [&](std::size_t t) { put(t, before, entry); });
      const bool joins = move.delays.fraction && entry + 1 < end && entry[1].step == entry->step + 1;
      before = joins ? entry : nullptr;
      if (move.delays.fraction && !joins)
        move.arrive(entry->step, m, 1, [&](std::size_t t) { put(t, entry, nullptr); });
    }
  }
}

template <class Id>
void delayed_grad_of_group(const Lists& lists, const Id* ids, int n_steps, int n_samples, int group,
                           const AxonalDelays& delays, const std::int32_t* const slots[2], const float* d_moved,
                           float* d_values, double* sums) {
  const auto arrived = [&](int part, std::int64_t j) { return slots[part][j] < 0 ? 0.0f : d_moved[slots[part][j]]; };
  for (int t = 0; t < n_steps; ++t)
    for (int b = group * group_samples; b < std::min(n_samples, (group + 1) * group_samples); ++b) {
      const std::int64_t i = static_cast<std::int64_t>(t) * n_samples + b;
      const std::int64_t begin = lists.offsets[i], near = begin + lists.n_spikes[i], end = lists.offsets[i + 1];
      for (std::int64_t j = begin; j < end; ++j) {
        const float earlier = arrived(0, j);
        d_values[j] = earlier;
        if (!delays.fraction) continue;
        const float f = delays.fraction[ids[j]], later = arrived(1, j);
        d_values[j] = (1.0f - f) * earlier + f * later;
        if (sums && j < near)
          sums[ids[j]] += static_cast<double>(lists.values ? lists.values[j] : 1.0f) * (later - earlier);
      }
    }
}

}  // namespace

AxonalDelays axonal_delays(const std::int32_t* steps, const float* fraction, int m) {
  AxonalDelays delays{steps, fraction};
  for (int k = 0; k < m; ++k) {
    if (steps[k] < 0) throw InputError("ShapeError", "axonal delays: steps must not be negative");
    delays.longest = std::max(delays.longest, steps[k] + (fraction ? 1 : 0));
  }
  return delays;
}

DelayedLists delay_lists(const Lists& lists, int n_steps, int n_samples, int n_neurons, const AxonalDelays& delays,
                         int first_step, int more) {
  const int n_out = n_steps - first_step;
  const std::int64_t n_lists = static_cast<std::int64_t>(n_out) * n_samples;
  const std::int64_t n_slots = lists.offsets[static_cast<std::int64_t>(n_steps) * n_samples];
  if (n_slots > std::numeric_limits<std::int32_t>::max() / 2)
    throw InputError("SpikeListError", "axonal delays: " + std::to_string(n_slots) +
                                           " entries; allowed: 1,073,741,823; give fewer samples at a time");
  DelayedLists out;
  out.offsets = Array<std::int64_t>(n_lists + 1);
  out.n_spikes = Array<std::int32_t>::zeros(n_lists);
  const Move move{lists, n_steps, n_samples, n_neurons, delays, n_out, more - first_step};
  const Array<std::int32_t> n_listed = Array<std::int32_t>::zeros(n_lists);
  parallel_for(n_samples, [&](int b, int) {
    with_ids(lists.wide, lists.ids,
             [&](auto* ids) { count_sample(move, ids, b, n_listed.data(), out.n_spikes.data()); });
  });
  out.offsets[0] = 0;
  for (std::int64_t i = 0; i < n_lists; ++i) out.offsets[i + 1] = out.offsets[i] + n_listed[i];
  const std::size_t n_moved = static_cast<std::size_t>(out.offsets[n_lists]);
  out.ids = Array<unsigned char>(n_moved * (lists.wide ? 4 : 2));
  if (delays.fraction || lists.values) out.values = Array<float>(n_moved);
  for (int part = 0; part < delays.n_parts(); ++part) out.slots[part] = Array<std::int32_t>::filled(n_slots, -1);
  parallel_for(n_samples, [&](int b, int) {
    with_ids(lists.wide, lists.ids, [&](auto* ids) { fill_sample(move, ids, b, out); });
  });
  return out;
}

DelayedLists heard_lists(const Lists& before, int n_before, const Lists& lists, int n_steps, int n_samples,
                         int n_neurons, const LoopInput& loop) {
  if (!n_before) return delay_lists(lists, n_steps, n_samples, n_neurons, loop.axonal, 0, loop.delay);
  const std::size_t n_early = static_cast<std::size_t>(n_before) * n_samples,
                    n_late = static_cast<std::size_t>(n_steps) * n_samples;
  const std::size_t n_slots = static_cast<std::size_t>(before.offsets[n_early] + lists.offsets[n_late]);
  const std::size_t id_bytes = lists.wide ? 4 : 2, n_first = static_cast<std::size_t>(before.offsets[n_early]);
  const Array<std::int64_t> offsets(n_early + n_late + 1);
  const Array<std::int32_t> n_spikes(n_early + n_late);
  const Array<unsigned char> ids(n_slots * id_bytes);
  std::copy_n(before.offsets, n_early, offsets.data());
  for (std::size_t i = 0; i <= n_late; ++i)
    offsets[n_early + i] = lists.offsets[i] + static_cast<std::int64_t>(n_first);
  std::copy_n(before.n_spikes, n_early, n_spikes.data());
  std::copy_n(lists.n_spikes, n_late, n_spikes.data() + n_early);
  std::copy_n(static_cast<const unsigned char*>(before.ids), n_first * id_bytes, ids.data());
  std::copy_n(static_cast<const unsigned char*>(lists.ids), (n_slots - n_first) * id_bytes,
              ids.data() + n_first * id_bytes);
  const Lists all{offsets.data(), ids.data(), n_spikes.data(), lists.wide};
  return delay_lists(all, n_before + n_steps, n_samples, n_neurons, loop.axonal, n_before, loop.delay);
}

void delay_lists_grad(const Lists& lists, int n_steps, int n_samples, int n_neurons, const AxonalDelays& delays,
                      const std::int32_t* const slots[2], const float* d_moved, float* d_values,
                      const Array<float>& d_delays) {
  parallel_for(count_groups(n_samples), [&](int group, int) {
    std::vector<double> sums(d_delays ? n_neurons : 0);  // in the order of the group's lists
    with_ids(lists.wide, lists.ids, [&](auto* ids) {
      delayed_grad_of_group(lists, ids, n_steps, n_samples, group, delays, slots, d_moved, d_values,
                            d_delays ? sums.data() : nullptr);
    });
    for (std::size_t m = 0; m < sums.size(); ++m) d_delays[group * sums.size() + m] = static_cast<float>(sums[m]);
  });
}

SpikesUnderWay::SpikesUnderWay(const Loop& loop)
    : delay_(loop.delay),
      delays_(loop.axonal),
      parts_(static_cast<std::size_t>(loop.delay) + static_cast<std::size_t>(loop.axonal.longest) + 1) {}

void SpikesUnderWay::send(int t, const OwnSpikes& fired) {
  for (std::int64_t j = 0; j < fired.n; ++j) {
    const std::uint32_t m = fired.id(j);
    const int step = t + delay_ + delays_.steps[m];
    const float f = delays_.fraction ? delays_.fraction[m] : 0.0f;
    if (step >= 0) at(step).push_back({m, 1.0f - f});
    if (f > 0.0f && step + 1 >= 0) at(step + 1).push_back({m, f});
  }
}

OwnSpikes SpikesUnderWay::arrive(int t) {
  std::vector<Part>& parts = at(t);
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.id < b.id; });
  ids_.clear();
  values_.clear();
  for (const Part& part : parts) {
    if (!ids_.empty() && ids_.back() == part.id) {  // from two steps at most, so the order of the sum does not matter
      values_.back() += part.value;
    } else {
      ids_.push_back(part.id);
      values_.push_back(part.value);
    }
  }
  parts.clear();
  return {ids_.data(), static_cast<std::int64_t>(ids_.size()), true, delays_.fraction ? values_.data() : nullptr};
}

DelayGrads::DelayGrads(const LayerSpec& spec, const LayerInput& input, const std::vector<bool>& wanted) {
  const std::size_t row = static_cast<std::size_t>(spec.n_padded());
  bool any = false;
  for (std::size_t k = 0; k < input.loops.size(); ++k) {
    const bool here = k < wanted.size() && wanted[k];
    by_sample_.push_back(here ? Array<double>::zeros(row * input.n_samples) : Array<double>());
    pointers_.push_back(by_sample_.back().data());
    any |= static_cast<bool>(input.loops[k].axonal);
  }
  if (any) nothing_ = Array<float>::zeros(row);
}

void DelayGrads::give(BackwardPass& pass) const {
  pass.d_delays = pointers_.data();
  pass.nothing = nothing_.data();
}

std::vector<Array<float>> DelayGrads::sums(const LayerSpec& spec, int n_samples, bool separate) const {
  const std::size_t n = static_cast<std::size_t>(spec.n), row = static_cast<std::size_t>(spec.n_padded());
  std::vector<Array<float>> found(by_sample_.size());
  for (std::size_t k = 0; k < found.size(); ++k)
    if (const Array<double>& by_sample = by_sample_[k])
      found[k] = sum_groups(n_samples, n, separate, [&](int b0, int b1, double* sum) {
        for (int b = b0; b < b1; ++b)
          for (std::size_t m = 0; m < n; ++m) sum[m] += by_sample[b * row + m];
      });
  return found;
}

}  // namespace sparsesnn
