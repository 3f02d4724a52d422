// Python bindings of the passes of one layer.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "host/src/cpu/engine.h"
#include "host/src/training/tile_sums.h"
#include "python_passes.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {

std::shared_ptr<PyRun> run_layer(nb::object call, bool watched) {
  PyLayer& layer = nb::cast<PyLayer&>(call);
  const LayerInput& input = layer.input();
  LayerOutput made;
  {
    nb::gil_scoped_release release;
    made = layer_forward(layer.spec, input);
  }
  return std::make_shared<PyRun>(std::move(call), layer, std::move(made), watched);
}

OutputGrads output_grads(const PyRun& run, const In<float>& d_out) {
  if (run.lists()) {
    check_shape(d_out, {run.n_slots()}, "d_values");
    return {d_out.data()};
  }
  std::vector<std::size_t> shape = run.shape();
  const bool once = d_out.ndim() && d_out.shape(0) == 1;
  if (once) shape[0] = 1;
  check_shape(d_out, shape, "d_potentials");
  return {d_out.data(), once ? 0 : shape[1] * shape[2]};
}

LayerGradients gradients(PyLayer& layer, const PyRun& run, const OutputGrads& d_out, const Wanted& wanted,
                         PyLists* population) {
  LayerInput input = layer.input();
  const LayerSaved saved = run.saved(layer);
  if (population) {
    int n_steps = 0;
    input.population = checked_lists(*population, layer.spec.n_all(), layer.n_samples, &n_steps, "population");
    if (layer.n_samples && n_steps != layer.n_steps)
      throw InputError("ShapeError", "backward: the population's lists must cover all steps");
  }
  nb::gil_scoped_release release;
  return layer_backward(layer.spec, input, saved, d_out, wanted);
}

nb::object by_group(Array<float>& gradient, int n, int n_batch) {
  const std::size_t size = static_cast<std::size_t>(n);
  if (!n_batch) return to_numpy(gradient, {size});
  return to_numpy(gradient, {size ? gradient.size() / size : 0, size});
}

nb::object by_branch(Array<float>& gradient, std::vector<std::size_t> shape, int n_batch) {
  if (n_batch) {
    std::size_t size = 1;
    for (const std::size_t length : shape) size *= length;
    shape.insert(shape.begin(), size ? gradient.size() / size : 0);
  }
  return to_numpy(gradient, std::move(shape));
}

namespace {

std::shared_ptr<PyRun> forward(const nb::handle_t<PyLayer>& call) {
  return run_layer(nb::borrow(call), nb::cast<PyLayer&>(call).spec.save);
}

nb::dict backward(PyLayer& layer, const PyRun& run, const In<float>& d_out, const std::vector<bool>& wanted_weight,
                  const std::vector<bool>& wanted_value, const std::vector<bool>& wanted_loops, bool wanted_bias,
                  int n_batch, const std::vector<bool>& wanted_delays, PyLists* population) {
  const LayerInput& input = layer.input();
  const LayerSpec& spec = layer.spec;
  if (wanted_weight.size() != input.sources.size() || wanted_value.size() != input.sources.size() ||
      wanted_loops.size() != input.loops.size())
    throw InputError("ShapeError",
                     "backward: wanted_weight and wanted_value need one entry per source, wanted_loops one per loop");
  LayerGradients out =
      gradients(layer, run, output_grads(run, d_out),
                {wanted_weight, wanted_value, wanted_loops, wanted_delays, wanted_bias, n_batch}, population);
  const std::size_t n_blocks = tile_blocks(spec.first_tile(), spec.first_tile() + spec.n_tiles()).size();
  nb::list d_weight, d_value;
  for (std::size_t k = 0; k < input.sources.size(); ++k) {
    const SortedLists* const sorted = input.sources[k].sorted;
    const std::size_t n_values = sorted ? sorted->size() : layer.sources[k].lists->ids.size();
    d_weight.append(by_branch(out.d_weight[k], layer.shape_of(layer.sources[k]), n_batch));
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
    d_loops.append(by_branch(out.d_loops[k], layer.shape_of(layer.loops[k]), n_batch));
  result["loops"] = d_loops;
  nb::list d_delays, d_parameters;
  for (Array<float>& one : out.d_delays) d_delays.append(by_group(one, spec.n, n_batch));
  for (Array<float>& one : out.d_parameters) d_parameters.append(by_group(one, spec.n, n_batch));
  result["delays"] = d_delays;
  result["bias"] = by_group(out.d_bias, spec.n, n_batch);
  result["parameters"] = d_parameters;
  return result;
}

}  // namespace

void register_passes(nb::module_& m) {
  nb::class_<PyRun>(
      m, "Run",
      "The result of a layer call; arrays become NumPy's at the first access. None if the layer has no such array.")
      .def_prop_ro("call", &PyRun::call, "The LayerCall that was run.")
      .def_prop_ro("offsets", &PyRun::offsets)
      .def_prop_ro("ids", &PyRun::ids)
      .def_prop_ro("n_spikes", &PyRun::n_spikes)
      .def("perhaps_listed", &PyRun::perhaps_listed,
           "bool[N], true for neurons that may be in any of the lists; all true if nearly all are.")
      .def_prop_ro("values", &PyRun::values, "1 for spikes, 0 for near-spikes.")
      .def_prop_ro("dropped", &PyRun::dropped)
      .def_prop_ro("potentials", &PyRun::potentials, "Of a readout.")
      .def_prop_ro("state", &PyRun::state, "[B, N] each, in the order of the model.");
  m.def("forward", &forward, "layer"_a, "Runs a layer over a sequence.");
  m.def("backward", &backward, "layer"_a, "run"_a, "d_out"_a, "wanted_weight"_a, "wanted_value"_a, "wanted_loops"_a,
        "wanted_bias"_a, "n_batch"_a = 0, "wanted_delays"_a = std::vector<bool>(), "population"_a.none() = nb::none(),
        "Gradients of a layer by its weights, list values and trained parameters. d_out: the gradient of its\n"
        "list values, or of a readout's potentials, [1, B, N] if it is the same at all steps. n_batch: size\n"
        "of the batch if these are only some of its samples, from first_sample on: gradients of weights then\n"
        "come as one sum a branch (find_branches), [K, ...], those of neurons' parameters as one per group of\n"
        "group_samples samples, [G, ...]. For a shard with an exchange, gradients of list values come as one\n"
        "sum per block of its tiles (tile_folds), [K, slots]; with loops it needs the lists of its\n"
        "population.");
}

}  // namespace sparsesnn
