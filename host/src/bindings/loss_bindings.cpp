// Python bindings of the loss.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "host/src/training/cross_entropy.h"
#include "python_arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {
namespace {

using Labels = std::optional<In<std::int64_t>>;
using Floats = std::optional<In<float>>;

CrossEntropy checked(const In<float>& potentials, const Labels& labels, const Floats& shares,
                     const Floats& class_weights, const std::string& over_time, double label_smoothing,
                     double n_whole) {
  if (potentials.ndim() != 3 || !potentials.shape(0) || !potentials.shape(2) ||
      labels.has_value() == shares.has_value())
    throw InputError("ShapeError", "cross_entropy: give potentials [T, B, C] of at least a step, and labels or shares");
  const std::size_t n_steps = potentials.shape(0), n_samples = potentials.shape(1), n_classes = potentials.shape(2);
  const OverTime decoding = find_over_time(over_time.c_str());
  const bool per_step = decoding == OverTime::step;
  if (per_step && !labels)
    throw InputError("ShapeError", "cross_entropy: the decoding step has labels [T, B], no shares of classes");
  if (labels && per_step) check_shape(*labels, {n_steps, n_samples}, "labels");
  if (labels && !per_step) check_shape(*labels, {n_samples}, "labels");
  return {.potentials = potentials.data(),
          .n_steps = static_cast<int>(n_steps),
          .n_samples = static_cast<int>(n_samples),
          .n_classes = static_cast<int>(n_classes),
          .over_time = decoding,
          .labels = labels ? labels->data() : nullptr,
          .shares = floats(shares, {n_samples, n_classes}, "labels"),
          .class_weights = floats(class_weights, {n_classes}, "class_weights"),
          .label_smoothing = label_smoothing,
          .n_whole = n_whole};
}

nb::tuple cross_entropy(const In<float>& potentials, const Labels& labels, const Floats& shares,
                        const Floats& class_weights, const std::string& over_time, double label_smoothing,
                        double n_whole) {
  const CrossEntropy of = checked(potentials, labels, shares, class_weights, over_time, label_smoothing, n_whole);
  const std::size_t n_decoded = of.over_time == OverTime::step ? 0 : of.n_samples;
  Array<float> logits(n_decoded * of.n_classes), losses(of.n_samples), loss(1);
  {
    nb::gil_scoped_release release;
    loss[0] = static_cast<float>(of.losses(logits.data(), losses.data()));
  }
  const std::size_t n_samples = of.n_samples, n_classes = of.n_classes;
  return nb::make_tuple(to_numpy(logits, {n_decoded, n_classes}), to_numpy(losses, {n_samples}), to_numpy(loss, {}));
}

nb::object cross_entropy_grad(const In<float>& potentials, const Labels& labels, const Floats& shares,
                              const Floats& class_weights, const std::string& over_time, double label_smoothing,
                              double n_whole, const In<float>& logits, float d_loss) {
  const CrossEntropy of = checked(potentials, labels, shares, class_weights, over_time, label_smoothing, n_whole);
  const std::size_t n_steps = of.same_at_all_steps() ? 1 : of.n_steps, n_samples = of.n_samples,
                    n_classes = of.n_classes;
  check_shape(logits, {of.over_time == OverTime::step ? 0 : n_samples, n_classes}, "logits");
  Array<float> d_potentials(n_steps * n_samples * n_classes);
  {
    nb::gil_scoped_release release;
    of.gradient(logits.data(), d_loss, d_potentials.data());
  }
  return to_numpy(d_potentials, {n_steps, n_samples, n_classes});
}

}  // namespace

void register_loss(nb::module_& m) {
  m.def("cross_entropy", &cross_entropy, "potentials"_a, "labels"_a.none(), "shares"_a.none(), "class_weights"_a.none(),
        "over_time"_a, "label_smoothing"_a, "n_whole"_a,
        "Logits [B, C], losses [B] and their sum / n_whole [], from potentials [T, B, C]; labels int64[B], or\n"
        "shares of the classes float32[B, C]. For over_time \"step\", labels are int64[T, B], and logits empty.");
  m.def("cross_entropy_grad", &cross_entropy_grad, "potentials"_a, "labels"_a.none(), "shares"_a.none(),
        "class_weights"_a.none(), "over_time"_a, "label_smoothing"_a, "n_whole"_a, "logits"_a, "d_loss"_a,
        "d_loss times the gradient of the sum of losses / n_whole by the potentials, [T, B, C], or [1, B, C]\n"
        "if it is the same at all steps.");
}

}  // namespace sparsesnn
