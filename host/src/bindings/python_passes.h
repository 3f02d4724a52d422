// Functions that passes of one layer and passes of several in one call share.
#pragma once

#include <memory>
#include <vector>

#include "python_layer.h"
#include "python_run.h"

namespace sparsesnn {

// `call` holds the layer; `watched`: see PyRun.
std::shared_ptr<PyRun> run_layer(nb::object call, bool watched);

// ∂L/∂(list values) [slots] of a spiking layer; of a readout ∂L/∂v [T, B, N], or [1, B, N] for all steps.
OutputGrads output_grads(const PyRun& run, const In<float>& d_out);

// population: of a shard with loops, the lists that all ranks made; else null.
LayerGradients gradients(PyLayer& layer, const PyRun& run, const OutputGrads& d_out, const Wanted& wanted,
                         PyLists* population);

// A gradient with one number per neuron, [N]; for part of a batch [G, N].
nb::object by_group(Array<float>& gradient, int n, int n_batch);

// A gradient of this shape; for part of a batch with one more dimension in front, the branches.
nb::object by_branch(Array<float>& gradient, std::vector<std::size_t> shape, int n_batch);

}  // namespace sparsesnn
