// The backward pass of a readout of one tile, or of one tile of neurons that fire: list by list, a group of samples at
// a time. Nothing is sorted, and there are no shares of tiles to add up. Same bits as the pass over chunks
// (backward.cpp).
#pragma once

#include "engine.h"

namespace sparsesnn {

// Whether a layer uses this pass: one tile without loops and trained parameters of neurons that fire, whose weights and
// their gradient together stay in a core's L2 cache, and with no source that lists most of its neurons
// (dense_shares.h).
bool goes_by_list(const LayerSpec& spec, const LayerInput& input, const Wanted& wanted);

LayerGradients readout_backward(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved,
                                const OutputGrads& d_out, const Wanted& wanted, const OutputGrads& d_potentials);

}  // namespace sparsesnn
