// A chain: layers and transforms that run one after the other in one call, forward and back.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/src/ranks/chain_shards.h"
#include "python_run.h"

namespace sparsesnn {

// A layer or a transform, with all that stays the same from call to call.
struct Node {
  std::string name;
  std::vector<int> reads;  // per source: an input, or n_inputs + an earlier node
  std::optional<PyLayer> layer;
  std::shared_ptr<Transform> transform;  // else
  Wanted wanted;                         // gradients of a layer
  bool learns = false;                   // whether the gradient of a transform's parameter is wanted
  bool saves = false;                    // whether a backward pass may come through
  std::size_t of_layers = 0;             // its place among the layers

  bool fires() const { return transform || layer->spec.fires; }
};

struct PyChain {
  int n_inputs = 0;
  std::vector<bool> input_saves;
  std::vector<Node> nodes;
  std::optional<ChainShards> shards;  // where ranks share the neurons

  // Neurons of an input.
  int n_neurons(int input) const {
    for (const Node& node : nodes)
      for (std::size_t j = 0; j < node.reads.size(); ++j)
        if (node.reads[j] == input) return node.transform ? node.transform->n_read : node.layer->sources[j].n_pre;
    return 0;
  }
  bool saves(int read) const { return read < n_inputs ? input_saves[read] : nodes[read - n_inputs].saves; }
  // Who owns the entries of the lists of an input or a node.
  const ChainShards::First& first(int read) const {
    while (read >= n_inputs && nodes[read - n_inputs].transform) read = nodes[read - n_inputs].reads[0];
    return read < n_inputs ? shards->first_of_input(read) : shards->first(nodes[read - n_inputs].of_layers);
  }
};

// The results of a forward pass: the inputs, then each node.
struct PyPass {
  std::vector<std::shared_ptr<PyRun>> runs;
  int n_inputs = 0;

  PyRun& of(std::size_t node) const { return *runs[n_inputs + node]; }
};

// The gradients that are wanted: of the weight of each source and loop, the axonal delays of each loop, the bias.
void add_layer(PyChain& chain, const std::string& name, const PyLayer& layer, std::vector<int> reads,
               std::vector<bool> weight, std::vector<bool> loops, std::vector<bool> delays, bool bias);

// `learns`: whether the gradient of the transform's parameter is wanted.
void add_transform(PyChain& chain, const std::string& name, std::shared_ptr<Transform> transform, int reads,
                   bool learns);

// See `Chain.forward` in chain_bindings.cpp, likewise below.
std::shared_ptr<PyPass> forward_chain(const PyChain& chain, const nb::list& inputs, int n_steps, int n_samples,
                                      const nb::list& settings, bool hidden, int first_sample);

void backward_chain(const PyChain& chain, const PyPass& pass, const std::vector<std::optional<In<float>>>& d_out,
                    const nb::object& take, int n_batch, const std::vector<std::optional<In<float>>>& d_potentials);

nb::tuple backward_node(const PyChain& chain, const PyPass& pass, std::size_t k, const std::optional<In<float>>& d_out,
                        const std::vector<bool>& wanted_value, int n_batch, bool wanted_currents,
                        const std::optional<In<float>>& d_potentials);

}  // namespace sparsesnn
