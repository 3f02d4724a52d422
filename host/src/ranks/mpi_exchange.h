// An exchange between ranks in which the engine calls MPI itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "host/src/bindings/python_exchange.h"

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
  MpiHandle comm, byte;
  int tag;      // of slot 0; slot 1 and scans have the next tags
  bool yields;  // other ranks may need this core
};

// Recurrent layers exchange thousands of small messages in a training step, for which Python takes several times as
// long as MPI. `python`: a host/comm/layer_exchange.py.
class MpiExchange final : public PyExchange {
 public:
  MpiExchange(nanobind::object python, const MpiCalls& calls);
  MpiExchange(const MpiExchange&) = delete;
  void scan(const std::int32_t* own, std::size_t n, std::int32_t* total, std::int32_t* before) override;
  void start(int slot, const std::vector<Message>& to, std::size_t n_lists, std::size_t n_kinds) override;
  std::vector<Message> finish(int slot) override;
  Traveled traveled();
  // Seconds of each of n exchanges of 8 bytes with all others, who call it too; they are not counted in `traveled`.
  std::vector<double> time_exchanges(int n);

 private:
  // For a request or a message, and a status: large enough for any library's.
  using Handle = std::uint64_t;
  struct Status {
    alignas(16) unsigned char bytes[128];
  };
  struct Slot {
    std::vector<Array<unsigned char>> received;  // [R]
    std::vector<Handle> sends;                   // [R], that of this rank unused
  };
  void send(const void* data, std::size_t n_bytes, int to, int tag, Handle& request);
  std::size_t await_message(int from, int tag, Handle& message);
  Message receive(int from, int tag, Array<unsigned char>& room);
  // For scans.
  void send_numbers(const std::int32_t* numbers, std::size_t n, int to, Handle& request);
  const std::int32_t* receive_numbers(int from, std::size_t n);
  void wait(Handle& request);

  const MpiCalls calls_;
  Slot slots_[2];
  Array<unsigned char> scanned_;
  Traveled traveled_;
};

}  // namespace sparsesnn
