#include "dense_gemm.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "host/src/machine/isa.h"
#include "host/src/machine/memory.h"
#include "host/src/machine/thread_pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sparsesnn {
namespace {

// Rows of b that one tile of c adds up in registers: a panel of them (32 KiB) stays in L1.
constexpr int block_depth = 256;

// ---- the register tile ----------------------------------------------------------------------------------------------

// A destination for a tile: c[i][j] ← start[i][j] + tile[i][j], rows a stride apart; start may be null, for zeros.
struct Place {
  float* c;
  std::size_t stride;
  const float* start;
  std::size_t start_stride;
};

// tile[i][j] = Σ_k a[i·row_step + k·depth_step]·panel[k][j], for k < depth; all of it goes to the place.
using Kernel = void (*)(const float* a, const float* panel, int depth, const Place& place);

struct Kernels {
  int rows, width;         // of the register tile; a panel has the same width
  Kernel by_row, by_step;  // a's layout: rows of block_depth floats, or steps of padded_rows floats
};

constexpr int padded_rows = 16;
constexpr std::size_t packed_size = std::size_t{padded_rows} * block_depth;  // of one tile's rows of a
constexpr int most_tiles = 4;                                                // that share a panel while it is in cache

#if defined(__x86_64__)
// The bodies are templates over the layout only; loops over constants unroll, so the tile lives in registers.
template <int row_step, int depth_step>
__attribute__((target("avx512f"))) void tile_avx512(const float* a, const float* panel, int depth, const Place& place) {
  constexpr int rows = 14;
  __m512 sum[rows][2];
#pragma GCC unroll 14
  for (int i = 0; i < rows; ++i) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
  for (int k = 0; k < depth; ++k) {
    const __m512 left = _mm512_load_ps(panel), right = _mm512_load_ps(panel + 16);
#pragma GCC unroll 14
    for (int i = 0; i < rows; ++i) {
      const __m512 x = _mm512_set1_ps(a[i * row_step]);
      sum[i][0] = _mm512_fmadd_ps(x, left, sum[i][0]);
      sum[i][1] = _mm512_fmadd_ps(x, right, sum[i][1]);
    }
    a += depth_step;
    panel += 32;
  }
#pragma GCC unroll 14
  for (int i = 0; i < rows; ++i) {
    float* c = place.c + i * place.stride;
    if (place.start) {
      const float* start = place.start + i * place.start_stride;
      sum[i][0] = _mm512_add_ps(_mm512_loadu_ps(start), sum[i][0]);
      sum[i][1] = _mm512_add_ps(_mm512_loadu_ps(start + 16), sum[i][1]);
    }
    _mm512_storeu_ps(c, sum[i][0]);
    _mm512_storeu_ps(c + 16, sum[i][1]);
  }
}

template <int row_step, int depth_step>
__attribute__((target("avx2,fma"))) void tile_avx2(const float* a, const float* panel, int depth, const Place& place) {
  constexpr int rows = 6;
  __m256 sum[rows][2];
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i) sum[i][0] = sum[i][1] = _mm256_setzero_ps();
  for (int k = 0; k < depth; ++k) {
    const __m256 left = _mm256_load_ps(panel), right = _mm256_load_ps(panel + 8);
#pragma GCC unroll 6
    for (int i = 0; i < rows; ++i) {
      const __m256 x = _mm256_broadcast_ss(a + i * row_step);
      sum[i][0] = _mm256_fmadd_ps(x, left, sum[i][0]);
      sum[i][1] = _mm256_fmadd_ps(x, right, sum[i][1]);
    }
    a += depth_step;
    panel += 16;
  }
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i) {
    float* c = place.c + i * place.stride;
    if (place.start) {
      const float* start = place.start + i * place.start_stride;
      sum[i][0] = _mm256_add_ps(_mm256_loadu_ps(start), sum[i][0]);
      sum[i][1] = _mm256_add_ps(_mm256_loadu_ps(start + 8), sum[i][1]);
    }
    _mm256_storeu_ps(c, sum[i][0]);
    _mm256_storeu_ps(c + 8, sum[i][1]);
  }
}

constexpr Kernels avx512_kernels{14, 32, tile_avx512<block_depth, 1>, tile_avx512<1, padded_rows>};
constexpr Kernels avx2_kernels{6, 16, tile_avx2<block_depth, 1>, tile_avx2<1, padded_rows>};
#endif

const Kernels* chosen_kernels() {
#if defined(__x86_64__)
  const std::string isa = isa_name();
  if (isa == "avx512") return &avx512_kernels;
  if (isa == "avx2" && __builtin_cpu_supports("fma")) return &avx2_kernels;
#endif
  return nullptr;
}

constexpr int largest_tile = 14 * 32;

// ---- packing --------------------------------------------------------------------------------------------------------

float as_float(float x) { return x; }
float as_float(std::uint8_t x) { return x ? 1.0f : 0.0f; }

// Rows of a as rows of block_depth floats; rows beyond the last are zeros.
template <class A>
void pack_by_row(const Product<A>& p, int row, int rows, int first, int depth, float* out) {
  for (int i = 0; i < rows; ++i, out += block_depth) {
    if (row + i >= p.rows) {
      std::memset(out, 0, sizeof(float) * block_depth);
      continue;
    }
    const A* from = p.a + static_cast<std::size_t>(row + i) * p.b->depth() + first;
    for (int k = 0; k < depth; ++k) out[k] = as_float(from[k]);
  }
}

// The same of aᵀ, as `depth` steps of padded_rows floats.
template <class A>
void pack_by_step(const Product<A>& p, int row, int rows, int first, int depth, float* out) {
  const int there = std::min(rows, p.rows - row);
  for (int k = 0; k < depth; ++k, out += padded_rows) {
    const A* from = p.a + static_cast<std::size_t>(first + k) * p.rows + row;
    if (row + padded_rows <= p.rows) {  // a whole vector: nothing beyond `rows` is read
      for (int i = 0; i < padded_rows; ++i) out[i] = as_float(from[i]);
    } else {
      for (int i = 0; i < there; ++i) out[i] = as_float(from[i]);
      for (int i = there; i < padded_rows; ++i) out[i] = 0;
    }
  }
}

// One panel: `rows` rows of b from `first`, columns from `column`; `there` of them exist.
void pack_panel(const float* b, bool transposed, int depth, int width, int first, int rows, int column, int panel_width,
                float* out) {
  const int there = std::min(panel_width, width - column);
  if (there < panel_width) std::memset(out, 0, sizeof(float) * rows * panel_width);
  if (!transposed) {
    for (int k = 0; k < rows; ++k)
      std::memcpy(out + k * panel_width, b + static_cast<std::size_t>(first + k) * width + column,
                  sizeof(float) * there);
    return;
  }
  // Few rows of bᵀ at a time: if their addresses differ by a power of two, many of them would evict one another.
  constexpr int few = 8;
  for (int j0 = 0; j0 < there; j0 += few) {
    const int j1 = std::min(there, j0 + few);
    for (int k = 0; k < rows; ++k)
      for (int j = j0; j < j1; ++j)
        out[k * panel_width + j] = b[static_cast<std::size_t>(column + j) * depth + first + k];
  }
}

// The end of a kernel, for a tile of which `rows` × `width` exist.
void put(const float* tile, int tile_width, const Place& place, int rows, int width) {
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < width; ++j) {
      const float x = tile[i * tile_width + j];
      place.c[i * place.stride + j] = place.start ? place.start[i * place.start_stride + j] + x : x;
    }
}

}  // namespace

bool dense_gemm_suits() {
#if defined(__x86_64__)
  return chosen_kernels() && !__builtin_cpu_is("intel");
#else
  return false;
#endif
}

PackedMatrix::PackedMatrix(const float* b, bool transposed, int depth, int width) : depth_(depth), width_(width) {
  const Kernels* kernels = chosen_kernels();
  panel_width_ = kernels ? kernels->width : 1;
  const std::size_t bytes = sizeof(float) * panel_width_ * static_cast<std::size_t>(n_panels()) * depth;
  data_ = static_cast<float*>(allocate(bytes));
  parallel_for(n_panels(), [&](int j, int) {
    for (int first = 0; first < depth; first += block_depth) {
      const int rows = std::min(block_depth, depth - first);
      float* out = const_cast<float*>(panel(first, rows, j));
      pack_panel(b, transposed, depth, width, first, rows, j * panel_width_, panel_width_, out);
    }
  });
}

PackedMatrix::~PackedMatrix() { release(data_); }

template <class A>
void multiply(const Product<A>& p) {
  const Kernels* chosen = chosen_kernels();
  if (!chosen || chosen->width != p.b->panel_width())
    throw std::logic_error("dense product: b was packed for another instruction set");
  const Kernels& kernels = *chosen;
  const PackedMatrix& b = *p.b;
  const std::size_t stride = b.width();
  if (p.rows == 0) return;
  if (b.depth() == 0) {
    for (int i = 0; i < p.rows; ++i)
      for (std::size_t j = 0; j < stride; ++j)
        if (p.start != Start::itself) p.c[i * stride + j] = p.start == Start::bias ? p.bias[j] : 0;
    return;
  }
  // A task is a few tiles of rows: enough that a panel is seldom read from far away, and tasks divide evenly over
  // threads.
  const int n_tiles = (p.rows - 1) / kernels.rows + 1, threads = num_threads();
  const int n_tasks = std::min(n_tiles, ((n_tiles - 1) / most_tiles / threads + 1) * threads);
  parallel_for(n_tasks, [&](int task, int) {
    alignas(64) float packed[most_tiles * packed_size];
    alignas(64) float tile[largest_tile];
    const int tile0 = static_cast<int>(static_cast<std::int64_t>(n_tiles) * task / n_tasks);
    const int tile1 = static_cast<int>(static_cast<std::int64_t>(n_tiles) * (task + 1) / n_tasks);
    for (int first = 0; first < b.depth(); first += block_depth) {
      const int depth = std::min(block_depth, b.depth() - first);
      for (int i = tile0; i < tile1; ++i) {
        float* out = packed + (i - tile0) * packed_size;
        if (p.transposed)
          pack_by_step(p, i * kernels.rows, kernels.rows, first, depth, out);
        else
          pack_by_row(p, i * kernels.rows, kernels.rows, first, depth, out);
      }
      for (int j = 0; j < b.n_panels(); ++j) {
        const float* panel = b.panel(first, depth, j);
        const int column = j * kernels.width, width = std::min(kernels.width, b.width() - column);
        for (int i = tile0; i < tile1; ++i) {
          const float* rows_of_a = packed + (i - tile0) * packed_size;
          const Kernel kernel = p.transposed ? kernels.by_step : kernels.by_row;
          const int row = i * kernels.rows, rows = std::min(kernels.rows, p.rows - row);
          float* c = p.c + row * stride + column;
          const bool again = first > 0 || p.start == Start::itself;
          const Place place{c, stride,
                            again                    ? c
                            : p.start == Start::bias ? p.bias + column
                                                     : nullptr,
                            again ? stride : 0};
          if (rows == kernels.rows && width == kernels.width) {
            kernel(rows_of_a, panel, depth, place);
          } else {
            kernel(rows_of_a, panel, depth, {tile, static_cast<std::size_t>(kernels.width), nullptr, 0});
            put(tile, kernels.width, place, rows, width);
          }
        }
      }
    }
  });
}

template void multiply(const Product<float>&);
template void multiply(const Product<std::uint8_t>&);

}  // namespace sparsesnn
