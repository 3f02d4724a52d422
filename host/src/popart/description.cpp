#include "description.h"

#include <limits>
#include <sstream>
#include <stdexcept>

namespace sparsesnn::popart_op {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument("sparsesnn op: " + what); }

unsigned whole(const std::string& name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high)
    refuse("attribute '" + name + "' holds " + std::to_string(value) + "; allowed: " + std::to_string(low) + " to " +
           std::to_string(high));
  return static_cast<unsigned>(value);
}

template <class T>
void check_size(const std::string& name, const std::vector<T>& values, std::size_t n) {
  if (values.size() != n)
    refuse("attribute '" + name + "' has " + std::to_string(values.size()) + " entries; give " + std::to_string(n));
}

void check_rows(const std::string& name, const std::vector<std::int64_t>& values, std::size_t columns) {
  if (values.size() % columns)
    refuse("attribute '" + name + "' has " + std::to_string(values.size()) + " entries; give rows of " +
           std::to_string(columns));
}

void check_each(const std::string& name, const std::vector<std::int64_t>& values, std::int64_t low, std::int64_t high) {
  for (const std::int64_t x : values) whole(name, x, low, high);
}

void check_range(const std::string& name, const std::vector<float>& values, float low, float high) {
  for (const float x : values)
    if (!(x >= low && x <= high))
      refuse("attribute '" + name + "' holds " + std::to_string(x) + "; allowed: " + std::to_string(low) + " to " +
             std::to_string(high));
}

constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
constexpr float infinite = std::numeric_limits<float>::infinity(), largest = std::numeric_limits<float>::max();

}  // namespace

std::vector<const ipu::NeuronModel*> Description::neuron_models() const {
  std::vector<const ipu::NeuronModel*> found;
  std::istringstream names(models);
  for (std::string name; names >> name;) found.push_back(&ipu::find_model(name));
  return found;
}

void Description::check() const {
  const std::size_t count = n.size();
  if (!count) refuse("attribute 'n' is empty; give the neurons of at least one population");
  const std::string tables = " connections shards collectors reducers ";
  for (const auto& [name, field] : int_attributes)
    if (tables.find(" " + std::string(name) + " ") == std::string::npos) check_size(name, this->*field, count);
  const std::vector<const ipu::NeuronModel*> found = neuron_models();
  check_size("models", found, count);
  check_size("slope", slope, count);
  whole("n_input", n_input, 1, 65536);
  whole("input_capacity", input_capacity, 1, n_input);
  check_each("n", n, 1, 65536);
  check_each("surrogate", surrogate, 0, 6);
  check_each("detach_reset", detach_reset, 0, 1);
  check_each("fixed", fixed, 0, 1);
  check_each("bias", bias, 0, 1);
  std::size_t n_constants = 0, n_parameters = 0;
  for (std::size_t k = 0; k < count; ++k) {
    const ipu::NeuronModel& model = *found[k];
    if (!model.fires && k + 1 < count)
      refuse("attribute 'models': a readout, '" + std::string(model.name) + "', is only the last population");
    if (model.fires) whole("capacity", capacity[k], 1, n[k]);
    n_constants += model.n_constants;
    n_parameters += (model.n_parameters + model.fires) * static_cast<std::size_t>(n[k]);
  }
  check_size("constants", constants, n_constants);
  check_size("parameters", parameters, n_parameters);
  check_range("constants", constants, -largest, largest);
  check_range("parameters", parameters, -infinite, largest);  // θ_grad may be -infinite
  check_range("slope", slope, std::numeric_limits<float>::min(), largest);
  check_rows("connections", connections, 3);
  check_rows("shards", shards, 4);
  check_rows("collectors", collectors, 4);
  check_rows("reducers", reducers, 6);
  const auto last = static_cast<std::int64_t>(count);
  std::vector<bool> hears(count + 1);
  for (std::size_t k = 0; k < connections.size(); k += 3) {
    whole("connections", connections[k], 0, last);
    const unsigned post = whole("connections", connections[k + 1], 1, last);
    whole("connections", connections[k + 2], 0, 65535);
    hears[post] = true;
  }
  for (std::size_t k = 1; k <= count; ++k)
    if (!hears[k]) refuse("attribute 'connections': nothing reaches population " + std::to_string(k));
  whole("saves", saves, 0, 1);
  whole("input_gradient", input_gradient, 0, 1);
}

ipu::ProgramSpec Description::spec(std::int64_t n_steps, std::int64_t n_samples, unsigned n_tiles) const {
  check();
  ipu::ProgramSpec s{};
  s.devices = 1;
  s.tiles = n_tiles;
  s.n_steps = whole("T", n_steps, 1, most);
  s.n_samples = whole("B", n_samples, 1, most);
  s.optimiser = ipu::Optimiser::none;
  const std::vector<const ipu::NeuronModel*> found = neuron_models();
  s.decoding = found.back()->fires ? 4 : 1;  // unused: the loss is the owner's
  s.n_classes = static_cast<unsigned>(n.back());
  ipu::Population input{};
  input.name = "input";
  input.n = static_cast<unsigned>(n_input);
  input.capacity = static_cast<unsigned>(input_capacity);
  s.populations.push_back(input);
  auto constant = constants.begin(), parameter = parameters.begin();
  for (std::size_t k = 0; k < n.size(); ++k) {
    ipu::Population p{};
    p.name = "population" + std::to_string(k + 1);
    p.model = found[k];
    p.n = static_cast<unsigned>(n[k]);
    p.capacity = static_cast<unsigned>(capacity[k]);
    p.detach_reset = detach_reset[k] != 0;
    p.surrogate = static_cast<unsigned>(surrogate[k]);
    p.fixed = fixed[k] != 0;
    p.bias = bias[k] != 0;
    p.slope = slope[k];
    p.constants = {constant, constant += p.model->n_constants};
    p.seed = static_cast<std::uint64_t>(seed[k]);
    p.parameters = {parameter, parameter += static_cast<std::ptrdiff_t>(p.parameter_rows() * p.n)};
    s.populations.push_back(p);
  }
  const auto last = static_cast<std::int64_t>(n.size());
  for (std::size_t k = 0; k < shards.size(); k += 4)
    s.populations[whole("shards", shards[k], 1, last)].shards.push_back({whole("shards", shards[k + 1], 0, most),
                                                                         whole("shards", shards[k + 2], 0, most),
                                                                         whole("shards", shards[k + 3], 1, most)});
  for (std::size_t k = 0; k < collectors.size(); k += 4)
    s.populations[whole("collectors", collectors[k], 0, last)].collectors.push_back(
        {whole("collectors", collectors[k + 1], 0, most), whole("collectors", collectors[k + 2], 0, most),
         whole("collectors", collectors[k + 3], 1, most)});
  for (std::size_t k = 0; k < connections.size(); k += 3)
    s.connections.push_back({static_cast<unsigned>(connections[k]),
                             static_cast<unsigned>(connections[k + 1]),
                             static_cast<unsigned>(connections[k + 2]),
                             {}});
  for (std::size_t k = 0; k < reducers.size(); k += 6) {
    const auto last_connection = static_cast<std::int64_t>(s.connections.size()) - 1;
    s.connections[whole("reducers", reducers[k], 0, last_connection)].reducers.push_back(
        {whole("reducers", reducers[k + 1], 0, most), whole("reducers", reducers[k + 2], 0, most),
         whole("reducers", reducers[k + 3], 1, most), whole("reducers", reducers[k + 4], 0, most),
         whole("reducers", reducers[k + 5], 1, most)});
  }
  s.check();
  return s;
}

std::int64_t Description::n_history(std::size_t population, std::int64_t n_steps, std::int64_t n_samples) const {
  std::int64_t width = 0;
  for (std::size_t k = 0; k < shards.size(); k += 4)
    if (shards[k] == static_cast<std::int64_t>(population)) width += (shards[k + 3] + 1) / 2 * 2;
  return n_steps * n_samples * width;
}

}  // namespace sparsesnn::popart_op
