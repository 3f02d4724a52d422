// The table of kernels of one instruction set.
#include "../../codelets/adam.h"
#include "../../codelets/surrogate.h"
#include "kernel_parts.h"

#define SPARSESNN_STRING_(x) #x
#define SPARSESNN_STRING(x) SPARSESNN_STRING_(x)

namespace sparsesnn::SPARSESNN_ISA {
namespace {

void slopes(const LayerSpec& spec, float* fields, std::int64_t j0, std::int64_t j1) {
  surrogate_all(spec.surrogate, spec.slope, fields + j0, j1 - j0);
}

void column_squares(const float* x, std::size_t n_rows, std::size_t n_columns, std::size_t k0, std::size_t k1,
                    double* sum) {
  constexpr std::size_t width = vector_width / 2, together = 8;  // rows, so that sums are read an eighth as often
  typedef float Floats __attribute__((vector_size(SPARSESNN_VECTOR_BYTES / 2)));
  typedef double Doubles __attribute__((vector_size(SPARSESNN_VECTOR_BYTES)));
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
        const Doubles number = __builtin_convertvector(some, Doubles);
        total += number * number;
      }
      std::memcpy(sum + k, &total, sizeof(total));
    }
    for (; k < k1; ++k)
      for (const float* row = begin; row < end; row += n_columns) sum[k] += static_cast<double>(row[k]) * row[k];
  }
}

float read_memory(const float* data, std::size_t n) {
  Vector sum[8] = {};
  for (std::size_t k = 0; k < n; k += 8 * vector_width)
    for (int l = 0; l < 8; ++l) sum[l] += load(data + k + l * vector_width);
  for (int l = 1; l < 8; ++l) sum[0] += sum[l];
  return sum_lanes(sum[0]);
}

void update_memory(float* data, std::size_t n) {
  const Vector one = broadcast(1.0f);
  for (std::size_t k = 0; k < n; k += vector_width) store(data + k, load(data + k) + one);
}

}  // namespace

extern const DenseKernels dense_kernels;
extern const RandomKernels random_kernels;
extern const Kernels kernels;
const Kernels kernels{SPARSESNN_STRING(SPARSESNN_ISA),
                      forward,
                      deliver_tile,
                      hear_sources,
                      forward_sample,
                      deliver_sample,
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
                      column_squares,
                      adam,
                      read_memory,
                      update_memory,
                      &dense_kernels,
                      &random_kernels};

}  // namespace sparsesnn::SPARSESNN_ISA
