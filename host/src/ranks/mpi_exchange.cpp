#include "mpi_exchange.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace sparsesnn {
namespace {

// Groups up to this size gather by messages between all pairs: one each way, which carries its length.
constexpr int few = 4;

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

}  // namespace

MpiExchange::MpiExchange(int rank, int size, const MpiCalls& calls) : Exchange(rank, size), calls_(calls) {
  for (Slot& slot : slots_) slot.received.resize(size);
}

void MpiExchange::release(int channel) {
  for (Array<unsigned char>& room : slots_[channel].received) room = {};
}

void MpiExchange::start_messages(int channel, const std::vector<Message>& to, const Content& content) {
  const Stopwatch stopwatch(traveled_.seconds);
  for (int r = 0; r < size(); ++r)
    if (r != rank() && (content.sizes.empty() || to[r].size)) send(to[r], r, channel);
}

std::vector<Message> MpiExchange::finish_messages(int channel, const std::vector<std::size_t>& sizes) {
  const Stopwatch stopwatch(traveled_.seconds);
  std::vector<Message> from(size());
  for (int r = 0; r < size(); ++r)
    if (r != rank() && (sizes.empty() || sizes[r])) from[r] = receive(r, channel);
  wait_for_sends(channel);
  return from;
}

std::vector<Message> MpiExchange::gather_messages(Message own, const Content& content) {
  const auto by_pairs = [&] {
    start_messages(layers, std::vector<Message>(size(), own), {content.name});
    return finish_messages(layers, {});
  };
  if (size() <= few) return by_pairs();
  std::vector<std::int64_t> sizes(size());
  std::vector<Message> from(size());
  {
    const Stopwatch stopwatch(traveled_.seconds);
    const auto n_own = static_cast<std::int64_t>(own.size);
    Handle request = 0;
    check(calls_.iallgather(&n_own, sizeof(n_own), calls_.byte, sizes.data(), sizeof(n_own), calls_.byte, calls_.comm,
                            &request),
          "MPI_Iallgather");
    wait(request);
    std::vector<int> n_each, places;
    std::int64_t end = 0;
    for (const std::int64_t n : sizes) {
      n_each.push_back(static_cast<int>(n));
      places.push_back(static_cast<int>(end));
      end += (n + 7) / 8 * 8;  // aligned for any type
    }
    if (static_cast<std::size_t>(end) <= calls_.longest) {
      Array<unsigned char>& all = slots_[layers].received[rank()];
      all = Array<unsigned char>(static_cast<std::size_t>(end));
      check(calls_.iallgatherv(own.data, static_cast<int>(own.size), calls_.byte, all.data(), n_each.data(),
                               places.data(), calls_.byte, calls_.comm, &request),
            "MPI_Iallgatherv");
      wait(request);
      for (int r = 0; r < size(); ++r) from[r] = {all.data() + places[r], static_cast<std::size_t>(sizes[r])};
      const auto n_all = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
      traveled_.sent += own.size * static_cast<std::size_t>(size() - 1);
      traveled_.received += static_cast<std::size_t>(n_all) - own.size;
      traveled_.n_messages += static_cast<std::size_t>(size() - 1);
      return from;
    }
  }
  return by_pairs();
}

// In pieces of the longest size, and one that is shorter, perhaps empty, which ends the message.
void MpiExchange::send(Message message, int to, int channel) {
  ++traveled_.n_messages;
  traveled_.sent += message.size;
  for (bool ends = false; !ends;) {
    ends = message.size < calls_.longest;
    const std::size_t n = std::min(message.size, calls_.longest);
    check(calls_.isend(message.data, static_cast<int>(n), calls_.byte, to, calls_.tag + channel, calls_.comm,
                       &slots_[channel].sends.emplace_back(0)),
          "MPI_Isend");
    message = {message.data + n, message.size - n};
  }
}

// Returns the size of the next message, or piece, in bytes.
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

// The next message of a rank, in the room for it.
Message MpiExchange::receive(int from, int channel) {
  Array<unsigned char>& room = slots_[channel].received[from];
  std::size_t end = 0;
  for (std::size_t n = calls_.longest; n == calls_.longest;) {
    Handle message = 0, request = 0;
    n = await_message(from, calls_.tag + channel, message);
    if (room.size() < end + n) {
      Array<unsigned char> larger(end + n + (channel == layers ? 0 : n / 2));  // of other channels more may come
      if (end) std::memcpy(larger.data(), room.data(), end);
      room = std::move(larger);
    }
    check(calls_.imrecv(room.data() + end, static_cast<int>(n), calls_.byte, &message, &request), "MPI_Imrecv");
    wait(request);
    end += n;
  }
  traveled_.received += end;
  return {room.data(), end};
}

void MpiExchange::wait(Handle& request) {
  Status status;
  if (!calls_.yields) return check(calls_.wait(&request, &status), "MPI_Wait");
  for (int has_ended = 0; !has_ended;) {
    check(calls_.test(&request, &has_ended, &status), "MPI_Test");
    if (!has_ended) sched_yield();
  }
}

void MpiExchange::wait_for_sends(int channel) {
  for (Handle& request : slots_[channel].sends) wait(request);
  slots_[channel].sends.clear();
}

void MpiExchange::send_numbers(const std::int32_t* numbers, std::size_t n, int to) {
  send({reinterpret_cast<const unsigned char*>(numbers), n * sizeof(std::int32_t)}, to, counts);
}

const std::int32_t* MpiExchange::receive_numbers(int from, std::size_t n) {
  const Message got = receive(from, counts);
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
  std::copy_n(own, n, total);
  std::fill_n(before, n, 0);
  if (paired && rank() % 2) {
    send_numbers(total, n, rank() - 1);
    wait_for_sends(counts);
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
    send_numbers(total, n, to);
    const std::int32_t* theirs = receive_numbers(to, n);
    wait_for_sends(counts);
    for (std::size_t i = 0; i < n; ++i) total[i] += theirs[i];
    for (std::size_t i = 0; other < place && i < n; ++i) before[i] += theirs[i];
  }
  if (!paired) return;
  std::vector<std::int32_t> both(total, total + n);
  for (std::size_t i = 0; i < n; ++i) both.push_back(before[i] + own[i]);
  send_numbers(both.data(), 2 * n, rank() + 1);
  wait_for_sends(counts);
}

Traveled MpiExchange::traveled() { return std::exchange(traveled_, {}); }

std::vector<double> MpiExchange::time_exchanges(int n) {
  const float numbers[2] = {};
  const std::vector<Message> to(size(), Message::of(numbers, 2));
  std::vector<double> seconds;
  for (int k = 0; k < n; ++k) {
    double& took = seconds.emplace_back(0.0);
    const Stopwatch stopwatch(took);
    start(first_half, to, {"times"});
    finish(first_half);
  }
  traveled_ = {};
  return seconds;
}

}  // namespace sparsesnn
