#include "shapes.h"

#include "codelets/surrogate.h"
#include "layer.h"
#include "shape_table.h"

namespace sparsesnn {
namespace {

using Names = std::vector<std::string>;

[[noreturn]] void refuse(const char* what, const std::string& name, const Names& allowed) {
  std::string text = std::string("LayerSpec: ") + what + " is '" + name + "'; allowed: ";
  for (std::size_t k = 0; k < allowed.size(); ++k) text += (k ? ", " : "") + allowed[k];
  throw InputError("DescriptionError", text);
}

}  // namespace

const std::vector<NeuronShape>& neuron_shapes() {
  static const std::vector<NeuronShape> shapes = describe_shapes();
  return shapes;
}

const NeuronShape& find_shape(const std::string& name) {
  const int k = base::find<base::Shapes>(name.c_str());
  if (k >= 0) return neuron_shapes()[k];
  Names names;
  for (const NeuronShape& shape : neuron_shapes()) names.emplace_back(shape.name);
  refuse("shape", name, names);
}

int shape_index(const NeuronShape& shape) { return static_cast<int>(&shape - neuron_shapes().data()); }

std::vector<std::string> surrogate_names() {
  Names names;
  base::Surrogates::each([&](int, auto surrogate) { names.emplace_back(surrogate.name); });
  return names;
}

int find_surrogate(const std::string& name) {
  const int k = base::find<base::Surrogates>(name.c_str());
  if (k < 0) refuse("surrogate", name, surrogate_names());
  return k;
}

}  // namespace sparsesnn
