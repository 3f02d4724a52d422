// Random numbers for many spikes at once; compiled once per instruction set (random_kernels.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsesnn {

// Number k of the stream with that key is `Draws::bits(k)`, k = 0 .. n-1.
struct RandomKernels {
  // step[k] = -1 if bits(k) >> 11 < limit, that is, if uniform(k) < limit · 2^-53.
  void (*leave_out)(std::uint64_t key, std::uint64_t limit, std::int32_t* step, std::size_t n);
  // out[k] = uniform(k)
  void (*uniforms)(std::uint64_t key, double* out, std::size_t n);
  // out[k] = bits(k) >> 52, the place of normal(k) among the quantiles
  void (*places)(std::uint64_t key, std::int32_t* out, std::size_t n);
};

}  // namespace sparsesnn
