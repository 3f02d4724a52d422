#include "chunks.h"

#include <algorithm>

#include "choices.h"
#include "thread_pool.h"

namespace sparsesnn {

// 1,024 rows (t, b) are 256 kB a tile of 64 neurons, which leaves half of the smallest usual L2 to the rest. Twice as
// many where a tile's weights from several connections, such as copies with several delays, are more than `columns_kb`:
// they and their gradient come from beyond L2 for every chunk, so half as often. Sample by sample there must be
// something to do for every thread.
ChunkPlan chunk_plan(std::size_t n_pre, std::size_t n_sources, int tile_width, bool by_tile) {
  if (!by_tile) return {choices.backward_rows, (num_threads() + group_samples - 1) / group_samples};
  const std::size_t columns = n_pre * static_cast<std::size_t>(tile_width) * sizeof(float);
  const bool many = n_sources > 1 && columns > static_cast<std::size_t>(choices.columns_kb) << 10;
  return {many ? 2 * choices.backward_rows : choices.backward_rows, 1};
}

std::vector<Chunk> make_chunks(const ChunkPlan& plan, int n_steps, int n_samples, const std::vector<Leaf>& leaves) {
  std::vector<Chunk> chunks;
  if (!n_steps) return chunks;
  const int most_steps = plan.n_rows / group_samples;
  const int groups = n_steps <= most_steps ? std::max(plan.n_groups, plan.n_rows / (n_steps * group_samples)) : 1;
  for (const Leaf& leaf : leaves)
    for (int g = leaf.lo; g < leaf.hi; g += groups)
      for (int t1 = n_steps; t1 > 0; t1 -= most_steps)
        chunks.push_back({std::max(0, t1 - most_steps), t1, g * group_samples,
                          std::min(n_samples, std::min(leaf.hi, g + groups) * group_samples)});
  return chunks;
}

bool runs_by_tile(const LayerSpec& spec, const LayerInput& input) {
  return spec.model->fires() && input.loops.empty() && !input.reads_rows() && spec.n_tiles() >= num_threads();
}

std::vector<Chunk> make_chunks(const LayerSpec& spec, const LayerInput& input, const std::vector<Leaf>& leaves) {
  std::size_t n_pre = 0;
  for (const SourceInput& source : input.sources) n_pre += static_cast<std::size_t>(source.n_pre);
  const ChunkPlan plan = chunk_plan(n_pre, input.sources.size(), spec.tile_width, runs_by_tile(spec, input));
  return make_chunks(plan, input.n_steps, input.n_samples, leaves);
}

}  // namespace sparsesnn
