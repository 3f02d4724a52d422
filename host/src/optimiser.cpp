#include "optimiser.h"

#include <algorithm>

#include "kernels.h"
#include "thread_pool.h"

namespace sparsesnn {

void adam_step(float* w, float* m, float* s, const float* d, std::size_t n, const AdamStep& step) {
  const Kernels& kernels = chosen_kernels();
  constexpr std::size_t piece = 16384;
  parallel_for(static_cast<int>((n + piece - 1) / piece), [&](int item, int) {
    const std::size_t from = item * piece;
    kernels.adam(w + from, m + from, s + from, d + from, std::min(piece, n - from), step);
  });
}

}  // namespace sparsesnn
