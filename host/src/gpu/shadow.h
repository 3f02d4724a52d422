// Who accessed each byte last: finds reads of memory that no one has written, and races.
//
// A clock counts intervals. A new one begins with each launch, block and phase of a block (from barrier to barrier),
// and when another warp runs or a warp passes a warp_barrier. Blocks run one after another, and so do the warps
// of a phase. So the time of an access tells whether it belongs to this launch, block, phase and interval.
#pragma once

#include <cstdint>

namespace sparsesnn::emulated {

// Which threads a record stands for.
enum class Scope : uint64_t { thread, lanes, warps, blocks };

// The last accesses of one kind to a byte: a time, a thread, and whether there are others in the same interval (lanes),
// phase (warps) or launch (blocks). 0: none.
struct Record {
  uint64_t bits = 0;

  static Record of(uint64_t time, int thread, Scope scope, bool is_atomic) {
    return {time << 13 | uint64_t(is_atomic) << 12 | uint64_t(scope) << 10 | uint64_t(thread)};
  }
  uint64_t time() const { return bits >> 13; }
  bool is_atomic() const { return bits >> 12 & 1; }
  Scope scope() const { return Scope(bits >> 10 & 3); }
  int thread() const { return int(bits & 1023); }
  int warp() const { return thread() / 32; }
};

struct Cell {
  Record writer, reader;  // writer.bits = 0: never written
};

// The times at which the launch, the block, the phase and the interval of a thread began. For shared memory, which is a
// block's own, the launch begins with the block.
struct Now {
  uint64_t launch, block, phase, interval;
  int thread;

  // The scope in which accesses of a record race with one of this thread; Scope::thread: they do not.
  Scope conflict(Record record) const {
    if (record.time() < launch) return Scope::thread;
    if (record.time() < block || record.scope() == Scope::blocks) return Scope::blocks;
    if (record.time() < phase) return Scope::thread;
    if (record.scope() == Scope::warps || record.warp() != thread / 32) return Scope::warps;
    if (record.time() < interval) return Scope::thread;
    return record.scope() == Scope::lanes || record.thread() != thread ? Scope::lanes : Scope::thread;
  }
  // A record that stands for its own accesses and for one of this thread.
  Record joined(Record record, bool is_atomic) const {
    return Record::of(interval, thread, conflict(record), is_atomic);
  }
};

}  // namespace sparsesnn::emulated
