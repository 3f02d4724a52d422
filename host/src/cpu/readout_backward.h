// The backward pass of a readout of one tile, or of one tile of neurons that fire: list by list, a group of samples at
// a time. Nothing is sorted, and there are no shares of tiles to add up. Same bits as the pass over chunks
// (backward.cpp). loop_order.cpp decides which layers use it.
#pragma once

#include "engine.h"

namespace sparsesnn {

LayerGradients readout_backward(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved,
                                const OutputGrads& d_out, const Wanted& wanted, const OutputGrads& d_potentials);

}  // namespace sparsesnn
