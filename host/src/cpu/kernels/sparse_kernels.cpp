// The passes through compressed rows that are not part of another pass.
#include "codelets/cpu/deliver_grad.h"
#include "codelets/cpu/deliver_sparse.h"
#include "kernel_parts.h"

namespace sparsesnn::SPARSESNN_ISA {

void sparse_shares(const LayerSpec& spec, const Loop& loop, const OwnSpikes& listed, const CurrentGrads& d_current,
                   float* sums, std::size_t stride) {
  const float* values = static_cast<const float*>(loop.weight);
  const Places at{__builtin_ctz(static_cast<unsigned>(spec.tile_width)), static_cast<std::size_t>(spec.tile_width)};
  with_ids(listed.wide, listed.ids, [&](auto* ids) {
    for (std::int64_t j = 0; j < listed.n; ++j)
      share_of_row(*loop.rows, values, ids[j], d_current.one ? d_current.one : d_current.each[j], at, sums + j, stride);
  });
}

// The order of sums is that of `deliver_grad`.
void sparse_grad(const BackwardPass& pass, const ChunkPass& at_hand, int sender, int m0, int m1, const float* d_current,
                 float* sum) {
  const Chunk& chunk = at_hand.chunk;
  const SenderSums& of = at_hand.sums[sender];
  const SenderChunk& from = at_hand.senders[sender];
  const SparseRows& rows = *of.rows;
  const std::size_t w = static_cast<std::size_t>(pass.spec->tile_width);
  const Places at{__builtin_ctz(static_cast<unsigned>(w)), w * chunk.n_rows()};
  const std::uint32_t group_rows = static_cast<std::uint32_t>(chunk.group_rows());
  const bool begins = chunk.t1 == pass.n_steps, ends = chunk.t0 == 0;
  float *const total = of.d_weight, *const part = of.d_weight_group;
  for (int m = m0; m < m1; ++m) {
    const std::int32_t begin = from.starts[2 * m], near = from.starts[2 * m + 1], end = from.starts[2 * m + 2];
    const std::int64_t row = rows.starts[m], n = rows.starts[m + 1] - row;
    if (begin == end && begins && ends && !at_hand.first) continue;
    if (of.weight)
      for (std::int32_t j = begin; j < end; ++j)
        share_of_row(rows, of.weight, static_cast<std::uint32_t>(m), d_current + from.rows[j] * w, at, from.shares + j,
                     from.n_events);
    if (!total) continue;
    for (std::int64_t e = 0; e < n; ++e) sum[e] = begins ? 0.0f : part[rows.places[row + e]];
    bool first = at_hand.first;
    std::int32_t j = begin;
    for (std::uint32_t limit = group_rows; j < near; limit += group_rows) {
      const std::int32_t group_begin = j;
      for (; j < near && from.rows[j] < limit; ++j) {
        const float* d = d_current + from.rows[j] * w;
        if (from.values)
          for (std::int64_t e = 0; e < n; ++e) sum[e] += from.values[j] * d[at(rows.receivers[row + e])];
        else
          for (std::int64_t e = 0; e < n; ++e) sum[e] += d[at(rows.receivers[row + e])];
      }
      if (j < near && j > group_begin) {
        fold_row(rows, row, n, first, sum, total);
        first = false;
      }
    }
    if (!ends)
      fold_row(rows, row, n, true, sum, part);
    else if (first || near > begin || !begins)
      fold_row(rows, row, n, first, sum, total);
  }
}

}  // namespace sparsesnn::SPARSESNN_ISA
