#include "chain.h"

#include <algorithm>
#include <utility>

#include "host/src/cpu/engine.h"

namespace sparsesnn {
namespace {

void check_node(const PyChain& chain, const Node& node) {
  const int n_before = chain.n_inputs + static_cast<int>(chain.nodes.size());
  const bool is_whole = node.layer ? node.reads.size() == node.layer->sources.size() : node.reads.size() == 1;
  const bool reads_lists = std::all_of(node.reads.begin(), node.reads.end(), [&](int k) {
    return k >= 0 && k < n_before && (k < chain.n_inputs || chain.nodes[k - chain.n_inputs].fires());
  });
  if (!is_whole || !reads_lists)
    throw InputError("ShapeError", "Chain: " + node.name + " must read the inputs or earlier nodes that fire");
}

}  // namespace

void add_layer(PyChain& chain, const std::string& name, const PyLayer& layer, std::vector<int> reads,
               std::vector<bool> weight, std::vector<bool> loops, std::vector<bool> delays, bool bias) {
  Node node;
  node.name = name;
  node.reads = std::move(reads);
  node.layer = layer;
  node.saves = layer.spec.save;
  check_node(chain, node);
  if (weight.size() != layer.sources.size() || loops.size() != layer.loops.size() ||
      delays.size() != layer.loops.size())
    throw InputError("ShapeError", "Chain: " + name + " needs a wish per source and per loop");
  std::vector<bool> value;
  for (const int read : node.reads) value.push_back(chain.saves(read));
  node.wanted = {std::move(weight), std::move(value), std::move(loops), std::move(delays), bias, false, 0};
  for (const Node& other : chain.nodes) node.of_layers += other.layer.has_value();
  chain.nodes.push_back(std::move(node));
}

void add_transform(PyChain& chain, const std::string& name, std::shared_ptr<Transform> transform, int reads,
                   bool learns) {
  Node node;
  node.name = name;
  node.reads = {reads};
  node.transform = std::move(transform);
  node.learns = learns;
  check_node(chain, node);
  node.saves = learns || chain.saves(reads);
  chain.nodes.push_back(std::move(node));
}

namespace {

// ---- forward --------------------------------------------------------------------------------------------------------

// The inputs cannot change while the nodes run, so they are checked once and not by every reader.
class InOneCall {
 public:
  InOneCall(PyRun& input, bool watched, bool hidden) : lists_(*input.lists()), watched_(watched), hidden_(hidden) {
    if (lists_.checked_for) lists_.check_held("input");
    lists_.untouched = true;
  }
  InOneCall(InOneCall&&) = delete;
  ~InOneCall() {
    if (!hidden_) lists_.show(watched_);
  }

 private:
  PyLists& lists_;
  const bool watched_, hidden_;
};

std::shared_ptr<PyRun> run_layer(const PyChain& chain, const Node& node, const PyPass& pass, int n_steps, int n_samples,
                                 int first_sample, const nb::tuple& setting, bool watched) {
  if (setting.size() != 7)
    throw InputError("ShapeError", "Chain: a setting of a layer has " + std::to_string(setting.size()) +
                                       " entries; give 7, see forward");
  nb::object call = nb::cast(*node.layer, nb::rv_policy::copy);
  PyLayer& layer = nb::cast<PyLayer&>(call);
  layer.n_steps = n_steps;
  layer.n_samples = n_samples;
  layer.spec.first_sample = first_sample;
  for (std::size_t j = 0; j < layer.sources.size(); ++j) {
    const PyRun& from = *pass.runs[node.reads[j]];
    layer.sources[j].lists = from.lists();
    layer.sources[j].sorted = from.order().sorted;
  }
  layer.spec.seed = nb::cast<std::uint64_t>(setting[0]);
  layer.spec.first_step = nb::cast<std::uint64_t>(setting[1]);
  if (!setting[2].is_none()) layer.state = nb::cast<std::vector<In<float>>>(setting[2]);
  if (!setting[3].is_none()) layer.own_before = nb::cast<std::shared_ptr<PyLists>>(setting[3]);
  if (!setting[4].is_none()) layer.take_packed(nb::cast<PackedWeights>(setting[4]));
  if (!setting[5].is_none()) layer.currents = nb::cast<In<float>>(setting[5]);
  layer.gives_potentials = nb::cast<bool>(setting[6]);
  std::shared_ptr<PyRun> own;
  if (layer.spec.n) {
    const LayerInput& input = layer.input();
    LayerOutput made;
    {
      const nb::gil_scoped_release release;
      made = layer_forward(layer.spec, input);
    }
    own = std::make_shared<PyRun>(call, layer, std::move(made), watched);
  }
  return chain.shards ? chain.shards->whole(node.of_layers, layer, std::move(own), watched) : own;
}

std::shared_ptr<PyRun> run_transform(const Node& node, const PyPass& pass, int n_samples, nb::handle setting,
                                     bool watched) {
  const Transform& transform = *node.transform;
  const PyRun& from = *pass.runs[node.reads[0]];
  const Lists lists = checked_lists(*from.lists(), transform.n_read, n_samples, nullptr, transform.name());
  const int n_steps = static_cast<int>(from.n_steps());
  return std::make_shared<PyRun>(transform.run(lists, n_steps, n_samples, setting), transform.n_made, n_samples,
                                 watched);
}

std::shared_ptr<PyRun> run_node(const PyChain& chain, std::size_t k, const PyPass& pass, int n_steps, int n_samples,
                                int first_sample, nb::handle setting, bool watched) {
  const Node& node = chain.nodes[k];
  try {
    if (node.transform) return run_transform(node, pass, n_samples, setting, watched);
    return run_layer(chain, node, pass, n_steps, n_samples, first_sample, nb::cast<nb::tuple>(setting), watched);
  } catch (const InputError& e) {
    if (std::string(e.kind) != "NumericError" || node.name.empty()) throw;
    throw InputError(e.kind, node.name + ": " + e.what());
  }
}

}  // namespace

std::shared_ptr<PyPass> forward_chain(const PyChain& chain, const nb::list& inputs, int n_steps, int n_samples,
                                      const nb::list& settings, bool hidden, int first_sample) {
  if (inputs.size() != static_cast<std::size_t>(chain.n_inputs) || settings.size() != chain.nodes.size())
    throw InputError("ShapeError", "Chain: got " + std::to_string(inputs.size()) + " inputs and settings for " +
                                       std::to_string(settings.size()) + " nodes; it has " +
                                       std::to_string(chain.n_inputs) + " and " + std::to_string(chain.nodes.size()));
  auto pass = std::make_shared<PyPass>();
  pass->n_inputs = chain.n_inputs;
  const bool watched = std::any_of(chain.nodes.begin(), chain.nodes.end(), [](const Node& node) { return node.saves; });
  std::vector<std::unique_ptr<InOneCall>> in_one_call;
  for (nb::handle input : inputs) {
    if (nb::isinstance<PyRun>(input)) {
      pass->runs.push_back(nb::cast<std::shared_ptr<PyRun>>(input));
    } else {
      auto lists = nb::cast<std::shared_ptr<PyLists>>(input);
      const int n_list_steps = n_samples ? static_cast<int>(lists->n_spikes.size()) / n_samples : n_steps;
      pass->runs.push_back(std::make_shared<PyRun>(
          std::move(lists), chain.n_neurons(static_cast<int>(pass->runs.size())), n_list_steps, n_samples));
    }
    const auto seen = [&](const auto& other) { return other->lists() == pass->runs.back()->lists(); };
    if (std::none_of(pass->runs.begin(), pass->runs.end() - 1, seen))
      in_one_call.push_back(std::make_unique<InOneCall>(*pass->runs.back(), watched, hidden));
  }
  for (std::size_t k = 0; k < chain.nodes.size(); ++k)
    pass->runs.push_back(run_node(chain, k, *pass, n_steps, n_samples, first_sample, settings[k], watched));
  return pass;
}

namespace {

// ---- back -----------------------------------------------------------------------------------------------------------

// What came back to this rank's entries of some lists, or its part of potentials, so far: the first as it is, gradients
// of list values added one after the other.
class Arrived {
 public:
  explicit operator bool() const { return any_; }
  void borrow(const OutputGrads& first) {
    any_ = true;
    sum_ = first;
  }
  void take(Array<float> first, std::size_t step) {
    own_ = std::move(first);
    borrow({own_.data(), step});
  }
  void add(Array<float> more) {
    if (any_) {
      float* sum = more.data();  // a + b is b + a
      for (std::size_t k = 0; k < more.size(); ++k) sum[k] = sum_.data[k] + sum[k];
    }
    take(std::move(more), 0);
  }
  const OutputGrads& sum() const { return sum_; }

 private:
  bool any_ = false;
  OutputGrads sum_;
  Array<float> own_;
};

// ∂L/∂(list values) [slots].
OutputGrads value_grads(const PyRun& run, const In<float>& d_out) {
  check_shape(d_out, {run.n_slots()}, "d_values");
  return {d_out.data()};
}

// ∂L/∂x [T, B, N] of potentials, or [1, B, N] for all steps.
OutputGrads potential_grads(const PyRun& run, const In<float>& d_out) {
  std::vector<std::size_t> shape = run.shape();
  const bool once = d_out.ndim() && d_out.shape(0) == 1;
  if (once) shape[0] = 1;
  check_shape(d_out, shape, "d_potentials");
  return {d_out.data(), once ? 0 : shape[1] * shape[2]};
}

// The part of the gradient of node k's output that belongs to this rank's entries or, of potentials, neurons.
Arrived arrived_from(const PyChain& chain, std::size_t k, PyRun& run, const In<float>& d_out, bool of_potentials) {
  const OutputGrads all = of_potentials ? potential_grads(run, d_out) : value_grads(run, d_out);
  Arrived found;
  if (!chain.shards || (run.is_of_layer() && run.own_run() == &run)) {
    found.borrow(all);
    return found;
  }
  const ChainShards::First& first = chain.first(chain.n_inputs + static_cast<int>(k));
  if (!of_potentials) {
    found.take(chain.shards->own_part(first, run, all), 0);
    return found;
  }
  const std::size_t n_own = run.own_run() ? static_cast<std::size_t>(chain.nodes[k].layer->spec.n) : 0;
  found.take(chain.shards->own_columns(first, run, all), all.step ? run.shape()[1] * n_own : 0);
  return found;
}

// What came back to a node's own entries and neurons. Only the potentials of a layer that fires may have a gradient.
struct NodeArrived {
  Arrived out, potentials;

  explicit operator bool() const { return out || potentials; }
  void complete(PyRun& run) {
    if (out) return;
    PyRun* const own = run.own_run();
    out.take(Array<float>::zeros(own ? own->n_slots() : 0), 0);
  }
};

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

// The gradients of a layer's parameters that Python wants.
nb::list own_gradients(const Wanted& wanted, const PyLayer& layer, LayerGradients& of) {
  const int n = layer.spec.n, n_batch = wanted.n_batch;
  nb::list own;
  for (std::size_t j = 0; j < layer.sources.size(); ++j)
    if (wanted.weight[j]) own.append(by_branch(of.d_weight[j], layer.shape_of(layer.sources[j]), n_batch));
  for (std::size_t j = 0; j < layer.loops.size(); ++j)
    if (wanted.loops[j]) own.append(by_branch(of.d_loops[j], layer.shape_of(layer.loops[j]), n_batch));
  for (std::size_t j = 0; j < layer.loops.size(); ++j)
    if (wanted.delays[j]) own.append(by_group(of.d_delays[j], n, n_batch));
  if (wanted.bias) own.append(by_group(of.d_bias, n, n_batch));
  for (int k = 0; k < layer.spec.n_learnt(); ++k) own.append(by_group(of.d_parameters[k], n, n_batch));
  return own;
}

// The gradients of the lists that layer node k read, for this rank's entries; lists without a wanted gradient are left
// out. d_value: the sums of this rank's tiles of the layer; empty if it has no tiles. The entries of pooled lists have
// no owner, so the gradient goes through pools first.
struct Returned {
  int read;
  Array<float> d_value;
};
std::vector<Returned> to_sources(const PyChain& chain, const PyPass& pass, std::size_t k,
                                 std::vector<Array<float>> d_value, const std::vector<bool>& wanted) {
  const Node& node = chain.nodes[k];
  std::vector<Returned> found;
  std::vector<ChainShards::Read> reads;
  for (std::size_t j = 0; j < node.reads.size(); ++j) {
    if (!wanted[j]) continue;
    int read = node.reads[j];
    Array<float> d = d_value.empty() ? Array<float>() : std::move(d_value[j]);
    bool by_event = pass.runs[read]->order().sorted != nullptr;
    while (read >= chain.n_inputs && chain.nodes[read - chain.n_inputs].transform &&
           !chain.nodes[read - chain.n_inputs].transform->keeps_neurons()) {
      const PyRun& made = *pass.runs[read];
      read = chain.nodes[read - chain.n_inputs].reads[0];
      const std::size_t n_made = made.n_slots(), n_read = pass.runs[read]->n_slots();
      const std::size_t n_rows = n_made ? d.size() / n_made : d_value.empty() ? 0 : 1;
      Array<float> before(n_rows * n_read);
      const nb::gil_scoped_release release;
      for (std::size_t row = 0; row < n_rows; ++row)
        made.transformed()->pull(d.data() + row * n_made, before.data() + row * n_read);
      d = std::move(before);
      by_event = false;
    }
    found.push_back({read, {}});
    if (chain.shards)
      reads.push_back({chain.first(read), *pass.runs[read], by_event, std::move(d)});
    else
      found.back().d_value = std::move(d);
  }
  if (chain.shards && !reads.empty()) {
    std::vector<Array<float>> sums = chain.shards->to_owners(node.of_layers, std::move(reads));
    for (std::size_t j = 0; j < found.size(); ++j) found[j].d_value = std::move(sums[j]);
  }
  return found;
}

// The gradients of node k's own parameters, and of the lists that it read.
struct NodeGradients {
  nb::list own;
  std::vector<Returned> returned;
  Array<float> d_currents;  // of this rank's neurons
};

NodeGradients layer_back(const PyChain& chain, const PyPass& pass, std::size_t k, const NodeArrived& d_out,
                         const std::vector<bool>& wanted_value, int n_batch, bool wanted_currents) {
  const Node& node = chain.nodes[k];
  NodeGradients found;
  LayerGradients of;
  if (PyRun* const run = pass.of(k).own_run()) {
    PyLayer& layer = nb::cast<PyLayer&>(run->call());
    Wanted wanted = node.wanted;
    wanted.value = wanted_value;
    wanted.n_batch = n_batch;
    wanted.currents = wanted_currents;
    LayerInput input = layer.input();
    const LayerSaved saved = run->saved(layer);
    if (layer.ranks && !layer.loops.empty())  // the lists of all ranks, which its loops read
      input.population = checked_lists(*pass.of(k).lists(), layer.spec.n_all(), layer.n_samples, nullptr, "output");
    {
      const nb::gil_scoped_release release;
      of = layer_backward(layer.spec, input, saved, d_out.out.sum(), wanted, d_out.potentials.sum());
    }
    found.d_currents = std::move(of.d_currents);
    found.own = own_gradients(wanted, layer, of);
  }
  found.returned = to_sources(chain, pass, k, std::move(of.d_value), wanted_value);
  return found;
}

NodeGradients transform_back(const PyChain& chain, const PyPass& pass, std::size_t k, const float* d_own,
                             bool wanted_value) {
  const Node& node = chain.nodes[k];
  const int read = node.reads[0];
  PyRun& made = pass.of(k);
  PyRun& before = *pass.runs[read];
  before.lists()->check_held("input");
  NodeGradients found;
  Array<float> all;
  if (chain.shards) {
    all = chain.shards->all_entries(chain.first(read), made, d_own);
    d_own = all.data();
  }
  Array<float> d_read(before.n_slots());
  if (node.learns) {
    Array<float> d_parameter = made.transformed()->pull_with_parameter(d_own, d_read.data());
    const std::size_t n = static_cast<std::size_t>(node.transform->n_read);
    found.own.append(to_numpy(d_parameter, {d_parameter.size() / std::max<std::size_t>(1, n), n}));
  } else {
    made.transformed()->pull(d_own, d_read.data());
  }
  if (!wanted_value) return found;
  if (chain.shards) d_read = chain.shards->own_part(chain.first(read), before, {d_read.data(), 0});
  found.returned.push_back({read, std::move(d_read)});
  return found;
}

NodeGradients node_back(const PyChain& chain, const PyPass& pass, std::size_t k, const NodeArrived& d_out,
                        const std::vector<bool>& wanted_value, int n_batch, bool wanted_currents = false) {
  if (chain.nodes[k].layer) return layer_back(chain, pass, k, d_out, wanted_value, n_batch, wanted_currents);
  return transform_back(chain, pass, k, d_out.out.sum().data, wanted_value[0]);
}

void check_pass(const PyChain& chain, const PyPass& pass) {
  if (pass.runs.size() != chain.n_inputs + chain.nodes.size())
    throw InputError("ShapeError", "Chain: give the pass that forward gave back");
}

}  // namespace

void backward_chain(const PyChain& chain, const PyPass& pass, const std::vector<std::optional<In<float>>>& d_out,
                    const nb::object& take, int n_batch, const std::vector<std::optional<In<float>>>& d_potentials) {
  const std::size_t n = chain.nodes.size();
  check_pass(chain, pass);
  if (d_out.size() != n || (!d_potentials.empty() && d_potentials.size() != n))
    throw InputError("ShapeError", "Chain: backward needs a gradient or None for each node");
  std::vector<NodeArrived> arrived(chain.n_inputs + n);
  NodeArrived* const nodes = arrived.data() + chain.n_inputs;
  for (std::size_t k = 0; k < n; ++k) {
    if (d_out[k]) nodes[k].out = arrived_from(chain, k, pass.of(k), *d_out[k], !pass.of(k).lists());
    if (!d_potentials.empty() && d_potentials[k])
      nodes[k].potentials = arrived_from(chain, k, pass.of(k), *d_potentials[k], true);
  }
  for (std::size_t k = n; k--;) {
    if (!nodes[k]) continue;
    const Node& node = chain.nodes[k];
    std::vector<bool> wanted = node.wanted.value;
    if (node.transform) wanted = {chain.saves(node.reads[0])};
    for (std::size_t j = 0; j < wanted.size(); ++j) wanted[j] = wanted[j] && node.reads[j] >= chain.n_inputs;
    nodes[k].complete(pass.of(k));
    NodeGradients found = node_back(chain, pass, k, nodes[k], wanted, n_batch);
    for (Returned& one : found.returned) arrived[one.read].out.add(std::move(one.d_value));
    pass.of(k).forget();
    take(k, found.own);
  }
}

nb::tuple backward_node(const PyChain& chain, const PyPass& pass, std::size_t k, const std::optional<In<float>>& d_out,
                        const std::vector<bool>& wanted_value, int n_batch, bool wanted_currents,
                        const std::optional<In<float>>& d_potentials) {
  check_pass(chain, pass);
  if (k >= chain.nodes.size() || wanted_value.size() != chain.nodes[k].reads.size())
    throw InputError("ShapeError", "Chain: give a node, and a wish for each of its sources");
  NodeArrived arrived;
  PyRun& run = pass.of(k);
  if (d_out) arrived.out = arrived_from(chain, k, run, *d_out, !run.lists());
  if (d_potentials) arrived.potentials = arrived_from(chain, k, run, *d_potentials, true);
  if (!arrived) throw InputError("ShapeError", "Chain: give d_out or d_potentials of the node");
  arrived.complete(run);
  NodeGradients found = node_back(chain, pass, k, arrived, wanted_value, n_batch, wanted_currents);
  nb::list d_values;
  for (std::size_t j = 0, next = 0; j < wanted_value.size(); ++j) {
    if (!wanted_value[j]) {
      d_values.append(nb::none());
      continue;
    }
    auto& [read, d] = found.returned[next++];
    if (chain.shards) d = chain.shards->all_entries(chain.first(read), *pass.runs[read], d.data());
    const std::size_t size = d.size();
    d_values.append(to_numpy(d, {size}));
  }
  nb::object d_currents = nb::none();
  if (found.d_currents) {
    const std::size_t n = static_cast<std::size_t>(chain.nodes[k].layer->spec.n), n_samples = run.shape()[1];
    if (nb::cast<PyLayer&>(run.own_run()->call()).currents->ndim() == 2)
      d_currents = to_numpy(found.d_currents, {n_samples, n});
    else
      d_currents = to_numpy(found.d_currents, {run.n_steps(), n_samples, n});
  }
  return nb::make_tuple(found.own, d_values, d_currents);
}

}  // namespace sparsesnn
