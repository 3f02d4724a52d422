// Exchanges between ranks for which the engine calls MPI itself.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>
#include <sched.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <climits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "host/src/ranks/mpi_exchange.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {
namespace {

void check(int code, const char* name) {
  if (code) throw std::runtime_error(std::string(name) + " failed with error " + std::to_string(code));
}

// Adds the seconds of its lifetime.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  Stopwatch(const Stopwatch&) = delete;
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  const Clock::time_point start_ = Clock::now();
};

int count_of(std::size_t n_bytes) {
  if (n_bytes > INT_MAX)
    throw InputError("ConfigError", "a message of " + std::to_string(n_bytes) +
                                        " bytes is too long for MPI; give each rank fewer samples or neurons");
  return static_cast<int>(n_bytes);
}

}  // namespace

MpiExchange::MpiExchange(nb::object python, const MpiCalls& calls) : PyExchange(std::move(python)), calls_(calls) {
  for (Slot& slot : slots_) {
    slot.received.resize(size());
    slot.sends.resize(size());
  }
}

void MpiExchange::start(int slot, const std::vector<Message>& to, std::size_t, std::size_t) {
  const Stopwatch stopwatch(traveled_.seconds);
  for (int r = 0; r < size(); ++r)
    if (r != rank()) send(to[r].data, to[r].size, r, calls_.tag + slot, slots_[slot].sends[r]);
}

void MpiExchange::send(const void* data, std::size_t n_bytes, int to, int tag, Handle& request) {
  check(calls_.isend(data, count_of(n_bytes), calls_.byte, to, tag, calls_.comm, &request), "MPI_Isend");
  traveled_.sent += n_bytes;
  ++traveled_.n_messages;
}

// Returns the size of the message in bytes.
std::size_t MpiExchange::await_message(int from, int tag, Handle& message) {
  Status status;
  if (calls_.yields) {
    for (int is_there = 0; !is_there;) {
      check(calls_.improbe(from, tag, calls_.comm, &is_there, &message, &status), "MPI_Improbe");
      if (!is_there) sched_yield();
    }
  } else {
    check(calls_.mprobe(from, tag, calls_.comm, &message, &status), "MPI_Mprobe");
  }
  int n = 0;
  check(calls_.get_count(&status, calls_.byte, &n), "MPI_Get_count");
  return static_cast<std::size_t>(n);
}

// The next message, in `room`, valid until that is used again.
Message MpiExchange::receive(int from, int tag, Array<unsigned char>& room) {
  Handle message = 0, request = 0;
  const std::size_t n = await_message(from, tag, message);
  if (room.size() < n) room = Array<unsigned char>(n + n / 2);
  check(calls_.imrecv(room.data(), static_cast<int>(n), calls_.byte, &message, &request), "MPI_Imrecv");
  wait(request);
  traveled_.received += n;
  return {room.data(), n};
}

void MpiExchange::send_numbers(const std::int32_t* numbers, std::size_t n, int to, Handle& request) {
  send(numbers, n * sizeof(std::int32_t), to, calls_.tag + 2, request);
}

const std::int32_t* MpiExchange::receive_numbers(int from, std::size_t n) {
  const Message got = receive(from, calls_.tag + 2, scanned_);
  if (got.size != n * sizeof(std::int32_t))
    throw InputError("ShapeError", "rank " + std::to_string(from) + " of a layer sent " + std::to_string(got.size) +
                                       " bytes of counts, not " + std::to_string(n * sizeof(std::int32_t)));
  return reinterpret_cast<const std::int32_t*>(got.data);
}

// The algorithm is described at `scan` of host/comm/base.py.
void MpiExchange::scan(const std::int32_t* own, std::size_t n, std::int32_t* total, std::int32_t* before) {
  const Stopwatch stopwatch(traveled_.seconds);
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(size()))), extra = size() - power;
  const bool paired = rank() < 2 * extra;
  Handle request = 0;
  std::copy_n(own, n, total);
  std::fill_n(before, n, 0);
  if (paired && rank() % 2) {
    send_numbers(total, n, rank() - 1, request);
    wait(request);
    const std::int32_t* both = receive_numbers(rank() - 1, 2 * n);
    std::copy_n(both, n, total);
    std::copy_n(both + n, n, before);
    return;
  }
  if (paired) {
    const std::int32_t* theirs = receive_numbers(rank() + 1, n);
    for (std::size_t i = 0; i < n; ++i) total[i] += theirs[i];
  }
  const int place = paired ? rank() / 2 : rank() - extra;
  for (int bit = 1; bit < power; bit *= 2) {
    const int other = place ^ bit, to = other < extra ? 2 * other : other + extra;
    send_numbers(total, n, to, request);
    const std::int32_t* theirs = receive_numbers(to, n);
    wait(request);
    for (std::size_t i = 0; i < n; ++i) total[i] += theirs[i];
    for (std::size_t i = 0; other < place && i < n; ++i) before[i] += theirs[i];
  }
  if (!paired) return;
  std::vector<std::int32_t> both(total, total + n);
  for (std::size_t i = 0; i < n; ++i) both.push_back(before[i] + own[i]);
  send_numbers(both.data(), 2 * n, rank() + 1, request);
  wait(request);
}

void MpiExchange::wait(Handle& request) {
  Status status;
  if (!calls_.yields) return check(calls_.wait(&request, &status), "MPI_Wait");
  for (int has_ended = 0; !has_ended;) {
    check(calls_.test(&request, &has_ended, &status), "MPI_Test");
    if (!has_ended) sched_yield();
  }
}

std::vector<Message> MpiExchange::finish(int slot) {
  const Stopwatch stopwatch(traveled_.seconds);
  std::vector<Message> from(size());
  for (int r = 0; r < size(); ++r) {
    if (r != rank()) from[r] = receive(r, calls_.tag + slot, slots_[slot].received[r]);
  }
  for (int r = 0; r < size(); ++r)
    if (r != rank()) wait(slots_[slot].sends[r]);
  return from;
}

Traveled MpiExchange::traveled() { return std::exchange(traveled_, {}); }

std::vector<double> MpiExchange::time_exchanges(int n) {
  const float numbers[2] = {};
  const std::vector<Message> to(size(), Message::of(numbers, 2));
  std::vector<double> seconds;
  for (int k = 0; k < n; ++k) {
    double& took = seconds.emplace_back(0.0);
    const Stopwatch stopwatch(took);
    start(0, to, 0, 0);
    finish(0);
  }
  traveled_ = {};
  return seconds;
}

void register_mpi(nb::module_& m) {
  using Functions = std::vector<std::uintptr_t>;
  nb::class_<MpiExchange, PyExchange>(m, "MpiExchange",
                                      "An Exchange that calls MPI itself; see host/src/ranks/mpi_exchange.h.")
      .def(
          "__init__",
          [](MpiExchange* self, nb::object python, const Functions& functions, MpiHandle comm, MpiHandle byte, int tag,
             bool yields) {
            if (functions.size() != 7) throw InputError("ShapeError", "MpiExchange: give the addresses of 7 functions");
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
            calls.comm = comm;
            calls.byte = byte;
            calls.tag = tag;
            calls.yields = yields;
            new (self) MpiExchange(std::move(python), calls);
          },
          "python"_a, "functions"_a, "comm"_a, "byte"_a, "tag"_a, "yields"_a)
      .def(
          "traveled",
          [](MpiExchange& self) {
            const Traveled t = self.traveled();
            return nb::make_tuple(t.sent, t.received, t.n_messages, t.seconds);
          },
          "Bytes sent and received, messages sent, and seconds in MPI since the last call.")
      .def("time_exchanges", &MpiExchange::time_exchanges, "n"_a,
           "Seconds of each of n exchanges of 8 bytes with all other ranks, who call it too.");
}

}  // namespace sparsesnn
