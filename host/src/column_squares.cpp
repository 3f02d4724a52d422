#include "column_squares.h"

#include <algorithm>

#include "kernels.h"
#include "thread_pool.h"

namespace sparsesnn {

Array<double> column_squares(const float* x, std::size_t n_rows, std::size_t n_columns) {
  Array<double> sums = Array<double>::zeros(n_columns);
  constexpr std::size_t width = 256;  // the sums of a slab stay in L1
  const Kernels& kernels = chosen_kernels();
  parallel_for(static_cast<int>((n_columns + width - 1) / width), [&](int slab, int) {
    const std::size_t first = slab * width;
    kernels.column_squares(x, n_rows, n_columns, first, std::min(n_columns, first + width), sums.data());
  });
  return sums;
}

}  // namespace sparsesnn
