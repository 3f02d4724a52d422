// Python bindings of pooled lists.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>

#include <algorithm>

#include "host/src/maps/pool_lists.h"
#include "python_arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {
namespace {

nb::dict pooled(PyLists& from, int n_samples, std::array<int, 3> shape, bool channels_first, std::array<int, 2> size,
                std::array<int, 2> stride, bool maximum, float share) {
  const PoolShape pool{shape[0], shape[1], shape[2], channels_first, {size[0], size[1]}, {stride[0], stride[1]},
                       maximum,  share};
  if (std::min({shape[0] - size[0] + 1, shape[1] - size[1] + 1, shape[2], size[0], size[1], stride[0], stride[1]}) < 1)
    throw InputError("ShapeError", "pooled: windows must lie in the maps");
  const Lists lists = checked_lists(from, shape[0] * shape[1] * shape[2], n_samples, nullptr, "pooled lists");
  const std::size_t n_lists = from.n_spikes.size();
  PooledLists out;
  {
    nb::gil_scoped_release release;
    out = pool_lists(lists, static_cast<std::int64_t>(n_lists), pool);
  }
  const std::size_t n_slots = static_cast<std::size_t>(out.offsets[n_lists]), n_entries = out.entries.size();
  nb::dict result = lists_to_numpy(out, out.wide, n_lists);
  result["ends"] = to_numpy(out.ends, {n_slots});
  result["entries"] = to_numpy(out.entries, {n_entries});
  return result;
}

nb::object pooled_grad(const In<std::int64_t>& ends, const In<std::int64_t>& entries, const In<float>& d_pooled,
                       float share, std::size_t n_values) {
  check_shape(d_pooled, {ends.size()}, "d_pooled");
  if (ends.size() && ends.data()[ends.size() - 1] > static_cast<std::int64_t>(entries.size()))
    throw InputError("ShapeError", "pooled_grad: ends lie beyond the entries");
  for (std::size_t k = 0; k < entries.size(); ++k)
    if (entries.data()[k] < 0 || static_cast<std::size_t>(entries.data()[k]) >= n_values)
      throw InputError("ShapeError", "pooled_grad: an entry lies beyond the lists");
  Array<float> d_values = Array<float>::zeros(n_values);
  {
    nb::gil_scoped_release release;
    pool_lists_grad(ends.data(), entries.data(), d_pooled.data(), ends.size(), share, d_values.data());
  }
  return to_numpy(d_values, {n_values});
}

}  // namespace

void register_pools(nb::module_& m) {
  m.def("pooled", &pooled, "lists"_a, "n_samples"_a, nb::kw_only(), "shape"_a, "channels_first"_a, "size"_a, "stride"_a,
        "maximum"_a, "share"_a,
        "Lists of pooled maps, see host/src/maps/pool_lists.h. `values`: of every entry, None where all spikes are 1; "
        "`ends`,\n"
        "`entries`: int64, whose gradient an entry's is.");
  m.def("pooled_grad", &pooled_grad, "ends"_a, "entries"_a, "d_pooled"_a, "share"_a, "n_values"_a,
        "The gradient by the values of the lists that were pooled.");
}

}  // namespace sparsesnn
