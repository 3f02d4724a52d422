// ∂L/∂i of a tile or a sample, and what recurrent weights carry of it.
#include <algorithm>
#include <cstring>

#include "../../codelets/deliver_grad.h"
#include "kernel_parts.h"
#include "tile_sums.h"

namespace sparsesnn::SPARSESNN_ISA {
namespace {

// Calls visit(p, j, n, shares) for tile p and slots j..j+n-1, a vector of them: Σ over the tile's neurons of
// weight[id, ·]·d[·], tiles ascending for each vector of slots. Several rows at once, so that d stays in registers.
template <int W, class Weight, class Id, class Visit>
inline void each_share(const Weight* weight, int n_tiles, const Id* ids, std::int64_t n_ids, const float* d,
                       Visit&& visit) {
  constexpr int n_vectors = W / vector_width;
  const std::size_t row = static_cast<std::size_t>(n_tiles) * W;
  for (std::int64_t j = 0; j < n_ids; j += vector_width) {
    const int n = static_cast<int>(n_ids - j < vector_width ? n_ids - j : vector_width);
    for (int p = 0; p < n_tiles; ++p) {
      Vector here[n_vectors], rows[vector_width] = {};
      for (int k = 0; k < n_vectors; ++k) here[k] = load(d + p * W + k * vector_width);
      for (int r = 0; r < n; ++r) {
        const Weight* from = weight + ids[j + r] * row + static_cast<std::size_t>(p) * W;
        Vector columns[n_vectors];
        for (int k = 0; k < n_vectors; ++k) columns[k] = load(from + k * vector_width);
        rows[r] = dot<W>(columns, here);
      }
      visit(p, j, n, sum_rows(rows));
    }
  }
}

// The same with the types as they are.
template <class Visit>
inline void each_recurrent_share(const LayerSpec& spec, const void* weight, const OwnSpikes& listed, const float* d,
                                 Visit&& visit) {
  with_width(spec.tile_width, [&](auto w) {
    with_weight(spec.bf16, weight, [&](auto* rows) {
      with_ids(listed.wide, listed.ids,
               [&](auto* ids) { each_share<w()>(rows, spec.n_tiles(), ids, listed.n, d, visit); });
    });
  });
}

// A sum over tiles, which come in ascending order; see tile_sums.h.
class TileSum {
 public:
  // The share of the p-th tile of an aligned block.
  void add(int p, Vector share) {
    waiting_[n_++] = share;
    for (; p & 1; p >>= 1) fold();
  }
  Vector take() {
    while (n_ > 1) fold();
    n_ = 0;
    return waiting_[0];
  }

 private:
  void fold() {
    --n_;
    waiting_[n_ - 1] += waiting_[n_];
  }
  Vector waiting_[32];
  int n_ = 0;
};

}  // namespace

void recurrent_shares(const LayerSpec& spec, const Loop& loop, const OwnSpikes& listed, const float* d_current,
                      const TileBlock* blocks, float* sums, std::size_t stride) {
  if (loop.rows) return sparse_shares(spec, loop, listed, d_current, sums, stride);
  TileSum sum;
  int block = 0, done = 0;  // tiles in earlier blocks
  each_recurrent_share(spec, loop.weight, listed, d_current, [&](int p, std::int64_t j, int n, Vector share) {
    if (!p) block = done = 0;
    sum.add(p - done, share);
    if (p + 1 < done + blocks[block].n) return;
    float lane[vector_width];
    store(lane, sum.take());
    std::memcpy(sums + static_cast<std::size_t>(block) * stride + j, lane, sizeof(float) * static_cast<std::size_t>(n));
    done += blocks[block++].n;
  });
}

namespace {

// sum[j] = Σ over n_tiles, a power of two, of shares[p·stride + j].
template <int n_tiles>
inline void add_few_tiles(const float* shares, std::size_t stride, std::size_t n, float* sum) {
  const auto add = [&](std::size_t j, auto&& read) {
    decltype(read(0)) x[n_tiles];
    for (int p = 0; p < n_tiles; ++p) x[p] = read(p * stride + j);
    for (int step = 1; step < n_tiles; step *= 2)
      for (int p = 0; p < n_tiles; p += 2 * step) x[p] += x[p + step];
    return x[0];
  };
  std::size_t j = 0;
  for (; j + vector_width <= n; j += vector_width)
    store(sum + j, add(j, [&](std::size_t at) { return load(shares + at); }));
  for (; j < n; ++j) sum[j] = add(j, [&](std::size_t at) { return shares[at]; });
}

}  // namespace

void add_tiles(const float* shares, std::size_t stride, int n_tiles, std::size_t n, float* sum) {
  switch (n_tiles) {
    case 1:
      return add_few_tiles<1>(shares, stride, n, sum);
    case 2:
      return add_few_tiles<2>(shares, stride, n, sum);
    case 4:
      return add_few_tiles<4>(shares, stride, n, sum);
    case 8:
      return add_few_tiles<8>(shares, stride, n, sum);
  }
  float second[share_piece];
  add_tiles(shares, stride, n_tiles / 2, n, sum);
  add_tiles(shares + static_cast<std::size_t>(n_tiles / 2) * stride, stride, n_tiles / 2, n, second);
  for (std::size_t j = 0; j < n; ++j) sum[j] += second[j];
}

namespace {

// sum[j] = e[j] + Σ over all neurons of weight[id_j, ·]·d_current[·] of a loop; `sum` may be `e`.
void add_shares(const LayerSpec& spec, const Loop& loop, const OwnSpikes& listed, const float* d_current,
                const float* e, float* sum) {
  if (loop.rows) {
    float shares[share_piece];
    for (std::int64_t from = 0; from < listed.n; from += share_piece) {
      const std::int64_t n = std::min<std::int64_t>(share_piece, listed.n - from);
      const auto* ids = static_cast<const char*>(listed.ids) + from * (listed.wide ? 4 : 2);
      sparse_shares(spec, loop, {ids, n, listed.wide}, d_current, shares, 0);
      for (std::int64_t j = 0; j < n; ++j) sum[from + j] = e[from + j] + shares[j];
    }
    return;
  }
  const int n_tiles = spec.n_tiles();
  TileSum tiles;
  each_recurrent_share(spec, loop.weight, listed, d_current, [&](int p, std::int64_t j, int n, Vector share) {
    tiles.add(p, share);
    if (p + 1 < n_tiles) return;
    float lane[vector_width];
    store(lane, tiles.take());
    for (int r = 0; r < n; ++r) sum[j + r] = e[j + r] + lane[r];
  });
}

// q = σ'·e at the listed neurons of one list, with what comes back through the loops from later steps.
void listed_grad(const BackwardPass& pass, int t, int sample) {
  const std::int64_t i = static_cast<std::int64_t>(t) * pass.n_samples + sample;
  const std::int64_t begin = pass.lists.offsets[i], n = pass.lists.offsets[i + 1] - begin;
  const float *const slope = pass.fields + begin, *e = pass.d_values + begin;
  float* const q = pass.d_slots + begin;
  for (int k = 0; k < pass.n_loops; ++k) {
    const int later = t + pass.loops[k].delay;
    if (later >= pass.n_steps) continue;
    add_shares(*pass.spec, pass.loops[k], {pass.lists.at(begin), n, pass.lists.wide}, pass.d_current_of(later, sample),
               e, q);
    e = q;
  }
  for (std::int64_t j = 0; j < n; ++j) q[j] = slope[j] * e[j];
}

}  // namespace

void state_grad_by_sample(const BackwardPass& pass, const Chunk& chunk, int sample, float* d_current) {
  const LayerSpec& spec = *pass.spec;
  const auto grad_step = neuron_kernels(spec).grad_step;
  const std::size_t w = static_cast<std::size_t>(spec.tile_width), n_rows = chunk.n_rows();
  for (int t = chunk.t1 - 1; t >= chunk.t0; --t) {
    if (spec.model->fires()) listed_grad(pass, t, sample);
    grad_step(pass, t, sample, d_current + chunk.row(t, sample) * w, n_rows * w);
  }
}

void state_grad_by_tile(const BackwardPass& pass, const ChunkPass& at_hand, int tile, float* d_current) {
  neuron_kernels(*pass.spec).grad_tile(pass, at_hand, tile, d_current);
}

}  // namespace sparsesnn::SPARSESNN_ISA
