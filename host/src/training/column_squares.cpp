#include "column_squares.h"

#include <algorithm>

#include "host/src/cpu/kernels/kernels.h"
#include "host/src/machine/thread_pool.h"

namespace sparsesnn {

Array<double> column_squares(const float* x, std::size_t n_rows, std::size_t n_columns) {
  Array<double> sums = Array<double>::zeros(n_columns);
  // A slab for each thread, so that rows are read from end to end, unless its sums do not fit in L1.
  constexpr std::size_t least = 64, most = 2048;
  const std::size_t n_threads = static_cast<std::size_t>(num_threads()), even = (n_columns + n_threads - 1) / n_threads,
                    width = std::clamp((even + least - 1) / least * least, least, most);
  const Kernels& kernels = chosen_kernels();
  parallel_for(static_cast<int>((n_columns + width - 1) / width), [&](int slab, int) {
    const std::size_t first = slab * width;
    kernels.column_squares(x, n_rows, n_columns, first, std::min(n_columns, first + width), sums.data());
  });
  return sums;
}

}  // namespace sparsesnn
