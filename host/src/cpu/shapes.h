// The host's view of the shapes of neurons (codelets/neuron.h), and of the surrogates.
#pragma once

#include <string>
#include <vector>

namespace sparsesnn {

// The limits of all shapes (checked in shapes.cpp), and of a model's trained parameters.
inline constexpr int max_states = 4, max_entries = 56, max_learnt = 16;

struct NeuronShape {
  const char* name;
  int n_states;
  bool may_fire, may_read_out;
  bool in_order, at_once;            // which rows it allows
  std::vector<std::string> entries;  // their names, such as A01, in the order of their places
  std::vector<std::string> ones;     // entries of B that are 1
  int threshold;                     // the place of θ
  bool adds_q, reads_spikes, feeds_spikes;
};

// All of them, in the order of the list.
const std::vector<NeuronShape>& neuron_shapes();

// A model's structure: the entries that exist. u = r + f exists with either of them.
struct NeuronStructure {
  int n_states;
  bool fires, in_order;
  std::vector<std::string> entries;
  std::vector<std::string> ones;  // entries of B that are 1
};

// By name. Throws InputError for an unknown name.
const NeuronShape& find_shape(const std::string& name);

// Its index in the list.
int shape_index(const NeuronShape& shape);

// The index of a surrogate in the list of codelets/surrogate.h, and the names of all. Throws InputError for an unknown
// name.
int find_surrogate(const std::string& name);
std::vector<std::string> surrogate_names();

}  // namespace sparsesnn
