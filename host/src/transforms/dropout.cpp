// Dropout of spikes as a transform: lists without the entries that are left out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <utility>

#include "transform.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {
namespace {

class Thinned : public Transformed {
 public:
  Thinned(const Lists& lists, int n_steps, int n_samples, const bool* keep) {
    const std::size_t n_lists = static_cast<std::size_t>(n_steps) * static_cast<std::size_t>(n_samples);
    const std::size_t n_read = static_cast<std::size_t>(lists.offsets[n_lists]);
    const std::size_t n_kept = static_cast<std::size_t>(std::count(keep, keep + n_read, true));
    this->n_steps = n_steps;
    wide = lists.wide;
    offsets = Array<std::int64_t>(n_lists + 1);
    n_spikes = Array<std::int32_t>(n_lists);
    ids = Array<unsigned char>(n_kept * (wide ? 4 : 2));
    if (lists.values) values = Array<float>(n_kept);
    slots_ = Array<std::int64_t>(n_read);
    with_ids(wide, ids.data(), [&](auto* to) {
      using Id = std::remove_pointer_t<decltype(to)>;
      const Id* const from = static_cast<const Id*>(lists.ids);
      std::int64_t end = 0;
      for (std::size_t i = 0; i < n_lists; ++i) {
        const std::int64_t begin = lists.offsets[i], near = begin + lists.n_spikes[i];
        offsets[i] = end;
        n_spikes[i] = 0;
        for (std::int64_t j = begin; j < lists.offsets[i + 1]; ++j) {
          slots_[j] = keep[j] ? end : -1;
          if (!keep[j]) continue;
          n_spikes[i] += j < near;
          to[end] = from[j];
          if (values) values[end] = lists.values[j];
          ++end;
        }
      }
      offsets[n_lists] = end;
    });
  }

  void pull(const float* d_made, float* d_read) const override {
    for (std::size_t j = 0; j < slots_.size(); ++j) d_read[j] = slots_[j] < 0 ? 0.0f : d_made[slots_[j]];
  }

 private:
  Array<std::int64_t> slots_;  // where each entry went; -1: it was left out
};

class Dropout : public Transform {
 public:
  explicit Dropout(int n) : Transform(n, n) {}

  const char* name() const override { return "dropout"; }
  std::unique_ptr<Transformed> run(const Lists& lists, int n_steps, int n_samples, nb::handle setting) const override {
    const std::size_t n_lists = static_cast<std::size_t>(n_steps) * static_cast<std::size_t>(n_samples);
    const std::size_t n = static_cast<std::size_t>(lists.offsets[n_lists]);
    Array<std::int64_t> step(n), sample(n), neuron(n);
    for (std::size_t i = 0; i < n_lists; ++i)
      for (std::int64_t j = lists.offsets[i]; j < lists.offsets[i + 1]; ++j) {
        step[j] = static_cast<std::int64_t>(i) / n_samples;
        sample[j] = static_cast<std::int64_t>(i) % n_samples;
        neuron[j] = lists.id(j);
      }
    const auto keep = nb::cast<In<bool>>(setting(to_numpy(step, {n}), to_numpy(sample, {n}), to_numpy(neuron, {n})));
    if (keep.size() != n) throw InputError("ShapeError", "dropout: give whether each entry stays");
    return std::make_unique<Thinned>(lists, n_steps, n_samples, keep.data());
  }
};

void register_dropout(nb::module_& m) {
  nb::class_<Dropout, Transform>(
      m, "Dropout",
      "Leaves out entries of lists of n neurons. Setting of a pass: keep(step, sample, neuron) → bool, of int64 arrays "
      "with a number for each entry.")
      .def(nb::init<int>(), "n"_a);
}

const Kind kind(&register_dropout);

}  // namespace
}  // namespace sparsesnn
