// Lists of a population over several ranks, sorted by sender for the layers that read them.
//
// Each rank sorts its own neurons' lists, once, and sends the rows of the events along with the lists; its
// readers put the parts of all ranks together. Gradients of list values are sent back in the order of these events, and
// only their owner knows which list an event belongs to.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "host/src/cpu/chunks.h"
#include "host/src/cpu/events.h"
#include "shard_lists.h"

namespace sparsesnn {

// The reader for which lists are sorted: a layer that receives them `delay` steps later and cuts its batch by this
// plan. Known to all ranks.
struct ListOrder {
  int delay;
  ChunkPlan plan;
};

// The sorted events of this rank.
class OwnEvents {
 public:
  OwnEvents(const Lists& own, int n_neurons, int n_steps, int n_samples, const ListOrder& order);
  OwnEvents(const OwnEvents&) = delete;
  OwnEvents& operator=(const OwnEvents&) = delete;

  std::size_t size() const { return size_; }
  std::size_t n_slots() const { return n_slots_; }  // of the lists
  // The readers' data: for each chunk and neuron the numbers of spikes and near-spikes, then the rows.
  std::size_t n_bytes() const;
  void pack(unsigned char* to) const;
  // From values in the order of events to the slots of the lists; 0 for entries that do not arrive.
  Array<float> to_slots(const float* values, std::size_t n_slots) const;

 private:
  std::size_t count_bytes_, row_bytes_;
  std::vector<Events> chunks_;
  std::size_t size_ = 0, n_slots_;
};

// The sorted events of all ranks.
class SortedLists {
 public:
  // Rank r owns neurons first[r]..first[r + 1] - 1; its message begins with its events.
  SortedLists(const std::vector<Message>& messages, const std::vector<std::uint32_t>& first, int n_steps, int n_samples,
              const ListOrder& order);
  SortedLists(const SortedLists&) = delete;
  SortedLists& operator=(const SortedLists&) = delete;

  // Where each message continues after its events.
  const std::vector<std::size_t>& ends() const { return ends_; }
  // Whether a pass of a layer in these chunks finds its events here.
  bool serves(int delay, const std::vector<Chunk>& chunks) const;
  const Events& events(int chunk) const { return chunks_[chunk].events; }
  // Events, ordered by rank: rank r has edges[r]..edges[r + 1] - 1; [R + 1].
  const std::vector<std::size_t>& edges() const { return edges_; }
  std::size_t size() const { return edges_.back(); }
  std::uint32_t n_neurons() const { return first_.back(); }
  std::size_t n_lists() const { return static_cast<std::size_t>(n_steps_) * n_samples_; }
  // Reorders sums of n events of a chunk, from its event `begin` on, to the order of all events.
  void put(int chunk, std::size_t begin, const float* sums, std::size_t n, float* values) const;
  // From the slots of the population's lists, [n_rows][slots], to [n_rows][events].
  Array<float> from_slots(const Lists& population, std::int64_t n_slots, const float* values, std::size_t n_rows) const;

 private:
  struct Sorted {
    Chunk chunk;
    Events events;
    std::vector<std::size_t> begin;  // of each rank's events of this chunk, among all events
  };

  std::vector<std::uint32_t> first_;
  int n_steps_, n_samples_, delay_;
  std::vector<Sorted> chunks_;
  std::vector<std::size_t> edges_{0}, ends_;
};

}  // namespace sparsesnn
