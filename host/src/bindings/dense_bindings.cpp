// Python bindings of the dense baseline's passes. Shapes are checked here; dtypes choose between float and double.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/src/dense/dense_gemm.h"
#include "host/src/dense/dense_neurons.h"
#include "host/src/machine/memory.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {
namespace {

template <class T>
using Dense = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
template <class T>
using Optional = std::optional<Dense<T>>;

struct PyDenseSpec {
  const NeuronShape* shape;
  bool fires, detach_reset;
  int surrogate;
  double slope;
};

template <class T>
using DenseList = std::vector<Optional<T>>;

template <class T>
T* checked(const Optional<T>& array, std::initializer_list<std::size_t> shape, const char* name, bool needed = false) {
  if (!array) {
    if (needed) throw InputError("ShapeError", std::string(name) + " is None; this model needs it");
    return nullptr;
  }
  bool fits = array->ndim() == shape.size();
  std::size_t k = 0;
  std::string want;
  for (const std::size_t extent : shape) {
    fits = fits && array->shape(k++) == extent;
    want += (want.empty() ? "" : ", ") + std::to_string(extent);
  }
  if (!fits) throw InputError("ShapeError", std::string(name) + " has another shape; give [" + want + "]");
  return array->data();
}

// `n` arrays of one shape; none, or None among them, only if not `needed`.
template <class T>
void check_all(const DenseList<T>& arrays, std::size_t n, const char* what, std::initializer_list<std::size_t> shape,
               bool needed, T** to) {
  if (arrays.size() != n && (needed || !arrays.empty()))
    throw InputError("ShapeError", std::string(what) + " has " + std::to_string(arrays.size()) +
                                       " arrays; these neurons have " + std::to_string(n));
  for (std::size_t k = 0; k < n; ++k)
    to[k] = arrays.empty() ? nullptr
                           : checked(arrays[k], shape, (std::string(what) + " " + std::to_string(k)).c_str(), needed);
}

// entries: [E, N], those of the shape.
template <class F>
DensePopulation<F> population(const PyDenseSpec& spec, const Dense<const F>& rows, bool fresh,
                              const Dense<const F>& entries, const Optional<const F>& grad_threshold) {
  if (rows.ndim() != 3) throw InputError("ShapeError", "a dense pass reads [T, B, N]");
  const std::size_t n = rows.shape(2);
  DensePopulation<F> p{};
  p.shape = spec.shape;
  p.fires = spec.fires;
  p.detach_reset = spec.detach_reset;
  p.surrogate = spec.surrogate;
  p.slope = static_cast<F>(spec.slope);
  p.n_steps = static_cast<int>(rows.shape(0));
  p.n_samples = static_cast<int>(rows.shape(1));
  p.n = static_cast<int>(n);
  p.fresh = fresh;
  const std::size_t n_entries = spec.shape->entries.size();
  const F* const first = checked(Optional<const F>(entries), {n_entries, n}, "entries", true);
  for (std::size_t k = 0; k < n_entries; ++k) p.entries[k] = first + k * n;
  p.grad_threshold = checked(grad_threshold, {n}, "grad_threshold", spec.fires);
  return p;
}

template <class F>
void forward(const PyDenseSpec& spec, const Dense<const F>& current, const Dense<const F>& entries,
             const Optional<const F>& grad_threshold, const DenseList<F>& state, const Optional<F>& out,
             const Optional<bool>& fired, const DenseList<F>& rows, bool fresh) {
  const DensePopulation<F> p = population(spec, current, fresh, entries, grad_threshold);
  const std::size_t steps = current.shape(0), samples = current.shape(1), n = current.shape(2);
  const std::size_t n_states = static_cast<std::size_t>(spec.shape->n_states);
  DenseForward<F> a{};
  a.current = current.data();
  check_all(state, n_states, "state", {samples, n}, true, a.state);
  a.out = checked(out, {steps, samples, n}, "out");
  a.fired = checked(fired, {steps, samples, n}, "fired");
  if (a.fired && !spec.fires) throw InputError("ShapeError", "fired is given; a readout does not fire");
  check_all(rows, n_states, "rows", {steps + 1, samples, n}, !rows.empty(), a.rows);
  nb::gil_scoped_release release;
  dense_forward(p, a);
}

template <class F>
void backward(const PyDenseSpec& spec, const Dense<const F>& d_out, const Dense<const F>& entries,
              const Optional<const F>& derivatives, const Optional<const F>& grad_threshold,
              const DenseList<const F>& rows, const DenseList<F>& d_state, const Optional<F>& d_current,
              const Optional<F>& d_bias, const DenseList<F>& d_parameters, const Optional<const F>& current,
              bool fresh) {
  DensePopulation<F> p = population(spec, d_out, fresh, entries, grad_threshold);
  const std::size_t steps = d_out.shape(0), samples = d_out.shape(1), n = d_out.shape(2);
  const std::size_t n_states = static_cast<std::size_t>(spec.shape->n_states);
  DenseBackward<F> a{};
  const std::size_t n_learnt = d_parameters.size(), n_entries = spec.shape->entries.size();
  if (n_learnt > static_cast<std::size_t>(max_learnt))
    throw InputError("ShapeError", "d_parameters has " + std::to_string(n_learnt) +
                                       " arrays; allowed: " + std::to_string(max_learnt));
  p.n_learnt = static_cast<int>(n_learnt);
  check_all(d_parameters, n_learnt, "d_parameters", {samples, n}, true, a.d_parameters);
  if (n_learnt) {
    const F* const first = checked(derivatives, {n_learnt, n_entries, n}, "derivatives", true);
    for (std::size_t k = 0; k < n_learnt * n_entries; ++k) p.derivatives[k / n_entries][k % n_entries] = first + k * n;
  }
  check_all(rows, n_states, "rows", {steps + 1, samples, n}, spec.fires || p.n_learnt, a.rows);
  a.d_out = d_out.data();
  check_all(d_state, n_states, "d_state", {samples, n}, true, a.d_state);
  a.d_current = checked(d_current, {steps, samples, n}, "d_current", true);
  a.d_bias = checked(d_bias, {samples, n}, "d_bias");
  a.current = checked(current, {steps, samples, n}, "current", p.n_learnt > 0);
  nb::gil_scoped_release release;
  dense_backward(p, a);
}

using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class A>
void multiply_into(const nb::ndarray<const A, nb::ndim<2>, nb::c_contig, nb::device::cpu>& a, const PackedMatrix& b,
                   const nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>& c, bool transposed,
                   bool accumulate, const Optional<const float>& bias) {
  const std::size_t depth = b.depth(), width = b.width(), rows = a.shape(transposed ? 1 : 0);
  if (a.shape(transposed ? 0 : 1) != depth || c.shape(0) != rows || c.shape(1) != width)
    throw InputError("ShapeError", "dense_multiply: a, b, c do not fit; b is [" + std::to_string(depth) + ", " +
                                       std::to_string(width) + "], so give a [M, " + std::to_string(depth) +
                                       "] and c [M, " + std::to_string(width) + "]");
  const Start start = accumulate ? Start::itself : bias ? Start::bias : Start::zero;
  const Product<A> product{a.data(), transposed, static_cast<int>(rows),        &b,
                           c.data(), start,      checked(bias, {width}, "bias")};
  nb::gil_scoped_release release;
  multiply(product);
}

template <class A>
void register_product(nb::module_& m) {
  m.def(
      "dense_multiply", &multiply_into<A>, "a"_a.noconvert(), "b"_a, "c"_a.noconvert(), nb::kw_only(),
      "transposed"_a = false, "accumulate"_a = false, "bias"_a.noconvert().none() = nb::none(),
      "c[M, N] = a·b, added to c (accumulate) or to a bias [N]; a [M, K], or [K, M] if transposed, float32 or uint8.");
}

// Uninitialized memory, which returns to the engine's store (memory.h) when NumPy frees it.
nb::object empty_bytes(std::size_t n_bytes) {
  void* data = allocate(n_bytes);
  nb::capsule owner(data, [](void* p) noexcept { release(p); });
  return nb::cast(nb::ndarray<nb::numpy, std::uint8_t>(data, 1, &n_bytes, owner));
}

template <class F>
void register_passes(nb::module_& m) {
  m.def("dense_forward", &forward<F>, "spec"_a, "current"_a.noconvert(), nb::kw_only(), "entries"_a.noconvert(),
        "grad_threshold"_a.noconvert().none(), "state"_a.noconvert(), "out"_a.noconvert().none(),
        "fired"_a.noconvert().none(), "rows"_a.noconvert(), "fresh"_a = false,
        "Advances every neuron over the steps of `current` [T, B, N]; writes the state and the other given arrays.");
  m.def("dense_backward", &backward<F>, "spec"_a, "d_out"_a.noconvert(), nb::kw_only(), "entries"_a.noconvert(),
        "derivatives"_a.noconvert().none(), "grad_threshold"_a.noconvert().none(), "rows"_a.noconvert(),
        "d_state"_a.noconvert(), "d_current"_a.noconvert(), "d_bias"_a.noconvert().none(), "d_parameters"_a.noconvert(),
        "current"_a.noconvert().none() = nb::none(), "fresh"_a = false,
        "The gradient of `dense_forward`, from `d_out` [T, B, N]; writes d_current, adds to the sums.");
}

}  // namespace

void register_dense(nb::module_& m) {
  nb::class_<PyDenseSpec>(m, "DenseSpec",
                          "What defines the dynamics of a population; see host/src/dense/dense_neurons.h.")
      .def(
          "__init__",
          [](PyDenseSpec* self, const std::string& shape, bool fires, bool detach_reset, const std::string& surrogate,
             double slope) {
            const NeuronShape& found = find_shape(shape);
            if (fires ? !found.may_fire : !found.may_read_out)
              throw InputError("ShapeError", "DenseSpec: the shape '" + shape + "' is for the other kind of neurons");
            new (self) PyDenseSpec{&found, fires, detach_reset, find_surrogate(surrogate), slope};
          },
          nb::kw_only(), "shape"_a, "fires"_a, "detach_reset"_a, "surrogate"_a, "slope"_a);
  m.def("empty_bytes", &empty_bytes, "n_bytes"_a,
        "Uninitialized memory, uint8[n_bytes]; once freed, it is kept for the next step.");
  m.def("dense_multiply_suits", &dense_gemm_suits,
        "Whether the instruction set in use has a matrix product here that is faster than PyTorch's.");
  nb::class_<PackedMatrix>(m, "PackedMatrix", "A matrix b [K, N], float32, in the order in which products read it.")
      .def(
          "__init__",
          [](PackedMatrix* self, const Matrix& b, bool transposed) {
            const int rows = static_cast<int>(b.shape(0)), columns = static_cast<int>(b.shape(1));
            nb::gil_scoped_release release;
            new (self) PackedMatrix(b.data(), transposed, transposed ? columns : rows, transposed ? rows : columns);
          },
          "b"_a.noconvert(), nb::kw_only(), "transposed"_a = false, "transposed: b is given as [N, K].");
  register_product<float>(m);
  register_product<std::uint8_t>(m);
  register_passes<float>(m);
  register_passes<double>(m);
}

}  // namespace sparsesnn
