#include "axonal_delays.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "group_sums.h"
#include "thread_pool.h"

namespace sparsesnn {
namespace {

// An entry on its way.
struct Moved {
  std::uint32_t id;
  std::int32_t slot;  // in the lists it comes from
  float weight;       // of its part that arrives here
  bool later;         // the part f
  bool fired;
};

// What arrives at one sample: entries by step, within a step by id, within an id by the step they come from.
struct Arrivals {
  std::vector<Moved> entries;
  std::vector<std::size_t> starts;  // [steps + 1]
};

// Calls visit(slot, step, fired) for all entries of a sample.
template <class Visit>
void each_entry(const Lists& lists, int n_steps, int n_samples, int b, Visit&& visit) {
  for (int t = 0; t < n_steps; ++t) {
    const std::int64_t list = static_cast<std::int64_t>(t) * n_samples + b, begin = lists.offsets[list];
    for (std::int64_t j = begin; j < lists.offsets[list + 1]; ++j) visit(j, t, j < begin + lists.n_spikes[list]);
  }
}

// Two counting sorts, by id and then by step of arrival; each keeps the order of what it finds equal.
Arrivals sort_sample(const Lists& lists, int n_steps, int n_samples, int n_neurons, const AxonalDelays& delays,
                     int first_step, int more, int b) {
  struct Entry {
    std::int32_t slot, step;
    bool fired;
  };
  std::vector<std::size_t> place(static_cast<std::size_t>(n_neurons) + 1);
  each_entry(lists, n_steps, n_samples, b, [&](std::int64_t j, int, bool) { ++place[lists.id(j) + 1]; });
  for (int m = 0; m < n_neurons; ++m) place[m + 1] += place[m];
  std::vector<Entry> by_id(place[n_neurons]);
  each_entry(lists, n_steps, n_samples, b, [&](std::int64_t j, int t, bool fired) {
    by_id[place[lists.id(j)]++] = {static_cast<std::int32_t>(j), t, fired};
  });
  // Calls put(step of arrival, part) for the parts of all entries that arrive in time.
  const auto each_part = [&](auto&& put) {
    for (const Entry& e : by_id) {
      const std::uint32_t m = lists.id(e.slot);
      const std::int64_t step = static_cast<std::int64_t>(e.step) + more + delays.steps[m];
      const float f = delays.fraction ? delays.fraction[m] : 0.0f;
      if (step >= first_step && step < n_steps) put(step - first_step, Moved{m, e.slot, 1.0f - f, false, e.fired});
      if (delays.fraction && step + 1 >= first_step && step + 1 < n_steps)
        put(step + 1 - first_step, Moved{m, e.slot, f, true, e.fired && f > 0.0f});
    }
  };
  Arrivals found;
  found.starts.assign(static_cast<std::size_t>(n_steps - first_step) + 1, 0);
  each_part([&](std::int64_t step, const Moved&) { ++found.starts[step + 1]; });
  for (std::size_t t = 1; t < found.starts.size(); ++t) found.starts[t] += found.starts[t - 1];
  found.entries.resize(found.starts.back());
  std::vector<std::size_t> next(found.starts.begin(), found.starts.end() - 1);
  each_part([&](std::int64_t step, const Moved& part) { found.entries[next[step]++] = part; });
  return found;
}

// Calls visit(parts, n) for the parts of one step that make one entry.
template <class Visit>
void each_merged(const Arrivals& from, std::size_t step, Visit&& visit) {
  const Moved* part = from.entries.data() + from.starts[step];
  const Moved* const end = from.entries.data() + from.starts[step + 1];
  while (part < end) {
    int n = 1;
    while (part + n < end && part[n].id == part->id) ++n;
    visit(part, n);
    part += n;
  }
}

bool any_fired(const Moved* parts, int n) {
  bool fired = false;
  for (int k = 0; k < n; ++k) fired |= parts[k].fired;
  return fired;
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
  out.n_spikes = Array<std::int32_t>(n_lists);
  std::vector<Arrivals> arrivals(n_samples);
  Array<std::int32_t> n_listed(n_lists);
  parallel_for(n_samples, [&](int b, int) {
    arrivals[b] = sort_sample(lists, n_steps, n_samples, n_neurons, delays, first_step, more, b);
    for (int t = 0; t < n_out; ++t) {
      std::int32_t listed = 0, fired = 0;
      each_merged(arrivals[b], t, [&](const Moved* parts, int n) {
        ++listed;
        fired += any_fired(parts, n);
      });
      n_listed[static_cast<std::size_t>(t) * n_samples + b] = listed;
      out.n_spikes[static_cast<std::size_t>(t) * n_samples + b] = fired;
    }
  });
  out.offsets[0] = 0;
  for (std::int64_t i = 0; i < n_lists; ++i) out.offsets[i + 1] = out.offsets[i] + n_listed[i];
  const std::size_t n_moved = static_cast<std::size_t>(out.offsets[n_lists]);
  out.ids = Array<unsigned char>(n_moved * (lists.wide ? 4 : 2));
  if (delays.fraction || lists.values) out.values = Array<float>(n_moved);
  for (int part = 0; part < delays.n_parts(); ++part) out.slots[part] = Array<std::int32_t>::filled(n_slots, -1);
  parallel_for(n_samples, [&](int b, int) {
    for (int t = 0; t < n_out; ++t) {
      const std::size_t list = static_cast<std::size_t>(t) * n_samples + b;
      std::int64_t spike = out.offsets[list], near = spike + out.n_spikes[list];
      each_merged(arrivals[b], t, [&](const Moved* parts, int n) {
        const std::int64_t slot = any_fired(parts, n) ? spike++ : near++;
        if (lists.wide)
          reinterpret_cast<std::uint32_t*>(out.ids.data())[slot] = parts->id;
        else
          reinterpret_cast<std::uint16_t*>(out.ids.data())[slot] = static_cast<std::uint16_t>(parts->id);
        float value = 0.0f;
        for (int k = 0; k < n; ++k) {
          out.slots[parts[k].later][parts[k].slot] = static_cast<std::int32_t>(slot);
          if (parts[k].fired) value += parts[k].weight * (lists.values ? lists.values[parts[k].slot] : 1.0f);
        }
        if (out.values) out.values[slot] = value;
      });
    }
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
    for (int t = 0; t < n_steps; ++t)
      for (int b = group * group_samples; b < std::min(n_samples, (group + 1) * group_samples); ++b) {
        const std::int64_t i = static_cast<std::int64_t>(t) * n_samples + b;
        const std::int64_t begin = lists.offsets[i], near = begin + lists.n_spikes[i];
        for (std::int64_t j = begin; j < lists.offsets[i + 1]; ++j) {
          const auto arrived = [&](int part) { return slots[part][j] < 0 ? 0.0f : d_moved[slots[part][j]]; };
          const float earlier = arrived(0);
          d_values[j] = earlier;
          if (!delays.fraction) continue;
          const std::uint32_t m = lists.id(j);
          const float f = delays.fraction[m], later = arrived(1);
          d_values[j] = (1.0f - f) * earlier + f * later;
          if (d_delays && j < near)
            sums[m] += static_cast<double>(lists.values ? lists.values[j] : 1.0f) * (later - earlier);
        }
      }
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
    if (!ids_.empty() && ids_.back() == part.id) {  // of two steps at most: their sum has one order
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
