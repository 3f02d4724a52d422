#include "shard_lists.h"

#include <algorithm>

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

// Entries from..to-1 of one shard, with the ids of the population, to `at` and on.
template <class Id, class ShardId>
void merge_run(const ShardId* ids, std::int64_t from, std::int64_t to, std::uint32_t first, Id* out, std::int64_t at) {
  for (std::int64_t k = from; k < to; ++k) out[at + k - from] = static_cast<Id>(ids[k] + first);
}

template <class Id>
void merge_ids(const std::vector<Lists>& shards, const std::vector<std::uint32_t>& first, std::int64_t n_lists,
               MergedLists& out) {
  Id* ids = reinterpret_cast<Id*>(out.ids.data());
  each_list(n_lists, [&](std::int64_t i) {
    std::int64_t spike = out.offsets[i], near = spike + out.n_spikes[i];
    for (std::size_t r = 0; r < shards.size(); ++r) {
      const Lists& from = shards[r];
      const std::int64_t begin = from.offsets[i], middle = begin + from.n_spikes[i], end = from.offsets[i + 1];
      const auto merge = [&](auto* shard_ids) {
        merge_run(shard_ids, begin, middle, first[r], ids, spike);
        merge_run(shard_ids, middle, end, first[r], ids, near);
      };
      if (from.wide)
        merge(static_cast<const std::uint32_t*>(from.ids));
      else
        merge(static_cast<const std::uint16_t*>(from.ids));
      spike += middle - begin;
      near += end - middle;
    }
  });
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

MergedLists merge_lists(const std::vector<Lists>& shards, const std::vector<std::uint32_t>& first, std::int64_t n_lists,
                        bool wide) {
  MergedLists out;
  out.offsets = Array<std::int64_t>(n_lists + 1);
  out.n_spikes = Array<std::int32_t>::zeros(n_lists);
  out.offsets[0] = 0;
  for (std::int64_t i = 0; i < n_lists; ++i) {
    std::int64_t n = 0;
    for (const Lists& from : shards) {
      n += from.offsets[i + 1] - from.offsets[i];
      out.n_spikes[i] += from.n_spikes[i];
    }
    out.offsets[i + 1] = out.offsets[i] + n;
  }
  out.ids = Array<unsigned char>(static_cast<std::size_t>(out.offsets[n_lists]) * (wide ? 4 : 2));
  if (wide)
    merge_ids<std::uint32_t>(shards, first, n_lists, out);
  else
    merge_ids<std::uint16_t>(shards, first, n_lists, out);
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
