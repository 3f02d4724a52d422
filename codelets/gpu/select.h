// Select: from who fired and who is listed to a list, ascending without sorting.
//
// Half a warp makes the two words of its tile, one bit per neuron. With the words of all tiles in shared memory each
// thread counts the entries before its own neurons.
#pragma once

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

// The entries of a list that come before those of a tile, and those of all tiles.
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

// The place in the list of the neuron at bit `place` of its tile, which is listed.
inline int place_in_list(const ListCounts& n, uint64 fired, uint64 listed, int place) {
  const uint64 below = (uint64{1} << place) - 1;
  if (fired >> place & 1) return n.spikes_before + count_bits_of(fired & below);
  return n.spikes + n.near_before + count_bits_of(listed & ~fired & below);
}

}  // namespace sparsesnn::SPARSESNN_ISA
