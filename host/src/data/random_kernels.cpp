// One hash a number: two multiplications of 64 bits, which AVX-512 does for eight numbers at once.
#include "random_kernels.h"

#include "random.h"

#ifndef SPARSESNN_ISA
#define SPARSESNN_ISA base
#endif

namespace sparsesnn::SPARSESNN_ISA {
namespace {

void leave_out(std::uint64_t key, std::uint64_t limit, std::int32_t* step, std::size_t n) {
  for (std::size_t k = 0; k < n; ++k) step[k] = finalized(key + (k + 1) * splitmix_step) >> 11 < limit ? -1 : step[k];
}

void uniforms(std::uint64_t key, double* out, std::size_t n) {
  for (std::size_t k = 0; k < n; ++k)
    out[k] = static_cast<double>(static_cast<std::int64_t>(finalized(key + (k + 1) * splitmix_step) >> 11)) * 0x1p-53;
}

void places(std::uint64_t key, std::int32_t* out, std::size_t n) {
  for (std::size_t k = 0; k < n; ++k)
    out[k] = static_cast<std::int32_t>(finalized(key + (k + 1) * splitmix_step) >> 52);
}

}  // namespace

extern const RandomKernels random_kernels;
const RandomKernels random_kernels{leave_out, uniforms, places};

}  // namespace sparsesnn::SPARSESNN_ISA
