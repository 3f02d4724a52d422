// How lists and tiles lie in the device's memory.
//
// A tile of W = 16·COLUMNS neurons belongs to half a warp: lane l of it holds the columns l, l + 16, …, so that its
// sums have the order of the engine `cpu`, whose dot products have 16 lanes. Rows of weights and of ∂L/∂i are packed to
// match: [tile][lane][column]. Numbers per neuron lie in the order of the neurons, padded to whole tiles.
//
// Lists (t, b) have index t·B + b. Those of a population that the device has made lie sample by sample, each in room
// for a fixed number of entries. If a sample needs more, its longer lists are left empty and the need is counted: the
// host then makes more room and repeats the step. So the numbers do not depend on the room.
#pragma once

#include "codelets/gpu/device.h"
#include "codelets/number.h"

namespace sparsesnn::SPARSESNN_ISA {

// Weights as kernels read them: float, or uint16 for bfloat16, the upper half of a float.
#ifndef WEIGHT
#define WEIGHT float
#endif
using Weight = WEIGHT;

// Whether currents are given to a layer, next to its bias.
#ifndef GIVEN
#define GIVEN 0
#endif

constexpr int n_lanes = 16, group_samples = 8, max_sources = 4, max_loops = 2;

struct DeviceLists {
  Global<const int32> begin, n_spikes, n_listed;  // [T·B]
  Global<const uint16> ids;
  Global<const float> values;  // of every entry, if spikes have values; else null: they are 1
};

// A population that sends to a layer; step t reads list t - delay.
struct Source {
  DeviceLists lists;
  Global<const Weight> weight;  // [M][tiles][16][COLUMNS]
  int32 delay, n_pre;
};

// A recurrent connection; step t reads the layer's own list t - delay.
struct Loop {
  Global<const Weight> weight;
  int32 delay, unused;
};

// A thread's place in a block whose half warps take tiles, or entries of lists, in turn.
struct Place {
  int lane = thread_index() % n_lanes, half = thread_index() / n_lanes, n_halves = block_size() / n_lanes;
};

// The place of a lane's first column of a tile in packed rows of n_tiles tiles.
template <int columns>
inline int64 packed_at(int64 row, int n_tiles, int tile, int lane) {
  return ((row * n_tiles + tile) * n_lanes + lane) * columns;
}

}  // namespace sparsesnn::SPARSESNN_ISA
