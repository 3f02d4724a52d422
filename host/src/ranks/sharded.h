// A layer whose neurons live on several ranks: the requests of its passes to the other ranks.
//
// A shard is a run of whole tiles. Its passes are those of a layer with the shard's neurons and all sources, except
// for three results that depend on the whole population, and that must be the same as in one process:
//   - a capacity, applied to all candidates: ranks exchange their counts;
//   - the current from the population's own spikes, step by step: ranks exchange the ids that fired;
//   - gradients of list values, sums over all tiles (tile_sums.h): for lists from other populations a pass returns the
//     sums of the rank's blocks of tiles; for the population's own lists ranks exchange those, step by step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exchange.h"
#include "host/src/cpu/engine.h"

namespace sparsesnn {

struct Kernels;
class TileColumns;

// Two halves of the samples, so that one can be computed while the messages of the other are under way.
struct Half {
  int b0, b1;
  int size() const { return b1 - b0; }
};

inline std::vector<Half> halves(int n_samples) {
  if (n_samples < 2) return {{0, n_samples}};
  return {{0, n_samples / 2}, {n_samples / 2, n_samples}};
}

// The forward pass of a shard step by step. `columns`: if input currents of sources are stored before the loops run,
// else null; `dropped`: [T·B] or null.
void run_by_step(const Kernels& kernels, const ForwardPass& pass, TileColumns* columns, const LayerRanks& ranks,
                 std::int32_t* dropped);

// Capacity of a shard of a layer that ran tile by tile.
void select_shards(const Kernels& kernels, const ForwardPass& pass, Exchange& exchange, std::int32_t* dropped);

// The backward pass of a recurrent shard, step by step and then the rest; like layer_backward, which calls it.
LayerGradients recurrent_backward(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved,
                                  const OutputGrads& d_out, const Wanted& wanted, const OutputGrads& d_potentials);

}  // namespace sparsesnn
