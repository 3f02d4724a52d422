#include "shard_lists.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "thread_pool.h"

namespace sparsesnn {
namespace {

constexpr std::int64_t lists_piece = 1024;

// Calls body(i) for all lists.
template <class Body>
void each_list(std::int64_t n_lists, Body&& body) {
  parallel_for(static_cast<int>((n_lists + lists_piece - 1) / lists_piece), [&](int item, int) {
    for (std::int64_t i = item * lists_piece; i < std::min(n_lists, (item + 1) * lists_piece); ++i) body(i);
  });
}

bool is_wide(std::uint32_t n_neurons) { return n_neurons > 65536; }

// Calls body with a number of the type in which counts of so many bytes travel.
template <class Body>
void with_count(std::size_t n_bytes, Body&& body) {
  if (n_bytes == 1)
    body(std::uint8_t());
  else if (n_bytes == 2)
    body(std::uint16_t());
  else
    body(std::int32_t());
}

// A shard's message, read.
struct ShardLists {
  Array<std::int32_t> counts;
  const std::int32_t *n_spikes, *n_listed;
  const unsigned char* dropped;
  const void* ids;
  std::int64_t n_ids;
  bool wide;
};

// `drops`: the message ends with what found no slot.
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
  for (std::int64_t i = 0; good && i < n_lists; ++i) {
    good = out.n_spikes[i] >= 0 && out.n_listed[i] >= out.n_spikes[i];
    out.n_ids += out.n_listed[i];
  }
  if (!good || message.size != tail + static_cast<std::size_t>(out.n_ids) * (out.wide ? 4 : 2))
    throw InputError("SpikeListError", "rank " + std::to_string(rank) + " sent " + std::to_string(message.size) +
                                           " bytes, which are not " + std::to_string(n_lists) + " lists of " +
                                           std::to_string(n_neurons) + " neurons");
  return out;
}

// out[k] = ids[k] + first for n ids. Runs are short: whole vectors are written where that is in bounds, and what is too
// much is written over by the next run.
template <class Id, class ShardId>
void copy_run(const ShardId* ids, const ShardId* ids_end, std::int64_t n, std::uint32_t first, Id* out,
              const Id* out_end) {
  constexpr std::int64_t step = 16;
  std::int64_t k = 0;
  for (; k < n && ids_end - ids >= k + step && out_end - out >= k + step; k += step)
    for (std::int64_t j = k; j < k + step; ++j) out[j] = static_cast<Id>(ids[j] + first);
  for (; k < n; ++k) out[k] = static_cast<Id>(ids[k] + first);
}

// Lists i0..i1-1; at[r]: where the entries of shard r begin.
template <class Id>
void merge_ids(const std::vector<ShardLists>& shards, const std::vector<std::uint32_t>& first, std::int64_t i0,
               std::int64_t i1, std::vector<std::int64_t> at, const std::int64_t* offsets, Id* ids) {
  const Id* const end = ids + offsets[i1];
  const auto copy = [&](std::size_t r, std::int64_t from, std::int64_t n, Id* to) {
    const auto run = [&](auto* shard_ids) {
      copy_run(shard_ids + from, shard_ids + shards[r].n_ids, n, first[r], to, end);
    };
    if (shards[r].wide)
      run(static_cast<const std::uint32_t*>(shards[r].ids));
    else
      run(static_cast<const std::uint16_t*>(shards[r].ids));
    return to + n;
  };
  for (std::int64_t i = i0; i < i1; ++i) {
    Id* to = ids + offsets[i];
    for (std::size_t r = 0; r < shards.size(); ++r) to = copy(r, at[r], shards[r].n_spikes[i], to);
    for (std::size_t r = 0; r < shards.size(); ++r) {
      const std::int64_t n_spikes = shards[r].n_spikes[i], n_listed = shards[r].n_listed[i];
      to = copy(r, at[r] + n_spikes, n_listed - n_spikes, to);
      at[r] += n_listed;
    }
  }
}

// How many of n ids, ascending, are below `limit`: by halves, and without a branch, which would be guessed wrong as
// often as not.
template <class Id>
std::int32_t count_below(const Id* ids, std::int64_t n, std::uint32_t limit) {
  const Id* from = ids;
  for (; n > 1; n -= n / 2) from = from[n / 2 - 1] < limit ? from + n / 2 : from;
  return static_cast<std::int32_t>(from - ids) + (n && *from < limit);
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
                                   const std::int32_t* dropped) {
  const std::size_t n = static_cast<std::size_t>(n_lists), n_bytes = count_bytes(n_neurons);
  const std::size_t ids = static_cast<std::size_t>(lists.offsets[n_lists]) * (lists.wide ? 4 : 2);
  std::vector<std::int32_t> counts(2 * n);
  std::copy_n(lists.n_spikes, n, counts.data());
  for (std::size_t i = 0; i < n; ++i)
    counts[n + i] = static_cast<std::int32_t>(lists.offsets[i + 1] - lists.offsets[i]);
  Array<unsigned char> message(ids + 2 * n * n_bytes + (dropped ? 4 * n : 0));
  if (ids) std::memcpy(message.data(), lists.ids, ids);
  pack_counts(counts.data(), 2 * n, n_bytes, message.data() + ids);
  if (dropped) std::memcpy(message.data() + ids + 2 * n * n_bytes, dropped, 4 * n);
  return message;
}

MergedLists merge_messages(const std::vector<Message>& messages, std::int64_t n_lists, bool limited,
                           const std::vector<std::uint32_t>& first) {
  const std::size_t first_owner = std::upper_bound(first.begin(), first.end(), 0u) - first.begin() - 1;
  std::vector<ShardLists> shards;
  for (std::size_t r = 0; r < messages.size(); ++r)
    shards.push_back(read_message(messages[r], n_lists, limited && r == first_owner, first[r + 1] - first[r], r));

  MergedLists out;
  out.wide = is_wide(first.back());
  out.offsets = Array<std::int64_t>(n_lists + 1);
  out.n_spikes = Array<std::int32_t>(n_lists);
  std::vector<std::vector<std::int64_t>> starts;  // of each piece of lists, where the entries of each shard begin
  std::vector<std::int64_t> at(shards.size());
  out.offsets[0] = 0;
  for (std::int64_t i = 0; i < n_lists; ++i) {
    if (i % lists_piece == 0) starts.push_back(at);
    std::int32_t n_spikes = 0, n_listed = 0;
    for (std::size_t r = 0; r < shards.size(); ++r) {
      n_spikes += shards[r].n_spikes[i];
      n_listed += shards[r].n_listed[i];
      at[r] += shards[r].n_listed[i];
    }
    out.n_spikes[i] = n_spikes;
    out.offsets[i + 1] = out.offsets[i] + n_listed;
  }
  if (limited) {
    out.dropped = Array<std::int32_t>(n_lists);
    if (n_lists) std::memcpy(out.dropped.data(), shards[first_owner].dropped, 4 * static_cast<std::size_t>(n_lists));
  }
  out.ids = Array<unsigned char>(static_cast<std::size_t>(out.offsets[n_lists]) * (out.wide ? 4 : 2));
  parallel_for(static_cast<int>(starts.size()), [&](int item, int) {
    const std::int64_t i0 = item * lists_piece, i1 = std::min(n_lists, i0 + lists_piece);
    const auto merge = [&](auto* ids) { merge_ids(shards, first, i0, i1, starts[item], out.offsets.data(), ids); };
    if (out.wide)
      merge(reinterpret_cast<std::uint32_t*>(out.ids.data()));
    else
      merge(reinterpret_cast<std::uint16_t*>(out.ids.data()));
  });
  return out;
}

Owners::Owners(const Lists& population, std::int64_t n_lists, const std::vector<std::uint32_t>& first)
    : offsets_(population.offsets),
      n_ranks_(static_cast<int>(first.size()) - 1),
      edges_(static_cast<std::size_t>(n_lists) * 2 * first.size()) {
  const auto find = [&](auto* ids) {
    each_list(n_lists, [&](std::int64_t i) {
      const std::int64_t begin = offsets_[i];
      const std::int32_t n_spikes = population.n_spikes[i], n = static_cast<std::int32_t>(offsets_[i + 1] - begin);
      std::int32_t* spikes = edges_.data() + i * 2 * (n_ranks_ + 1);
      std::int32_t* near = spikes + n_ranks_ + 1;
      spikes[0] = 0;
      spikes[n_ranks_] = near[0] = n_spikes;
      near[n_ranks_] = n;
      for (int r = 1; r < n_ranks_; ++r) {  // at least as many as before: ids that do not ascend must not do harm
        spikes[r] = std::max(spikes[r - 1], count_below(ids + begin, n_spikes, first[r]));
        near[r] = std::max(near[r - 1], n_spikes + count_below(ids + begin + n_spikes, n - n_spikes, first[r]));
      }
    });
  };
  if (population.wide)
    find(static_cast<const std::uint32_t*>(population.ids));
  else
    find(static_cast<const std::uint16_t*>(population.ids));
}

std::vector<Array<float>> split_values(const Lists& population, std::int64_t n_lists, const float* values, int n_rows,
                                       const std::vector<std::uint32_t>& first) {
  const Owners owners(population, n_lists, first);
  const std::int64_t n_values = population.offsets[n_lists];
  std::vector<Array<float>> parts;
  for (int r = 0; r < owners.n_ranks(); ++r) {
    std::int64_t n = 0;
    for (std::int64_t i = 0; i < n_lists; ++i) n += owners.runs(i, r).size();
    const Array<float>& part = parts.emplace_back(static_cast<std::size_t>(n * n_rows));
    float* to = part.data();
    for (int row = 0; row < n_rows; ++row)
      for (std::int64_t i = 0; i < n_lists; ++i) {
        const Runs runs = owners.runs(i, r);
        to = std::copy_n(values + row * n_values + runs.spikes, runs.n_spikes(), to);
        to = std::copy_n(values + row * n_values + runs.near, runs.n_near(), to);
      }
  }
  return parts;
}

}  // namespace sparsesnn
