// Python bindings of exchanges between ranks: over MPI, and over Python's communicators.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <type_traits>
#include <utility>

#include "host/src/ranks/mpi_exchange.h"
#include "python_arrays.h"
#include "python_exchange.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {
namespace {

// A view of memory that the engine owns. Python must not keep it.
template <class T>
nb::ndarray<nb::numpy, T> view(T* data, std::size_t n) {
  static char nobody;  // an owner, without which nanobind copies; not `data`, which may be null where it is empty
  return nb::ndarray<nb::numpy, T>(const_cast<std::remove_const_t<T>*>(data), {n},
                                   nb::capsule(&nobody, [](void*) noexcept {}));
}

// A function of a rank that returns its message, uint8[n].
nb::object python_made_up(const Content& content) {
  return nb::cpp_function([made_up = content.made_up, sizes = content.sizes](int r) {
    Array<unsigned char> message =
        made_up ? made_up(r) : Array<unsigned char>::zeros(sizes.at(static_cast<std::size_t>(r)));
    const std::size_t n = message.size();
    return to_numpy(message, {n});
  });
}

}  // namespace

PyExchange::PyExchange(nb::object python)
    : Exchange(nb::cast<int>(python.attr("rank")), nb::cast<int>(python.attr("size"))), python_(std::move(python)) {}

void PyExchange::scan(const std::int32_t* own, std::size_t n, std::int32_t* total, std::int32_t* before) {
  const nb::gil_scoped_acquire held;
  python_.attr("scan")(view(own, n), view(total, n), view(before, n));
}

void PyExchange::start_messages(int channel, const std::vector<Message>& to, const Content& content) {
  const nb::gil_scoped_acquire held;
  nb::list parts;
  for (const Message& part : to) parts.append(view(part.data, part.size));
  const nb::object sizes = content.sizes.empty() ? nb::none() : nb::cast(content.sizes);
  python_.attr("start")(channel, parts, sizes, python_made_up(content));
}

std::vector<Message> PyExchange::finish_messages(int channel, const std::vector<std::size_t>&) {
  const nb::gil_scoped_acquire held;
  return keep(channel, nb::cast<nb::list>(python_.attr("finish")(channel)));
}

std::vector<Message> PyExchange::gather_messages(Message own, const Content& content) {
  const nb::gil_scoped_acquire held;
  return keep(layers, nb::cast<nb::list>(
                          python_.attr("gather")(view(own.data, own.size), content.name, python_made_up(content))));
}

std::vector<Message> PyExchange::keep(int channel, nb::list received) {
  received_[channel] = std::move(received);
  std::vector<Message> from;
  for (nb::handle part : received_[channel]) {
    const auto array = nb::cast<In<unsigned char>>(part);
    from.push_back({array.data(), array.size()});
  }
  return from;
}

void PyExchange::release(int channel) {
  const nb::gil_scoped_acquire held;
  received_[channel] = nb::list();
}

void register_exchange(nb::module_& m) {
  nb::class_<Exchange>(m, "Exchange", "The messages of the ranks of a group in passes; see host/src/ranks/exchange.h.");
  nb::class_<PyExchange, Exchange>(m, "PyExchange", "An Exchange over a communicator of host/comm.")
      .def(nb::init<nb::object>(), "python"_a);
  using Functions = std::vector<std::uintptr_t>;
  nb::class_<MpiExchange, Exchange>(m, "MpiExchange",
                                    "An Exchange that calls MPI itself; see host/src/ranks/mpi_exchange.h.")
      .def(
          "__init__",
          [](MpiExchange* self, int rank, int size, const Functions& functions, MpiHandle comm, MpiHandle byte, int tag,
             bool yields, std::size_t longest) {
            if (functions.size() != 9) throw InputError("ShapeError", "MpiExchange: give the addresses of 9 functions");
            MpiCalls calls{};
            const std::uintptr_t* next = functions.data();
            const auto take = [&](auto& function) {
              function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(*next++);
            };
            take(calls.isend);
            take(calls.mprobe);
            take(calls.improbe);
            take(calls.imrecv);
            take(calls.wait);
            take(calls.test);
            take(calls.get_count);
            take(calls.iallgather);
            take(calls.iallgatherv);
            calls.comm = comm;
            calls.byte = byte;
            calls.tag = tag;
            calls.yields = yields;
            calls.longest = longest;
            new (self) MpiExchange(rank, size, calls);
          },
          "rank"_a, "size"_a, "functions"_a, "comm"_a, "byte"_a, "tag"_a, "yields"_a, "longest"_a)
      .def(
          "traveled",
          [](MpiExchange& self) {
            const Traveled t = self.traveled();
            return nb::make_tuple(t.sent, t.received, t.n_messages, t.seconds);
          },
          "Bytes sent and received, messages sent, and seconds in MPI since the last call.")
      .def("time_exchanges", &MpiExchange::time_exchanges, "n"_a,
           "Seconds of each of n exchanges of 8 bytes with all other ranks, who call it too.");
  nb::class_<LayerRanks>(m, "LayerRanks",
                         "The ranks that own neurons of a layer: rank r of the group of `exchange` owns neurons "
                         "first[r] to\nfirst[r + 1] - 1.")
      .def(nb::init<std::shared_ptr<Exchange>, std::vector<std::uint32_t>>(), "exchange"_a, "first"_a);
}

}  // namespace sparsesnn
