// What Python sees of the engine. Shapes and dtypes are checked here, once; the engine trusts them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <optional>

#include "bandwidth.h"
#include "engine.h"
#include "phases.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {
namespace {

template <class T>
using In = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;
using AnyIn = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

std::string shape_of(const std::vector<std::size_t>& shape) {
  std::string text = "[";
  for (std::size_t k = 0; k < shape.size(); ++k) text += (k ? ", " : "") + std::to_string(shape[k]);
  return text + "]";
}

template <class A>
void check_shape(const A& array, const std::vector<std::size_t>& want, const char* name) {
  std::vector<std::size_t> got;
  for (std::size_t k = 0; k < array.ndim(); ++k) got.push_back(array.shape(k));
  if (got != want)
    throw InputError("ShapeError", std::string(name) + " has shape " + shape_of(got) + "; give " + shape_of(want));
}

// A float32 array of the given shape, or null.
const float* floats(const std::optional<In<float>>& array, const std::vector<std::size_t>& shape, const char* name) {
  if (!array) return nullptr;
  check_shape(*array, shape, name);
  return array->data();
}

// Lists as Python holds them; alive as long as the call.
struct PyLists {
  In<std::int64_t> offsets;
  AnyIn ids;
  In<std::int32_t> n_spikes;
};

Lists checked_lists(const PyLists& from, int n_neurons, int n_samples, int* n_steps, const char* name) {
  const std::size_t n_lists = from.n_spikes.size();
  if (from.offsets.ndim() != 1 || from.ids.ndim() != 1 || from.n_spikes.ndim() != 1 ||
      from.offsets.size() != n_lists + 1 || (n_samples ? n_lists % n_samples : n_lists) != 0)
    throw InputError("ShapeError", std::string(name) + ": " + std::to_string(from.offsets.size()) + " offsets and " +
                                       std::to_string(n_lists) + " n_spikes do not make lists for " +
                                       std::to_string(n_samples) + " samples");
  const bool wide = n_neurons > 65536;
  if (wide ? from.ids.dtype() != nb::dtype<std::int32_t>() : from.ids.dtype() != nb::dtype<std::uint16_t>())
    throw InputError("ShapeError", std::string(name) + ": ids must be " + (wide ? "int32" : "uint16") + " for " +
                                       std::to_string(n_neurons) + " neurons");
  const Lists lists{from.offsets.data(), from.ids.data(), from.n_spikes.data(), wide};
  check_lists(lists, static_cast<std::int64_t>(n_lists), static_cast<std::int64_t>(from.ids.size()), n_neurons, name);
  if (n_steps) *n_steps = n_samples ? static_cast<int>(n_lists / n_samples) : 0;
  return lists;
}

struct PySource {
  PyLists lists;
  int n_pre;
  int delay;
  In<float> weight;
};

// One layer call. Holds references to the arrays, so the pointers in `input` stay valid.
struct PyLayer {
  LayerSpec spec;
  int n_steps, n_samples;
  std::vector<PySource> sources;
  std::optional<In<float>> recurrent_weight, alpha, beta, threshold, grad_threshold, bias, v, i_syn;
  std::optional<PyLists> own_before;

  LayerInput input() const {
    const std::size_t n = static_cast<std::size_t>(spec.n), samples = static_cast<std::size_t>(n_samples);
    LayerInput in;
    in.n_steps = n_steps;
    in.n_samples = n_samples;
    for (const PySource& from : sources) {
      SourceInput source;
      source.n_pre = from.n_pre;
      source.delay = from.delay;
      source.lists = checked_lists(from.lists, from.n_pre, n_samples, &source.n_list_steps, "input");
      if (!n_samples) source.n_list_steps = n_steps;  // no samples: nothing will be read
      check_shape(from.weight, {static_cast<std::size_t>(from.n_pre), n}, "weight");
      source.weight = from.weight.data();
      in.sources.push_back(source);
    }
    in.recurrent_weight = floats(recurrent_weight, {n, n}, "recurrent_weight");
    in.alpha = floats(alpha, {n}, "alpha");
    in.beta = floats(beta, {n}, "beta");
    in.threshold = floats(threshold, {n}, "threshold");
    in.grad_threshold = floats(grad_threshold, {n}, "grad_threshold");
    in.bias = floats(bias, {n}, "bias");
    in.v = floats(v, {samples, n}, "state v");
    in.i_syn = floats(i_syn, {samples, n}, "state i_syn");
    if (own_before) {
      int steps = 0;
      in.own_before = checked_lists(*own_before, spec.n, n_samples, &steps, "state history");
      in.has_own_before = true;
      if (steps != 1) throw InputError("ShapeError", "state history must cover one step");
    }
    return in;
  }
};

// Hands the memory of `array` to a NumPy array.
template <class T>
nb::object to_numpy(Array<T>& array, std::vector<std::size_t> shape) {
  if (!array) return nb::none();
  T* data = array.release();
  nb::capsule owner(data, [](void* p) noexcept { release(p); });
  return nb::cast(nb::ndarray<nb::numpy, T>(data, shape.size(), shape.data(), owner));
}

nb::object ids_to_numpy(Array<unsigned char>& ids, bool wide, std::size_t n) {
  if (!ids) return nb::none();
  void* data = ids.release();
  nb::capsule owner(data, [](void* p) noexcept { release(p); });
  if (wide) return nb::cast(nb::ndarray<nb::numpy, std::int32_t>(data, 1, &n, owner));
  return nb::cast(nb::ndarray<nb::numpy, std::uint16_t>(data, 1, &n, owner));
}

nb::dict forward(const PyLayer& layer) {
  const LayerInput input = layer.input();
  LayerOutput out;
  {
    nb::gil_scoped_release release;
    out = layer_forward(layer.spec, input);
  }
  const std::size_t n = static_cast<std::size_t>(layer.spec.n), steps = static_cast<std::size_t>(layer.n_steps),
                    samples = static_cast<std::size_t>(layer.n_samples), lists = steps * samples;
  const std::size_t n_slots = out.offsets ? static_cast<std::size_t>(out.offsets[lists]) : 0;
  const std::size_t n_silenced = out.silenced_ids.size();
  nb::dict result;
  result["ids"] = ids_to_numpy(out.ids, out.wide, n_slots);
  result["offsets"] = to_numpy(out.offsets, {lists + 1});
  result["n_spikes"] = to_numpy(out.n_spikes, {lists});
  result["dropped"] = to_numpy(out.dropped, {lists});
  result["values"] = to_numpy(out.values, {n_slots});
  result["fields"] = to_numpy(out.fields, {static_cast<std::size_t>(layer.spec.n_fields()), n_slots});
  result["silenced_offsets"] = to_numpy(out.silenced_offsets, {lists + 1});
  result["silenced_ids"] = to_numpy(out.silenced_ids, {n_silenced});
  result["v"] = to_numpy(out.v, {samples, n});
  result["i_syn"] = to_numpy(out.i_syn, {samples, n});
  result["potentials"] = to_numpy(out.potentials, {steps, samples, n});
  return result;
}

nb::dict backward(const PyLayer& layer, const nb::dict& saved, const std::optional<In<float>>& d_values,
                  const std::optional<In<float>>& d_potentials, const std::vector<bool>& wanted_weight,
                  const std::vector<bool>& wanted_value, bool wanted_recurrent, bool wanted_bias,
                  const std::vector<std::optional<In<float>>>& value_before, bool separate_groups) {
  const LayerInput input = layer.input();
  const LayerSpec& spec = layer.spec;
  const std::size_t n = static_cast<std::size_t>(spec.n), steps = static_cast<std::size_t>(layer.n_steps),
                    samples = static_cast<std::size_t>(layer.n_samples), lists = steps * samples;
  const std::size_t n_sources = input.sources.size();
  if (wanted_weight.size() != n_sources || wanted_value.size() != n_sources ||
      (!value_before.empty() && value_before.size() != n_sources))
    throw InputError("ShapeError", "backward: one wish per source for weight and value gradients");
  Wanted wanted{wanted_weight, wanted_value, wanted_recurrent, wanted_bias, {}, separate_groups};
  wanted.value_before.resize(n_sources);
  for (std::size_t k = 0; k < value_before.size(); ++k)
    wanted.value_before[k] = floats(value_before[k], {layer.sources[k].lists.ids.size()}, "value_before");

  LayerSaved kept;
  std::vector<nb::object> alive;  // what the pointers in `kept` point into
  const auto array = [&](const char* key, auto tag, const std::vector<std::size_t>& shape) {
    using T = decltype(tag);
    alive.push_back(saved[key]);
    auto a = nb::cast<In<T>>(alive.back());
    check_shape(a, shape, key);
    return a.data();
  };
  const float* d_slots = nullptr;
  const float* d_out = nullptr;
  if (spec.model == Model::li) {
    if (!d_potentials) throw InputError("ShapeError", "backward: a readout needs d_potentials");
    d_out = floats(d_potentials, {steps, samples, n}, "d_potentials");
    if (spec.learn_beta) kept.potentials = array("potentials", float{}, {steps, samples, n});
  } else {
    const PyLists own{nb::cast<In<std::int64_t>>(saved["offsets"]), nb::cast<AnyIn>(saved["ids"]),
                      nb::cast<In<std::int32_t>>(saved["n_spikes"])};
    kept.lists = checked_lists(own, spec.n, layer.n_samples, nullptr, "saved lists");
    alive.push_back(saved["offsets"]);
    alive.push_back(saved["ids"]);
    alive.push_back(saved["n_spikes"]);
    const std::size_t n_slots = own.ids.size();
    if (own.n_spikes.size() != lists || !d_values)
      throw InputError("ShapeError", "backward: lists or d_values are missing");
    kept.fields = array("fields", float{}, {static_cast<std::size_t>(spec.n_fields()), n_slots});
    d_slots = floats(d_values, {n_slots}, "d_values");
    if (spec.stores_silenced()) {
      kept.silenced_offsets = array("silenced_offsets", std::int64_t{}, {lists + 1});
      kept.silenced_ids =
          array("silenced_ids", std::uint32_t{}, {static_cast<std::size_t>(kept.silenced_offsets[lists])});
    }
  }
  LayerGradients out;
  {
    nb::gil_scoped_release release;
    out = layer_backward(spec, input, kept, d_slots, d_out, wanted);
  }
  const auto shape = [&](std::vector<std::size_t> one) {
    if (separate_groups) one.insert(one.begin(), (samples + group_samples - 1) / group_samples);
    return one;
  };
  nb::list d_weight, d_value;
  for (std::size_t k = 0; k < input.sources.size(); ++k) {
    const std::size_t n_values = out.d_value[k].size();
    d_weight.append(to_numpy(out.d_weight[k], shape({static_cast<std::size_t>(input.sources[k].n_pre), n})));
    d_value.append(to_numpy(out.d_value[k], {n_values}));
  }
  nb::dict result;
  result["weight"] = d_weight;
  result["value"] = d_value;
  result["recurrent_weight"] = to_numpy(out.d_recurrent_weight, shape({n, n}));
  result["bias"] = to_numpy(out.d_bias, shape({n}));
  result["alpha"] = to_numpy(out.d_alpha, shape({n}));
  result["beta"] = to_numpy(out.d_beta, shape({n}));
  result["threshold"] = to_numpy(out.d_threshold, shape({n}));
  return result;
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
          [](LayerSpec* self, int model, int reset, bool detach_reset, int surrogate, float slope, float gain, int n,
             int tile_width, int capacity, bool fixed, bool bf16, bool save, bool learn_alpha, bool learn_beta,
             bool learn_threshold, std::uint64_t seed, std::uint64_t first_step) {
            new (self) LayerSpec{static_cast<Model>(model),
                                 static_cast<Reset>(reset),
                                 detach_reset,
                                 surrogate,
                                 slope,
                                 gain,
                                 n,
                                 tile_width,
                                 capacity,
                                 fixed,
                                 bf16,
                                 save,
                                 learn_alpha,
                                 learn_beta,
                                 learn_threshold,
                                 seed,
                                 first_step};
          },
          nb::kw_only(), "model"_a, "reset"_a, "detach_reset"_a, "surrogate"_a, "slope"_a, "gain"_a, "n"_a,
          "tile_width"_a, "capacity"_a, "fixed"_a, "bf16"_a, "save"_a, "learn_alpha"_a, "learn_beta"_a,
          "learn_threshold"_a, "seed"_a, "first_step"_a)
      .def_ro("n", &LayerSpec::n)
      .def_ro("save", &LayerSpec::save);

  nb::class_<PyLists>(m, "Lists", "Spike lists: offsets int64[T*B + 1], ids uint16|int32[S], n_spikes int32[T*B].")
      .def(nb::init<In<std::int64_t>, AnyIn, In<std::int32_t>>(), "offsets"_a, "ids"_a, "n_spikes"_a);

  nb::class_<PySource>(m, "Source", "A sending population: its lists, size, delay and float32 weight [M, N].")
      .def(nb::init<PyLists, int, int, In<float>>(), "lists"_a, "n_pre"_a, "delay"_a, "weight"_a);

  nb::class_<PyLayer>(m, "LayerCall",
                      "One call of a layer: its spec, sources, parameters [N] and initial state [B, N].")
      .def(nb::init<LayerSpec, int, int, std::vector<PySource>, std::optional<In<float>>, std::optional<In<float>>,
                    std::optional<In<float>>, std::optional<In<float>>, std::optional<In<float>>,
                    std::optional<In<float>>, std::optional<In<float>>, std::optional<In<float>>,
                    std::optional<PyLists>>(),
           "spec"_a, "n_steps"_a, "n_samples"_a, "sources"_a, "recurrent_weight"_a.none(), "alpha"_a.none(),
           "beta"_a.none(), "threshold"_a.none(), "grad_threshold"_a.none(), "bias"_a.none(), "v"_a.none(),
           "i_syn"_a.none(), "own_before"_a.none());

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
  m.def("backward", &backward, "layer"_a, "saved"_a, "d_values"_a.none(), "d_potentials"_a.none(), "wanted_weight"_a,
        "wanted_value"_a, "wanted_recurrent"_a, "wanted_bias"_a,
        "value_before"_a = std::vector<std::optional<In<float>>>(), "separate_groups"_a = false,
        "Gradients of a layer by its weights, list values and learnt parameters. value_before: per source, what the\n"
        "gradient of its values holds already, from neurons that come before this layer's. separate_groups: parameter\n"
        "gradients come as one sum a group of group_samples samples, [G, ...]; their sum in order is the gradient.");
  m.attr("group_samples") = group_samples;
}

}  // namespace sparsesnn
