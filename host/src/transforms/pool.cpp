// Pools of maps (host/src/maps/pool_lists.h) as a transform.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>

#include <algorithm>
#include <utility>

#include "host/src/maps/pool_lists.h"
#include "transform.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {
namespace {

class Pooled : public Transformed {
 public:
  Pooled(PooledLists made, std::size_t n_read, float share)
      : ends_(std::move(made.ends)), entries_(std::move(made.entries)), n_read_(n_read), share_(share) {
    offsets = std::move(made.offsets);
    ids = std::move(made.ids);
    wide = made.wide;
    n_spikes = std::move(made.n_spikes);
    values = std::move(made.values);
  }

  void pull(const float* d_made, float* d_read) const override {
    std::fill_n(d_read, n_read_, 0.0f);
    pool_lists_grad(ends_.data(), entries_.data(), d_made, ends_.size(), share_, d_read);
  }

 private:
  Array<std::int64_t> ends_, entries_;
  std::size_t n_read_;
  float share_;
};

class Pool : public Transform {
 public:
  explicit Pool(const PoolShape& shape)
      : Transform(shape.pre_height * shape.pre_width * shape.channels, shape.height() * shape.width() * shape.channels),
        shape_(shape) {}

  const char* name() const override { return "pool"; }
  bool keeps_neurons() const override { return false; }
  std::unique_ptr<Transformed> run(const Lists& lists, int n_steps, int n_samples, nb::handle) const override {
    const nb::gil_scoped_release release;
    const std::int64_t n_lists = static_cast<std::int64_t>(n_steps) * n_samples;
    auto made = std::make_unique<Pooled>(pool_lists(lists, n_lists, shape_),
                                         static_cast<std::size_t>(lists.offsets[n_lists]), shape_.share);
    made->n_steps = n_steps;
    return made;
  }

 private:
  PoolShape shape_;
};

void register_pool(nb::module_& m) {
  nb::class_<Pool, Transform>(m, "Pool", "Pools of maps; see host/src/maps/pool_lists.h.")
      .def(
          "__init__",
          [](Pool* self, std::array<int, 3> shape, bool channels_first, std::array<int, 2> size,
             std::array<int, 2> stride, bool maximum, float share) {
            if (std::min({shape[0] - size[0] + 1, shape[1] - size[1] + 1, shape[2], size[0], size[1], stride[0],
                          stride[1]}) < 1)
              throw InputError("ShapeError", "Pool: windows must lie in the maps");
            new (self) Pool({shape[0],
                             shape[1],
                             shape[2],
                             channels_first,
                             {size[0], size[1]},
                             {stride[0], stride[1]},
                             maximum,
                             share});
          },
          nb::kw_only(), "shape"_a, "channels_first"_a, "size"_a, "stride"_a, "maximum"_a, "share"_a);
}

const Kind kind(&register_pool);

}  // namespace
}  // namespace sparsesnn
