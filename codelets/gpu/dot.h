// Dot products of packed rows, in the order of the engine `cpu`: 16 lanes, folded by halves, tiles added up pairwise
// (host/src/training/tile_sums.h). Both halves of a warp call these together, each for its own row.
#pragma once

#include "codelets/gpu/layout.h"

namespace sparsesnn::SPARSESNN_ISA {

// The sum over the 16 lanes of half a warp, for all of them.
inline float fold_lanes(float x) {
  for (int half = n_lanes / 2; half; half /= 2) x = x + shuffle_xor(x, half);
  return x;
}

// Of aligned blocks of 2, 4, … values, value i in lane i of half a warp: adds those that `n` values are made of to
// `sum`, the last block first. After it x is the sum of all 16. has_sum: whether `sum` holds anything.
inline void add_blocks(float& x, int n, float& sum, bool& has_sum) {
#pragma unroll
  for (int level = 0; level < 5; ++level) {
    if (n >> level & 1) {
      const int first = n >> (level + 1) << (level + 1);
      const float block = shuffle_of(x, thread_index() % 32 / n_lanes * n_lanes + first % n_lanes);
      sum = has_sum ? block + sum : block;
      has_sum = true;
    }
    if (level < 4) x = x + shuffle_xor(x, 1 << level);
  }
}

// Σ over tiles of dot(tile), which gives each lane's part; n_tiles: at most 256.
template <class Dot>
inline float sum_tiles(int n_tiles, Dot&& dot) {
  const int lane = thread_index() % n_lanes, n_full = n_tiles / n_lanes, n_rest = n_tiles % n_lanes;
  float sum = 0.0f, blocks = 0.0f;
  bool has_sum = false;
  for (int group = n_rest ? n_full : n_full - 1; group >= 0; --group) {  // the last, smaller blocks first
    float own = 0.0f;                                                    // of tile 16·group + lane
    for (int p = 0; p < n_lanes; ++p) {
      const int tile = group * n_lanes + p;
      if (tile >= n_tiles) break;
      const float of_tile = fold_lanes(dot(tile));
      if (p == lane) own = of_tile;
    }
    if (group == n_full) {
      add_blocks(own, n_rest, sum, has_sum);
    } else {
      float none = 0.0f;
      bool has_none = false;
      add_blocks(own, 0, none, has_none);
      if (group == lane) blocks = own;
    }
  }
  if (n_full) add_blocks(blocks, n_full, sum, has_sum);
  return sum;
}

// The part of a lane of Σ over a tile's neurons of a row of weights · d, both packed.
template <int columns>
inline float lane_dot(Global<const Weight> rows, int64 row, Global<const float> d, int64 d_row, int n_tiles, int tile,
                      int lane) {
  float w[columns], x[columns];
  load_columns(w, rows, packed_at<columns>(row, n_tiles, tile, lane));
  load_columns(x, d, packed_at<columns>(d_row, n_tiles, tile, lane));
  float sum = w[0] * x[0];
  for (int k = 1; k < columns; ++k) sum = sum + w[k] * x[k];
  return sum;
}

}  // namespace sparsesnn::SPARSESNN_ISA
