// Python bindings of passes of several layers in one call.
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

#include "host/src/cpu/engine.h"
#include "host/src/ranks/chain_shards.h"
#include "python_passes.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {
namespace {

// Layers that run one after the other in one call, and everything that does not change between calls.
struct PyChain {
  struct Link {
    std::string name;
    PyLayer layer;
    std::vector<int> reads;  // per source: 0 the input, k + 1 link k
    Wanted wanted;           // gradients that `backward` returns, and passes to the layers that it reads
  };
  std::vector<Link> links;
  std::optional<ChainShards> shards;  // if ranks share the neurons
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
  for (std::size_t j = 0; j < layer.sources.size(); ++j) {
    const PyRun* const from = link.reads[j] ? before[link.reads[j] - 1].get() : nullptr;
    layer.sources[j].lists = from ? from->lists() : input;
    layer.sources[j].sorted = from ? from->order().sorted : nullptr;
  }
  layer.spec.seed = nb::cast<std::uint64_t>(told[0]);
  layer.spec.first_step = nb::cast<std::uint64_t>(told[1]);
  if (!told[2].is_none()) layer.state = nb::cast<std::vector<In<float>>>(told[2]);
  if (!told[3].is_none()) layer.own_before = nb::cast<std::shared_ptr<PyLists>>(told[3]);
  if (!told[4].is_none()) layer.take_packed(nb::cast<PackedWeights>(told[4]));
  try {
    std::shared_ptr<PyRun> own = layer.spec.n ? run_layer(call, watched) : nullptr;
    return chain.shards ? chain.shards->whole(k, layer, std::move(own), watched) : own;
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
  // The input cannot change while the layers run: it is not checked again for each of its readers.
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

// The gradient that has arrived so far at a layer of this rank's neurons: the first as it is, gradients of list values
// added one after the other.
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

// This rank's part of the gradient of link k's output.
Arrived arrived_from(const PyChain& chain, std::size_t k, PyRun& run, const In<float>& d_out) {
  const OutputGrads all = output_grads(run, d_out);
  Arrived found;
  if (run.own_run() == &run) {
    found.borrow(all);
    return found;
  }
  const std::size_t n_own = run.own_run() ? static_cast<std::size_t>(chain.links[k].layer.spec.n) : 0;
  found.take(chain.shards->own_part(k, run, all), all.step ? run.shape()[1] * n_own : 0);
  return found;
}

// Passes the gradients of list values to the links that link k reads; d_value: empty if this rank has no neurons of
// link k.
void send_back(const PyChain& chain, std::size_t k, const Runs& runs, std::vector<Array<float>> d_value,
               std::vector<Arrived>& arrived) {
  const PyChain::Link& link = chain.links[k];
  std::vector<std::size_t> sources;
  std::vector<Array<float>> wanted;
  for (std::size_t j = 0; j < link.reads.size(); ++j) {
    if (!link.wanted.value[j]) continue;
    sources.push_back(static_cast<std::size_t>(link.reads[j] - 1));
    if (!d_value.empty()) wanted.push_back(std::move(d_value[j]));
  }
  if (chain.shards && !sources.empty()) wanted = chain.shards->to_owners(k, sources, runs, wanted);
  for (std::size_t j = 0; j < sources.size(); ++j) arrived[sources[j]].add(std::move(wanted[j]));
}

// The gradients of link k that Python requested.
nb::list own_gradients(const PyChain::Link& link, const PyLayer& layer, LayerGradients& of, int n_batch) {
  nb::list own;
  for (std::size_t j = 0; j < layer.sources.size(); ++j)
    if (link.wanted.weight[j]) own.append(by_branch(of.d_weight[j], layer.shape_of(layer.sources[j]), n_batch));
  for (std::size_t j = 0; j < layer.loops.size(); ++j)
    if (link.wanted.loops[j]) own.append(by_branch(of.d_loops[j], layer.shape_of(layer.loops[j]), n_batch));
  if (link.wanted.bias) own.append(by_group(of.d_bias, layer.spec.n, n_batch));
  return own;
}

// The lists that a layer's loops received, if ranks share its neurons.
PyLists* whole_of_loops(const PyLayer& layer, const PyRun& whole) {
  return layer.exchange && !layer.loops.empty() ? whole.lists().get() : nullptr;
}

void backward_chain(const PyChain& chain, const Runs& runs, const std::vector<std::optional<In<float>>>& d_out,
                    const nb::object& take, int n_batch) {
  const std::size_t n = chain.links.size();
  if (runs.size() != n || d_out.size() != n)
    throw InputError("ShapeError",
                     "Chain: backward needs the runs that forward returned, and a gradient or None for each layer");
  std::vector<Arrived> arrived(n);
  for (std::size_t k = 0; k < n; ++k)
    if (d_out[k]) arrived[k] = arrived_from(chain, k, *runs[k], *d_out[k]);
  for (std::size_t k = n; k--;) {
    if (!arrived[k]) continue;
    const PyChain::Link& link = chain.links[k];
    nb::list own;
    LayerGradients of;
    if (PyRun* const run = runs[k]->own_run()) {
      PyLayer& layer = nb::cast<PyLayer&>(run->call());
      Wanted wanted = link.wanted;
      wanted.n_batch = n_batch;
      of = gradients(layer, *run, arrived[k].sum(), wanted, whole_of_loops(layer, *runs[k]));
      own = own_gradients(link, layer, of, n_batch);
    }
    send_back(chain, k, runs, std::move(of.d_value), arrived);
    runs[k]->forget();
    take(k, own);
  }
}

PyChain make_chain(const std::vector<std::tuple<std::string, PyLayer*, std::vector<int>>>& links,
                   const std::vector<std::tuple<std::vector<bool>, std::vector<bool>, bool>>& wanted,
                   nb::object shards) {
  PyChain chain;
  if (!shards.is_none()) chain.shards.emplace(std::move(shards));
  for (const auto& [name, layer, reads] : links) {
    const int n_before = static_cast<int>(chain.links.size());
    if (reads.size() != layer->sources.size() || std::any_of(reads.begin(), reads.end(), [&](int k) {
          return k < 0 || k > n_before || (k && !chain.links[k - 1].layer.spec.model->fires());
        }))
      throw InputError("ShapeError", "Chain: " + name + " must read the input or earlier layers that fire");
    chain.links.push_back({name, *layer, reads, {}});
  }
  if (wanted.size() != chain.links.size() || (chain.shards && chain.shards->size() != wanted.size()))
    throw InputError("ShapeError", "Chain: give `wanted`, and shards if there are any, for all layers");
  for (std::size_t k = 0; k < wanted.size(); ++k) {
    PyChain::Link& link = chain.links[k];
    std::tie(link.wanted.weight, link.wanted.loops, link.wanted.bias) = wanted[k];
    if (link.wanted.weight.size() != link.layer.sources.size() || link.wanted.loops.size() != link.layer.loops.size())
      throw InputError("ShapeError", "Chain: " + link.name + " needs an entry of `wanted` per source and per loop");
    for (const int read : link.reads) link.wanted.value.push_back(read && chain.links[read - 1].layer.spec.save);
  }
  return chain;
}

}  // namespace

void register_chain(nb::module_& m) {
  nb::class_<PyChain>(
      m, "Chain",
      "Layers that run one after the other in one call: for each its name, a LayerCall whose lists, sizes\n"
      "and state are not read, and the inputs of its sources: 0 the input, k + 1 layer k. wanted: for each\n"
      "layer the gradients that `backward` returns, of the weight of every source and every loop, and of\n"
      "the bias. shards: for ranks that share the neurons, an engines/ranks/chain_shards.py; the layers are\n"
      "then this rank's shards, but their inputs and outputs are whole.")
      .def(
          "__init__",
          [](PyChain* self, const std::vector<std::tuple<std::string, PyLayer*, std::vector<int>>>& links,
             const std::vector<std::tuple<std::vector<bool>, std::vector<bool>, bool>>& wanted,
             nb::object shards) { new (self) PyChain(make_chain(links, wanted, std::move(shards))); },
          "links"_a, "wanted"_a, "shards"_a.none() = nb::none())
      .def("forward", &forward_chain, "input"_a, "n_steps"_a, "n_samples"_a, "told"_a, "hidden"_a = false,
           "first_sample"_a = 0,
           "As `forward` of each layer; told: for each its seed, first step, states, own lists before and packed\n"
           "weights of sources and loops, or None. hidden: the input is not written to before `backward`, or\n"
           "`show` of it.")
      .def("backward", &backward_chain, "runs"_a, "d_out"_a, "take"_a, "n_batch"_a = 0,
           "After `forward`, once: calls take(k, gradients) with the wanted gradients of layer k, from the last\n"
           "layer on, unless no gradient reached it; without gradients if this rank has no neurons of it. d_out:\n"
           "for each layer the gradient of its list values or potentials, or None. Gradients of a layer's lists\n"
           "are added in the order of PyTorch's graph: d_out first, then the readers from the last one on.\n"
           "n_batch: as in `_core.backward`.");
}

}  // namespace sparsesnn
