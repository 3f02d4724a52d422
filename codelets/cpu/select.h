// Select: from bit masks of candidates to the list that is sent.
//
// A population's masks hold one bit per neuron, one word per tile. Candidates are the neurons that fired and the
// near-spikes. Without a capacity all are listed. With capacity K fired neurons win over near-spikes; a group that does
// not fit is cut as in codelets/capacity.h. Fixed activity fills the list with silent neurons and sends all K. Words
// are visited in ascending order, so lists ascend without sorting.
#pragma once

#include "codelets/capacity.h"
#include "simd.h"

namespace sparsesnn::SPARSESNN_ISA {

// One group of candidates of a population: the word of tile p, and the number of candidates in all words.
template <class Word>
inline int count_bits(Word&& word, int n_tiles) {
  int n = 0;
  for (int p = 0; p < n_tiles; ++p) n += __builtin_popcountll(word(p));
  return n;
}

// The set bits of a word from number `from` to number `to` - 1, counted in ascending order.
inline std::uint64_t bits_between(std::uint64_t bits, int from, int to) {
  int k = 0;
  for (; k < from; ++k) bits &= bits - 1;
  std::uint64_t rest = bits;
  for (; k < to; ++k) rest &= rest - 1;
  return bits & ~rest;
}

// Calls keep(p, bits) with the kept part of each word; `n` candidates, of which `n_keep` are kept, rotated by `hash`.
// The first candidate of these words has rank `rank`.
template <class Word, class Keep>
inline void keep_rotated(Word&& word, int n_tiles, int rank, int n, int n_keep, std::uint64_t hash, Keep&& keep) {
  if (n_keep >= n) {
    for (int p = 0; p < n_tiles; ++p) keep(p, word(p));
    return;
  }
  const auto kept_ranks = keep_ranks(n, n_keep, [&](int n) { return static_cast<int>(hash % static_cast<Hash64>(n)); });
  const int start = kept_ranks.start, end = kept_ranks.end(), wrapped = kept_ranks.wrapped();
  // most words are kept or dropped as a whole
  for (int p = 0; p < n_tiles; ++p) {
    const std::uint64_t bits = word(p);
    const int next = rank + __builtin_popcountll(bits);
    std::uint64_t kept = 0;
    if ((rank >= start && next <= end) || next <= wrapped) {
      kept = bits;
    } else {
      if (rank < wrapped) kept |= bits_between(bits, 0, wrapped - rank);
      if (rank < end && next > start) kept |= bits_between(bits, start - rank, (next < end ? next : end) - rank);
    }
    keep(p, kept);
    rank = next;
  }
}

// The other shards of a population: how many neurons fired and nearly fired, in all shards and in those before this
// one; how many neurons there are, in all and before it.
struct OtherShards {
  int fired = 0, near = 0, fired_before = 0, near_before = 0, neurons = 0, neurons_before = 0;
};

// Applies capacity K to one list. fired, listed: words of tile p at p·stride. sent, near: written in the same layout.
// Returns the number of candidates that did not fit, in all shards.
inline int select_capacity(const std::uint64_t* fired, const std::uint64_t* listed, std::uint64_t* sent,
                           std::uint64_t* near, std::size_t stride, int n_tiles, int n_neurons, int tile_width,
                           int capacity, bool fixed, std::uint64_t hash, const OtherShards& others) {
  const auto fired_word = [&](int p) { return fired[p * stride]; };
  const auto near_word = [&](int p) { return listed[p * stride] & ~fired[p * stride]; };
  const auto silent_word = [&](int p) {
    const int left = n_neurons - p * tile_width;
    const int n_valid = left < tile_width ? left : tile_width;
    const std::uint64_t valid = n_valid == 64 ? ~0ull : (1ull << n_valid) - 1;
    return valid & ~listed[p * stride];
  };
  const int n_fired = others.fired + count_bits(fired_word, n_tiles);
  const int n_near = others.near + count_bits(near_word, n_tiles);
  const int keep_fired = n_fired < capacity ? n_fired : capacity;
  const int keep_near = n_near < capacity - keep_fired ? n_near : capacity - keep_fired;
  keep_rotated(fired_word, n_tiles, others.fired_before, n_fired, keep_fired, hash,
               [&](int p, std::uint64_t w) { sent[p * stride] = w; });
  keep_rotated(near_word, n_tiles, others.near_before, n_near, keep_near, hash,
               [&](int p, std::uint64_t w) { near[p * stride] = w; });
  if (fixed) {
    const int n_silent = others.neurons + n_neurons - n_fired - n_near, left = capacity - keep_fired - keep_near;
    const int silent_before = others.neurons_before - others.fired_before - others.near_before;
    keep_rotated(silent_word, n_tiles, silent_before, n_silent, left, hash, [&](int p, std::uint64_t w) {
      sent[p * stride] |= near[p * stride] | w;
      near[p * stride] = 0;
    });
  }
  return n_fired + n_near - keep_fired - keep_near;
}

}  // namespace sparsesnn::SPARSESNN_ISA
