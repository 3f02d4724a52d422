// The messages between ranks that share neurons: one interface over all transports. Everything that ranks exchange
// while a chain runs goes through it: lists, potentials and list gradients between layers (chain_shards.h); the counts
// that a capacity needs, spikes and their gradients within a layer (sharded.h).
//
//   MpiExchange  calls the MPI that mpi4py has loaded (mpi_exchange.h)
//   PyExchange   uses a communicator of host/comm: ranks that are threads of one process, one rank alone, a dry run,
//                torch.distributed, and an MPI whose functions the engine does not find
//                (host/src/bindings/python_exchange.h)
//
// Order: all ranks of a group make the same calls in the same order. Messages of one channel arrive in the order in
// which they were sent; channels do not wait for one another.
// Completion: `scan` and `gather` return when their results are complete. `start` returns at once; the data it sends
// must stay unchanged until `finish` of the same channel, which waits for these messages and for those of the other
// ranks. Received messages stay valid until the next call for their channel; `gather` uses the channel `layers`.
// Failure: a message of the wrong size is an InputError that names its rank. If another rank fails, the transport
// throws, or, with MPI, host/comm/watch.py ends all ranks. After an exception an exchange must not be used again.
// Threads: one at a time, which need not hold Python's GIL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "host/src/cpu/engine.h"

namespace sparsesnn {

// Bytes sent from one rank to another.
struct Message {
  const unsigned char* data = nullptr;
  std::size_t size = 0;

  static Message of(const float* numbers, std::size_t n) {
    return {reinterpret_cast<const unsigned char*>(numbers), n * sizeof(float)};
  }
  static Message of(const Array<unsigned char>& bytes) { return {bytes.data(), bytes.size()}; }
};

// The content of the messages of a call.
struct Content {
  const char* name;  // for errors, and the counters of dry runs
  // Bytes from each rank, [R], if all ranks know them, else empty. `start` does not send messages whose size is known
  // to be 0.
  std::vector<std::size_t> sizes = {};
  // Makes up another rank's message, for dry runs (made_up.h); without it messages of the given sizes are zeros.
  std::function<Array<unsigned char>(int rank)> made_up = {};
};

class Exchange {
 public:
  // Messages of the two halves of a batch within a layer, counts of candidates, and messages between layers.
  enum Channel { first_half, second_half, counts, layers, n_channels };

  Exchange(int rank, int size) : rank_(rank), size_(size) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  virtual ~Exchange() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }

  // The sums of each of `n` numbers over all ranks, and over the ranks before this one.
  virtual void scan(const std::int32_t* own, std::size_t n, std::int32_t* total, std::int32_t* before) = 0;

  // Sends to[r] to each other rank r.
  void start(int channel, const std::vector<Message>& to, const Content& content);
  // The messages from all ranks, [R]; that of this rank is its own to[rank()].
  std::vector<Message> finish(int channel);

  // The messages of all ranks, [R]; `own` is this rank's.
  std::vector<Message> gather(Message own, const Content& content);

  // Frees the memory of the messages received last.
  virtual void release(int channel) = 0;

 protected:
  virtual void start_messages(int channel, const std::vector<Message>& to, const Content& content) = 0;
  // [R]; the entry of this rank is unused. `sizes` as in Content.
  virtual std::vector<Message> finish_messages(int channel, const std::vector<std::size_t>& sizes) = 0;
  virtual std::vector<Message> gather_messages(Message own, const Content& content) = 0;

 private:
  struct Started {
    Message own;
    const char* name = "";
    std::vector<std::size_t> sizes;
  };
  void check_sizes(const std::vector<Message>& from, const std::vector<std::size_t>& sizes, const char* name) const;

  const int rank_, size_;
  Started started_[n_channels];
};

// The ranks that own neurons of a population, ascending, and their exchange. Rank r owns neurons
// first[r]..first[r + 1] - 1.
struct LayerRanks {
  std::shared_ptr<Exchange> exchange;
  std::vector<std::uint32_t> first;  // [R + 1]

  LayerRanks(std::shared_ptr<Exchange> among, std::vector<std::uint32_t> first_neurons);
  int size() const { return exchange->size(); }
  int rank() const { return exchange->rank(); }
  std::uint32_t n_neurons(int r) const { return first[r + 1] - first[r]; }
};

}  // namespace sparsesnn
