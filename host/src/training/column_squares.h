// Norms that are the same for any number of ranks: squares are summed neuron by neuron.
#pragma once

#include "host/src/cpu/engine.h"

namespace sparsesnn {

// [N], Σ x[m, n]² of each column, rows ascending, in double precision.
Array<double> column_squares(const float* x, std::size_t n_rows, std::size_t n_columns);

}  // namespace sparsesnn
