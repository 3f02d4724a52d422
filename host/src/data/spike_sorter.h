// Sorts the spikes of a sample.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "cached_lists.h"

namespace sparsesnn {

// A sample's spikes are ordered by marking bits of [T, N] while there are at most this many words per spike, else by
// sorting.
inline constexpr std::int64_t max_words_per_spike = 64;

// std::popcount is a function call if the instruction may be missing.
inline int n_bits(std::uint64_t x) {
  x -= x >> 1 & 0x5555555555555555u;
  x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
  return static_cast<int>(((x + (x >> 4)) & 0x0F0F0F0F0F0F0F0Fu) * 0x0101010101010101u >> 56);
}

// Orders the distinct spikes of a sample: step by step, ascending.
template <class Id>
class Sorter {
 public:
  Sorter(std::int64_t n_steps, std::int64_t n_neurons)
      : n_steps_(n_steps), n_neurons_(n_neurons), n_words_((n_neurons + 63) / 64) {}

  // Writes the ids to `out`, which has room for all spikes and `slack` more, and the number of each step t to
  // n_spikes[t · stride]; to `values`, unless null, the number of spikes of each id. Returns the number of ids.
  std::size_t sort(const Spikes& spikes, Id* out, float* values, std::int64_t* n_spikes, std::size_t stride) {
    const std::int64_t n_words = n_steps_ * n_words_ * (values ? 64 : 1);  // a tally takes more memory than a mark
    return n_words <= max_words_per_spike * (static_cast<std::int64_t>(spikes.n) + 64)
               ? by_marks(spikes, out, values, n_spikes, stride)
               : by_cells(spikes, out, values, n_spikes, stride);
  }

  // The same for spikes that are in order already.
  std::size_t keep(const Spikes& spikes, Id* out, std::int64_t* n_spikes, std::size_t stride) {
    counts_.assign(static_cast<std::size_t>(n_steps_) + 1, 0);  // the last one counts the spikes left out
    std::size_t n = 0;
    for (std::size_t k = 0; k < spikes.n; ++k) {
      const std::int32_t step = spikes.step[k], neuron = spikes.neuron[k];
      const bool stays = (step | neuron) >= 0;
      out[n] = static_cast<Id>(neuron);
      n += stays;
      ++counts_[static_cast<std::size_t>(stays ? step : n_steps_)];
    }
    for (std::size_t t = 0; t < static_cast<std::size_t>(n_steps_); ++t) n_spikes[t * stride] = counts_[t];
    return n;
  }

  static constexpr std::size_t slack = 8;

 private:
  std::size_t by_marks(const Spikes& spikes, Id* out, float* values, std::int64_t* n_spikes, std::size_t stride) {
    const auto n_words = static_cast<std::size_t>(n_steps_ * n_words_);
    words_.resize(n_words + 1);  // all zero; the last one takes the spikes left out
    for (std::size_t k = 0; k < spikes.n; ++k) {
      const std::int32_t step = spikes.step[k], neuron = spikes.neuron[k];
      const auto word = static_cast<std::size_t>(step * n_words_ + (neuron >> 6));
      words_[(step | neuron) >= 0 ? word : n_words] |= std::uint64_t{1} << (neuron & 63);
    }
    words_[n_words] = 0;
    if (values) tally(spikes);
    Id* const begin = out;
    std::uint64_t* word = words_.data();
    for (std::int64_t t = 0; t < n_steps_; ++t) {
      const Id* const first = out;
      for (std::int64_t w = 0; w < n_words_; ++w, ++word) {
        std::uint64_t bits = std::exchange(*word, 0);
        if (!bits) continue;
        // always `slack` of them: the next word overwrites the surplus
        const int n = n_bits(bits);
        for (int k = 0; k < static_cast<int>(slack); ++k, bits &= bits - 1)
          out[k] = static_cast<Id>(w * 64 + __builtin_ctzll(bits | std::uint64_t{1} << 63));
        for (int k = static_cast<int>(slack); k < n; ++k, bits &= bits - 1)
          out[k] = static_cast<Id>(w * 64 + __builtin_ctzll(bits));
        out += n;
      }
      n_spikes[static_cast<std::size_t>(t) * stride] = out - first;
      if (values)
        for (const Id* id = first; id < out; ++id)
          values[id - begin] =
              static_cast<float>(std::exchange(tallies_[static_cast<std::size_t>(t * n_neurons_ + *id)], 0));
    }
    return static_cast<std::size_t>(out - begin);
  }

  // Counts the spikes of every cell; the last cell counts the spikes left out.
  void tally(const Spikes& spikes) {
    const auto n_cells = static_cast<std::size_t>(n_steps_ * n_neurons_);
    tallies_.resize(n_cells + 1);  // all zero
    for (std::size_t k = 0; k < spikes.n; ++k) {
      const auto cell = static_cast<std::size_t>(spikes.step[k] * n_neurons_ + spikes.neuron[k]);
      ++tallies_[(spikes.step[k] | spikes.neuron[k]) >= 0 ? cell : n_cells];
    }
    tallies_[n_cells] = 0;
  }

  std::size_t by_cells(const Spikes& spikes, Id* out, float* values, std::int64_t* n_spikes, std::size_t stride) {
    cells_.clear();
    for (std::size_t k = 0; k < spikes.n; ++k)
      if ((spikes.step[k] | spikes.neuron[k]) >= 0) cells_.push_back(spikes.step[k] * n_neurons_ + spikes.neuron[k]);
    std::sort(cells_.begin(), cells_.end());
    std::size_t n = 0;
    for (std::size_t first = 0, next; first < cells_.size(); first = next, ++n) {
      for (next = first + 1; next < cells_.size() && cells_[next] == cells_[first];) ++next;
      out[n] = static_cast<Id>(cells_[first] % n_neurons_);
      if (values) values[n] = static_cast<float>(next - first);
      ++n_spikes[static_cast<std::size_t>(cells_[first] / n_neurons_) * stride];
    }
    return n;
  }

  std::int64_t n_steps_, n_neurons_, n_words_;
  std::vector<std::uint64_t> words_;
  std::vector<std::int64_t> cells_;
  std::vector<std::int32_t> counts_, tallies_;
};

}  // namespace sparsesnn
