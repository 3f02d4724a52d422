// What Python sees of the engine. Shapes and dtypes are checked here, once; the engine trusts them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "bandwidth.h"
#include "engine.h"
#include "packing.h"
#include "phases.h"
#include "python_layer.h"
#include "tile_sums.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {
namespace {

void pack_weight_rows(const LayerSpec& spec, bool by_sample, const In<float>& weight, int begin, int end,
                      const nb::ndarray<unsigned char, nb::c_contig, nb::device::cpu>& out, const char* name) {
  const int n_pre = static_cast<int>(weight.shape(0));
  check_shape(weight, {static_cast<std::size_t>(n_pre), static_cast<std::size_t>(spec.n)}, name);
  if (begin < 0 || begin > end || end > n_pre || out.size() != packed_bytes(n_pre, spec))
    throw InputError("ShapeError", "pack_rows: give rows of the weight, and " +
                                       std::to_string(packed_bytes(n_pre, spec)) + " bytes for all of it");
  nb::gil_scoped_release release;
  pack_rows(weight.data(), n_pre, spec, slab_width(spec, by_sample), begin, end, out.data(), name);
}

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

// Layers that run one after the other in one call, without gradients, with all that stays the same from call to call.
struct PyChain {
  struct Link {
    std::string name;
    PyLayer layer;
    std::vector<int> reads;  // per source: 0 the input, k + 1 link k
  };
  std::vector<Link> links;
};

// One call of a layer of a chain.
nb::dict forward_link(const PyChain::Link& link, const std::vector<std::shared_ptr<PyLists>>& lists, int n_steps,
                      int n_samples, const nb::tuple& told) {
  PyLayer layer = link.layer;
  layer.n_steps = n_steps;
  layer.n_samples = n_samples;
  for (std::size_t k = 0; k < layer.sources.size(); ++k) layer.sources[k].lists = lists[link.reads[k]];
  layer.spec.seed = nb::cast<std::uint64_t>(told[0]);
  layer.spec.first_step = nb::cast<std::uint64_t>(told[1]);
  if (!told[2].is_none()) layer.state = nb::cast<std::vector<In<float>>>(told[2]);
  if (!told[3].is_none()) layer.own_before = nb::cast<std::shared_ptr<PyLists>>(told[3]);
  try {
    return forward(layer);
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
  std::vector<std::shared_ptr<PyLists>> lists{std::move(input)};
  nb::list results;
  for (std::size_t k = 0; k < chain.links.size(); ++k) {
    const PyChain::Link& link = chain.links[k];
    nb::dict result = forward_link(link, lists, n_steps, n_samples, nb::cast<nb::tuple>(told[k]));
    lists.push_back(link.layer.spec.model->fires() ? lists_of(result) : nullptr);
    results.append(result);
  }
  return results;
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

nb::dict phase_seconds(bool reset) {
  nb::dict seconds;
  for (std::size_t k = 0; k < phase_names.size(); ++k)
    seconds[phase_names[k]] = 1e-9 * static_cast<double>(reset ? phase_ns[k].exchange(0) : phase_ns[k].load());
  return seconds;
}

// Raises the exception of sparsesnn.errors that the engine named.
void translate(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const InputError& e) {
    nb::object type = nb::module_::import_("sparsesnn.errors").attr(e.kind);
    PyErr_SetString(type.ptr(), e.what());
  }
}

}  // namespace

void register_engine(nb::module_& m) {
  nb::register_exception_translator(translate);

  nb::class_<LayerSpec>(m, "LayerSpec", "The numbers that define one layer's passes; see host/src/layer.h.")
      .def(
          "__init__",
          [](LayerSpec* self, const std::string& model, const std::vector<float>& constants,
             const std::vector<bool>& learns, bool detach_reset, const std::string& surrogate, float slope, int n,
             int tile_width, int capacity, bool fixed, bool bf16, bool save, std::uint64_t seed,
             std::uint64_t first_step, std::uint64_t first_sample, int population, int first) {
            if (population && (first < 0 || n < 0 || first > population - n))
              throw InputError("ShapeError", "LayerSpec: a shard must lie within its population");
            LayerSpec spec;
            spec.model = &find_model(model);
            const auto check = [&](std::size_t got, int want, const char* what) {
              if (got == static_cast<std::size_t>(want)) return;
              throw InputError("ShapeError", std::string("LayerSpec: ") + what + " has " + std::to_string(got) +
                                                 " values; model '" + model + "' needs " + std::to_string(want));
            };
            check(constants.size(), spec.model->n_constants, "constants");
            check(learns.size(), spec.model->n_parameters, "learns");
            std::copy(constants.begin(), constants.end(), spec.constants);
            std::copy(learns.begin(), learns.end(), spec.learns);
            spec.detach_reset = detach_reset;
            spec.surrogate = find_surrogate(surrogate);
            spec.slope = slope;
            spec.n = n;
            spec.tile_width = tile_width;
            spec.capacity = capacity;
            spec.fixed = fixed;
            spec.bf16 = bf16;
            spec.save = save;
            spec.seed = seed;
            spec.first_step = first_step;
            spec.first_sample = first_sample;
            spec.population = population;
            spec.first = first;
            new (self) LayerSpec(spec);
          },
          nb::kw_only(), "model"_a, "constants"_a, "learns"_a, "detach_reset"_a, "surrogate"_a, "slope"_a, "n"_a,
          "tile_width"_a, "capacity"_a, "fixed"_a, "bf16"_a, "save"_a, "seed"_a, "first_step"_a, "first_sample"_a = 0,
          "population"_a = 0, "first"_a = 0)
      .def(
          "at",
          [](LayerSpec self, std::uint64_t seed, std::uint64_t first_step, std::uint64_t first_sample) {
            self.seed = seed;
            self.first_step = first_step;
            self.first_sample = first_sample;
            return self;
          },
          "seed"_a, "first_step"_a, "first_sample"_a, "The same for one call.")
      .def_ro("n", &LayerSpec::n)
      .def_ro("save", &LayerSpec::save);

  nb::class_<PyLists>(
      m, "Lists",
      "Spike lists: offsets int64[T*B + 1], ids uint16|int32[S], n_spikes int32[T*B]; graded: values float32[S].")
      .def(nb::init<In<std::int64_t>, AnyIn, In<std::int32_t>, std::optional<In<float>>>(), "offsets"_a.noconvert(),
           "ids"_a.noconvert(), "n_spikes"_a.noconvert(), "values"_a.noconvert().none() = nb::none())
      .def(
          "check",
          [](PyLists& self, int n_neurons, int n_samples, const std::string& name) {
            nb::gil_scoped_release release;
            checked_lists(self, n_neurons, n_samples, nullptr, name.c_str());
          },
          "n_neurons"_a, "n_samples"_a, "name"_a,
          "Raises ShapeError or SpikeListError, which begins with `name`, where the lists break their invariants.")
      .def("hold", &PyLists::hold, "n_neurons"_a,
           "Remembers lists that are right for n_neurons: a pass that reads them later raises an error if they "
           "changed.");

  nb::class_<SparseRowsOf>(
      m, "SparseRows",
      "Sparse synapses as a layer reads them, see host/src/sparse_rows.h: of each of the receivers from\n"
      "`first` on the senders, ascending. by_blocks: of a shard with an exchange.")
      .def(
          "__init__",
          [](SparseRowsOf* self, int n_pre, const In<std::int64_t>& offsets, const In<std::int32_t>& senders,
             int tile_width, int first, bool by_blocks) {
            if (offsets.ndim() != 1 || offsets.size() < 1 || senders.ndim() != 1)
              throw InputError("ShapeError", "SparseRows: give offsets [N + 1] and senders [synapses]");
            new (self) SparseRowsOf(n_pre, offsets.data(), static_cast<int>(offsets.size()) - 1, senders.data(),
                                    senders.size(), tile_width, first, by_blocks);
          },
          "n_pre"_a, "offsets"_a, "senders"_a, "tile_width"_a, "first"_a = 0, "by_blocks"_a = false);

  nb::class_<Windows>(
      m, "Windows",
      "A convolution as a layer hears it, see host/src/windows.h; shape: height, width, channels of the "
      "sender.")
      .def(
          "__init__",
          [](Windows* self, std::array<int, 3> shape, bool channels_first, std::array<int, 2> kernel,
             std::array<int, 2> stride, std::array<int, 2> padding, std::array<int, 2> dilation, int groups,
             int channels) {
            new (self) Windows({shape[0],
                                shape[1],
                                shape[2],
                                channels_first,
                                {kernel[0], kernel[1]},
                                {stride[0], stride[1]},
                                {padding[0], padding[1]},
                                {dilation[0], dilation[1]},
                                groups,
                                channels});
          },
          nb::kw_only(), "shape"_a, "channels_first"_a, "kernel"_a, "stride"_a, "padding"_a, "dilation"_a, "groups"_a,
          "channels"_a);

  nb::class_<PySource>(m, "Source",
                       "A sending population: its lists, size, delay and float32 weight [M, N], of sparse synapses\n"
                       "[synapses] with their rows; of a convolution that of its windows.")
      .def(nb::init<std::shared_ptr<PyLists>, int, int, In<float>, std::optional<In<unsigned char>>,
                    std::shared_ptr<SparseRowsOf>, std::shared_ptr<Windows>>(),
           "lists"_a, "n_pre"_a, "delay"_a, "weight"_a, "packed"_a.none() = nb::none(), "rows"_a.none() = nb::none(),
           "windows"_a.none() = nb::none());

  nb::class_<PyLoop>(
      m, "Loop",
      "A recurrent connection: its float32 weight [N, N], of sparse synapses [synapses] with their rows,\n"
      "its delay, 1 or more, and axonal delays: whole steps, and parts of a step where they lie between two.")
      .def(nb::init<In<float>, int, std::optional<In<unsigned char>>, std::shared_ptr<SparseRowsOf>,
                    std::optional<In<std::int32_t>>, std::optional<In<float>>>(),
           "weight"_a, "delay"_a, "packed"_a.none() = nb::none(), "rows"_a.none() = nb::none(),
           "steps"_a.none() = nb::none(), "fraction"_a.none() = nb::none());

  nb::class_<PyLayer>(
      m, "LayerCall",
      "One call of a layer: its spec and sources; parameters, one array [N] or [] each, in the model's order;\n"
      "state, one [B, N] each; without one all begins at 0.")
      .def(
          "__init__",
          [](PyLayer* self, LayerSpec spec, int n_steps, int n_samples, std::vector<PySource> sources,
             std::vector<In<float>> parameters, std::optional<In<float>> grad_threshold, std::optional<In<float>> bias,
             std::vector<PyLoop> loops, std::optional<std::vector<In<float>>> state,
             std::shared_ptr<PyLists> own_before, std::shared_ptr<PyExchange> exchange) {
            new (self) PyLayer{spec,
                               n_steps,
                               n_samples,
                               std::move(sources),
                               std::move(parameters),
                               std::move(grad_threshold),
                               std::move(bias),
                               std::move(loops),
                               std::move(state),
                               std::move(own_before),
                               std::move(exchange),
                               {}};
          },
          "spec"_a, nb::kw_only(), "n_steps"_a, "n_samples"_a, "sources"_a, "parameters"_a,
          "grad_threshold"_a.none() = nb::none(), "bias"_a.none() = nb::none(), "loops"_a = std::vector<PyLoop>(),
          "state"_a.none() = nb::none(), "own_before"_a.none() = nb::none(), "exchange"_a.none() = nb::none());

  nb::class_<PyChain>(m, "Chain",
                      "Layers that run one after the other in one call, without gradients: of each its name, a "
                      "LayerCall whose lists, sizes\n"
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
           "As `forward` of each layer; told: of each its seed, first step, states and own lists before, or None.");

  m.def(
      "neuron_models",
      [] {
        nb::dict models;
        for (const NeuronModel& model : neuron_models()) {
          nb::list states, parameters;
          for (int k = 0; k < model.n_states; ++k) states.append(model.state_names[k]);
          for (int k = 0; k < model.n_parameters; ++k) parameters.append(model.parameter_names[k]);
          models[model.name] = nb::make_tuple(nb::tuple(states), nb::tuple(parameters), model.n_constants);
        }
        return models;
      },
      "By name of every neuron model that is built in: names of its states, of its parameters, number of constants.");
  m.def("surrogates", &surrogate_names, "Names of the surrogates that are built in.");
  m.def(
      "pack_rows", &pack_weight_rows, "spec"_a, "by_sample"_a, "weight"_a, "begin"_a, "end"_a, "out"_a, "name"_a,
      "Writes rows begin..end-1 of a layer's weight to their places in `out`, uint8[packed_bytes], as its forward pass "
      "reads\n"
      "it; `name` is for errors. Source and LayerCall take a weight that is packed so.");
  m.def(
      "packed_bytes", [](const LayerSpec& spec, int n_pre) { return packed_bytes(n_pre, spec); }, "spec"_a, "n_pre"_a,
      "Bytes of a weight of n_pre rows that `pack_rows` packs.");
  m.def("release_memory", &release_kept, "Gives back the memory that the engine keeps for the next step.");
  m.def(
      "probe_deliver", [](bool on) { probe_deliver.store(on); }, "on"_a,
      "While on, forward passes deliver a second time, alone, and phase 'deliver' counts it.");
  m.def("measure_bandwidth", &measure_bandwidth, "n_bytes"_a, "update"_a, "seconds"_a,
        nb::call_guard<nb::gil_scoped_release>(),
        "Bytes per second that all threads together read, or read and write, each over n_bytes of its own.");
  m.def("phase_seconds", &phase_seconds, "reset"_a,
        "Wall time by phase since the process began, or since the last call with reset=True.");
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
  m.attr("group_samples") = group_samples;
}

}  // namespace sparsesnn
