// Select: from who fired and who is listed to a list, ascending without sorting.
//
// Half a warp makes the two words of its tile, one bit per neuron. With the words of all tiles in shared memory each
// thread counts the candidates before its own neurons. With a capacity fired neurons win over near-spikes, and a group
// that does not fit is cut as in codelets/capacity.h.
#pragma once

#include "codelets/capacity.h"
#include "codelets/gpu/layout.h"

namespace sparsesnn::SPARSESNN_ISA {

// The word of the caller's tile: bit 16·k + l is condition k of lane l. All threads of a warp call it together.
template <int columns>
inline uint64 tile_word(const bool (&condition)[columns], int half) {
  uint64 word = 0;
  for (int k = 0; k < columns; ++k)
    word |= static_cast<uint64>(ballot(condition[k]) >> (half % 2 * n_lanes) & 0xffffu) << (k * n_lanes);
  return word;
}

// The candidates of a list that come before those of a tile, and those of all tiles.
struct ListCounts {
  int spikes = 0, near = 0, spikes_before = 0, near_before = 0;
};

inline ListCounts count_list(Shared<const uint64> fired, Shared<const uint64> listed, int n_tiles, int tile) {
  ListCounts n;
  for (int p = 0; p < n_tiles; ++p) {
    const uint64 fired_here = fired[p], listed_here = listed[p];
    const int spikes = count_bits_of(fired_here), near = count_bits_of(listed_here) - spikes;
    n.spikes += spikes;
    n.near += near;
    if (p < tile) n.spikes_before += spikes, n.near_before += near;
  }
  return n;
}

// The candidates that a list keeps, and how many it holds. Behind these it stores the spikes that were dropped, because
// they reset their neurons.
struct Kept {
  KeptRanks<int> spikes, near;
  int n_listed() const { return spikes.n_kept + near.n_kept; }
  int n_silenced() const { return spikes.n - spikes.n_kept; }
};

// All candidates; or, if lists are `limited`, those for `capacity` slots. hash(): see `rotation`.
template <bool limited, class Hash>
inline Kept keep(const ListCounts& n, int capacity, Hash&& hash) {
  if (!limited) return {{n.spikes, n.spikes, 0}, {n.near, n.near, 0}};
  const auto modulo = [&](int of) { return static_cast<int>(hash() % static_cast<uint64>(of)); };
  const KeptRanks<int> spikes = keep_ranks(n.spikes, capacity, modulo);
  return {spikes, keep_ranks(n.near, capacity - spikes.n_kept, modulo)};
}

// The place in the list of the neuron at bit `place` of its tile, which is a candidate; of a dropped spike its place
// behind the list, -1 of a dropped near-spike.
template <bool limited>
inline int place_in_list(const ListCounts& n, const Kept& kept, uint64 fired, uint64 listed, int place) {
  const uint64 below = (uint64{1} << place) - 1;
  if (fired >> place & 1) {
    const int rank = n.spikes_before + count_bits_of(fired & below);
    if (!limited) return rank;
    const int before = kept.spikes.before(rank);
    return kept.spikes.has(rank) ? before : kept.n_listed() + rank - before;
  }
  if (!limited) return n.spikes + n.near_before + count_bits_of(listed & ~fired & below);
  const int rank = n.near_before + count_bits_of(listed & ~fired & below);
  return kept.near.has(rank) ? kept.spikes.n_kept + kept.near.before(rank) : -1;
}

}  // namespace sparsesnn::SPARSESNN_ISA
