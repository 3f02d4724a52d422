#include "shard_lists.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

#include "host/src/cpu/phases.h"
#include "host/src/machine/thread_pool.h"
#include "sorted_lists.h"

namespace sparsesnn {
namespace {

constexpr std::int64_t lists_piece = 256;

// Calls body(i) for all lists.
template <class Body>
void each_list(std::int64_t n_lists, Body&& body) {
  parallel_for(static_cast<int>((n_lists + lists_piece - 1) / lists_piece), [&](int item, int) {
    for (std::int64_t i = item * lists_piece; i < std::min(n_lists, (item + 1) * lists_piece); ++i) body(i);
  });
}

bool is_wide(std::uint32_t n_neurons) { return n_neurons > 65536; }

// Calls body with a number of the type in which counts of this many bytes are sent.
template <class Body>
void with_count(std::size_t n_bytes, Body&& body) {
  if (n_bytes == 1)
    body(std::uint8_t());
  else if (n_bytes == 2)
    body(std::uint16_t());
  else
    body(std::int32_t());
}

// A shard's message, parsed.
struct ShardLists {
  Array<std::int32_t> counts;
  const std::int32_t *n_spikes, *n_listed;
  const unsigned char* dropped;
  const void* ids;
  std::int64_t n_ids;
  bool wide;
};

// `drops`: the message ends with the counts of dropped candidates.
ShardLists read_message(const Message& message, std::int64_t n_lists, bool drops, std::uint32_t n_neurons,
                        std::size_t rank) {
  const std::size_t n = static_cast<std::size_t>(n_lists), n_bytes = count_bytes(n_neurons);
  const std::size_t tail = n_neurons ? 2 * n * n_bytes + (drops ? 4 * n : 0) : 0;
  ShardLists out{};
  out.counts = n_neurons ? Array<std::int32_t>(2 * n) : Array<std::int32_t>::zeros(2 * n);
  out.n_spikes = out.counts.data();
  out.n_listed = out.n_spikes + n;
  out.wide = is_wide(n_neurons);
  out.ids = message.data;
  bool good = message.size >= tail;
  if (good && n_neurons) {
    const unsigned char* counts = message.data + message.size - tail;
    unpack_counts(counts, 2 * n, n_bytes, out.counts.data());
    out.dropped = counts + 2 * n * n_bytes;
  }
  bool wrong = false;
  for (std::int64_t i = 0; good && i < n_lists; ++i) {
    wrong |= (out.n_spikes[i] < 0) | (out.n_listed[i] < out.n_spikes[i]);
    out.n_ids += out.n_listed[i];
  }
  good = good && !wrong;
  if (!good || message.size != tail + static_cast<std::size_t>(out.n_ids) * (out.wide ? 4 : 2))
    throw InputError("SpikeListError", "rank " + std::to_string(rank) + " sent " + std::to_string(message.size) +
                                           " bytes, which are not " + std::to_string(n_lists) + " lists of " +
                                           std::to_string(n_neurons) + " neurons");
  return out;
}

// Writes number(k) for each k of 0..n - 1 to `to`, in blocks that are computed entirely before they are written, so
// that they go in a vector. Runs are short: the last block is the last `few` or `many`, some of which have been written
// before.
template <class T, class Number>
inline void fill_run(T* to, std::int64_t n, Number&& number) {
  const auto fill = [&](std::int64_t k, auto m) {
    T block[m];
    for (int j = 0; j < m; ++j) block[j] = static_cast<T>(number(k + j));
    std::memcpy(to + k, block, sizeof(block));
  };
  constexpr std::integral_constant<int, 8> many;
  constexpr std::integral_constant<int, 4> few;
  if (n >= many) {
    for (std::int64_t k = 0; k < n - many; k += many) fill(k, many);
    fill(n - many, many);
  } else if (n >= few) {
    fill(0, few);
    fill(n - few, few);
  } else {
    for (std::int64_t k = 0; k < n; ++k) to[k] = static_cast<T>(number(k));
  }
}

// Copies n numbers; returns out + n.
inline float* copy_run(const float* from, std::int64_t n, float* out) {
  fill_run(out, n, [=](std::int64_t k) { return from[k]; });
  return out + n;
}

// Lists i0..i1-1, shard by shard: each shard's entries are contiguous; from[r]: where those of shard r begin.
template <class Id>
void merge_ids(const std::vector<ShardLists>& shards, const std::vector<std::uint32_t>& first, std::int64_t i0,
               std::int64_t i1, const std::int64_t* from, const MergedLists& lists, Id* ids) {
  std::vector<std::int64_t> spikes, near;  // the next positions in each list
  for (std::int64_t i = i0; i < i1; ++i) {
    spikes.push_back(lists.offsets[i]);
    near.push_back(spikes.back() + lists.n_spikes[i]);
  }
  for (std::size_t r = 0; r < shards.size(); ++r) {
    const ShardLists& shard = shards[r];
    const auto copy = [&, first_id = first[r]](const auto* next) {
      const auto append = [&](std::int64_t& to, std::int64_t n) {
        fill_run(ids + to, n, [=](std::int64_t k) { return next[k] + first_id; });
        next += n;
        to += n;
      };
      for (std::int64_t i = i0; i < i1; ++i) {
        append(spikes[i - i0], shard.n_spikes[i]);
        append(near[i - i0], shard.n_listed[i] - shard.n_spikes[i]);
      }
    };
    with_ids(shard.wide, shard.ids, [&](auto* all) { copy(all + from[r]); });
  }
}

// The number of n ids, ascending, that are below `limit`: by bisection, and without a branch, which would be
// mispredicted half of the time.
template <class Id>
std::int32_t count_below(const Id* ids, std::int64_t n, std::uint32_t limit) {
  const Id* from = ids;
  for (; n > 1; n -= n / 2) from = from[n / 2 - 1] < limit ? from + n / 2 : from;
  return static_cast<std::int32_t>(from - ids) + (n && *from < limit);
}

// edges[r]: the number of n ids, ascending, below first[r], for R + 1 limits; by the owner of each id if ranks have a
// few of them each.
template <class Id>
void find_edges(const Id* ids, std::int32_t n, const std::vector<std::uint32_t>& first,
                const std::vector<std::int32_t>& owner, std::int32_t* edges) {
  const std::size_t n_ranks = first.size() - 1;
  if (static_cast<std::size_t>(n) < 4 * (n_ranks - 1)) {
    std::fill_n(edges, n_ranks + 1, 0);
    for (std::int32_t j = 0; j < n; ++j) ++edges[owner[ids[j]] + 1];
    for (std::size_t r = 0; r < n_ranks; ++r) edges[r + 1] += edges[r];
    return;
  }
  edges[0] = 0;
  edges[n_ranks] = n;
  for (std::size_t r = 1; r < n_ranks; ++r)  // never fewer than before, so that ids that do not ascend do no harm
    edges[r] = std::max(edges[r - 1], count_below(ids, n, first[r]));
}

}  // namespace

void pack_counts(const std::int32_t* counts, std::size_t n, std::size_t n_bytes, unsigned char* to) {
  with_count(n_bytes, [&](auto count) {
    for (std::size_t i = 0; i < n; ++i) {
      count = static_cast<decltype(count)>(counts[i]);
      std::memcpy(to + i * sizeof(count), &count, sizeof(count));
    }
  });
}

void unpack_counts(const unsigned char* from, std::size_t n, std::size_t n_bytes, std::int32_t* counts) {
  with_count(n_bytes, [&](auto count) {
    for (std::size_t i = 0; i < n; ++i) {
      std::memcpy(&count, from + i * sizeof(count), sizeof(count));
      counts[i] = static_cast<std::int32_t>(count);
    }
  });
}

Array<unsigned char> shard_message(const Lists& lists, std::int64_t n_lists, std::uint32_t n_neurons,
                                   const std::int32_t* dropped, const OwnEvents* events) {
  const std::size_t n = static_cast<std::size_t>(n_lists), n_bytes = count_bytes(n_neurons);
  const std::size_t before = events ? events->n_bytes() : 0;
  const std::size_t ids = static_cast<std::size_t>(lists.offsets[n_lists]) * (lists.wide ? 4 : 2);
  const Array<std::int32_t> counts(2 * n);
  std::copy_n(lists.n_spikes, n, counts.data());
  for (std::size_t i = 0; i < n; ++i)
    counts[n + i] = static_cast<std::int32_t>(lists.offsets[i + 1] - lists.offsets[i]);
  Array<unsigned char> message(before + ids + 2 * n * n_bytes + (dropped ? 4 * n : 0));
  if (events) events->pack(message.data());
  unsigned char* const to = message.data() + before;
  if (ids) std::memcpy(to, lists.ids, ids);
  pack_counts(counts.data(), 2 * n, n_bytes, to + ids);
  if (dropped) std::memcpy(to + ids + 2 * n * n_bytes, dropped, 4 * n);
  return message;
}

MergedLists merge_messages(const std::vector<Message>& messages, std::int64_t n_lists, bool limited,
                           const std::vector<std::uint32_t>& first) {
  const PhaseTimer timer(Phase::collect);
  const std::size_t first_owner = std::upper_bound(first.begin(), first.end(), 0u) - first.begin() - 1;
  std::vector<ShardLists> shards;
  for (std::size_t r = 0; r < messages.size(); ++r)
    shards.push_back(read_message(messages[r], n_lists, limited && r == first_owner, first[r + 1] - first[r], r));

  MergedLists out;
  out.wide = is_wide(first.back());
  out.offsets = Array<std::int64_t>(n_lists + 1);
  out.n_spikes = Array<std::int32_t>(n_lists);
  const int n_pieces = static_cast<int>((n_lists + lists_piece - 1) / lists_piece);
  std::vector<std::int64_t> from(n_pieces *
                                 shards.size());  // for each piece of lists, where each shard's entries begin
  Array<std::int32_t> n_listed = Array<std::int32_t>::zeros(n_lists);
  std::fill_n(out.n_spikes.data(), n_lists, 0);
  for (std::size_t r = 0; r < shards.size(); ++r) {
    const std::int32_t *spikes = shards[r].n_spikes, *listed = shards[r].n_listed;
    std::int64_t at = 0;
    for (int piece = 0; piece < n_pieces; ++piece) {
      from[piece * shards.size() + r] = at;
      for (std::int64_t i = piece * lists_piece; i < std::min(n_lists, (piece + 1) * lists_piece); ++i) {
        out.n_spikes[i] += spikes[i];
        n_listed[i] += listed[i];
        at += listed[i];
      }
    }
  }
  out.offsets[0] = 0;
  for (std::int64_t i = 0; i < n_lists; ++i) out.offsets[i + 1] = out.offsets[i] + n_listed[i];
  if (limited) {
    out.dropped = Array<std::int32_t>(n_lists);
    if (n_lists) std::memcpy(out.dropped.data(), shards[first_owner].dropped, 4 * static_cast<std::size_t>(n_lists));
  }
  const std::size_t n_ids = static_cast<std::size_t>(out.offsets[n_lists]);
  out.ids = Array<unsigned char>(n_ids * (out.wide ? 4 : 2));
  parallel_for(n_pieces, [&](int item, int) {
    const std::int64_t i0 = item * lists_piece, i1 = std::min(n_lists, i0 + lists_piece);
    with_ids(out.wide, out.ids.data(),
             [&](auto* ids) { merge_ids(shards, first, i0, i1, from.data() + item * shards.size(), out, ids); });
  });
  return out;
}

Owners::Owners(const Lists& population, std::int64_t n_lists, const std::vector<std::uint32_t>& first)
    : offsets_(population.offsets),
      n_spikes_(population.n_spikes),
      n_ranks_(static_cast<int>(first.size()) - 1),
      edges_(static_cast<std::size_t>(n_lists) * 2 * first.size()) {
  std::vector<std::int32_t> owner;  // of each neuron
  owner.reserve(first.back());
  for (std::size_t r = 1; r < first.size(); ++r) owner.resize(first[r], static_cast<std::int32_t>(r - 1));
  with_ids(population.wide, population.ids, [&](auto* ids) {
    each_list(n_lists, [&](std::int64_t i) {
      const std::int64_t begin = offsets_[i];
      const std::int32_t n_spikes = population.n_spikes[i], n = static_cast<std::int32_t>(offsets_[i + 1] - begin);
      std::int32_t* const spikes = edges_.data() + i * 2 * (n_ranks_ + 1);
      find_edges(ids + begin, n_spikes, first, owner, spikes);
      find_edges(ids + begin + n_spikes, n - n_spikes, first, owner, spikes + n_ranks_ + 1);
    });
  });
}

std::vector<Array<float>> split_values(const Lists& population, std::int64_t n_lists, const float* values, int n_rows,
                                       const std::vector<std::uint32_t>& first) {
  const PhaseTimer timer(Phase::sum_shares);
  const Owners owners(population, n_lists, first);
  std::vector<std::int64_t> sizes(owners.n_ranks());
  for (std::int64_t i = 0; i < n_lists; ++i)
    for (int r = 0; r < owners.n_ranks(); ++r) sizes[r] += owners.runs(i, r).size();
  std::vector<Array<float>> parts;
  std::vector<float*> next;  // the next position for the values of each rank
  for (std::int64_t n : sizes) next.push_back(parts.emplace_back(static_cast<std::size_t>(n * n_rows)).data());
  const std::int64_t n_values = population.offsets[n_lists];
  for (int row = 0; row < n_rows; ++row, values += n_values)
    for (std::int64_t i = 0; i < n_lists; ++i)
      for (int r = 0; r < owners.n_ranks(); ++r) {
        const Runs runs = owners.runs(i, r);
        next[r] = copy_run(values + runs.spikes, runs.n_spikes(), next[r]);
        next[r] = copy_run(values + runs.near, runs.n_near(), next[r]);
      }
  return parts;
}

}  // namespace sparsesnn
