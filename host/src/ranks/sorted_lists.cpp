#include "sorted_lists.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include "codelets/cpu/records.h"
#include "host/src/cpu/phases.h"
#include "host/src/machine/thread_pool.h"

namespace sparsesnn {
namespace {

std::vector<Chunk> chunks_of(int n_steps, int n_samples, const ListOrder& order) {
  return make_chunks(order.plan, n_steps, n_samples, make_leaves(n_samples, 0, 0));
}

// The sizes in bytes of a count of one sender's events, and of a row, in a message.
std::pair<std::size_t, std::size_t> widths(const std::vector<Chunk>& chunks) {
  std::size_t most = 0;
  for (const Chunk& chunk : chunks) most = std::max(most, chunk.n_rows());
  return {count_bytes(static_cast<std::uint32_t>(most)), most <= 65536 ? 2 : 4};
}

// Aligns for the ids that follow.
std::size_t aligned(std::size_t n_bytes) { return (n_bytes + 7) / 8 * 8; }

bool same(const Chunk& a, const Chunk& b) { return a.t0 == b.t0 && a.t1 == b.t1 && a.b0 == b.b0 && a.b1 == b.b1; }

}  // namespace

OwnEvents::OwnEvents(const Lists& own, int n_neurons, int n_steps, int n_samples, const ListOrder& order)
    : n_slots_(own.offsets[static_cast<std::int64_t>(n_steps) * n_samples]) {
  const PhaseTimer timer(Phase::sort);
  const std::vector<Chunk> chunks = chunks_of(n_steps, n_samples, order);
  std::tie(count_bytes_, row_bytes_) = widths(chunks);
  chunks_.resize(chunks.size());
  parallel_for(static_cast<int>(chunks.size()), [&](int c, int) {
    chunks_[c] = sort_by_sender({own, n_neurons, order.delay, true}, chunks[c], n_samples);
  });
  for (const Events& events : chunks_) size_ += events.n;
}

std::size_t OwnEvents::n_bytes() const {
  std::size_t n_counts = 0;
  for (const Events& events : chunks_) n_counts += events.starts.size() - 1;
  return aligned(n_counts * count_bytes_ + size_ * row_bytes_);
}

void OwnEvents::pack(unsigned char* to) const {
  unsigned char* const end = to + n_bytes();
  std::vector<std::int32_t> counts;
  for (const Events& events : chunks_) {
    const std::size_t n = events.starts.size() - 1;
    counts.resize(n);
    for (std::size_t g = 0; g < n; ++g) counts[g] = events.starts[g + 1] - events.starts[g];
    pack_counts(counts.data(), n, count_bytes_, to);
    to += n * count_bytes_;
  }
  for (const Events& events : chunks_) {
    pack_counts(reinterpret_cast<const std::int32_t*>(events.rows.data()), events.n, row_bytes_, to);
    to += events.n * row_bytes_;
  }
  std::fill(to, end, static_cast<unsigned char>(0));
}

Array<float> OwnEvents::to_slots(const float* values, std::size_t n_slots) const {
  Array<float> slots(n_slots);
  std::fill(slots.data() + size_, slots.data() + n_slots, 0.0f);  // the last steps' lists, which have no reader
  for (const Events& events : chunks_)
    put_in_lists(events, {std::exchange(values, values + events.n)}, slots.data(), n_slots);
  return slots;
}

SortedLists::SortedLists(const std::vector<Message>& messages, const std::vector<std::uint32_t>& first, int n_steps,
                         int n_samples, const ListOrder& order)
    : first_(first), n_steps_(n_steps), n_samples_(n_samples), delay_(order.delay) {
  const PhaseTimer timer(Phase::sort);
  const std::vector<Chunk> chunks = chunks_of(n_steps, n_samples, order);
  const auto [width, row_width] = widths(chunks);
  const std::size_t n_ranks = messages.size(), n_groups = 2 * static_cast<std::size_t>(first.back());
  for (const Chunk& chunk : chunks) {
    chunks_.push_back({chunk, {}, {}});
    chunks_.back().events.starts = Array<std::int32_t>(n_groups + 1);
  }
  std::vector<const unsigned char*> rows;
  for (std::size_t r = 0; r < n_ranks; ++r) {
    const std::size_t g0 = 2 * std::size_t{first[r]}, n = 2 * std::size_t{first[r + 1]} - g0;
    const Message& message = messages[r];
    const std::size_t n_counts = n * chunks.size();
    std::size_t n_events = 0, end = 0;
    bool good = message.size >= n_counts * width;
    for (std::size_t c = 0; good && c < chunks.size(); ++c) {
      std::int32_t* const counts = chunks_[c].events.starts.data() + g0;
      unpack_counts(message.data + c * n * width, n, width, counts);
      chunks_[c].begin.push_back(edges_.back() + n_events);
      for (std::size_t g = 0; g < n; ++g) {
        good = good && counts[g] >= 0;
        n_events += static_cast<std::size_t>(counts[g]);
      }
    }
    if (n) end = aligned(n_counts * width + n_events * row_width);
    if (!good || message.size < end)
      throw InputError("SpikeListError", "rank " + std::to_string(r) + " sent " + std::to_string(message.size) +
                                             " bytes, which do not begin with the events of " + std::to_string(n / 2) +
                                             " neurons");
    rows.push_back(message.data + n_counts * width);
    edges_.push_back(edges_.back() + n_events);
    ends_.push_back(end);
  }
  std::vector<char> good(chunks.size());
  parallel_for(static_cast<int>(chunks.size()), [&, row_bytes = row_width](int c, int) {
    Events& events = chunks_[c].events;
    std::int32_t sum = 0;
    for (std::size_t g = 0; g < n_groups; ++g) sum += std::exchange(events.starts[g], sum);
    events.starts[n_groups] = sum;
    events.n = static_cast<std::size_t>(sum);
    events.rows = Array<std::uint32_t>(events.n + events_ahead);
    std::fill_n(events.rows.data() + events.n, events_ahead, 0u);
    for (std::size_t r = 0; r < n_ranks; ++r) {
      const std::int32_t from = events.starts[2 * std::size_t{first_[r]}],
                         to = events.starts[2 * std::size_t{first_[r + 1]}];
      unpack_counts(rows[r] + (chunks_[c].begin[r] - edges_[r]) * row_bytes, static_cast<std::size_t>(to - from),
                    row_bytes, reinterpret_cast<std::int32_t*>(events.rows.data()) + from);
    }
    std::uint32_t most = 0;
    for (std::size_t j = 0; j < events.n; ++j) most = std::max(most, events.rows[j]);
    good[c] = most < chunks_[c].chunk.n_rows() || !events.n;
  });
  if (!std::all_of(good.begin(), good.end(), [](char one) { return one; }))
    throw InputError("SpikeListError", "a rank sent events in rows outside every chunk");
}

bool SortedLists::serves(int delay, const std::vector<Chunk>& chunks) const {
  return delay == delay_ && std::equal(chunks.begin(), chunks.end(), chunks_.begin(), chunks_.end(),
                                       [](const Chunk& a, const Sorted& b) { return same(a, b.chunk); });
}

void SortedLists::put(int chunk, std::size_t begin, const float* sums, std::size_t n, float* values) const {
  const Sorted& of = chunks_[chunk];
  for (std::size_t r = 0; r + 1 < first_.size(); ++r) {  // each rank's are contiguous
    const std::size_t edge = static_cast<std::size_t>(of.events.starts[2 * std::size_t{first_[r]}]),
                      end = static_cast<std::size_t>(of.events.starts[2 * std::size_t{first_[r + 1]}]);
    const std::size_t from = std::max(begin, edge), to = std::min(begin + n, end);
    if (from < to) std::copy(sums + (from - begin), sums + (to - begin), values + of.begin[r] + (from - edge));
  }
}

Array<float> SortedLists::from_slots(const Lists& population, std::int64_t n_slots, const float* values,
                                     std::size_t n_rows) const {
  const PhaseTimer timer(Phase::sum_shares);
  Array<float> found(size() * n_rows);
  const SenderInput from{population, static_cast<int>(first_.back()), delay_, true};
  parallel_for(static_cast<int>(chunks_.size()), [&](int c, int) {
    const Sorted& of = chunks_[c];
    std::vector<std::size_t> next(2 *
                                  std::size_t{first_.back()});  // the position of each neuron's next event of a kind
    for (std::size_t r = 0; r + 1 < first_.size(); ++r) {
      const std::size_t g0 = 2 * std::size_t{first_[r]}, g1 = 2 * std::size_t{first_[r + 1]};
      for (std::size_t g = g0; g < g1; ++g)
        next[g] = of.begin[r] + static_cast<std::size_t>(of.events.starts[g] - of.events.starts[g0]);
    }
    with_ids(population.wide, population.ids, [&](auto* ids) {
      visit_rows(from, of.chunk, n_samples_, [&](std::uint32_t, const Lists& lists, std::int64_t list) {
        const std::int64_t begin = lists.offsets[list], near = begin + lists.n_spikes[list],
                           end = lists.offsets[list + 1];
        for (std::int64_t j = begin; j < end; ++j) {
          const std::size_t to = next[2 * static_cast<std::size_t>(ids[j]) + (j >= near)]++;
          for (std::size_t k = 0; k < n_rows && to < size(); ++k) found[k * size() + to] = values[k * n_slots + j];
        }
      });
    });
  });
  return found;
}

}  // namespace sparsesnn
