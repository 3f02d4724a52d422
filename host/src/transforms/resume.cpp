// Puts the steps before a call in front of those of the call, for connections whose spikes arrive later.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "transform.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {
namespace {

float value_of(const Lists& lists, std::int64_t list, std::int64_t slot) {
  if (lists.values) return lists.values[slot];
  return slot < lists.offsets[list] + lists.n_spikes[list] ? 1.0f : 0.0f;
}

class Resumed : public Transformed {
 public:
  Resumed(const Lists& before, int n_before, const Lists& lists, int n_steps, int n_samples) {
    const std::size_t samples = static_cast<std::size_t>(n_samples);
    const std::size_t first = static_cast<std::size_t>(n_before) * samples,
                      second = static_cast<std::size_t>(n_steps) * samples;
    const std::int64_t n_first = before.offsets[first];
    n_read_ = static_cast<std::size_t>(lists.offsets[second]);
    skipped_ = static_cast<std::size_t>(n_first);
    this->n_steps = n_before + n_steps;
    wide = lists.wide;
    offsets = Array<std::int64_t>(first + second + 1);
    std::copy_n(before.offsets, first, offsets.data());
    for (std::size_t i = 0; i <= second; ++i) offsets[first + i] = n_first + lists.offsets[i];
    n_spikes = Array<std::int32_t>(first + second);
    std::copy_n(before.n_spikes, first, n_spikes.data());
    std::copy_n(lists.n_spikes, second, n_spikes.data() + first);
    const std::size_t id_bytes = wide ? 4 : 2;
    ids = Array<unsigned char>((skipped_ + n_read_) * id_bytes);
    std::memcpy(ids.data(), before.ids, skipped_ * id_bytes);
    std::memcpy(ids.data() + skipped_ * id_bytes, lists.ids, n_read_ * id_bytes);
    if (!before.values && !lists.values) return;
    values = Array<float>(skipped_ + n_read_);
    const auto add = [&](const Lists& of, std::size_t n_lists, std::size_t to) {
      for (std::size_t i = 0; i < n_lists; ++i)
        for (std::int64_t j = of.offsets[i]; j < of.offsets[i + 1]; ++j)
          values[to + static_cast<std::size_t>(j)] = value_of(of, static_cast<std::int64_t>(i), j);
    };
    add(before, first, 0);
    add(lists, second, skipped_);
  }

  void pull(const float* d_made, float* d_read) const override { std::copy_n(d_made + skipped_, n_read_, d_read); }

 private:
  std::size_t skipped_ = 0, n_read_ = 0;
};

class Resume : public Transform {
 public:
  explicit Resume(int n) : Transform(n, n) {}

  const char* name() const override { return "state history"; }
  std::unique_ptr<Transformed> run(const Lists& lists, int n_steps, int n_samples, nb::handle setting) const override {
    const auto before = nb::cast<std::shared_ptr<PyLists>>(setting);
    int n_before = 0;
    const Lists of = checked_lists(*before, n_read, n_samples, &n_before, name());
    const nb::gil_scoped_release release;
    return std::make_unique<Resumed>(of, n_before, lists, n_steps, n_samples);
  }
};

void register_resume(nb::module_& m) {
  nb::class_<Resume, Transform>(
      m, "Resume", "The lists of steps before the call in front of those of the call. Setting of a pass: the former.")
      .def(nb::init<int>(), "n"_a);
}

const Kind kind(&register_resume);

}  // namespace
}  // namespace sparsesnn
