// An exchange between ranks in which the engine calls MPI itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exchange.h"

namespace sparsesnn {

// Counts of messages and bytes since the last call of `traveled`.
struct Traveled {
  std::size_t sent = 0, received = 0, n_messages = 0;
  double seconds = 0.0;  // most of them spent waiting
};

// A handle of MPI: an int in some libraries, a pointer in others. Both are passed in one register, of which a callee
// that takes an int reads the lower half.
using MpiHandle = std::uintptr_t;

// Functions of the library that mpi4py has loaded, and their arguments; see host/comm/mpi.py.
struct MpiCalls {
  int (*isend)(const void* from, int n, MpiHandle type, int to, int tag, MpiHandle comm, void* request);
  int (*mprobe)(int from, int tag, MpiHandle comm, void* message, void* status);
  int (*improbe)(int from, int tag, MpiHandle comm, int* is_there, void* message, void* status);
  int (*imrecv)(void* to, int n, MpiHandle type, void* message, void* request);
  int (*wait)(void* request, void* status);
  int (*test)(void* request, int* has_ended, void* status);
  int (*get_count)(const void* status, MpiHandle type, int* n);
  int (*iallgather)(const void* from, int n, MpiHandle type, void* to, int n_each, MpiHandle to_type, MpiHandle comm,
                    void* request);
  int (*iallgatherv)(const void* from, int n, MpiHandle type, void* to, const int* n_each, const int* places,
                     MpiHandle to_type, MpiHandle comm, void* request);
  MpiHandle comm, byte;
  int tag;              // of channel 0; others have the next tags
  bool yields;          // other ranks may need this core
  std::size_t longest;  // bytes of a message; MPI counts them with an int. Longer ones are sent in pieces
};

// Recurrent layers exchange thousands of small messages in a training step, for which Python takes several times as
// long as MPI.
class MpiExchange final : public Exchange {
 public:
  MpiExchange(int rank, int size, const MpiCalls& calls);
  void scan(const std::int32_t* own, std::size_t n, std::int32_t* total, std::int32_t* before) override;
  void release(int channel) override;
  Traveled traveled();
  // Seconds of each of n exchanges of 8 bytes with all others, who call it too; they are not counted in `traveled`.
  std::vector<double> time_exchanges(int n);

 protected:
  void start_messages(int channel, const std::vector<Message>& to, const Content& content) override;
  std::vector<Message> finish_messages(int channel, const std::vector<std::size_t>& sizes) override;
  std::vector<Message> gather_messages(Message own, const Content& content) override;

 private:
  // For a request or a message, and a status: large enough for any library's.
  using Handle = std::uint64_t;
  struct Status {
    alignas(16) unsigned char bytes[128];
  };
  struct Slot {
    std::vector<Array<unsigned char>> received;  // [R]
    std::vector<Handle> sends;
  };
  void send(Message message, int to, int channel);
  Message receive(int from, int channel);
  std::size_t await_message(int from, int tag, Handle& message);
  void wait(Handle& request);
  void wait_for_sends(int channel);
  // For scans.
  void send_numbers(const std::int32_t* numbers, std::size_t n, int to);
  const std::int32_t* receive_numbers(int from, std::size_t n);

  const MpiCalls calls_;
  Slot slots_[n_channels];
  Traveled traveled_;
};

}  // namespace sparsesnn
