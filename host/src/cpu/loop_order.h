// In which order a layer's passes go through tiles, samples and steps. All policies give the same bits; these functions
// alone choose among them. ARCHITECTURE.md lists the gain of each.
#pragma once

#include <vector>

#include "engine.h"

namespace sparsesnn {

enum class LoopOrder {
  // One tile after another, each over the whole sequence, or backward a chunk of it: its weights stay in a core's L2.
  by_tile,
  // One sample after another, step by step through all tiles: a step needs the spikes of all of them, or reads whole
  // rows of weights. Over ranks, all samples take a step together.
  by_sample,
  // One sample after another, row by row of its maps, each over the whole sequence: its states stay in L1 (windows.h).
  by_row,
  // Backward, a layer of one tile: a group of samples after another, list by list, without sorting
  // (readout_backward.h).
  by_list,
};

struct ForwardPolicy {
  LoopOrder order;
  // By sample, the input currents of sources are summed first, tile by tile, for a few samples and steps.
  bool sources_first = false;
};

ForwardPolicy forward_policy(const LayerSpec& spec, const LayerInput& input);

// How the gradients of a source's list values are found.
enum class ListGradients {
  none,     // not wanted
  shares,   // a share of every listed entry from each tile, along with the gradients of weights; then their sum
  product,  // a product over all senders, listed or not (dense_shares.h)
  windows,  // along with the gradients of a convolution's weights
};

struct BackwardPolicy {
  LoopOrder order;
  // By tile and by sample:
  std::vector<ListGradients> sources;
  bool loops_by_product = false;  // the gradients of a layer's own lists: step by step, a product over all its neurons

  bool has_product() const;
  // Whether ∂L/∂i of all tiles is kept for a chunk, not that of one tile at a time.
  bool keeps_all_tiles() const;
};

BackwardPolicy backward_policy(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved,
                               const Wanted& wanted);

}  // namespace sparsesnn
