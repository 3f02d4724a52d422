// Python bindings of axonal delays.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>

#include "host/src/cpu/axonal_delays.h"
#include "host/src/training/group_sums.h"
#include "python_arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {
namespace {

AxonalDelays checked_delays(const In<std::int32_t>& steps, const std::optional<In<float>>& fraction, int n_neurons) {
  const std::vector<std::size_t> shape{static_cast<std::size_t>(n_neurons)};
  check_shape(steps, shape, "steps");
  return axonal_delays(steps.data(), floats(fraction, shape, "fraction"), n_neurons);
}

nb::dict delayed(PyLists& from, int n_samples, int n_neurons, const In<std::int32_t>& steps,
                 const std::optional<In<float>>& fraction, int first_step) {
  int n_steps = 0;
  const Lists lists = checked_lists(from, n_neurons, n_samples, &n_steps, "axonal delays");
  const AxonalDelays delays = checked_delays(steps, fraction, n_neurons);
  if (first_step < 0 || first_step > n_steps)
    throw InputError("ShapeError", "axonal delays: the result begins at step " + std::to_string(first_step) + " of " +
                                       std::to_string(n_steps));
  DelayedLists out;
  {
    nb::gil_scoped_release release;
    out = delay_lists(lists, n_steps, n_samples, n_neurons, delays, first_step);
  }
  const std::size_t n_lists = static_cast<std::size_t>(n_steps - first_step) * static_cast<std::size_t>(n_samples);
  const std::size_t n_slots = from.ids.size();
  nb::dict result = lists_to_numpy(out, lists.wide, n_lists);
  result["earlier"] = to_numpy(out.slots[0], {n_slots});
  result["later"] = to_numpy(out.slots[1], {n_slots});
  return result;
}

nb::tuple delayed_grad(PyLists& from, int n_samples, int n_neurons, const In<std::int32_t>& steps,
                       const std::optional<In<float>>& fraction, const In<std::int32_t>& earlier,
                       const std::optional<In<std::int32_t>>& later, const In<float>& d_moved, bool wanted_delays,
                       bool separate) {
  int n_steps = 0;
  const Lists lists = checked_lists(from, n_neurons, n_samples, &n_steps, "axonal delays");
  const AxonalDelays delays = checked_delays(steps, fraction, n_neurons);
  const std::size_t n_slots = from.ids.size();
  check_shape(earlier, {n_slots}, "earlier");
  if (fraction) check_shape(later.value(), {n_slots}, "later");
  const std::int32_t* const slots[2] = {earlier.data(), fraction ? later->data() : nullptr};
  for (const std::int32_t* of : slots)
    for (std::size_t j = 0; of && j < n_slots; ++j)
      if (of[j] >= 0 && static_cast<std::size_t>(of[j]) >= d_moved.size())
        throw InputError("ShapeError", "axonal delays: a slot lies beyond the gradient");
  const std::size_t n = static_cast<std::size_t>(n_neurons),
                    n_groups = static_cast<std::size_t>(count_groups(n_samples));
  Array<float> d_values(n_slots), d_delays = wanted_delays ? Array<float>(n_groups * n) : Array<float>();
  {
    nb::gil_scoped_release release;
    delay_lists_grad(lists, n_steps, n_samples, n_neurons, delays, slots, d_moved.data(), d_values.data(), d_delays);
    if (wanted_delays && !separate) d_delays = add_groups(d_delays, n);
  }
  return nb::make_tuple(to_numpy(d_values, {n_slots}),
                        separate ? to_numpy(d_delays, {n_groups, n}) : to_numpy(d_delays, {n}));
}

nb::object sum_of_groups(const In<float>& groups) {
  if (groups.ndim() != 2) throw InputError("ShapeError", "add_groups: groups must be a matrix [groups, numbers]");
  const Array<float> given(groups.size());
  std::copy_n(groups.data(), groups.size(), given.data());
  Array<float> sum = add_groups(given, groups.shape(1));
  return to_numpy(sum, {groups.shape(1)});
}

}  // namespace

void register_delays(nb::module_& m) {
  m.def("delayed", &delayed, "lists"_a, "n_samples"_a, "n_neurons"_a, "steps"_a, "fraction"_a.none(), "first_step"_a,
        "Lists whose entries arrive later, by neuron; see host/src/cpu/axonal_delays.h. `earlier`, `later`: int32[S], "
        "where\n"
        "each entry went.");
  m.def("delayed_grad", &delayed_grad, "lists"_a, "n_samples"_a, "n_neurons"_a, "steps"_a, "fraction"_a.none(),
        "earlier"_a, "later"_a.none(), "d_moved"_a, "wanted_delays"_a, "separate"_a = false,
        "Gradients by the values of the entries, and by the delays or None; separate: those of each group of samples.");
  m.def("add_groups", &sum_of_groups, "groups"_a, "float32[N], the sum of gradients [G, N] of groups of samples.");
}

}  // namespace sparsesnn
