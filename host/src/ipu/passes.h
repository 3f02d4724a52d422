// One pass of a plan inside a graph with another owner: the part that an op of PopART adds (host/src/popart).
//
// The time loop is inside. Loss and optimizer are not: the gradient of the output is an input, gradients of weights are
// outputs. A pass's input tensors may lie on any tile; it copies the data read in every step to the tiles that read it.
// T steps, B samples, K capacity, M senders, N neurons. Vectors have one entry a population, or a connection.
#pragma once

#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>
#include <vector>

#include "spec.h"

namespace sparsesnn::ipu {

struct ForwardInputs {
  poplar::Tensor lists;                 // of the input: INT [T, B, 2 + K]: n_spikes, n_listed, ids
  std::vector<poplar::Tensor> weights;  // of each connection: FLOAT [M, N]
  std::vector<poplar::Tensor> biases;   // FLOAT [N] of populations with a bias
  std::vector<poplar::Tensor> entries;  // FLOAT [E, N] of populations with given_rows: these, in their order
};

struct ForwardOutputs {
  poplar::Tensor out;  // of the last population: FLOAT [T, B, K], 1 for spikes and 0 elsewhere; or potentials [T, B, N]
  std::vector<poplar::Tensor> lists;    // of spiking populations: INT [T, B, 2 + K], 0 after the last id
  std::vector<poplar::Tensor> dropped;  // of spiking populations: INT [T, B]
  // Of spiking populations, and those with trained parameters, if saved: FLOAT [n_history], by shard [blocks, T, B, w],
  // see `States` in codelets/ipu/vertex.h.
  std::vector<poplar::Tensor> histories;
};

struct BackwardInputs {
  poplar::Tensor d_out;                   // like `out`
  std::vector<poplar::Tensor> lists;      // of the input, and those output by the forward pass
  std::vector<poplar::Tensor> histories;  // output by the forward pass
  std::vector<poplar::Tensor> weights;
  std::vector<poplar::Tensor> entries;
};

struct BackwardOutputs {
  poplar::Tensor d_values;                // of the input: FLOAT [T, B, K], 0 in empty slots; if requested
  std::vector<poplar::Tensor> d_weights;  // of each connection: FLOAT [M, N]
  std::vector<poplar::Tensor> d_biases;   // FLOAT [N] of populations with a bias
  std::vector<poplar::Tensor> d_entries;  // FLOAT [E, N] of populations with given_rows
};

// `saves`: keep the potentials of all steps for the backward pass. `spec.optimizer` is `none`. Both throw
// std::invalid_argument for a meaningless spec.
ForwardOutputs add_forward_pass(poplar::Graph& graph, const ProgramSpec& spec, const ForwardInputs& in, bool saves,
                                poplar::program::Sequence& program);
BackwardOutputs add_backward_pass(poplar::Graph& graph, const ProgramSpec& spec, const BackwardInputs& in,
                                  bool input_gradient, poplar::program::Sequence& program);

// A tensor FLOAT [n_rows, N] whose columns lie on the tiles of their neurons, where both passes read them.
poplar::Tensor add_columns(poplar::Graph& graph, std::size_t n_rows, const Population& population,
                           const poplar::DebugContext& name);

}  // namespace sparsesnn::ipu
