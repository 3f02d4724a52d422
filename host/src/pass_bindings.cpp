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
#include "python_run.h"
#include "tile_sums.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {
namespace {

// `call` holds the layer; `watched`: see PyRun.
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

std::shared_ptr<PyRun> forward(const nb::handle_t<PyLayer>& call) {
  return run_layer(nb::borrow(call), nb::cast<PyLayer&>(call).spec.save);
}

// ∂L/∂(list values) [slots] of a spiking layer; of a readout ∂L/∂v [T, B, N], or [1, B, N] for all steps.
OutputGrads output_grads(const PyLayer& layer, const PyRun& run, const In<float>& d_out) {
  if (layer.spec.model->fires()) {
    check_shape(d_out, {run.n_slots()}, "d_values");
    return {d_out.data()};
  }
  const std::size_t n_samples = layer.n_samples, n = layer.spec.n;
  const bool once = d_out.ndim() && d_out.shape(0) == 1;
  check_shape(d_out, {once ? 1 : static_cast<std::size_t>(layer.n_steps), n_samples, n}, "d_potentials");
  return {d_out.data(), once ? 0 : n_samples * n};
}

LayerGradients gradients(PyLayer& layer, const PyRun& run, const OutputGrads& d_out, const Wanted& wanted) {
  const LayerInput& input = layer.input();
  const LayerSaved saved = run.saved(layer);
  nb::gil_scoped_release release;
  return layer_backward(layer.spec, input, saved, d_out, wanted);
}

// A gradient of one number per neuron, [N], or of a part of a batch [G, N].
nb::object by_group(Array<float>& gradient, int n, int n_batch) {
  const std::size_t size = static_cast<std::size_t>(n);
  if (!n_batch) return to_numpy(gradient, {size});
  return to_numpy(gradient, {size ? gradient.size() / size : 0, size});
}

// A gradient of this shape; of a part of a batch with one more dimension in front, for each of its branches.
nb::object by_branch(Array<float>& gradient, std::vector<std::size_t> shape, int n_batch) {
  if (n_batch) {
    std::size_t size = 1;
    for (const std::size_t length : shape) size *= length;
    shape.insert(shape.begin(), size ? gradient.size() / size : 0);
  }
  return to_numpy(gradient, std::move(shape));
}

nb::dict backward(PyLayer& layer, const PyRun& run, const In<float>& d_out, const std::vector<bool>& wanted_weight,
                  const std::vector<bool>& wanted_value, const std::vector<bool>& wanted_loops, bool wanted_bias,
                  int n_batch, const std::vector<bool>& wanted_delays) {
  const LayerInput& input = layer.input();
  const LayerSpec& spec = layer.spec;
  if (wanted_weight.size() != input.sources.size() || wanted_value.size() != input.sources.size() ||
      wanted_loops.size() != input.loops.size())
    throw InputError("ShapeError", "backward: one wish per source for weight and value gradients, and one per loop");
  LayerGradients out = gradients(layer, run, output_grads(layer, run, d_out),
                                 {wanted_weight, wanted_value, wanted_loops, wanted_delays, wanted_bias, n_batch});
  const std::size_t n_blocks = tile_blocks(spec.first_tile(), spec.first_tile() + spec.n_tiles()).size();
  nb::list d_weight, d_value;
  for (std::size_t k = 0; k < input.sources.size(); ++k) {
    const std::size_t n_values = layer.sources[k].lists->ids.size();
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

nb::tuple recurrent_value_grads_of(PyLayer& layer, const PyRun& run, PyLists& population, const In<float>& d_values,
                                   const std::vector<bool>& wanted_delays, int n_batch) {
  const LayerInput& input = layer.input();
  if (!input.exchange || input.loops.empty() || !layer.spec.model->fires())
    throw InputError("ShapeError", "recurrent_value_grads: give a recurrent shard and its exchange");
  const LayerSaved saved = run.saved(layer);
  int n_steps = 0;
  const Lists all = checked_lists(population, layer.spec.n_all(), layer.n_samples, &n_steps, "population");
  if (layer.n_samples && n_steps != layer.n_steps)
    throw InputError("ShapeError", "recurrent_value_grads: the population's lists must cover all steps");
  check_shape(d_values, {run.n_slots()}, "d_values");
  Wanted wanted;
  wanted.delays = wanted_delays;
  wanted.n_batch = n_batch;
  RecurrentGrads found;
  {
    nb::gil_scoped_release release;
    found = recurrent_value_grads(layer.spec, input, saved, all, d_values.data(), wanted, *input.exchange);
  }
  nb::list d_delays;
  for (Array<float>& one : found.d_delays) d_delays.append(by_group(one, layer.spec.n, n_batch));
  return nb::make_tuple(to_numpy(found.d_values, {run.n_slots()}), d_delays);
}

// Layers that run one after the other in one call, with all that stays the same from call to call.
struct PyChain {
  struct Link {
    std::string name;
    PyLayer layer;
    std::vector<int> reads;  // per source: 0 the input, k + 1 link k
    Wanted wanted;           // what `backward` gives back of it, and to the layers that it reads
  };
  std::vector<Link> links;
};

using Runs = std::vector<std::shared_ptr<PyRun>>;

std::shared_ptr<PyRun> forward_link(const PyChain& chain, std::size_t k, const std::shared_ptr<PyLists>& input,
                                    const Runs& before, int n_steps, int n_samples, int first_sample,
                                    const nb::tuple& told, bool watched) {
  const PyChain::Link& link = chain.links[k];
  nb::object call = nb::cast(link.layer, nb::rv_policy::copy);
  PyLayer& layer = nb::cast<PyLayer&>(call);
  layer.n_steps = n_steps;
  layer.n_samples = n_samples;
  layer.spec.first_sample = first_sample;
  for (std::size_t j = 0; j < layer.sources.size(); ++j)
    layer.sources[j].lists = link.reads[j] ? before[link.reads[j] - 1]->lists() : input;
  layer.spec.seed = nb::cast<std::uint64_t>(told[0]);
  layer.spec.first_step = nb::cast<std::uint64_t>(told[1]);
  if (!told[2].is_none()) layer.state = nb::cast<std::vector<In<float>>>(told[2]);
  if (!told[3].is_none()) layer.own_before = nb::cast<std::shared_ptr<PyLists>>(told[3]);
  try {
    return run_layer(std::move(call), watched);
  } catch (const InputError& e) {
    if (std::string(e.kind) != "NumericError") throw;
    throw InputError(e.kind, link.name + ": " + e.what());
  }
}

Runs forward_chain(const PyChain& chain, const std::shared_ptr<PyLists>& input, int n_steps, int n_samples,
                   const nb::list& told, bool hidden, int first_sample) {
  if (told.size() != chain.links.size())
    throw InputError("ShapeError", "Chain: got settings for " + std::to_string(told.size()) + " layers; it has " +
                                       std::to_string(chain.links.size()));
  const bool learns =
      std::any_of(chain.links.begin(), chain.links.end(), [](const auto& link) { return link.layer.spec.save; });
  // Nobody can change the input while the layers run: it needs no look for each of its readers.
  struct InOneCall {
    PyLists& lists;
    const bool watched, hidden;
    InOneCall(PyLists& of, bool watched, bool hidden) : lists(of), watched(watched), hidden(hidden) {
      if (lists.checked_for) lists.check_held("input");
      lists.untouched = true;
    }
    ~InOneCall() {
      if (!hidden) lists.show(watched);
    }
  } const in_one_call(*input, learns, hidden);
  Runs runs;
  for (std::size_t k = 0; k < chain.links.size(); ++k)
    runs.push_back(
        forward_link(chain, k, input, runs, n_steps, n_samples, first_sample, nb::cast<nb::tuple>(told[k]), learns));
  return runs;
}

// What came back to a layer so far: the first as it is, gradients of list values added one after the other.
class Arrived {
 public:
  void borrow(const OutputGrads& first) { sum_ = first; }
  void add(Array<float> more) {
    if (sum_.data) {
      float* sum = more.data();  // a + b is b + a
      for (std::size_t k = 0; k < more.size(); ++k) sum[k] = sum_.data[k] + sum[k];
    }
    own_ = std::move(more);
    sum_ = {own_.data()};
  }
  const OutputGrads& sum() const { return sum_; }

 private:
  OutputGrads sum_;
  Array<float> own_;
};

nb::list backward_chain(const PyChain& chain, const Runs& runs, const std::vector<std::optional<In<float>>>& d_out,
                        int n_batch, const nb::object& each) {
  const std::size_t n = chain.links.size();
  if (runs.size() != n || d_out.size() != n)
    throw InputError("ShapeError",
                     "Chain: backward needs what forward gave back, and a gradient or None for each layer");
  std::vector<Arrived> arrived(n);
  nb::list found;
  for (std::size_t k = 0; k < n; ++k) {
    found.append(nb::none());
    if (!d_out[k]) continue;
    arrived[k].borrow(output_grads(nb::cast<PyLayer&>(runs[k]->call()), *runs[k], *d_out[k]));
  }
  for (std::size_t k = n; k--;) {
    if (!arrived[k].sum().data) continue;
    const PyChain::Link& link = chain.links[k];
    PyLayer& layer = nb::cast<PyLayer&>(runs[k]->call());
    Wanted wanted = link.wanted;
    wanted.n_batch = n_batch;
    LayerGradients of = gradients(layer, *runs[k], arrived[k].sum(), wanted);
    nb::list own;
    for (std::size_t j = 0; j < layer.sources.size(); ++j) {
      if (link.wanted.weight[j]) own.append(by_branch(of.d_weight[j], layer.shape_of(layer.sources[j]), n_batch));
      if (link.wanted.value[j]) arrived[link.reads[j] - 1].add(std::move(of.d_value[j]));
    }
    for (std::size_t j = 0; j < layer.loops.size(); ++j)
      if (link.wanted.loops[j]) own.append(by_branch(of.d_loops[j], layer.shape_of(layer.loops[j]), n_batch));
    if (link.wanted.bias) own.append(by_group(of.d_bias, layer.spec.n, n_batch));
    found[k] = own;
    runs[k]->forget();
    if (!each.is_none()) each(k, own);
  }
  return found;
}

PyChain make_chain(const std::vector<std::tuple<std::string, PyLayer*, std::vector<int>>>& links,
                   const std::vector<std::tuple<std::vector<bool>, std::vector<bool>, bool>>& wanted) {
  PyChain chain;
  for (const auto& [name, layer, reads] : links) {
    const int n_before = static_cast<int>(chain.links.size());
    if (reads.size() != layer->sources.size() || std::any_of(reads.begin(), reads.end(), [&](int k) {
          return k < 0 || k > n_before || (k && !chain.links[k - 1].layer.spec.model->fires());
        }))
      throw InputError("ShapeError", "Chain: " + name + " must read the input or earlier layers that fire");
    chain.links.push_back({name, *layer, reads, {}});
  }
  if (wanted.size() != chain.links.size()) throw InputError("ShapeError", "Chain: give wishes for all layers");
  for (std::size_t k = 0; k < wanted.size(); ++k) {
    PyChain::Link& link = chain.links[k];
    std::tie(link.wanted.weight, link.wanted.loops, link.wanted.bias) = wanted[k];
    if (link.wanted.weight.size() != link.layer.sources.size() || link.wanted.loops.size() != link.layer.loops.size())
      throw InputError("ShapeError", "Chain: " + link.name + " needs a wish per source and per loop");
    for (const int read : link.reads) link.wanted.value.push_back(read && chain.links[read - 1].layer.spec.save);
  }
  return chain;
}

}  // namespace

void register_passes(nb::module_& m) {
  nb::class_<PyRun>(m, "Run",
                    "What a call of a layer gave back; arrays are NumPy's once they are asked for. None where there is "
                    "none.")
      .def_prop_ro("call", &PyRun::call, "The LayerCall that was run.")
      .def_prop_ro("offsets", &PyRun::offsets)
      .def_prop_ro("ids", &PyRun::ids)
      .def_prop_ro("n_spikes", &PyRun::n_spikes)
      .def("listed", &PyRun::listed, "bool[N], which neurons stand in any of the lists.")
      .def_prop_ro("values", &PyRun::values, "1 for spikes, 0 for near-spikes.")
      .def_prop_ro("dropped", &PyRun::dropped)
      .def_prop_ro("potentials", &PyRun::potentials, "Of a readout.")
      .def_prop_ro("state", &PyRun::state, "[B, N] each, in the order of the model.");
  nb::class_<PyChain>(
      m, "Chain",
      "Layers that run one after the other in one call: of each its name, a LayerCall whose "
      "lists, sizes\n"
      "and state are not read, and what its sources read: 0 the input, k + 1 layer k. wanted: of each the\n"
      "gradients that `backward` gives back, of the weight of every source and every loop, and the bias.")
      .def(
          "__init__",
          [](PyChain* self, const std::vector<std::tuple<std::string, PyLayer*, std::vector<int>>>& links,
             const std::vector<std::tuple<std::vector<bool>, std::vector<bool>, bool>>& wanted) {
            new (self) PyChain(make_chain(links, wanted));
          },
          "links"_a, "wanted"_a)
      .def("forward", &forward_chain, "input"_a, "n_steps"_a, "n_samples"_a, "told"_a, "hidden"_a = false,
           "first_sample"_a = 0,
           "As `forward` of each layer; told: of each its seed, first step, states and own lists before, or None. "
           "hidden:\nnobody writes to the input before `backward`, or `show` of it.")
      .def("backward", &backward_chain, "runs"_a, "d_out"_a, "n_batch"_a = 0, "each"_a.none() = nb::none(),
           "After `forward`: of each layer the gradients that are wanted, None where nothing came back to it. d_out: "
           "of\n"
           "each the gradient of its list values or potentials, or None. What comes back to a layer's lists is added "
           "in\n"
           "the order in which PyTorch's graph adds it: d_out first, then the readers from the last one on. Once for a "
           "forward.\nn_batch: as of `_core.backward`; each(k, gradients): is called with those of layer k once they "
           "are there.");
  m.def("forward", &forward, "layer"_a, "Runs a layer over a sequence.");
  m.def("backward", &backward, "layer"_a, "run"_a, "d_out"_a, "wanted_weight"_a, "wanted_value"_a, "wanted_loops"_a,
        "wanted_bias"_a, "n_batch"_a = 0, "wanted_delays"_a = std::vector<bool>(),
        "Gradients of a layer by its weights, list values and learnt parameters. d_out: that of its list values, of a\n"
        "readout its potentials, [1, B, N] where it is the same at all steps. n_batch: samples of a batch of which "
        "these\n"
        "are some, from first_sample on: gradients of weights come as one sum a branch (find_branches), [K, ...], of\n"
        "neurons' parameters as one a group of group_samples samples, [G, ...]. Of a shard with an exchange, gradients "
        "of\n"
        "list values come as one sum a block of its tiles (tile_folds), [K, slots].");
  m.def("recurrent_value_grads", &recurrent_value_grads_of, "layer"_a, "run"_a, "population"_a, "d_values"_a,
        "wanted_delays"_a, "n_batch"_a,
        "The gradient of a recurrent shard's list values with what its population's neurons send back, step by step,\n"
        "and those of its axonal delays.");
}

}  // namespace sparsesnn
