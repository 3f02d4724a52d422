// What Python sees of the dense baseline's passes. Shapes are checked here; dtypes choose between float and double.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "dense_gemm.h"
#include "dense_lif.h"
#include "memory.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {
namespace {

template <class T>
using Dense = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
template <class T>
using Optional = std::optional<Dense<T>>;

struct PyDenseSpec {
  Model model;
  Reset reset;
  bool detach_reset;
  int surrogate;
  double slope, gain;
};

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

template <class F>
DensePopulation<F> population(const PyDenseSpec& spec, const Dense<const F>& rows, const Optional<const F>& alpha,
                              const Optional<const F>& beta, const Optional<const F>& threshold,
                              const Optional<const F>& grad_threshold) {
  if (rows.ndim() != 3) throw InputError("ShapeError", "a dense pass reads [T, B, N]");
  const std::size_t n = rows.shape(2);
  const bool fires = spec.model != Model::li;
  DensePopulation<F> p;
  p.model = spec.model;
  p.reset = spec.reset;
  p.detach_reset = spec.detach_reset;
  p.surrogate = spec.surrogate;
  p.slope = static_cast<F>(spec.slope);
  p.gain = static_cast<F>(spec.gain);
  p.n_steps = static_cast<int>(rows.shape(0));
  p.n_samples = static_cast<int>(rows.shape(1));
  p.n = static_cast<int>(n);
  p.alpha = checked(alpha, {n}, "alpha", spec.model == Model::cuba_lif);
  p.beta = checked(beta, {n}, "beta", true);
  p.threshold = checked(threshold, {n}, "threshold", fires);
  p.grad_threshold = checked(grad_threshold, {n}, "grad_threshold", fires);
  return p;
}

template <class F>
void forward(const PyDenseSpec& spec, const Dense<const F>& current, const Optional<const F>& alpha,
             const Optional<const F>& beta, const Optional<const F>& threshold, const Optional<const F>& grad_threshold,
             const Optional<F>& v, const Optional<F>& i_syn, const Optional<F>& out, const Optional<bool>& fired,
             const Optional<F>& v_rows, const Optional<F>& i_syn_rows, const Optional<const F>& scale,
             const Optional<const F>& shift) {
  const DensePopulation<F> p = population(spec, current, alpha, beta, threshold, grad_threshold);
  const std::size_t steps = current.shape(0), samples = current.shape(1), n = current.shape(2);
  const bool cuba = spec.model == Model::cuba_lif;
  DenseForward<F> a;
  a.current = current.data();
  a.scale = checked(scale, {n}, "scale");
  a.shift = checked(shift, {n}, "shift", a.scale != nullptr);
  a.v = checked(v, {samples, n}, "v", true);
  a.i_syn = checked(i_syn, {samples, n}, "i_syn", cuba);
  a.out = checked(out, {steps, samples, n}, "out");
  a.fired = checked(fired, {steps, samples, n}, "fired");
  if (a.fired && spec.model == Model::li) throw InputError("ShapeError", "fired is given; a readout does not fire");
  a.v_rows = checked(v_rows, {steps + 1, samples, n}, "v_rows");
  a.i_syn_rows = checked(i_syn_rows, {steps + 1, samples, n}, "i_syn_rows");
  nb::gil_scoped_release release;
  dense_forward(p, a);
}

template <class F>
void backward(const PyDenseSpec& spec, const Dense<const F>& d_out, const Optional<const F>& alpha,
              const Optional<const F>& beta, const Optional<const F>& threshold,
              const Optional<const F>& grad_threshold, const Optional<const F>& v_rows,
              const Optional<const F>& i_syn_rows, const Optional<F>& delta, const Optional<F>& d_i,
              const Optional<F>& d_current, const Optional<F>& d_bias, const Optional<F>& d_alpha,
              const Optional<F>& d_beta, const Optional<F>& d_threshold, const Optional<const F>& current,
              const Optional<F>& d_scale) {
  const DensePopulation<F> p = population(spec, d_out, alpha, beta, threshold, grad_threshold);
  const std::size_t steps = d_out.shape(0), samples = d_out.shape(1), n = d_out.shape(2);
  const bool cuba = spec.model == Model::cuba_lif, fires = spec.model != Model::li;
  DenseBackward<F> a;
  a.v_rows = checked(v_rows, {steps + 1, samples, n}, "v_rows", fires || d_beta);
  a.d_alpha = checked(d_alpha, {samples, n}, "d_alpha");
  a.i_syn_rows = checked(i_syn_rows, {steps + 1, samples, n}, "i_syn_rows", cuba && a.d_alpha);
  a.d_out = d_out.data();
  a.delta = checked(delta, {samples, n}, "delta", true);
  a.d_i = checked(d_i, {samples, n}, "d_i", cuba);
  a.d_current = checked(d_current, {steps, samples, n}, "d_current", true);
  a.d_bias = checked(d_bias, {samples, n}, "d_bias");
  a.d_beta = checked(d_beta, {samples, n}, "d_beta");
  a.d_threshold = checked(d_threshold, {samples, n}, "d_threshold");
  a.d_scale = checked(d_scale, {samples, n}, "d_scale");
  a.current = checked(current, {steps, samples, n}, "current", a.d_scale != nullptr);
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
      "c[M, N] = a·b, on top of c (accumulate) or of a bias [N]; a [M, K], or [K, M] if transposed, float32 or uint8.");
}

// Uninitialised memory, which goes back to the engine's store (memory.h) when NumPy lets go of it.
nb::object empty_bytes(std::size_t n_bytes) {
  void* data = allocate(n_bytes);
  nb::capsule owner(data, [](void* p) noexcept { release(p); });
  return nb::cast(nb::ndarray<nb::numpy, std::uint8_t>(data, 1, &n_bytes, owner));
}

template <class F>
void register_passes(nb::module_& m) {
  m.def("dense_forward", &forward<F>, "spec"_a, "current"_a.noconvert(), nb::kw_only(), "alpha"_a.noconvert().none(),
        "beta"_a.noconvert(), "threshold"_a.noconvert().none(), "grad_threshold"_a.noconvert().none(),
        "v"_a.noconvert(), "i_syn"_a.noconvert().none(), "out"_a.noconvert().none(), "fired"_a.noconvert().none(),
        "v_rows"_a.noconvert().none(), "i_syn_rows"_a.noconvert().none(), "scale"_a.noconvert().none() = nb::none(),
        "shift"_a.noconvert().none() = nb::none(),
        "Moves every neuron over the steps of `current` [T, B, N]; writes v, i_syn, and what else is not None.");
  m.def("dense_backward", &backward<F>, "spec"_a, "d_out"_a.noconvert(), nb::kw_only(), "alpha"_a.noconvert().none(),
        "beta"_a.noconvert(), "threshold"_a.noconvert().none(), "grad_threshold"_a.noconvert().none(),
        "v_rows"_a.noconvert().none(), "i_syn_rows"_a.noconvert().none(), "delta"_a.noconvert(),
        "d_i"_a.noconvert().none(), "d_current"_a.noconvert(), "d_bias"_a.noconvert().none(),
        "d_alpha"_a.noconvert().none(), "d_beta"_a.noconvert().none(), "d_threshold"_a.noconvert().none(),
        "current"_a.noconvert().none() = nb::none(), "d_scale"_a.noconvert().none() = nb::none(),
        "The gradient of `dense_forward`, from `d_out` [T, B, N]; writes d_current, adds to the sums.");
}

}  // namespace

void register_dense(nb::module_& m) {
  nb::class_<PyDenseSpec>(m, "DenseSpec", "What defines the dynamics of a population; see host/src/dense_lif.h.")
      .def(
          "__init__",
          [](PyDenseSpec* self, int model, int reset, bool detach_reset, int surrogate, double slope, double gain) {
            new (self)
                PyDenseSpec{static_cast<Model>(model), static_cast<Reset>(reset), detach_reset, surrogate, slope, gain};
          },
          nb::kw_only(), "model"_a, "reset"_a, "detach_reset"_a, "surrogate"_a, "slope"_a, "gain"_a);
  m.def("empty_bytes", &empty_bytes, "n_bytes"_a,
        "Uninitialised memory, uint8[n_bytes], kept for the next step when let go.");
  m.def("dense_multiply_runs", &dense_gemm_runs, "Whether the instruction set in use has a matrix product here.");
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
