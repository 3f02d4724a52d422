#include "models.h"

#include "codelets/neuron/models.h"
#include "codelets/surrogate.h"
#include "layer.h"

namespace sparsesnn {
namespace {

template <class M>
NeuronModel describe() {
  static_assert(M::n_states <= max_states && M::n_parameters <= max_parameters && M::n_constants <= max_constants);
  return {M::name,      M::n_states, M::n_parameters, M::n_constants, M::state_names, M::parameter_names,
          M::threshold, M::adds_q,   M::reads_x,      M::feeds_spikes};
}

[[noreturn]] void refuse(const char* what, const std::string& name, const std::vector<std::string>& allowed) {
  std::string text = std::string("LayerSpec: ") + what + " is '" + name + "'; allowed: ";
  for (std::size_t k = 0; k < allowed.size(); ++k) text += (k ? ", " : "") + allowed[k];
  throw InputError("DescriptionError", text);
}

}  // namespace

const std::vector<NeuronModel>& neuron_models() {
  static const std::vector<NeuronModel> models = [] {
    std::vector<NeuronModel> found;
    base::Models::each([&](int, auto model) { found.push_back(describe<decltype(model)>()); });
    return found;
  }();
  return models;
}

const NeuronModel& find_model(const std::string& name) {
  const int k = base::find<base::Models>(name.c_str());
  if (k >= 0) return neuron_models()[k];
  std::vector<std::string> names;
  for (const NeuronModel& model : neuron_models()) names.emplace_back(model.name);
  refuse("model", name, names);
}

int model_index(const NeuronModel& model) { return static_cast<int>(&model - neuron_models().data()); }

std::vector<std::string> surrogate_names() {
  std::vector<std::string> names;
  base::Surrogates::each([&](int, auto surrogate) { names.emplace_back(surrogate.name); });
  return names;
}

int find_surrogate(const std::string& name) {
  const int k = base::find<base::Surrogates>(name.c_str());
  if (k < 0) refuse("surrogate", name, surrogate_names());
  return k;
}

}  // namespace sparsesnn
