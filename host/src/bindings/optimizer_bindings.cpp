// Python bindings of the optimizer.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "host/src/training/optimizer.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {
namespace {

using Values = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using Gradient = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;

// Weight, first and second moment, number of steps so far, and gradient.
using Update = std::tuple<Values, Values, Values, Values, Gradient>;

void adam(const std::vector<Update>& parameters, double lr, double beta1, double beta2, double eps, double weight_decay,
          bool decoupled) {
  for (const auto& [weight, first, second, n_steps, gradient] : parameters)
    if (first.size() != weight.size() || second.size() != weight.size() || gradient.size() != weight.size() ||
        n_steps.size() != 1)
      throw std::invalid_argument("adam: weight, moments and gradient differ in size, or steps is not one number");
  std::vector<AdamUpdate> updates;
  for (const auto& [weight, first, second, n_steps, gradient] : parameters) {
    const double step = *n_steps.data() += 1.0f;
    const double root_c2 = std::sqrt(1.0 - std::pow(beta2, step));
    const AdamStep numbers{static_cast<float>(lr),
                           static_cast<float>(1.0 - beta1),
                           static_cast<float>(beta2),
                           static_cast<float>(1.0 - beta2),
                           static_cast<float>(root_c2 * eps),
                           static_cast<float>(weight_decay),
                           static_cast<float>(root_c2 * lr / (1.0 - std::pow(beta1, step))),
                           decoupled};
    updates.push_back({weight.data(), first.data(), second.data(), gradient.data(), weight.size(), numbers});
  }
  nb::gil_scoped_release release;
  adam_step(updates);
}

}  // namespace

void register_optimizer(nb::module_& m) {
  m.def(
      "adam", &adam, "parameters"_a, nb::kw_only(), "lr"_a, "beta1"_a, "beta2"_a, "eps"_a, "weight_decay"_a,
      "decoupled"_a,
      "One step of Adam or, decoupled, AdamW, in place; of each parameter float32 arrays: its weight, first and second "
      "moment,\n"
      "the number of steps so far [], which is counted on, and its gradient.");
}

}  // namespace sparsesnn
