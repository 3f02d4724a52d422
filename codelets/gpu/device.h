// The device as kernels see it: a GPU by NVRTC, or a CPU that stands in for one in tests (host/src/gpu/emulated.h).
//
// A kernel is one function of one struct of arguments, started with a grid and blocks of one dimension:
//
//   struct ScaleArgs {
//     Global<float> x;
//     int n;
//   };
//   KERNEL(scale, ScaleArgs, 256) {  // at most 256 threads in a block
//     const int k = block_index() * block_size() + thread_index();
//     if (k < a.n) a.x[k] = 2.0f * a.x[k];
//   }
//
// Global<T> is a pointer to the device's memory, Shared<T> one to the memory of a block. Stand-ins check every access,
// so kernels read and write single elements (`x[k]`, in a variable of type T) or aligned columns (`load_columns`), and
// nothing else. Threads of a warp call `ballot` and the shuffles together, those of a block call `barrier` together.
// Structs of arguments hold pointers first, then 32-bit numbers, so that Python can lay them out (kernels.py).
//
// No header of the standard library, as in number.h: NVRTC has none.
#pragma once

#include "codelets/gpu/integers.h"

#ifdef SPARSESNN_EMULATED
#include "host/src/gpu/emulated.h"
#else

namespace sparsesnn {

template <class T>
using Global = T*;
template <class T>
using Shared = T*;

// One block on a multiprocessor is enough: without that NVRTC spills registers, to have room for more.
#define KERNEL(name, Args, max_threads) extern "C" __global__ void __launch_bounds__(max_threads, 1) name(const Args a)

inline int thread_index() { return static_cast<int>(threadIdx.x); }
inline int block_size() { return static_cast<int>(blockDim.x); }
inline int block_index() { return static_cast<int>(blockIdx.x); }
inline int grid_size() { return static_cast<int>(gridDim.x); }

// All threads of the block wait for one another, and see one another's writes.
inline void barrier() { __syncthreads(); }
// The same for the threads of a warp. Ballots and shuffles order no accesses to memory.
inline void warp_barrier() { __syncwarp(); }

// All 32 threads of a warp: bit l is the condition of lane l.
inline uint32 ballot(bool condition) { return __ballot_sync(0xffffffffu, condition); }
// x of the lane whose number differs by `mask`; of lane `lane`.
inline float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
inline int shuffle_xor(int x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
inline int shuffle_of(int x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
inline float shuffle_of(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }

inline void atomic_or(Global<uint32> words, int64 k, uint32 bits) { atomicOr(words + k, bits); }
inline int atomic_add(Global<int32> counters, int64 k, int n) { return atomicAdd(counters + k, n); }

inline int count_bits_of(uint32 x) { return __popc(x); }
inline int count_bits_of(uint64 x) { return __popcll(x); }
// The number of zeros below the lowest set bit of x, which is not 0.
inline int lowest_bit(uint32 x) { return __ffs(static_cast<int>(x)) - 1; }

// The block's memory from a byte on, a multiple of 16; its size is given at the launch.
template <class T>
inline Shared<T> shared_memory(int first_byte) {
  extern __shared__ __align__(16) unsigned char sparsesnn_shared[];
  return reinterpret_cast<T*>(sparsesnn_shared + first_byte);
}

// The n floats of x from k on, k a multiple of n, in one access; n is 1, 2 or 4.
template <int n>
inline void load_columns(float (&columns)[n], Global<const float> x, int64 k) {
  if constexpr (n == 4) {
    const float4 v = *reinterpret_cast<const float4*>(x + k);
    columns[0] = v.x, columns[1] = v.y, columns[2] = v.z, columns[3] = v.w;
  } else if constexpr (n == 2) {
    const float2 v = *reinterpret_cast<const float2*>(x + k);
    columns[0] = v.x, columns[1] = v.y;
  } else {
    columns[0] = x[k];
  }
}

// The same for bfloat16, the upper halves of floats.
template <int n>
inline void load_columns(float (&columns)[n], Global<const uint16> x, int64 k) {
  const auto widened = [](uint16 upper) { return __uint_as_float(static_cast<uint32>(upper) << 16); };
  if constexpr (n == 4) {
    const ushort4 v = *reinterpret_cast<const ushort4*>(x + k);
    columns[0] = widened(v.x), columns[1] = widened(v.y), columns[2] = widened(v.z), columns[3] = widened(v.w);
  } else if constexpr (n == 2) {
    const ushort2 v = *reinterpret_cast<const ushort2*>(x + k);
    columns[0] = widened(v.x), columns[1] = widened(v.y);
  } else {
    columns[0] = widened(x[k]);
  }
}

template <int n>
inline void store_columns(Global<float> x, int64 k, const float (&columns)[n]) {
  if constexpr (n == 4)
    *reinterpret_cast<float4*>(x + k) = float4{columns[0], columns[1], columns[2], columns[3]};
  else if constexpr (n == 2)
    *reinterpret_cast<float2*>(x + k) = float2{columns[0], columns[1]};
  else
    x[k] = columns[0];
}

}  // namespace sparsesnn

#endif
