#include "optimizer.h"

#include <algorithm>

#include "host/src/cpu/kernels/kernels.h"
#include "host/src/machine/thread_pool.h"

namespace sparsesnn {

void adam_step(const std::vector<AdamUpdate>& updates) {
  const Kernels& kernels = chosen_kernels();
  constexpr std::size_t piece = 16384;
  struct Piece {
    const AdamUpdate* of;
    std::size_t from;
  };
  std::vector<Piece> pieces;
  for (const AdamUpdate& one : updates)
    for (std::size_t from = 0; from < one.n; from += piece) pieces.push_back({&one, from});
  parallel_for(static_cast<int>(pieces.size()), [&](int k, int) {
    const auto& [one, from] = pieces[k];
    kernels.adam(one->w + from, one->m + from, one->s + from, one->d + from, std::min(piece, one->n - from), one->step);
  });
}

}  // namespace sparsesnn
