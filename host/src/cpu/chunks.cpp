#include "chunks.h"

#include <algorithm>

#include "host/src/machine/choices.h"
#include "host/src/machine/thread_pool.h"

namespace sparsesnn {

// Every chunk reads the weights of every sender and their gradient once more, and parts of a group of samples pass on a
// sum for every weight: so groups stay whole up to twice the rows that several share. ∂L/∂i of 2,048 rows is 512 kB for
// a tile of 64 neurons, more than a small L2 holds; but rows are prefetched some events early. Sorting distributes
// chunks over threads: many threads need more chunks. Sample by sample, a chunk must have work for every thread.
ChunkPlan chunk_plan(bool by_tile) {
  constexpr int few_threads = 4;
  const int n_rows = std::max(1, choices.backward_rows * few_threads / std::max(few_threads, num_threads()));
  return {n_rows, by_tile ? 1 : (num_threads() + group_samples - 1) / group_samples};
}

std::vector<Chunk> make_chunks(const ChunkPlan& plan, int n_steps, int n_samples, const std::vector<Leaf>& leaves) {
  std::vector<Chunk> chunks;
  if (!n_steps) return chunks;
  const int most_steps = std::max(1, 2 * plan.n_rows / group_samples);
  const int n_parts = (n_steps + most_steps - 1) / most_steps, part = (n_steps + n_parts - 1) / n_parts;
  const int groups = n_parts == 1 ? std::max(plan.n_groups, plan.n_rows / (n_steps * group_samples)) : 1;
  for (const Leaf& leaf : leaves)
    for (int g = leaf.lo; g < leaf.hi; g += groups)
      for (int t1 = n_steps; t1 > 0; t1 -= part)
        chunks.push_back({std::max(0, t1 - part), t1, g * group_samples,
                          std::min(n_samples, std::min(leaf.hi, g + groups) * group_samples)});
  return chunks;
}

}  // namespace sparsesnn
