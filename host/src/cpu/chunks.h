// How a backward pass cuts a batch.
#pragma once

#include <vector>

#include "engine.h"
#include "host/src/training/group_sums.h"

namespace sparsesnn {

// The largest number of rows (t, b) in a chunk of several groups of samples (one group may have twice as many), and the
// smallest number of groups, if all steps of one fit into a chunk.
struct ChunkPlan {
  int n_rows, n_groups;
};

// The plan of a layer whose ∂L/∂i runs tile by tile, or not.
ChunkPlan chunk_plan(bool by_tile);

// The chunks of a backward pass in their order: leaves and in them groups of samples ascending, within them steps
// descending.
std::vector<Chunk> make_chunks(const ChunkPlan& plan, int n_steps, int n_samples, const std::vector<Leaf>& leaves);

}  // namespace sparsesnn
