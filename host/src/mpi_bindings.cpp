// Exchanges between ranks for which the engine calls MPI itself.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>
#include <sched.h>

#include <chrono>
#include <climits>
#include <stdexcept>
#include <string>
#include <utility>

#include "mpi_exchange.h"
#include "shard_lists.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {
namespace {

class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  const Clock::time_point start_ = Clock::now();
};

void check(int code, const char* name) {
  if (code) throw std::runtime_error(std::string(name) + " failed with error " + std::to_string(code));
}

int count_of(std::size_t n_bytes) {
  if (n_bytes > INT_MAX)
    throw InputError("MemoryError", "a message of " + std::to_string(n_bytes) +
                                        " bytes is too long for MPI; give each rank fewer samples or neurons");
  return static_cast<int>(n_bytes);
}

}  // namespace

MpiExchange::MpiExchange(nb::object python, const MpiCalls& calls)
    : PyExchange(python), calls_(calls), n_blocks_(nb::cast<std::vector<std::size_t>>(python.attr("n_blocks"))) {
  for (Slot& slot : slots_) {
    slot.room.resize(size());
    slot.sends.resize(size());
    slot.receives.resize(size());
  }
}

// The most that rank r may send where this rank has `own` bytes for itself; sums are as many for each of its blocks.
std::size_t MpiExchange::most_bytes(int r, std::size_t own, std::size_t n_lists, std::size_t n_kinds) const {
  if (!n_lists) return own / n_blocks_[rank()] * n_blocks_[r];
  const std::size_t n = n_neurons(r), id = first().back() > 65536 ? 4 : 2;
  return n_lists * (n_kinds * count_bytes(n_neurons(r)) + id * n);
}

void MpiExchange::start(int slot, const std::vector<Bytes>& to, std::size_t n_lists, std::size_t n_kinds) {
  const Stopwatch stopwatch(travelled_.seconds);
  Slot& s = slots_[slot];
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const std::size_t most = most_bytes(r, to[rank()].size, n_lists, n_kinds);
    if (s.room[r].size() < most) s.room[r] = Array<unsigned char>(most + most / 4);
    check(
        calls_.irecv(s.room[r].data(), count_of(most), calls_.byte, r, calls_.tag + slot, calls_.comm, &s.receives[r]),
        "MPI_Irecv");
  }
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    check(calls_.isend(to[r].data, count_of(to[r].size), calls_.byte, r, calls_.tag + slot, calls_.comm, &s.sends[r]),
          "MPI_Isend");
    travelled_.sent += to[r].size;
    ++travelled_.n_messages;
  }
}

void MpiExchange::wait(Request& request, Status& status) {
  if (!calls_.yields) return check(calls_.wait(&request, &status), "MPI_Wait");
  for (int has_ended = 0;; sched_yield()) {
    check(calls_.test(&request, &has_ended, &status), "MPI_Test");
    if (has_ended) return;
  }
}

std::vector<Bytes> MpiExchange::finish(int slot) {
  const Stopwatch stopwatch(travelled_.seconds);
  Slot& s = slots_[slot];
  std::vector<Bytes> from(size());
  Status status;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    wait(s.receives[r], status);
    int n = 0;
    check(calls_.get_count(&status, calls_.byte, &n), "MPI_Get_count");
    from[r] = {s.room[r].data(), static_cast<std::size_t>(n)};
    travelled_.received += static_cast<std::size_t>(n);
  }
  for (int r = 0; r < size(); ++r)
    if (r != rank()) wait(s.sends[r], status);
  return from;
}

Travelled MpiExchange::travelled() { return std::exchange(travelled_, {}); }

std::vector<double> MpiExchange::time_exchanges(int n) {
  const double number = 0.0;
  const std::vector<Bytes> to(size(), {&number, sizeof(number)});
  std::vector<double> seconds;
  for (int k = 0; k < n; ++k) {
    double& took = seconds.emplace_back(0.0);
    const Stopwatch stopwatch(took);
    start(0, to, 0, 0);
    finish(0);
  }
  travelled_ = {};
  return seconds;
}

void register_mpi(nb::module_& m) {
  using Functions = std::vector<std::uintptr_t>;
  nb::class_<MpiExchange, PyExchange>(m, "MpiExchange",
                                      "An Exchange that calls MPI itself; see host/src/mpi_exchange.h.")
      .def(
          "__init__",
          [](MpiExchange* self, nb::object python, const Functions& functions, MpiHandle comm, MpiHandle byte, int tag,
             bool yields) {
            if (functions.size() != 5) throw InputError("ShapeError", "MpiExchange: give the addresses of 5 functions");
            MpiCalls calls{};
            calls.isend = reinterpret_cast<decltype(calls.isend)>(functions[0]);
            calls.irecv = reinterpret_cast<decltype(calls.irecv)>(functions[1]);
            calls.test = reinterpret_cast<decltype(calls.test)>(functions[2]);
            calls.wait = reinterpret_cast<decltype(calls.wait)>(functions[3]);
            calls.get_count = reinterpret_cast<decltype(calls.get_count)>(functions[4]);
            calls.comm = comm;
            calls.byte = byte;
            calls.tag = tag;
            calls.yields = yields;
            new (self) MpiExchange(std::move(python), calls);
          },
          "python"_a, "functions"_a, "comm"_a, "byte"_a, "tag"_a, "yields"_a)
      .def(
          "travelled",
          [](MpiExchange& self) {
            const Travelled t = self.travelled();
            return nb::make_tuple(t.sent, t.received, t.n_messages, t.seconds);
          },
          "Bytes sent and received, messages sent, and seconds in MPI since the last call.")
      .def("time_exchanges", &MpiExchange::time_exchanges, "n"_a,
           "Seconds of each of n exchanges of 8 bytes with all other ranks, who call it too.");
}

}  // namespace sparsesnn
