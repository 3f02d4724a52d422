// Gradients of list values of deliver, for one tile, a block of rows (t, b) and a block of senders, listed or not:
//
//   share[row, m] = Σ_n weight[m, n]·d_current[row, n]
//
// The same products, lanes and order of lanes as for the entries of lists (deliver_grad.h), so the same bits. If most
// senders are listed, this is faster: the weights of a few senders stay in registers while rows stream by, and nothing
// is gathered or sorted.
//
// d_current: [rows, W], the tile's columns. weight: [M, N] row-major, of which the tile reads its own columns. The
// block of shares lies in squares of vector_width, dense_rows × dense_senders each, rows fastest among squares; the
// engine adds the squares of all tiles, then puts them in order. Cost: 2·W flops and two shuffles a share; 4·W bytes a
// sender, and 4·W bytes a row for each dense_senders senders.
#pragma once

#include "deliver_grad.h"

namespace sparsesnn::SPARSESNN_ISA {

// One vector holds the shares of dense_senders senders, whose weights stay in registers, and dense_rows rows.
inline constexpr int dense_senders = vector_width == 16 ? 4 : 2, dense_rows = vector_width / dense_senders;

// The r-th of the `vector_width / group` vectors that fold_rows has when groups of `group` lanes are left; lanes(r)
// gives the vectors that it begins with. Few vectors are pending at a time, so all stay in registers.
template <int group, int r, class Lanes>
[[gnu::always_inline]] inline Vector folded(Lanes& lanes) {
  if constexpr (group > vector_width) {
    return lanes(std::integral_constant<int, r>());
  } else {
    const Vector x = folded<2 * group, 2 * r>(lanes), y = folded<2 * group, 2 * r + 1>(lanes);
    return fold_groups<group>(x, y, std::make_integer_sequence<int, vector_width>());
  }
}

// shares = before + the shares of this tile, or the latter alone without `before`, which may be `shares`. n_rows: a
// multiple of dense_rows. Shares of senders from n_senders to the next multiple of dense_senders are meaningless.
template <int W>
inline void deliver_grad_dense(const float* d_current, int n_rows, const float* weight, bool bf16,
                               std::size_t row_stride, int n_senders, int n_columns, const float* before,
                               float* shares) {
  constexpr int n_vectors = W / vector_width;
  for (int m = 0; m < n_senders; m += dense_senders) {
    Vector w[dense_senders][n_vectors] = {};
    for (int s = 0; s < dense_senders && m + s < n_senders; ++s) {
      load_columns<W>(w[s], weight + (m + s) * row_stride, n_columns);
      if (bf16)
        for (Vector& x : w[s]) x = round_to_bf16(x);
    }
    for (int i = 0; i < n_rows; i += dense_rows, shares += vector_width) {
      Vector d[n_vectors];
      const auto lanes = [&](auto r) __attribute__((always_inline)) {
        constexpr int row = r() / dense_senders, s = r() % dense_senders;
        if constexpr (s == 0)
          for (int k = 0; k < n_vectors; ++k) d[k] = load(d_current + (i + row) * W + k * vector_width);
        return dot<W>(w[s], d);
      };
      Vector share = folded<2, 0>(lanes);
      if (before) {
        share = load(before) + share;
        before += vector_width;
      }
      store(shares, share);
    }
  }
}

}  // namespace sparsesnn::SPARSESNN_ISA
