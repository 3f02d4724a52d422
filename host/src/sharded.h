// A layer whose neurons live on several ranks: what its passes ask of the other ranks.
//
// A shard is a run of whole tiles. Its passes are those of a layer of its own neurons, with all sources whole, up to
// three sums over the population that must come out as in one process:
//   - a capacity, decided among all candidates: ranks tell one another how many they have (`all_gather`);
//   - the current from the population's own spikes, step by step: ranks exchange the ids that fired (`start`,
//   `finish`);
//   - gradients of list values, summed over tiles ascending: for lists from other populations the ranks pass the sum
//   on,
//     a piece at a time (`receive_sums`, `send_sums`); for the population's own lists, step by step, each rank sends
//     the shares of its tiles to the owner of the neuron, who adds them in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine.h"

namespace sparsesnn {

struct Bytes {
  const void* data = nullptr;
  std::size_t size = 0;
};

// Implemented over Python's communicators (sharded_bindings.cpp). Called by the thread that runs the pass, no other.
// Ranks ascend with the neurons that they own.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // `n` numbers of every rank, [R][n].
  virtual void all_gather(const std::int32_t* own, std::size_t n, std::int32_t* all) = 0;
  // Starts to send `to[r]` to each rank r but this one; `finish` waits for what the others sent, [R], which stays valid
  // until the next start. Two exchanges may be under way, in slots 0 and 1.
  virtual void start(int slot, const std::vector<Bytes>& to) = 0;
  virtual std::vector<Bytes> finish(int slot) = 0;
  // From the rank before, to the rank after.
  virtual void receive_sums(float* sums, std::size_t n) = 0;
  virtual void send_sums(const float* sums, std::size_t n) = 0;
};

// The lists of a population from those of its shards, [R] of them, each [n_lists] with ids from `first[r]` on: spikes
// in the order of ranks, then near-spikes. `places[r]`, where not null: where entry j of shard r went.
struct MergedLists {
  Array<std::int64_t> offsets;
  Array<unsigned char> ids;
  Array<std::int32_t> n_spikes;
};
MergedLists merge_lists(const std::vector<Lists>& shards, const std::vector<std::uint32_t>& first, std::int64_t n_lists,
                        bool wide);

// The values of a population's lists by owner of the neurons; rank r's are first[r]..first[r + 1]-1. Each in the order
// of the lists that this rank itself has.
std::vector<Array<float>> split_values(const Lists& population, std::int64_t n_lists, const float* values,
                                       const std::vector<std::uint32_t>& first);

// The forward pass of a shard step by step, in two halves of the samples: while one half's spikes travel the other half
// is computed. `dropped` [T·B] or null.
void run_by_step(const Kernels& kernels, const ForwardPass& pass, Exchange& exchange, std::int32_t* dropped);

// Capacity of a shard of a layer that ran tile by tile.
void select_shards(const Kernels& kernels, const ForwardPass& pass, Exchange& exchange, std::int32_t* dropped);

// ∂L/∂(list values) of a recurrent shard, [own slots], with what reaches them through the recurrent weights added to
// `d_values`. `all`: the lists of the whole population. With these the rest of the backward pass is that of a layer
// without recurrent weights whose own lists are one source more.
Array<float> recurrent_value_grads(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved,
                                   const Lists& all, const float* d_values, Exchange& exchange);

}  // namespace sparsesnn
