// What an op is told by its attributes: the layers of a plan, as plain lists of numbers
// (sparsesnn/poptorch/attributes.py writes them).
//
// N populations without the input. Names of attributes are names of fields.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/src/ipu/spec.h"

namespace sparsesnn::popart_op {

struct Description {
  std::int64_t n_input, input_capacity;
  std::string models;                                                                 // N names, with spaces between
  std::vector<std::int64_t> n, capacity, detach_reset, surrogate, fixed, bias, seed;  // [N]
  std::vector<float> slope;                                                           // [N]
  std::vector<float> constants;                                                       // of each population's model
  std::vector<float> parameters;  // population after population [rows, n]: the model's, then θ_grad where it fires
  std::vector<std::int64_t> connections;         // rows of pre, post, delay; population 0 is the input
  std::vector<std::int64_t> shards, collectors;  // rows of population, tile, first, n
  std::vector<std::int64_t> reducers;            // rows of connection, tile, first shard, shards, first sample, samples
  std::int64_t saves;                            // whether the forward op puts out what the gradient op needs
  std::int64_t input_gradient;                   // whether the input's lists have a gradient
  std::string codelets;                          // file that popc made; empty where codelets are linked in

  // Throws std::invalid_argument that names the attribute, what arrived and what is allowed.
  ipu::ProgramSpec spec(std::int64_t n_steps, std::int64_t n_samples, unsigned n_tiles) const;
  // The same for what needs no machine; called when the op is made.
  void check() const;

  // One for each name; throws where there is no such model.
  std::vector<const ipu::NeuronModel*> neuron_models() const;
  bool spikes(std::size_t population) const { return population == 0 || neuron_models()[population - 1]->fires; }
  std::size_t n_populations() const { return n.size() + 1; }
  std::size_t n_connections() const { return connections.size() / 3; }
  std::int64_t neurons(std::size_t population) const { return population ? n[population - 1] : n_input; }
  std::int64_t slots(std::size_t population) const { return population ? capacity[population - 1] : input_capacity; }
  bool has_bias(std::size_t population) const { return population && bias[population - 1]; }
  std::size_t pre(std::size_t connection) const { return static_cast<std::size_t>(connections[3 * connection]); }
  std::size_t post(std::size_t connection) const { return static_cast<std::size_t>(connections[3 * connection + 1]); }
  // Elements of the history of one population: T·B·w of every shard, w = its neurons rounded up to a pair.
  std::int64_t n_history(std::size_t population, std::int64_t n_steps, std::int64_t n_samples) const;
};

// Attributes by name, for reading and writing them all.
template <class T>
struct Attribute {
  const char* name;
  T Description::* field;
};

inline constexpr Attribute<std::int64_t> number_attributes[] = {{"n_input", &Description::n_input},
                                                                {"input_capacity", &Description::input_capacity},
                                                                {"saves", &Description::saves},
                                                                {"input_gradient", &Description::input_gradient}};

inline constexpr Attribute<std::vector<std::int64_t>> int_attributes[] = {
    {"n", &Description::n},
    {"capacity", &Description::capacity},
    {"detach_reset", &Description::detach_reset},
    {"surrogate", &Description::surrogate},
    {"fixed", &Description::fixed},
    {"bias", &Description::bias},
    {"seed", &Description::seed},
    {"connections", &Description::connections},
    {"shards", &Description::shards},
    {"collectors", &Description::collectors},
    {"reducers", &Description::reducers}};  // PopTorch has no empty lists: absent where there are none

inline constexpr Attribute<std::vector<float>> float_attributes[] = {
    {"slope", &Description::slope}, {"constants", &Description::constants}, {"parameters", &Description::parameters}};

inline constexpr Attribute<std::string> text_attributes[] = {{"models", &Description::models},
                                                             {"codelets", &Description::codelets}};

}  // namespace sparsesnn::popart_op
