#include "input_events.h"

#include <algorithm>
#include <array>

#include "codelets/cpu/records.h"
#include "host/src/cpu/phases.h"
#include "host/src/machine/thread_pool.h"

namespace sparsesnn {
namespace {

using Head = std::array<std::int32_t, 4>;

Head head_of(const Chunk& chunk) { return {chunk.t0, chunk.t1, chunk.b0, chunk.b1}; }

std::size_t n_starts(int n_pre) { return 2 * static_cast<std::size_t>(n_pre) + 1; }

// Whether events of a chunk that another process sorted can be those of `n_pre` senders.
bool possible(const SenderChunk& events, int n_pre, const Chunk& chunk) {
  bool good = !events.starts[0];
  for (std::size_t g = 0; g + 1 < n_starts(n_pre); ++g) good = good && events.starts[g] <= events.starts[g + 1];
  std::uint32_t most = 0;
  for (std::size_t j = 0; j < events.n_events; ++j) most = std::max(most, events.rows[j]);
  return good && (!events.n_events || most < chunk.n_rows());
}

}  // namespace

Array<std::int32_t> sort_input(const SenderInput& from, const std::vector<Chunk>& chunks, int n_samples, Part part) {
  const PhaseTimer timer(Phase::sort);
  const int n_chunks = static_cast<int>(chunks.size()), begin = part.begin(n_chunks), n = part.end(n_chunks) - begin;
  std::vector<Events> sorted(n);
  parallel_for(n, [&](int k, int) { sorted[k] = sort_by_sender(from, chunks[begin + k], n_samples); });
  std::vector<std::size_t> at{0};
  for (const Events& events : sorted)
    at.push_back(at.back() + std::tuple_size_v<Head> + n_starts(from.n_pre) + events.n + most_events_ahead);
  auto found = Array<std::int32_t>::shared(at.back());
  parallel_for(n, [&](int k, int) {
    const Head head = head_of(chunks[begin + k]);
    std::int32_t* to = std::copy(head.begin(), head.end(), found.data() + at[k]);
    to = std::copy_n(sorted[k].starts.data(), n_starts(from.n_pre), to);
    std::copy_n(sorted[k].rows.data(), sorted[k].n + most_events_ahead, reinterpret_cast<std::uint32_t*>(to));
  });
  return found;
}

std::vector<SenderChunk> sorted_input(const std::vector<Message>& parts, const std::vector<Chunk>& chunks, int n_pre) {
  const PhaseTimer timer(Phase::sort);
  std::vector<SenderChunk> found;
  for (const Message& part : parts) {
    const std::int32_t* at = reinterpret_cast<const std::int32_t*>(part.data);
    for (std::size_t left = part.size / sizeof(*at); left;) {
      const std::size_t before = std::tuple_size_v<Head> + n_starts(n_pre);
      if (found.size() == chunks.size() || left < before) return {};
      const Head head = head_of(chunks[found.size()]);
      if (!std::equal(head.begin(), head.end(), at)) return {};
      const std::int32_t* const starts = at + head.size();
      const std::int64_t n_events = starts[n_starts(n_pre) - 1];
      const std::size_t size = before + static_cast<std::size_t>(n_events) + most_events_ahead;
      if (n_events < 0 || left < size) return {};
      found.push_back({starts, reinterpret_cast<const std::uint32_t*>(at + before), static_cast<std::size_t>(n_events),
                       nullptr, nullptr});
      at += size;
      left -= size;
    }
  }
  if (found.size() < chunks.size()) return {};
  std::vector<char> good(chunks.size());
  parallel_for(static_cast<int>(chunks.size()), [&](int c, int) { good[c] = possible(found[c], n_pre, chunks[c]); });
  if (!std::all_of(good.begin(), good.end(), [](char one) { return one; }))
    throw InputError("SpikeListError", "a rank sorted the input into events that no chunk has");
  return found;
}

}  // namespace sparsesnn
