// The order in which contributions of a population's tiles are added.
//
// Pairwise: the sum over an aligned block of 2^k tiles is that of its first half plus that of its second. A number of
// tiles that is not a power of two leaves several blocks, the largest first (13 tiles: 8, 4, 1), which are added from
// the last to the first. So a rank with some of the tiles adds them up to a few blocks, half of a large population to
// one, and all arrive at the same bits.
#pragma once

#include <bit>
#include <utility>
#include <vector>

namespace sparsesnn {

struct TileBlock {
  int first, n;  // n a power of two, first a multiple of it
};

// The blocks that tiles begin..end-1 add up to: as few as possible.
inline std::vector<TileBlock> tile_blocks(int begin, int end) {
  std::vector<TileBlock> blocks;
  while (begin < end) {
    const unsigned fits = std::bit_floor(static_cast<unsigned>(end - begin));
    const unsigned aligned = begin ? 1u << std::countr_zero(static_cast<unsigned>(begin)) : fits;
    const int n = static_cast<int>(fits < aligned ? fits : aligned);
    blocks.push_back({std::exchange(begin, begin + n), n});
  }
  return blocks;
}

// For all blocks of a population, ascending, the number of pending sums that each is added to, the latest first: in the
// end one sum is left.
inline std::vector<int> block_folds(const std::vector<TileBlock>& blocks) {
  std::vector<int> folds, waiting;
  for (const TileBlock& block : blocks) {
    folds.push_back(0);
    int n = block.n;
    for (; !waiting.empty() && waiting.back() == n; n *= 2, ++folds.back()) waiting.pop_back();
    waiting.push_back(n);
  }
  if (!folds.empty()) folds.back() += static_cast<int>(waiting.size()) - 1;
  return folds;
}

}  // namespace sparsesnn
