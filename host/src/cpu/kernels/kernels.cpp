// The table of kernels of one instruction set.
#include "codelets/cpu/adam.h"
#include "codelets/cross_entropy.h"
#include "codelets/surrogate.h"
#include "kernel_parts.h"

#define SPARSESNN_STRING_(x) #x
#define SPARSESNN_STRING(x) SPARSESNN_STRING_(x)

namespace sparsesnn::SPARSESNN_ISA {
namespace {

void slopes(const LayerSpec& spec, float* fields, std::int64_t j0, std::int64_t j1) {
  surrogate_all(spec.surrogate, spec.slope, fields + j0, j1 - j0);
}

// Adds the numbers of column k, or their squares, to sum[k]. Prefetches the next rows into L2: rows are short, so a
// hardware prefetcher would have to start again at each, and rows whose length is a power of two compete for a few
// places of L1.
template <bool squared>
void add_columns(const float* x, std::size_t n_rows, std::size_t n_columns, std::size_t k0, std::size_t k1,
                 double* sum) {
  constexpr std::size_t width = vector_width / 2, together = 8;  // rows per read of the sums
  typedef float Floats __attribute__((vector_size(SPARSESNN_VECTOR_BYTES / 2)));
  typedef double Doubles __attribute__((vector_size(SPARSESNN_VECTOR_BYTES)));
  const auto term = [](auto number) { return squared ? number * number : number; };
  for (std::size_t m0 = 0; m0 < n_rows; m0 += together) {
    const float* const begin = x + m0 * n_columns;
    const float* const end = x + (m0 + together < n_rows ? m0 + together : n_rows) * n_columns;
    std::size_t k = k0;
    for (; k + width <= k1; k += width) {
      Doubles total;
      std::memcpy(&total, sum + k, sizeof(total));
      for (const float* row = begin; row < end; row += n_columns) {
        Floats some;
        std::memcpy(&some, row + k, sizeof(some));
        if (k % 16 == 0) __builtin_prefetch(row + together * n_columns + k, 0, 2);
        total += term(__builtin_convertvector(some, Doubles));
      }
      std::memcpy(sum + k, &total, sizeof(total));
    }
    for (; k < k1; ++k)
      for (const float* row = begin; row < end; row += n_columns) sum[k] += term(static_cast<double>(row[k]));
  }
}

void exps_below(const float* x, std::size_t n, double most, double* out) {
  for (std::size_t i = 0; i < n; ++i) out[i] = exp_below(x[i], most);
}

}  // namespace

extern const DenseKernels dense_kernels;
extern const RandomKernels random_kernels;
extern const Kernels kernels;
const Kernels kernels{SPARSESNN_STRING(SPARSESNN_ISA),
                      forward,
                      hear_sources,
                      forward_sample,
                      forward_step,
                      select,
                      rotation_of,
                      count_candidates,
                      count,
                      fill,
                      slopes,
                      state_grad_by_tile,
                      state_grad_by_sample,
                      recurrent_shares,
                      add_tiles,
                      dense_shares,
                      weight_grad,
                      list_grads,
                      sparse_grad,
                      windows_grad,
                      forward_row,
                      backward_row,
                      add_columns<false>,
                      add_columns<true>,
                      exps_below,
                      adam,
                      &dense_kernels,
                      &random_kernels};

}  // namespace sparsesnn::SPARSESNN_ISA
