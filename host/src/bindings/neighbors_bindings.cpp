// Parts that ranks of one host read where they lie, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host/src/ranks/neighbors.h"
#include "python_arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {
namespace {

using Given = std::vector<std::vector<AnyIn>>;

std::shared_ptr<Neighbors> neighbors_in(
    const std::vector<nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>& memory,
    const std::vector<std::size_t>& boxes, std::size_t rank, bool yields) {
  std::vector<Neighbors::Memory> mapped;
  for (const auto& one : memory) mapped.push_back({one.data(), one.size()});
  return std::make_shared<Neighbors>(std::move(mapped), boxes, rank, yields);
}

nb::list swap_with_neighbors(nb::handle self, const Given& given) {
  Neighbors& neighbors = nb::cast<Neighbors&>(self);
  std::vector<Message> parts;
  for (const std::vector<AnyIn>& of_ranks : given) {
    if (of_ranks.size() != neighbors.size())
      throw InputError("ShapeError", "Neighbors: got parts for " + std::to_string(of_ranks.size()) + " ranks, not " +
                                         std::to_string(neighbors.size()));
    for (const AnyIn& part : of_ranks) parts.push_back({static_cast<const unsigned char*>(part.data()), part.nbytes()});
  }
  std::vector<Message> got;
  {
    Neighbors::Lent lent(new Given(given), [](const void* held) {
      const nb::gil_scoped_acquire acquired;  // whoever swaps next may not hold it
      delete static_cast<const Given*>(held);
    });
    const nb::gil_scoped_release release;
    got = neighbors.swap(parts, std::move(lent));
  }
  nb::list found;
  for (std::size_t k = 0; k < given.size(); ++k) {
    nb::list of_ranks;
    for (std::size_t r = 0; r < given[k].size(); ++r) {
      const Message& part = got[k * neighbors.size() + r];
      of_ranks.append(
          nb::cast(nb::ndarray<nb::numpy, std::uint8_t>(const_cast<unsigned char*>(part.data), 1, &part.size, self)));
    }
    found.append(of_ranks);
  }
  return found;
}

}  // namespace

void register_neighbors(nb::module_& m) {
  nb::class_<Neighbors>(
      m, "Neighbors", "How ranks of one host read one another's parts where they lie; see host/src/ranks/neighbors.h.")
      .def(nb::new_(&neighbors_in), "memory"_a, "boxes"_a, "rank"_a, "yields"_a,
           "memory: uint8[n], of every rank as this process maps it, which must stay; boxes: where theirs begin, of "
           "zeros.")
      .def_static("box_bytes", &Neighbors::box_bytes, "Bytes of a rank's box.")
      .def("swap", &swap_with_neighbors, "given"_a,
           "Gives part [k][r] to rank r; returns those that the ranks gave to this one, uint8[bytes], [k][r]. They "
           "must be\n"
           "read, and what was given stay as it is, until the next call.")
      .def(
          "travelled",
          [](Neighbors& self) {
            const Travelled t = self.travelled();
            return nb::make_tuple(t.sent, t.received, t.n_messages, t.seconds);
          },
          "Bytes given and got, parts given, and seconds since the last call.");
}

}  // namespace sparsesnn
