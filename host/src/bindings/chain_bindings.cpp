// The Python bindings of a chain.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "chain.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {

void register_chain(nb::module_& m) {
  nb::class_<PyRun>(
      m, "Run",
      "The result of a layer or a transform. Arrays become NumPy's when they are asked for; None if there "
      "is none.")
      .def_prop_ro("offsets", &PyRun::offsets)
      .def_prop_ro("ids", &PyRun::ids)
      .def_prop_ro("n_spikes", &PyRun::n_spikes)
      .def("perhaps_listed", &PyRun::perhaps_listed,
           "bool[N], the neurons that may be in any of the lists; all of them, if nearly all are.")
      .def_prop_ro("values", &PyRun::values, "The values of graded lists, else 1 for spikes and 0 for near-spikes.")
      .def_prop_ro("is_graded", &PyRun::is_graded, "Whether lists have values.")
      .def_prop_ro("n_steps", &PyRun::n_steps)
      .def_prop_ro("dropped", &PyRun::dropped)
      .def_prop_ro("potentials", &PyRun::potentials, "For a readout.")
      .def_prop_ro("state", &PyRun::state, "[B, N] each, in the order of the model.");
  nb::class_<Transform>(m, "Transform", "Lists → lists; see host/src/transforms/transform.h.")
      .def_prop_ro("keeps_neurons", &Transform::keeps_neurons, "Whether each entry stays with its neuron.")
      .def_ro("n_read", &Transform::n_read)
      .def_ro("n_made", &Transform::n_made);
  for (const Kind::Register add : Kind::all()) add(m);
  nb::class_<PyPass>(m, "Pass", "The results of a forward pass of a chain.")
      .def_prop_ro(
          "runs", [](const PyPass& pass) { return std::vector(pass.runs.begin() + pass.n_inputs, pass.runs.end()); },
          "The result of each node.");
  nb::class_<PyChain>(m, "Chain",
                      "Layers and transforms that run one after the other in one call. saves: for each input, whether "
                      "the gradient of\nits values is wanted. shards: an engines/ranks/chain_shards.py, if ranks share "
                      "the neurons; a layer then has this\nrank's neurons, but its inputs and outputs are those of the "
                      "whole population.\nA node reads inputs, by number, or n_inputs + an earlier node.")
      .def(
          "__init__",
          [](PyChain* self, std::vector<bool> saves, nb::object shards) {
            new (self) PyChain{static_cast<int>(saves.size()), std::move(saves), {}, std::nullopt};
            if (!shards.is_none()) self->shards.emplace(std::move(shards));
          },
          "saves"_a, "shards"_a.none() = nb::none())
      .def("add_layer", &add_layer, "name"_a, "layer"_a, "reads"_a, "weight"_a, "loops"_a, "delays"_a, "bias"_a,
           "layer: a LayerCall; its lists, sizes and state are not read. Wanted gradients: the weight of every source "
           "and\nevery loop, the axonal delays of every loop, the bias; the spec has those of the model's parameters.")
      .def("add_transform", &add_transform, "name"_a, "transform"_a, "reads"_a, "learns"_a = false,
           "learns: whether the gradient of its parameter is wanted.")
      .def("forward", &forward_chain, "inputs"_a, "n_steps"_a, "n_samples"_a, "settings"_a, "hidden"_a = false,
           "first_sample"_a = 0,
           "inputs: Lists, or a Run of another chain. settings: for a layer its seed, first step, states, own lists of "
           "earlier\nsteps, packed weights of sources and loops, or None, given currents of the whole population, "
           "[T, B, N] or, the same\nat all steps, [B, N], or None, and whether potentials of neurons that fire are an "
           "output; for a transform its own.\nhidden: nothing writes to the inputs before `backward` or `show`.")
      .def(
          "backward", &backward_chain, "pass_"_a, "d_out"_a, "take"_a, "n_batch"_a = 0,
          "d_potentials"_a = std::vector<std::optional<In<float>>>(),
          "Once after `forward`: calls take(k, gradients) with the wanted gradients of node k, from the last node on, "
          "unless\nno gradient reaches the node; the list is empty if this rank has no neurons of it. d_out: for each "
          "node the\ngradient of its list values or potentials, or None. Gradients of a layer's lists are added in the "
          "order of PyTorch's\ngraph: d_out first, then the readers from the last one on. n_batch: samples of the "
          "whole "
          "batch, of which these are\nthose from first_sample on; gradients of weights then come as one sum a branch "
          "(find_branches), [K, ...], those of\nneurons' parameters as one a group of group_samples samples, [G, ...]. "
          "d_potentials: for each node that fires the\ngradient of its potentials, if they are an output, or None.")
      .def(
          "backward_node", &backward_node, "pass_"_a, "node"_a, "d_out"_a.none(), "wanted_value"_a, "n_batch"_a = 0,
          "wanted_currents"_a = false, "d_potentials"_a.none() = nb::none(),
          "The same for one node, any number of times: its gradients; for each list that it reads the gradient of "
          "the\nvalues, or None; 0 for entries of other ranks; and that of its given currents, of this rank's neurons, "
          "or None.");
}

}  // namespace sparsesnn
