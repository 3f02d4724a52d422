// What Python sees of passes: of one layer, and of a chain of layers in one call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "engine.h"
#include "python_layer.h"
#include "tile_sums.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {
namespace {

// The lists that a forward pass gives out.
std::shared_ptr<PyLists> lists_of(const nb::dict& result) {
  return std::make_shared<PyLists>(nb::cast<In<std::int64_t>>(result["offsets"]), nb::cast<AnyIn>(result["ids"]),
                                   nb::cast<In<std::int32_t>>(result["n_spikes"]));
}

// The same for the backward pass, which reads them again.
nb::object held_lists(const nb::dict& result, int n_neurons) {
  auto lists = lists_of(result);
  lists->hold(n_neurons);
  return nb::cast(lists);
}

nb::dict forward(PyLayer& layer) {
  const LayerInput& input = layer.input();
  LayerOutput out;
  {
    nb::gil_scoped_release release;
    out = layer_forward(layer.spec, input);
  }
  const std::size_t n = static_cast<std::size_t>(layer.spec.n), steps = static_cast<std::size_t>(layer.n_steps),
                    samples = static_cast<std::size_t>(layer.n_samples), lists = steps * samples;
  const std::size_t n_slots = out.offsets ? static_cast<std::size_t>(out.offsets[lists]) : 0;
  const std::size_t n_silenced = out.silenced_ids.size();
  nb::dict result = lists_to_numpy(out, out.wide, lists);
  if (layer.spec.save && layer.spec.model->fires()) result["lists"] = held_lists(result, layer.spec.n);
  result["dropped"] = to_numpy(out.dropped, {lists});
  result["fields"] = to_numpy(out.fields, {static_cast<std::size_t>(layer.spec.n_fields()), n_slots});
  result["silenced_offsets"] = to_numpy(out.silenced_offsets, {lists + 1});
  result["silenced_ids"] = to_numpy(out.silenced_ids, {n_silenced});
  nb::list state;
  for (Array<float>& one : out.state) state.append(to_numpy(one, {samples, n}));
  result["state"] = state;
  result["potentials"] = to_numpy(out.potentials, {steps, samples, n});
  return result;
}

// What a forward pass left for the backward pass, out of its result; keeps the arrays alive.
struct Saved : LayerSaved {
  Saved(const PyLayer& layer, const nb::dict& result) {
    const LayerSpec& spec = layer.spec;
    const std::size_t steps = static_cast<std::size_t>(layer.n_steps),
                      samples = static_cast<std::size_t>(layer.n_samples), n_lists = steps * samples;
    if (!spec.model->fires()) {
      if (spec.n_learnt())
        potentials = array(result, "potentials", float{}, {steps, samples, static_cast<std::size_t>(spec.n)});
      return;
    }
    alive_.push_back(result["lists"]);
    PyLists& own = nb::cast<PyLists&>(alive_.back());
    lists = checked_lists(own, spec.n, layer.n_samples, nullptr, "output");
    n_slots = own.ids.size();
    if (own.n_spikes.size() != n_lists) throw InputError("ShapeError", "backward: lists are missing");
    fields = array(result, "fields", float{}, {static_cast<std::size_t>(spec.n_fields()), n_slots});
    if (!spec.stores_silenced()) return;
    silenced_offsets = array(result, "silenced_offsets", std::int64_t{}, {n_lists + 1});
    silenced_ids =
        array(result, "silenced_ids", std::uint32_t{}, {static_cast<std::size_t>(silenced_offsets[n_lists])});
  }

  std::size_t n_slots = 0;

 private:
  template <class T>
  const T* array(const nb::dict& result, const char* key, T, const std::vector<std::size_t>& shape) {
    alive_.push_back(result[key]);
    auto a = nb::cast<In<T>>(alive_.back());
    check_shape(a, shape, key);
    return a.data();
  }

  std::vector<nb::object> alive_;
};

// A gradient of one number per neuron, [N], or of a part of a batch [G, N].
nb::object by_group(Array<float>& gradient, int n, int n_batch) {
  const std::size_t size = static_cast<std::size_t>(n);
  if (!n_batch) return to_numpy(gradient, {size});
  return to_numpy(gradient, {size ? gradient.size() / size : 0, size});
}

nb::dict backward(PyLayer& layer, const nb::dict& saved, const std::optional<In<float>>& d_values,
                  const std::optional<In<float>>& d_potentials, const std::vector<bool>& wanted_weight,
                  const std::vector<bool>& wanted_value, const std::vector<bool>& wanted_loops, bool wanted_bias,
                  int n_batch, const std::vector<bool>& wanted_delays) {
  const LayerInput& input = layer.input();
  const LayerSpec& spec = layer.spec;
  const std::size_t n = static_cast<std::size_t>(spec.n), steps = static_cast<std::size_t>(layer.n_steps),
                    samples = static_cast<std::size_t>(layer.n_samples), lists = steps * samples;
  const std::size_t n_sources = input.sources.size();
  if (wanted_weight.size() != n_sources || wanted_value.size() != n_sources ||
      wanted_loops.size() != input.loops.size())
    throw InputError("ShapeError", "backward: one wish per source for weight and value gradients, and one per loop");
  const Wanted wanted{wanted_weight, wanted_value, wanted_loops, wanted_delays, wanted_bias, n_batch};

  const Saved kept(layer, saved);
  const float* d_slots = nullptr;
  const float* d_out = nullptr;
  if (!spec.model->fires()) {
    if (!d_potentials) throw InputError("ShapeError", "backward: a readout needs d_potentials");
    d_out = floats(d_potentials, {steps, samples, n}, "d_potentials");
  } else {
    if (!d_values) throw InputError("ShapeError", "backward: d_values are missing");
    d_slots = floats(d_values, {kept.n_slots}, "d_values");
  }
  LayerGradients out;
  {
    nb::gil_scoped_release release;
    out = layer_backward(spec, input, kept, d_slots, d_out, wanted);
  }
  // With one more dimension in front: one for each branch or group of the batch.
  const auto shape = [&](std::vector<std::size_t> one, const Array<float>& of) {
    if (!n_batch) return one;
    std::size_t size = 1;
    for (const std::size_t length : one) size *= length;
    one.insert(one.begin(), size ? of.size() / size : 0);
    return one;
  };
  const std::size_t n_blocks = tile_blocks(spec.first_tile(), spec.first_tile() + spec.n_tiles()).size();
  nb::list d_weight, d_value;
  for (std::size_t k = 0; k < input.sources.size(); ++k) {
    const std::size_t n_values = layer.sources[k].lists->ids.size();
    d_weight.append(to_numpy(out.d_weight[k], shape(layer.shape_of(layer.sources[k]), out.d_weight[k])));
    if (layer.exchange)
      d_value.append(to_numpy(out.d_value[k], {n_blocks, n_values}));
    else
      d_value.append(to_numpy(out.d_value[k], {n_values}));
  }
  nb::dict result;
  result["weight"] = d_weight;
  result["value"] = d_value;
  nb::list d_loops;
  for (std::size_t k = 0; k < out.d_loops.size(); ++k)
    d_loops.append(to_numpy(out.d_loops[k], shape(layer.shape_of(layer.loops[k]), out.d_loops[k])));
  result["loops"] = d_loops;
  nb::list d_delays, d_parameters;
  for (Array<float>& one : out.d_delays) d_delays.append(by_group(one, spec.n, n_batch));
  for (Array<float>& one : out.d_parameters) d_parameters.append(by_group(one, spec.n, n_batch));
  result["delays"] = d_delays;
  result["bias"] = by_group(out.d_bias, spec.n, n_batch);
  result["parameters"] = d_parameters;
  return result;
}

nb::tuple recurrent_value_grads_of(PyLayer& layer, const nb::dict& saved, PyLists& population,
                                   const In<float>& d_values, const std::vector<bool>& wanted_delays, int n_batch) {
  const LayerInput& input = layer.input();
  if (!input.exchange || input.loops.empty() || !layer.spec.model->fires())
    throw InputError("ShapeError", "recurrent_value_grads: give a recurrent shard and its exchange");
  const Saved kept(layer, saved);
  int n_steps = 0;
  const Lists all = checked_lists(population, layer.spec.n_all(), layer.n_samples, &n_steps, "population");
  if (layer.n_samples && n_steps != layer.n_steps)
    throw InputError("ShapeError", "recurrent_value_grads: the population's lists must cover all steps");
  check_shape(d_values, {kept.n_slots}, "d_values");
  Wanted wanted;
  wanted.delays = wanted_delays;
  wanted.n_batch = n_batch;
  RecurrentGrads found;
  {
    nb::gil_scoped_release release;
    found = recurrent_value_grads(layer.spec, input, kept, all, d_values.data(), wanted, *input.exchange);
  }
  nb::list d_delays;
  for (Array<float>& one : found.d_delays) d_delays.append(by_group(one, layer.spec.n, n_batch));
  return nb::make_tuple(to_numpy(found.d_values, {kept.n_slots}), d_delays);
}

// Layers that run one after the other in one call, with all that stays the same from call to call.
struct PyChain {
  struct Link {
    std::string name;
    PyLayer layer;
    std::vector<int> reads;  // per source: 0 the input, k + 1 link k
  };
  std::vector<Link> links;
};

// The lists that layers of a chain read in one call: nobody can have changed them since they were made or checked, so
// they need no look for each of their readers.
struct ChainLists {
  std::vector<std::shared_ptr<PyLists>> lists;  // the input's, then those of each link; null of a readout
  ~ChainLists() {
    for (const auto& one : lists)
      if (one) one->untouched = false;
  }
};

// One call of a layer of a chain; the result holds it where a backward pass may follow.
nb::dict forward_link(const PyChain::Link& link, const ChainLists& of, int n_steps, int n_samples,
                      const nb::tuple& told) {
  const nb::object call = nb::cast(link.layer, nb::rv_policy::copy);
  PyLayer& layer = nb::cast<PyLayer&>(call);
  layer.n_steps = n_steps;
  layer.n_samples = n_samples;
  for (std::size_t k = 0; k < layer.sources.size(); ++k) layer.sources[k].lists = of.lists[link.reads[k]];
  layer.spec.seed = nb::cast<std::uint64_t>(told[0]);
  layer.spec.first_step = nb::cast<std::uint64_t>(told[1]);
  if (!told[2].is_none()) layer.state = nb::cast<std::vector<In<float>>>(told[2]);
  if (!told[3].is_none()) layer.own_before = nb::cast<std::shared_ptr<PyLists>>(told[3]);
  try {
    nb::dict result = forward(layer);
    if (layer.spec.save) result["call"] = call;
    return result;
  } catch (const InputError& e) {
    if (std::string(e.kind) != "NumericError") throw;
    throw InputError(e.kind, link.name + ": " + e.what());
  }
}

nb::list forward_chain(const PyChain& chain, std::shared_ptr<PyLists> input, int n_steps, int n_samples,
                       const nb::list& told) {
  if (told.size() != chain.links.size())
    throw InputError("ShapeError", "Chain: got settings for " + std::to_string(told.size()) + " layers; it has " +
                                       std::to_string(chain.links.size()));
  const bool learns =
      std::any_of(chain.links.begin(), chain.links.end(), [](const auto& link) { return link.layer.spec.save; });
  ChainLists of{{std::move(input)}};
  nb::list results;
  for (std::size_t k = 0; k < chain.links.size(); ++k) {
    const LayerSpec& spec = chain.links[k].layer.spec;
    nb::dict result = forward_link(chain.links[k], of, n_steps, n_samples, nb::cast<nb::tuple>(told[k]));
    std::shared_ptr<PyLists> made;
    if (spec.model->fires()) {
      made = spec.save ? nb::cast<std::shared_ptr<PyLists>>(result["lists"]) : lists_of(result);
      if (learns && !spec.save) made->hold(spec.n);
      made->checked_for = spec.n;
      made->untouched = true;
    }
    of.lists.push_back(std::move(made));
    results.append(result);
  }
  return results;
}

}  // namespace

void register_passes(nb::module_& m) {
  nb::class_<PyChain>(m, "Chain",
                      "Layers that run one after the other in one call: of each its name, a LayerCall whose "
                      "lists, sizes\n"
                      "and state are not read, and what its sources read: 0 the input, k + 1 layer k.")
      .def(
          "__init__",
          [](PyChain* self, const std::vector<std::tuple<std::string, PyLayer*, std::vector<int>>>& links) {
            PyChain chain;
            for (const auto& [name, layer, reads] : links) {
              const int n_before = static_cast<int>(chain.links.size());
              if (reads.size() != layer->sources.size() || std::any_of(reads.begin(), reads.end(), [&](int k) {
                    return k < 0 || k > n_before || (k && !chain.links[k - 1].layer.spec.model->fires());
                  }))
                throw InputError("ShapeError", "Chain: " + name + " must read the input or earlier layers that fire");
              chain.links.push_back({name, *layer, reads});
            }
            new (self) PyChain(std::move(chain));
          },
          "links"_a)
      .def("forward", &forward_chain, "input"_a, "n_steps"_a, "n_samples"_a, "told"_a,
           "As `forward` of each layer; told: of each its seed, first step, states and own lists before, or None.\n"
           "A result holds its `call`, for `backward`, where one may follow.");
  m.def("forward", &forward, "layer"_a, "Runs a layer over a sequence; returns lists, slot fields, state, potentials.");
  m.def(
      "backward", &backward, "layer"_a, "saved"_a, "d_values"_a.none(), "d_potentials"_a.none(), "wanted_weight"_a,
      "wanted_value"_a, "wanted_loops"_a, "wanted_bias"_a, "n_batch"_a = 0, "wanted_delays"_a = std::vector<bool>(),
      "Gradients of a layer by its weights, list values and learnt parameters. n_batch: samples of a batch of which\n"
      "these are some, from first_sample on: gradients of weights come as one sum a branch (find_branches), [K, ...],\n"
      "of neurons' parameters as one a group of group_samples samples, [G, ...]. Of a shard with an exchange, "
      "gradients\n"
      "of list values come as one sum a block of its tiles (tile_folds), [K, slots].");
  m.def("recurrent_value_grads", &recurrent_value_grads_of, "layer"_a, "saved"_a, "population"_a, "d_values"_a,
        "wanted_delays"_a, "n_batch"_a,
        "The gradient of a recurrent shard's list values with what its population's neurons send back, step by step,\n"
        "and those of its axonal delays.");
}

}  // namespace sparsesnn
