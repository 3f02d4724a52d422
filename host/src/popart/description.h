// The one attribute of an op: a network and its place on tiles, as text (sparsesnn/poptorch/description.py writes it).
// One record a line, numbers separated by spaces, in this order; population 0 is the input:
//
//   pass SAVES INPUT_GRADIENT       1: the forward op outputs the gradient op's inputs; the input's lists have a
//                                   gradient
//   codelets PATH                   of popc's output; empty if codelets are linked in
//   input N CAPACITY
//   population STATES FIRES SEQUENTIAL ENTRIES ONES TRAINED KEPT N CAPACITY SEED SURROGATE SLOPE DETACH_RESET FIXED
//              BIAS VALUES…         entries: of the neurons' arrays that exist, such as A00,u0,B0,threshold
//                                   (codelets/neuron.h); ones: those of B that are 1, or -; trained: those that are an
//                                   input of the op, with a gradient, or -; kept: see `States` in
//                                   codelets/ipu/vertex.h; values [rows, N]: of the other entries, then θ_grad if it
//                                   fires
//   connection PRE POST DELAY
//   shard POPULATION TILE FIRST N
//   collector POPULATION TILE FIRST N
//   reducer CONNECTION TILE FIRST_SHARD SHARDS FIRST_SAMPLE SAMPLES
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/src/ipu/spec.h"

namespace sparsesnn::popart_op {

struct Description {
  // Throws std::invalid_argument that names the record, the value and the allowed values.
  explicit Description(const std::string& text);

  std::string text;  // the original text
  bool saves = false, input_gradient = false;
  std::string codelets;
  ipu::ProgramSpec network{};  // without T, B and tiles
  // For each population its structure, with the threshold, and its trained entries. The input has none.
  std::vector<NeuronStructure> structures;
  std::vector<std::vector<std::string>> trained;

  // With them, checked.
  ipu::ProgramSpec spec(std::int64_t n_steps, std::int64_t n_samples, unsigned n_tiles) const;

  bool spikes(std::size_t population) const { return !network.populations[population].reads_out(); }
  std::size_t n_populations() const { return network.populations.size(); }
  std::size_t n_connections() const { return network.connections.size(); }
  std::int64_t neurons(std::size_t population) const { return network.populations[population].n; }
  std::int64_t slots(std::size_t population) const { return network.populations[population].capacity; }
  bool has_bias(std::size_t population) const { return network.populations[population].bias; }
  // Entries of its neurons' arrays that are an input of the op.
  std::int64_t n_trained(std::size_t population) const {
    return static_cast<std::int64_t>(network.populations[population].given_rows.size());
  }
  // Whether the gradient op reads its history.
  bool has_history(std::size_t population) const { return spikes(population) || n_trained(population); }
  // Elements of the history of one population: T·B·w of every shard and block, w = its neurons rounded up to a pair.
  std::int64_t n_history(std::size_t population, std::int64_t n_steps, std::int64_t n_samples) const;
};

}  // namespace sparsesnn::popart_op
