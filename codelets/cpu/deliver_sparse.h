// Deliver through compressed rows, and its gradients.
//
//   current[n]    += Σ_{m in ids, m -> n exists} weight[m -> n]
//   d_weight[m -> n] += Σ_{rows in which m fired} d_current[row, n]        a group of samples at a time
//   share[event]   = Σ_n weight[m -> n]·d_current[row, n]                  event: m is listed in `row`
//
// A sender's row holds its receivers, ascending, so that those of one tile are contiguous. Sums have the same order as
// for a full row with zeros (deliver.h, deliver_grad.h, tile_sums.h), so the bits are those of a masked matrix.
// `graded`: the value of each spike, null if all are 1.
// Cost: forward 12 bytes read and one addition per synapse of a spike; backward the gather of d_current dominates.
#pragma once

#include "records.h"
#include "simd.h"

namespace sparsesnn::SPARSESNN_ISA {

template <class Id>
inline void deliver_sparse(float* current, const SparseRows& rows, const float* values, const Id* ids,
                           const float* graded, std::int64_t n_ids) {
  for (std::int64_t j = 0; j < n_ids; ++j) {
    const std::int64_t begin = rows.starts[ids[j]], end = rows.starts[ids[j] + 1];
    if (graded)
      for (std::int64_t e = begin; e < end; ++e) current[rows.receivers[e]] += graded[j] * values[e];
    else
      for (std::int64_t e = begin; e < end; ++e) current[rows.receivers[e]] += values[e];
  }
}

// The position of receiver n in the rows of d_current: tile p begins at p·tile_stride.
struct Places {
  int shift;
  std::size_t tile_stride;
  std::size_t operator()(std::uint32_t n) const { return (n >> shift) * tile_stride + (n & ((1u << shift) - 1u)); }
};

// sums[k·stride] = Σ over the receivers of m in block k of the tiles; d: the row of tile 0.
inline void share_of_row(const SparseRows& rows, const float* values, std::uint32_t m, const float* d, Places at,
                         float* sums, std::size_t stride) {
  for (int k = 0; k < rows.n_blocks; ++k) sums[k * stride] = 0.0f;
  float waiting[34];
  int n_waiting = 0, block = 0;
  for (std::int64_t e = rows.starts[m], end = rows.starts[m + 1]; e < end; ++e) {
    const std::uint32_t first = rows.receivers[e];
    float x = values[e] * d[at(first)];
    if ((rows.folds[e] & SparseRows::more_of_tile) && !(rows.folds[e + 1] & SparseRows::more_of_tile)) {
      ++e;  // the sum of two, whatever their lanes
      x += values[e] * d[at(rows.receivers[e])];
    } else if (rows.folds[e] & SparseRows::more_of_tile) {  // the 16 lanes of a dot product
      alignas(64) float lanes[dot_lanes] = {};
      lanes[first % dot_lanes] = x;
      do {
        ++e;
        lanes[rows.receivers[e] % dot_lanes] += values[e] * d[at(rows.receivers[e])];
      } while (rows.folds[e] & SparseRows::more_of_tile);
      Vector all[dot_vectors];
      for (int k = 0; k < dot_vectors; ++k) all[k] = load(lanes + k * vector_width);
      x = sum_lanes(fold_lanes(all));
    }
    waiting[n_waiting++] = x;
    for (int folds = rows.folds[e] & SparseRows::most_folds; folds; --folds, --n_waiting)
      waiting[n_waiting - 2] += waiting[n_waiting - 1];
    if (!(rows.folds[e] & SparseRows::ends_block)) continue;
    for (const int tile = static_cast<int>(first >> at.shift); tile >= rows.block_ends[block];) ++block;
    sums[block * stride] = waiting[--n_waiting];
  }
}

// total[place] += sum, or total[place] = sum, for the synapses of a row; sum = 0.
inline void fold_row(const SparseRows& rows, std::int64_t begin, std::int64_t n, bool first, float* sum, float* total) {
  for (std::int64_t e = 0; e < n; ++e) {
    float& to = total[rows.places[begin + e]];
    to = first ? sum[e] : to + sum[e];
    sum[e] = 0.0f;
  }
}

}  // namespace sparsesnn::SPARSESNN_ISA
