// Sources whose lists are the same at all steps, such as images. Their current is computed once for each sample, by a
// layer that only adds up, and given to the layer (GivenCurrents). Backward, ∂L/∂i is summed over the steps,
// descending, before it meets weights and bias.
#pragma once

#include "engine.h"

namespace sparsesnn {

inline bool has_constant_sources(const LayerInput& input) {
  for (const SourceInput& source : input.sources)
    if (source.constant) return true;
  return false;
}

// As layer_forward and layer_backward, which call them. The bits of the forward pass are those of lists that repeat, if
// constant sources come first.
LayerOutput forward_constant_sources(const LayerSpec& spec, const LayerInput& input);

LayerGradients backward_constant_sources(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved,
                                         const OutputGrads& d_out, const Wanted& wanted,
                                         const OutputGrads& d_potentials);

}  // namespace sparsesnn
