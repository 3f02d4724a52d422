// The lists of an event cache, and the spikes of one sample from it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "batch.h"

namespace sparsesnn {

// As in datasets/binning.py.
inline constexpr std::int64_t max_value = 1 << 24;

[[noreturn]] inline void changed(const char* what) {
  throw InputError("DataError", std::string("the event cache ") + what +
                                    "; the file may have changed while it was in use: load the data again");
}

// The cache with its types.
template <class Id, class Length>
struct Cache {
  const Id* ids;
  const Length* lengths;
  const std::int64_t* starts;
  const void* values;
  int value_bytes;
  std::int64_t n_ids, n_samples, n_steps, n_neurons;

  explicit Cache(const EventCache& c)
      : ids(static_cast<const Id*>(c.ids)),
        lengths(static_cast<const Length*>(c.lengths)),
        starts(c.sample_starts),
        values(c.values),
        value_bytes(c.value_bytes),
        n_ids(c.n_ids),
        n_samples(c.n_samples),
        n_steps(c.n_steps),
        n_neurons(c.n_neurons) {}

  std::int64_t begin(std::int64_t sample) const {
    if (starts[sample] < 0 || starts[sample] > n_ids) changed("has a sample that starts outside its ids");
    return starts[sample];
  }
  std::int64_t end(std::int64_t sample) const { return std::clamp(starts[sample + 1], begin(sample), n_ids); }

  // The number of events in a spike.
  std::int64_t value(std::int64_t place) const {
    const std::int64_t value = value_bytes == 1   ? static_cast<const std::uint8_t*>(values)[place]
                               : value_bytes == 2 ? static_cast<const std::uint16_t*>(values)[place]
                                                  : static_cast<const std::int32_t*>(values)[place];
    if (value < 1 || value > max_value) changed("has values that are not counts");
    return value;
  }

  // Calls body(step, place of the first id, length) for all lists of a sample.
  template <class Body>
  void lists(std::int64_t sample, Body&& body) const {
    const Length* row = lengths + sample * n_steps;
    std::int64_t at = begin(sample);
    const std::int64_t last = end(sample);
    for (std::int64_t t = 0; t < n_steps; ++t) {
      const auto n = static_cast<std::int64_t>(row[t]);
      if (n < 0 || n > last - at) changed("has lists that are longer than their sample");
      body(t, at, n);
      at += n;
    }
  }
};

// The spikes of one sample in the order of the cache, each repeated by its count; a spike's place is its number.
struct Spikes {
  std::vector<std::int32_t> step, neuron;  // -1: left out
  std::size_t n = 0;

  // Makes room.
  void begin(std::int64_t most) {
    n = 0;
    if (const std::size_t size = static_cast<std::size_t>(most) + slack; step.size() < size) {
      step.resize(size);
      neuron.resize(size);
    }
  }

  // Adds the spikes of a sample in steps [from, to).
  template <class Id, class Length>
  void add(const Cache<Id, Length>& cache, std::int64_t sample, std::int64_t from, std::int64_t to) {
    if (from < to && cache.values) return add_events(cache, sample, from, to);
    std::int64_t first = 0;
    std::size_t count = 0;
    if (from < to)
      cache.lists(sample, [&](std::int64_t t, std::int64_t at, std::int64_t length) {
        if (t < from || t >= to) return;
        if (t == from) first = at;
        // always `slack` of them: the next list overwrites the surplus
        std::int32_t* place = step.data() + n + count;
        std::fill_n(place, slack, static_cast<std::int32_t>(t));
        count += static_cast<std::size_t>(length);
        if (length > static_cast<std::int64_t>(slack))
          std::fill(place + slack, step.data() + n + count, static_cast<std::int32_t>(t));
      });
    const Id* ids = cache.ids + first;
    std::uint32_t highest = 0;
    for (std::size_t k = 0; k < count; ++k) {
      neuron[n + k] = static_cast<std::int32_t>(ids[k]);
      highest = std::max(highest, static_cast<std::uint32_t>(neuron[n + k]));
    }
    if (count && highest >= static_cast<std::uint32_t>(cache.n_neurons)) changed("has ids beyond its neurons");
    n += count;
  }

 private:
  template <class Id, class Length>
  void add_events(const Cache<Id, Length>& cache, std::int64_t sample, std::int64_t from, std::int64_t to) {
    cache.lists(sample, [&](std::int64_t t, std::int64_t at, std::int64_t length) {
      if (t < from || t >= to) return;
      for (std::int64_t k = at; k < at + length; ++k) {
        const auto count = static_cast<std::size_t>(cache.value(k));
        const auto id = static_cast<std::int32_t>(cache.ids[k]);
        if (id < 0 || id >= cache.n_neurons) changed("has ids beyond its neurons");
        if (step.size() < n + count) {
          step.resize(std::max(2 * step.size(), n + count));
          neuron.resize(step.size());
        }
        std::fill_n(step.data() + n, count, static_cast<std::int32_t>(t));
        std::fill_n(neuron.data() + n, count, id);
        n += count;
      }
    });
  }

  static constexpr std::size_t slack = 16;
};

}  // namespace sparsesnn
