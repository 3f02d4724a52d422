// How ranks of one host exchange: each says where in its shared memory (memory.h) a part lies, and the others read it
// there.
//
// Every rank has a box in its shared memory, with the numbers that it tells next and how many times it has told some.
// A rank writes to its own box alone, and waits until all others have told as often. There are two sets of numbers,
// used in turn: who tells the numbers after next has heard the next ones of all, who have read those before. Nobody
// knows when the others have read what came last: an object must stay until its process ends, or all have agreed.
//
// Small messages by the thousand are posted, and ranks compute while they are under way: a parcel holds copies of those
// that a rank has for all others, and the box says where it lies. There are two parcels, used in turn likewise.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "host/src/cpu/engine.h"
#include "shard_lists.h"
#include "travelled.h"

namespace sparsesnn {

class Neighbors {
 public:
  // Keeps the parts of a rank alive that others may be reading.
  using Lent = std::shared_ptr<const void>;
  struct Memory {
    unsigned char* data;
    std::size_t size;
  };
  static std::size_t box_bytes();

  // memory: of every rank, as this process maps it. boxes: where their boxes lie in it, which hold zeros. yields: other
  // ranks may need this core.
  Neighbors(std::vector<Memory> memory, const std::vector<std::size_t>& boxes, std::size_t rank, bool yields);
  Neighbors(const Neighbors&) = delete;
  std::size_t size() const { return boxes_.size(); }

  // All ranks call it together. Gives part [k][r] of `given`, [n][R], to rank r, and returns what the ranks gave to
  // this one, [n][R], its own as they are. To be read, and `given` to stay as it is, until the next call has returned
  // here, up to which `lent` is held. What does not lie in shared memory is copied into it.
  std::vector<Message> swap(const std::vector<Message>& given, Lent lent);
  // The parts of all ranks.
  std::vector<Message> gather(Message own, Lent lent);

  // All ranks post and take in turns, in each of two slots. What is taken stays until the next post in the slot; of
  // this rank it is nothing. Whoever calls counts what travels.
  void post(int slot, const std::vector<Message>& to);
  std::vector<Message> take(int slot);

  Travelled travelled() { return std::exchange(travelled_, {}); }

 private:
  struct Box;
  std::vector<std::int64_t> tell(const std::vector<std::int64_t>& own);
  void await(const std::atomic<std::uint64_t>& count, std::uint64_t n) const;
  // What rank r says that it gave.
  Message given_by(std::size_t r, std::int64_t place, std::int64_t n_bytes) const;

  const std::vector<Memory> memory_;
  const std::size_t rank_;
  const bool yields_;
  std::vector<Box*> boxes_;  // [R]
  std::uint64_t n_told_ = 0;
  Array<unsigned char> parcels_[2][2];  // [slot][turn], where the part of each rank lies, [R], then the parts
  Lent lent_;
  std::vector<Array<unsigned char>> copies_;  // of what was lent
  Travelled travelled_;
};

}  // namespace sparsesnn
