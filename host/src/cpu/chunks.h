// How a backward pass cuts a batch.
#pragma once

#include <vector>

#include "engine.h"
#include "host/src/training/group_sums.h"

namespace sparsesnn {

// Rows (t, b) of a chunk of several groups of samples at most, of one group twice as many; and groups at least, where
// all steps of one fit into a chunk.
struct ChunkPlan {
  int n_rows, n_groups;
};

// Of a layer whose ∂L/∂i runs tile by tile, or not.
ChunkPlan chunk_plan(bool by_tile);

// Whether the backward pass of a layer runs tile by tile: neurons do not hear one another, nor is a row of weights read
// whole, and there is a tile for every thread.
bool runs_by_tile(const LayerSpec& spec, const LayerInput& input);

// The chunks of a backward pass in their order: leaves and in them groups of samples ascending, within them steps
// descending.
std::vector<Chunk> make_chunks(const ChunkPlan& plan, int n_steps, int n_samples, const std::vector<Leaf>& leaves);
std::vector<Chunk> make_chunks(const LayerSpec& spec, const LayerInput& input, const std::vector<Leaf>& leaves);

}  // namespace sparsesnn
