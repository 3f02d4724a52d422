// Sizes of caches, in bytes, that decide the order of loops, never their results. They are those of small
// usual processors; each was measured on machines with L1 caches of 32 and 48 kB and L2 caches of 512 kB to 2 MB
// (docs/speed.md). Thresholds that tests move are in host/src/machine/choices.h; the width of a tile is part of the
// order of sums, and is in sparsesnn/placement.py.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsesnn {

// Rows that are prefetched for one sender may take half of L1: the rows of the events in between need the rest.
inline constexpr std::int64_t prefetched_bytes = 16 << 10;

// Recurrent weights up to this size are read equally fast sample by sample and tile by tile: they stay in L2.
inline constexpr std::size_t recurrent_bytes = std::size_t{3} << 19;

// All weights of a recurrent layer, including its sources, up to this size: no input currents are summed first.
inline constexpr std::size_t row_bytes_in_l2 = std::size_t{2} << 20;

// Weights of a readout up to this size go back list by list: they and their gradient stay in L2, next to the lists.
inline constexpr std::size_t readout_bytes = std::size_t{256} << 10;

}  // namespace sparsesnn
