// Axonal delays (host/src/cpu/axonal_delays.h) as a transform.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cmath>
#include <utility>

#include "host/src/cpu/axonal_delays.h"
#include "host/src/training/group_sums.h"
#include "transform.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {
namespace {

// Delays of M senders, in whole steps and parts of a step.
struct Steps {
  Array<std::int32_t> whole;
  Array<float> fraction;  // null: delays are whole

  Steps(const float* delays, std::size_t m, bool between)
      : whole(m), fraction(between ? Array<float>(m) : Array<float>()) {
    for (std::size_t k = 0; k < m; ++k) {
      const float steps = std::floor(delays[k]);
      whole[k] = static_cast<std::int32_t>(steps);
      if (between) fraction[k] = delays[k] - steps;
    }
  }
};

class Delayed : public Transformed {
 public:
  Delayed(const Lists& lists, int n_steps, int n_samples, int n_neurons, Steps steps, int first_step)
      : lists_(lists),
        n_steps_(n_steps),
        n_samples_(n_samples),
        n_neurons_(n_neurons),
        steps_(std::move(steps)),
        delays_(axonal_delays(steps_.whole.data(), steps_.fraction.data(), n_neurons)) {
    DelayedLists made = delay_lists(lists, n_steps, n_samples, n_neurons, delays_, first_step);
    offsets = std::move(made.offsets);
    ids = std::move(made.ids);
    wide = lists.wide;
    n_spikes = std::move(made.n_spikes);
    values = std::move(made.values);
    this->n_steps = n_steps - first_step;
    for (int k = 0; k < 2; ++k) slots_[k] = std::move(made.slots[k]);
  }

  void pull(const float* d_made, float* d_read) const override { pull(d_made, d_read, {}); }
  Array<float> pull_with_parameter(const float* d_made, float* d_read) const override {
    const std::size_t n_groups = static_cast<std::size_t>(count_groups(n_samples_));
    Array<float> d_delays(n_groups * static_cast<std::size_t>(n_neurons_));
    pull(d_made, d_read, d_delays);
    return d_delays;
  }

 private:
  void pull(const float* d_made, float* d_read, const Array<float>& d_delays) const {
    const std::int32_t* const slots[2] = {slots_[0].data(), slots_[1].data()};
    delay_lists_grad(lists_, n_steps_, n_samples_, n_neurons_, delays_, slots, d_made, d_read, d_delays);
  }

  Lists lists_;
  int n_steps_, n_samples_, n_neurons_;
  Steps steps_;
  AxonalDelays delays_;
  Array<std::int32_t> slots_[2];
};

class Delay : public Transform {
 public:
  Delay(In<float> delays, bool between, int first_step)
      : Transform(static_cast<int>(delays.size()), static_cast<int>(delays.size())),
        delays_(std::move(delays)),
        between_(between),
        first_step_(first_step) {}

  const char* name() const override { return "axonal delays"; }
  std::unique_ptr<Transformed> run(const Lists& lists, int n_steps, int n_samples, nb::handle) const override {
    if (first_step_ > n_steps)
      throw InputError("ShapeError", "axonal delays: the result begins at step " + std::to_string(first_step_) +
                                         " of " + std::to_string(n_steps));
    const nb::gil_scoped_release release;
    return std::make_unique<Delayed>(lists, n_steps, n_samples, n_read, Steps(delays_.data(), delays_.size(), between_),
                                     first_step_);
  }

 private:
  In<float> delays_;
  bool between_;
  int first_step_;
};

nb::object sum_of_groups(const In<float>& groups) {
  if (groups.ndim() != 2) throw InputError("ShapeError", "add_groups: give [groups, numbers]");
  const Array<float> given(groups.size());
  std::copy_n(groups.data(), groups.size(), given.data());
  Array<float> sum = add_groups(given, groups.shape(1));
  return to_numpy(sum, {groups.shape(1)});
}

void register_delay(nb::module_& m) {
  nb::class_<Delay, Transform>(
      m, "Delay",
      "Entries arrive later, by neuron; delays float32[M], in steps, `between` steps or whole. The "
      "result has the lists'\nsteps from first_step on.")
      .def(
          "__init__",
          [](Delay* self, In<float> delays, bool between, int first_step) {
            if (delays.ndim() != 1 || first_step < 0)
              throw InputError("ShapeError", "Delay: give a delay for each neuron, and a first step from 0 on");
            new (self) Delay(std::move(delays), between, first_step);
          },
          "delays"_a, "between"_a, "first_step"_a = 0);
  m.def("add_groups", &sum_of_groups, "groups"_a, "float32[N], the sum of gradients [G, N] of groups of samples.");
}

const Kind kind(&register_delay);

}  // namespace
}  // namespace sparsesnn
