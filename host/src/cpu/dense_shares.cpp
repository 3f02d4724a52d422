#include "dense_shares.h"

#include <algorithm>
#include <bit>

#include "host/src/machine/choices.h"
#include "host/src/machine/thread_pool.h"
#include "host/src/training/group_sums.h"
#include "phases.h"

namespace sparsesnn {
namespace {

constexpr std::size_t block_size = static_cast<std::size_t>(dense_block) * dense_block;

// The list that arrived at a row of the current block, and the position reached in it.
struct Row {
  std::int64_t spike, spikes_end, near, near_end;
};

// The first of slots begin..end-1 whose id is at least m.
template <class Id>
std::int64_t first_from(const Id* ids, std::int64_t begin, std::int64_t end, int m) {
  return m ? std::lower_bound(ids + begin, ids + end, m) - ids : begin;
}

// Writes sum[id - m0] for the entries from `slot` on with ids below m1; returns the first slot after them.
template <class Id>
std::int64_t put(const Id* ids, std::int64_t slot, std::int64_t end, int m0, int m1, const float* sum, float* d_value) {
  for (; slot < end && ids[slot] < static_cast<std::uint32_t>(m1); ++slot) d_value[slot] = sum[ids[slot] - m0];
  return slot;
}

class Products {
 public:
  // d_current [P][all_rows][W], from the first row of the chunk on.
  Products(const Kernels& kernels, const LayerSpec& spec, const Chunk& chunk, std::size_t all_rows, int n_samples,
           const SenderInput& from, const float* weight, const float* d_current, const ListGrads& to)
      : kernels_(kernels),
        spec_(spec),
        chunk_(chunk),
        all_rows_(all_rows),
        n_samples_(n_samples),
        from_(from),
        weight_(weight),
        d_current_(d_current),
        to_(to) {}

  // At most dense_block rows from row0 on, for senders in blocks b0..b1-1.
  template <class Id>
  void run(const Id* ids, int row0, int b0, int b1) const {
    const int n_rows = std::min(dense_block, static_cast<int>(chunk_.n_rows()) - row0);
    Row rows[dense_block];
    for (int i = 0; i < n_rows; ++i) rows[i] = row_at(ids, row0 + i, b0 * dense_block);
    int most = 1;  // tiles of a block: each halving needs workspace
    for (const TileBlock& tiles : to_.blocks) most = std::max(most, tiles.n);
    const int depth = std::bit_width(static_cast<unsigned>(most));
    const Array<float> sums(2 * block_size), room(depth * block_size);
    float *const sum = sums.data(), *const next = sum + block_size;
    for (int b = b0; b < b1; ++b) {
      const int m0 = b * dense_block, m1 = std::min(from_.n_pre, m0 + dense_block);
      const DenseBlock block{m0, m1 - m0, row0, n_rows, all_rows_};
      for (std::size_t k = to_.blocks.size(); k-- > 0;) {
        const bool begins = to_.by_blocks || k + 1 == to_.blocks.size();
        const TileBlock tiles{to_.blocks[k].first - spec_.first_tile(), to_.blocks[k].n};  // relative to this shard
        kernels_.dense_shares(spec_, weight_, block, tiles, d_current_, room.data(), begins ? sum : next);
        if (!begins)
          for (std::size_t j = 0; j < block_size; ++j) sum[j] = next[j] + sum[j];
        if (!to_.by_blocks && k) continue;
        float* const d_value = to_.d_value + (to_.by_blocks ? k * to_.n_values : 0);
        for (int i = 0; i < n_rows; ++i) {
          Row& row = rows[i];
          const float* from = sum + i * dense_block;
          const std::int64_t spike = put(ids, row.spike, row.spikes_end, m0, m1, from, d_value);
          const std::int64_t near = put(ids, row.near, row.near_end, m0, m1, from, d_value);
          if (!k) row = {spike, row.spikes_end, near, row.near_end};
        }
      }
    }
  }

 private:
  // The entries that arrive at a row, from sender m on; none for samples that do not exist, or before the delay.
  template <class Id>
  Row row_at(const Id* ids, int row, int m) const {
    const int group = row / chunk_.group_rows(), in_group = row % chunk_.group_rows();
    const int t = chunk_.t0 + in_group / group_samples;
    const int b = chunk_.b0 + group * group_samples + in_group % group_samples;
    if (b >= chunk_.b1 || t < from_.delay) return {};
    const Lists& lists = from_.lists;
    const std::int64_t list = static_cast<std::int64_t>(t - from_.delay) * n_samples_ + b;
    const std::int64_t begin = lists.offsets[list], near = begin + lists.n_spikes[list], end = lists.offsets[list + 1];
    return {first_from(ids, begin, near, m), near, first_from(ids, near, end, m), end};
  }

  const Kernels& kernels_;
  const LayerSpec& spec_;
  const Chunk& chunk_;
  const std::size_t all_rows_;
  const int n_samples_;
  const SenderInput& from_;
  const float *weight_, *d_current_;
  const ListGrads& to_;
};

}  // namespace

bool listed_densely(const Lists& lists, int n_pre, int delay, int n_steps, int n_samples) {
  const std::int64_t n_heard = std::max(0, n_steps - delay);
  const double n_rows = static_cast<double>(n_heard) * count_groups(n_samples) * group_samples;
  std::int64_t n_spikes = 0;
  for (std::int64_t list = 0; list < n_heard * n_samples; ++list) n_spikes += lists.n_spikes[list];
  const std::int64_t n_near = lists.offsets[n_heard * n_samples] - n_spikes;
  return 100 * (n_near + n_spikes / 3.0) >= choices.dense_share * n_rows * n_pre;
}

namespace {

void run_products(const Products& products, const Chunk& chunk, const SenderInput& from) {
  // Pieces of rows; of senders too if rows alone do not occupy all threads.
  const int n_rows = (static_cast<int>(chunk.n_rows()) + dense_block - 1) / dense_block;
  const int n_blocks = (from.n_pre + dense_block - 1) / dense_block;
  const int n_parts = std::clamp((4 * num_threads() + n_rows - 1) / n_rows, 1, n_blocks);
  parallel_for(n_rows * n_parts, [&](int item, int) {
    const Part part{item % n_parts, n_parts};
    const int row0 = item / n_parts * dense_block, b0 = part.begin(n_blocks), b1 = part.end(n_blocks);
    with_ids(from.lists.wide, from.lists.ids, [&](auto* ids) { products.run(ids, row0, b0, b1); });
  });
}

}  // namespace

void dense_list_grads(const Kernels& kernels, const LayerSpec& spec, const Chunk& chunk, int n_samples,
                      const SenderInput& from, const float* weight, const float* d_current, const ListGrads& to) {
  const PhaseTimer timer(Phase::deliver_grad);
  run_products({kernels, spec, chunk, chunk.n_rows(), n_samples, from, weight, d_current, to}, chunk, from);
}

void dense_step_grads(const Kernels& kernels, const LayerSpec& spec, const Chunk& chunk, int t, int b, int n_samples,
                      const SenderInput& from, const float* weight, const float* d_current, const ListGrads& to) {
  const Chunk step{t, t + 1, b, std::min(chunk.b1, b + group_samples)};
  const float* const first = d_current + static_cast<std::size_t>(chunk.row(t, b)) * spec.tile_width;
  run_products({kernels, spec, step, chunk.n_rows(), n_samples, from, weight, first, to}, step, from);
}

}  // namespace sparsesnn
