// The host's view of the neuron models of codelets/neuron/models.h.
#pragma once

#include <string>
#include <vector>

namespace sparsesnn {

// The limits of all models (checked in models.cpp).
inline constexpr int max_states = 3, max_parameters = 6, max_constants = 4;

// A model's declarations; see codelets/neuron/neuron.h.
struct NeuronModel {
  const char* name;
  int n_states, n_parameters, n_constants;
  const char *const *state_names, *const *parameter_names;
  int threshold;  // its index among the parameters, or -1: a readout
  bool adds_q, reads_x, feeds_spikes;

  bool fires() const { return threshold >= 0; }
};

// All of them, in the order of the list.
const std::vector<NeuronModel>& neuron_models();

// By name. Throws InputError for an unknown name.
const NeuronModel& find_model(const std::string& name);

// Its index in the list.
int model_index(const NeuronModel& model);

// The index of a surrogate in the list of codelets/surrogate.h, likewise, and the names of all.
int find_surrogate(const std::string& name);
std::vector<std::string> surrogate_names();

}  // namespace sparsesnn
