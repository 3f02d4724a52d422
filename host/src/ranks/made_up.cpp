#include "made_up.h"

#include <algorithm>
#include <cstring>

#include "codelets/splitmix.h"
#include "shard_lists.h"

namespace sparsesnn {
namespace {

// Spikes per neuron and step of populations without neurons on this rank.
constexpr double activity = 0.02;

// IdRuns of ids, one after another.
struct IdRuns {
  std::vector<std::uint32_t> ids;
  std::vector<std::int32_t> sizes;
};

// IdRuns for n neurons from those of n_own: each is the run `by` later, with some ids left out, or doubled.
IdRuns moved(const IdRuns& own, std::uint32_t n_own, std::uint32_t n, int by) {
  IdRuns found;
  const auto n_runs = static_cast<int>(own.sizes.size());
  std::vector<std::size_t> starts{0};
  for (const std::int32_t size : own.sizes) starts.push_back(starts.back() + static_cast<std::size_t>(size));
  for (int k = 0; k < n_runs; ++k) {
    const int from = ((k + by) % n_runs + n_runs) % n_runs;
    const std::size_t before = found.ids.size();
    for (std::uint32_t first = 0; first < n; first += n_own)
      for (std::size_t j = starts[from]; j < starts[from + 1]; ++j)
        if (first + own.ids[j] < n) found.ids.push_back(first + own.ids[j]);
    found.sizes.push_back(static_cast<std::int32_t>(found.ids.size() - before));
  }
  return found;
}

// Two runs per list: its spikes, and its near-spikes, of which there are none.
IdRuns drawn(std::int64_t n_lists, std::uint32_t n, std::size_t seed) {
  IdRuns found;
  Hash64 state = splitmix(seed);
  for (std::int64_t i = 0; i < n_lists; ++i) {
    const std::size_t before = found.ids.size();
    for (std::uint32_t id = 0; id < n; ++id)
      if (static_cast<double>(finalized(state += splitmix_step) >> 11) < activity * 0x1p53) found.ids.push_back(id);
    found.sizes.push_back(static_cast<std::int32_t>(found.ids.size() - before));
    found.sizes.push_back(0);
  }
  return found;
}

IdRuns runs_of(const Lists& lists, std::int64_t n_lists) {
  IdRuns found;
  for (std::int64_t j = 0; j < lists.offsets[n_lists]; ++j) found.ids.push_back(lists.id(j));
  for (std::int64_t i = 0; i < n_lists; ++i) {
    found.sizes.push_back(lists.n_spikes[i]);
    found.sizes.push_back(static_cast<std::int32_t>(lists.offsets[i + 1] - lists.offsets[i]) - lists.n_spikes[i]);
  }
  return found;
}

// Writes ids, each plus `first`, uint16 or uint32; returns the place after them.
unsigned char* write_ids(const std::vector<std::uint32_t>& ids, std::uint32_t first, bool wide, unsigned char* to) {
  const auto write = [&]<class Id>(Id* out) {
    for (const std::uint32_t id : ids) *out++ = static_cast<Id>(first + id);
    return reinterpret_cast<unsigned char*>(out);
  };
  return wide ? write(reinterpret_cast<std::uint32_t*>(to)) : write(reinterpret_cast<std::uint16_t*>(to));
}

}  // namespace

Array<unsigned char> made_up_spikes(const Message& own, std::size_t n_lists, std::size_t n_kinds, bool wide,
                                    const LayerRanks& ranks, int other) {
  const int rank = ranks.rank(), by = other - rank;
  const std::uint32_t n_own = ranks.n_neurons(rank), n = ranks.n_neurons(other);
  const std::size_t n_counts = n_lists * n_kinds, id_bytes = wide ? 4 : 2;
  const std::size_t n_ids = (own.size - n_counts * count_bytes(n_own)) / id_bytes;
  std::vector<std::int32_t> counts(n_counts), theirs(n_counts);
  unpack_counts(own.data + n_ids * id_bytes, n_counts, count_bytes(n_own), counts.data());
  const Lists ids{nullptr, own.data, nullptr, wide};
  IdRuns fired;
  for (std::size_t j = 0; j < n_ids; ++j) fired.ids.push_back(ids.id(static_cast<std::int64_t>(j)) - ranks.first[rank]);
  for (std::size_t i = 0; i < n_lists; ++i) fired.sizes.push_back(counts[i * n_kinds]);
  fired = moved(fired, n_own, n, by);
  const auto n_runs = static_cast<std::ptrdiff_t>(n_lists);
  for (std::ptrdiff_t i = 0; i < n_runs; ++i) {
    const std::ptrdiff_t from = ((i + by) % n_runs + n_runs) % n_runs;
    for (std::size_t kind = 0; kind < n_kinds; ++kind)
      theirs[i * n_kinds + kind] =
          kind ? std::min(counts[from * n_kinds + kind], static_cast<std::int32_t>(n)) : fired.sizes[i];
  }
  Array<unsigned char> message(fired.ids.size() * id_bytes + n_counts * count_bytes(n));
  pack_counts(theirs.data(), n_counts, count_bytes(n), write_ids(fired.ids, ranks.first[other], wide, message.data()));
  return message;
}

Array<unsigned char> made_up_lists(const Lists& own, int n_steps, int n_samples,
                                   const std::vector<std::uint32_t>& first, std::size_t rank, std::size_t other,
                                   bool limited, const std::optional<ListOrder>& order) {
  const std::uint32_t n_own = first[rank + 1] - first[rank], n = first[other + 1] - first[other];
  if (!n) return Array<unsigned char>(0);
  const std::int64_t n_lists = static_cast<std::int64_t>(n_steps) * n_samples;
  const IdRuns runs = moved(n_own ? runs_of(own, n_lists) : drawn(n_lists, n, other), n_own ? n_own : n, n,
                            2 * (static_cast<int>(other) - static_cast<int>(rank)));
  std::vector<std::int64_t> offsets{0};
  std::vector<std::int32_t> n_spikes;
  for (std::size_t k = 0; k < runs.sizes.size(); k += 2) {
    offsets.push_back(offsets.back() + runs.sizes[k] + runs.sizes[k + 1]);
    n_spikes.push_back(runs.sizes[k]);
  }
  const bool wide = n > 65536;
  const Array<unsigned char> ids(runs.ids.size() * (wide ? 4 : 2));
  write_ids(runs.ids, 0, wide, ids.data());
  const Lists lists{offsets.data(), ids.data(), n_spikes.data(), wide};
  std::optional<OwnEvents> events;
  if (order) events.emplace(lists, static_cast<int>(n), n_steps, n_samples, *order);
  const std::vector<std::int32_t> dropped(static_cast<std::size_t>(n_lists));
  return shard_message(lists, n_lists, n, limited && first[other] == 0 ? dropped.data() : nullptr,
                       events ? &*events : nullptr);
}

}  // namespace sparsesnn
