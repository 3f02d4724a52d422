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
                      sparse_grad,
                      windows_grad,
                      forward_row,
                      backward_row,
                      adam,
                      read_memory,
                      update_memory,
                      &dense_kernels,
                      &random_kernels};

}  // namespace sparsesnn::SPARSESNN_ISA
