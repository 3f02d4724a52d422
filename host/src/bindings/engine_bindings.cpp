// Python bindings of the engine. Shapes and dtypes are checked here, once; the engine trusts them.
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
#include <utility>

#include "host/src/cpu/engine.h"
#include "host/src/cpu/packing.h"
#include "host/src/cpu/phases.h"
#include "host/src/training/tile_sums.h"
#include "python_layer.h"

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

  nb::class_<LayerSpec>(m, "LayerSpec", "The numbers that define one layer's passes; see host/src/cpu/layer.h.")
      .def(
          "__init__",
          [](LayerSpec* self, const std::string& shape, bool fires, int n_trained, bool detach_reset,
             const std::string& surrogate, float slope, int n, int tile_width, int capacity, bool fixed, bool bf16,
             bool save, std::uint64_t seed, std::uint64_t first_step, std::uint64_t first_sample, int population,
             int first) {
            if (population && (first < 0 || n < 0 || first > population - n))
              throw InputError("ShapeError", "LayerSpec: a shard must lie within its population");
            LayerSpec spec;
            spec.shape = &find_shape(shape);
            if (fires ? !spec.shape->may_fire : !spec.shape->may_read_out)
              throw InputError("ShapeError", "LayerSpec: fires is " + std::string(fires ? "true" : "false") +
                                                 "; the shape '" + shape + "' allows the opposite");
            if (n_trained < 0 || n_trained > max_learnt)
              throw InputError("ShapeError", "LayerSpec: n_trained is " + std::to_string(n_trained) +
                                                 "; allowed: 0 to " + std::to_string(max_learnt));
            spec.fires = fires;
            spec.n_trained = n_trained;
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
          nb::kw_only(), "shape"_a, "fires"_a, "n_trained"_a, "detach_reset"_a, "surrogate"_a, "slope"_a, "n"_a,
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
      "Spike lists: offsets int64[T*B + 1], ids uint16|int32[S], n_spikes int32[T*B]; graded: values float32[S].\n"
      "constant: one list for each sample, the same at all steps; T is 1.")
      .def(nb::init<In<std::int64_t>, AnyIn, In<std::int32_t>, std::optional<In<float>>, bool>(),
           "offsets"_a.noconvert(), "ids"_a.noconvert(), "n_spikes"_a.noconvert(),
           "values"_a.noconvert().none() = nb::none(), "constant"_a = false)
      .def(
          "check",
          [](PyLists& self, int n_neurons, int n_samples, const std::string& name) {
            nb::gil_scoped_release release;
            checked_lists(self, n_neurons, n_samples, nullptr, name.c_str());
          },
          "n_neurons"_a, "n_samples"_a, "name"_a,
          "Raises ShapeError or SpikeListError, which begins with `name`, if the lists break their invariants.")
      .def("perhaps_listed", &perhaps_listed, "n"_a,
           "bool[n], true for neurons that may be in any of the lists; all true if nearly all are.")
      .def("hold", &PyLists::hold, "n_neurons"_a,
           "Records that the lists are valid for n_neurons: a pass that reads them later raises an error if they "
           "changed.")
      .def(
          "show", [](PyLists& self) { self.show(true); },
          "The same for lists that a hidden Chain.forward has read, before they may be written to.");

  nb::class_<SparseRowsOf>(
      m, "SparseRows",
      "Sparse synapses as a layer reads them, see host/src/cpu/sparse_rows.h: for each receiver from\n"
      "`first` on its senders, ascending. by_blocks: of a shard of several ranks.")
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
      "A convolution as its receiving layer reads it, see host/src/maps/windows.h; shape: height, width,\n"
      "channels of the sender.")
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

  nb::class_<PySource>(
      m, "Source",
      "A sending population: its size, delay and float32 weight [M, N]; for sparse synapses [synapses] "
      "with\ntheir rows; for a convolution the weight of its windows.")
      .def(
          "__init__",
          [](PySource* self, int n_pre, int delay, In<float> weight, std::optional<In<unsigned char>> packed,
             std::shared_ptr<SparseRowsOf> rows, std::shared_ptr<Windows> windows) {
            new (self) PySource{
                nullptr, n_pre, delay, std::move(weight), std::move(packed), std::move(rows), std::move(windows),
                nullptr};
          },
          "n_pre"_a, "delay"_a, "weight"_a, "packed"_a.none() = nb::none(), "rows"_a.none() = nb::none(),
          "windows"_a.none() = nb::none());

  nb::class_<PyLoop>(
      m, "Loop",
      "A recurrent connection: its float32 weight [N, N], for sparse synapses [synapses] with their rows,\n"
      "its delay, 1 or more, and axonal delays: whole steps, and fractions of a step if they lie between\n"
      "two.")
      .def(nb::init<In<float>, int, std::optional<In<unsigned char>>, std::shared_ptr<SparseRowsOf>,
                    std::optional<In<std::int32_t>>, std::optional<In<float>>>(),
           "weight"_a, "delay"_a, "packed"_a.none() = nb::none(), "rows"_a.none() = nb::none(),
           "steps"_a.none() = nb::none(), "fraction"_a.none() = nb::none());

  nb::class_<PyLayer>(m, "LayerCall",
                      "A layer of a chain, which adds lists, sizes and state in each call: its spec and sources;\n"
                      "entries of its shape, one array [N] or [] each, and for each trained parameter\n"
                      "their derivatives, None for 0.")
      .def(
          "__init__",
          [](PyLayer* self, LayerSpec spec, std::vector<std::string> states, std::vector<PySource> sources,
             std::vector<In<float>> entries, std::vector<std::vector<std::optional<In<float>>>> derivatives,
             std::optional<In<float>> grad_threshold, std::optional<In<float>> bias, std::vector<PyLoop> loops,
             std::shared_ptr<LayerRanks> ranks) {
            if (states.size() != static_cast<std::size_t>(spec.shape->n_states))
              throw InputError("ShapeError", "LayerCall: states has " + std::to_string(states.size()) +
                                                 " names; allowed: " + std::to_string(spec.shape->n_states) +
                                                 ", those of the shape");
            new (self) PyLayer{spec,
                               0,
                               0,
                               std::move(sources),
                               std::move(states),
                               std::move(entries),
                               std::move(derivatives),
                               std::move(grad_threshold),
                               std::move(bias),
                               std::move(loops),
                               std::nullopt,
                               nullptr,
                               std::move(ranks),
                               {}};
          },
          "spec"_a, nb::kw_only(), "states"_a, "sources"_a, "entries"_a, "derivatives"_a,
          "grad_threshold"_a.none() = nb::none(), "bias"_a.none() = nb::none(), "loops"_a = std::vector<PyLoop>(),
          "ranks"_a.none() = nb::none());

  m.def(
      "neuron_shapes",
      [] {
        nb::dict shapes;
        for (const NeuronShape& shape : neuron_shapes()) shapes[shape.name] = nb::tuple(nb::cast(shape.entries));
        return shapes;
      },
      "For the name of every compiled shape its entries, in order; sparsesnn/layers/shapes.py chooses one.");
  m.def("surrogates", &surrogate_names, "Names of the built-in surrogates.");
  m.def(
      "pack_rows", &pack_weight_rows, "spec"_a, "by_sample"_a, "weight"_a, "begin"_a, "end"_a, "out"_a, "name"_a,
      "Writes rows begin..end-1 of a layer's weight to their places in `out`, uint8[packed_bytes], as its forward pass "
      "reads\n"
      "it; `name` is for errors. Source and LayerCall take a weight that is packed so.");
  m.def(
      "packed_bytes", [](const LayerSpec& spec, int n_pre) { return packed_bytes(n_pre, spec); }, "spec"_a, "n_pre"_a,
      "Size in bytes of a weight of n_pre rows, packed by `pack_rows`.");
  m.def("release_memory", &release_kept, "Releases the memory that the engine keeps for the next step.");
  m.def("phase_seconds", &phase_seconds, "reset"_a,
        "Wall time by phase since the process began, or since the last call with reset=True.");
  m.attr("group_samples") = group_samples;
}

}  // namespace sparsesnn
