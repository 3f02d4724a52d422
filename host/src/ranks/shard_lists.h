// Lists of a population that several ranks hold: from those of its shards, and back to the owners of the neurons.
#pragma once

#include <cstdint>
#include <vector>

#include "exchange.h"

namespace sparsesnn {

// A count of at most `most` is sent in 1, 2 or 4 bytes.
inline std::size_t count_bytes(std::uint32_t most) { return most < 256 ? 1 : most < 65536 ? 2 : 4; }
void pack_counts(const std::int32_t* counts, std::size_t n, std::size_t n_bytes, unsigned char* to);
void unpack_counts(const unsigned char* from, std::size_t n, std::size_t n_bytes, std::int32_t* counts);

class OwnEvents;

// The message of a shard of `n_neurons` about its lists: its sorted events, unless null; the ids, from the shard's
// first neuron on, uint16 or uint32; the number of spikes, then of entries, in each list, [n_lists] counts of at most
// n_neurons; and, only from the first owner of a population with a capacity, the number of candidates that did not
// fit, in all shards, [n_lists] int32, which all owners know. A rank without neurons sends nothing.
Array<unsigned char> shard_message(const Lists& lists, std::int64_t n_lists, std::uint32_t n_neurons,
                                   const std::int32_t* dropped, const OwnEvents* events);

// The lists of a population from the messages of its shards: spikes in the order of ranks, then near-spikes. Rank r
// owns neurons first[r]..first[r + 1]-1.
struct MergedLists {
  Array<std::int64_t> offsets;
  Array<unsigned char> ids;
  Array<std::int32_t> n_spikes, dropped;
  bool wide = false;
};
MergedLists merge_messages(const std::vector<Message>& messages, std::int64_t n_lists, bool limited,
                           const std::vector<std::uint32_t>& first);

// The entries of one list that belong to one rank; slots of the population's lists.
struct Runs {
  std::int64_t spikes, spikes_end, near, near_end;
  std::int64_t n_spikes() const { return spikes_end - spikes; }
  std::int64_t n_near() const { return near_end - near; }
  std::int64_t size() const { return n_spikes() + n_near(); }
};

// The owners of the entries of lists; rank r owns neurons first[r]..first[r + 1]-1 of the population, which has
// first[R].
class Owners {
 public:
  Owners(const Lists& population, std::int64_t n_lists, const std::vector<std::uint32_t>& first);

  int n_ranks() const { return n_ranks_; }
  Runs runs(std::int64_t list, int r) const {
    const std::int32_t* edges = edges_.data() + list * 2 * (n_ranks_ + 1) + r;
    const std::int64_t begin = offsets_[list], near = begin + n_spikes_[list];
    return {begin + edges[0], begin + edges[1], near + edges[n_ranks_ + 1], near + edges[n_ranks_ + 2]};
  }

 private:
  const std::int64_t* offsets_;
  const std::int32_t* n_spikes_;
  int n_ranks_;
  Array<std::int32_t> edges_;  // [n_lists][spikes, near-spikes][R + 1], counted from the first of them in the list
};

// `n_rows` values of each entry of a population's lists, [n_rows][entries], for the owners: [n_rows][own entries] each,
// in the order of the owner's own lists.
std::vector<Array<float>> split_values(const Lists& population, std::int64_t n_lists, const float* values, int n_rows,
                                       const std::vector<std::uint32_t>& first);

}  // namespace sparsesnn
