#include "column_squares.h"

#include <algorithm>

#include "thread_pool.h"

namespace sparsesnn {

Array<double> column_squares(const float* x, std::size_t n_rows, std::size_t n_columns) {
  Array<double> sums = Array<double>::zeros(n_columns);
  constexpr std::size_t width = 256;  // the sums of a slab stay in L1
  parallel_for(static_cast<int>((n_columns + width - 1) / width), [&](int slab, int) {
    const std::size_t first = slab * width, last = std::min(n_columns, first + width);
    double* const sum = sums.data();
    for (std::size_t m = 0; m < n_rows; ++m) {
      const float* row = x + m * n_columns;
      for (std::size_t k = first; k < last; ++k) sum[k] += static_cast<double>(row[k]) * row[k];
    }
  });
  return sums;
}

}  // namespace sparsesnn
