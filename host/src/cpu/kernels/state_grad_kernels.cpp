// ∂L/∂i of a tile or a sample, and its products with recurrent weights.
#include <algorithm>
#include <cstring>

#include "codelets/cpu/deliver_grad.h"
#include "host/src/training/tile_sums.h"
#include "kernel_parts.h"

namespace sparsesnn::SPARSESNN_ISA {
namespace {

// Calls visit(p, j, n, shares) for tile p and slots j..j+n-1, a vector of them: Σ over the tile's neurons of weight[id,
// ·]·d[·], tiles ascending for each vector of slots. Several rows at once, so that a d common to all of them stays in
// registers.
template <int W, bool one, class Weight, class Id, class Visit>
[[gnu::always_inline]] inline void each_share(const Weight* weight, int n_tiles, const Id* ids, std::int64_t n_ids,
                                              const CurrentGrads d, Visit&& visit) {
  constexpr int n_vectors = W / vector_width;
  const std::size_t row = static_cast<std::size_t>(n_tiles) * W;
  for (std::int64_t j = 0; j < n_ids; j += vector_width) {
    const int n = static_cast<int>(n_ids - j < vector_width ? n_ids - j : vector_width);
    for (int p = 0; p < n_tiles; ++p) {
      Vector here[n_vectors], rows[vector_width];  // not zeros: GCC takes `rep stos`, which is slow
      const auto read = [&](const float* from) {
        for (int k = 0; k < n_vectors; ++k) here[k] = load(from + p * W + k * vector_width);
      };
      if constexpr (one) read(d.one);
      for (int r = 0; r < n; ++r) {
        if constexpr (!one) read(d.each[j + r]);
        const Weight* from = weight + ids[j + r] * row + static_cast<std::size_t>(p) * W;
        Vector columns[n_vectors];
        for (int k = 0; k < n_vectors; ++k) columns[k] = load(from + k * vector_width);
        rows[r] = dot<W>(columns, here);
      }
      for (int r = n; r < vector_width; ++r) rows[r] = Vector{};
      visit(p, j, n, sum_rows(rows));
    }
  }
}

// The same with the types of the weights and ids.
template <class Visit>
inline void each_recurrent_share(const LayerSpec& spec, const void* weight, const OwnSpikes& listed,
                                 const CurrentGrads& d, Visit&& visit) {
  with_width(spec.tile_width, [&](auto w) {
    with_weight(spec.bf16, weight, [&](auto* rows) {
      with_ids(listed.wide, listed.ids, [&](auto* ids) {
        if (d.one)
          each_share<w(), true>(rows, spec.n_tiles(), ids, listed.n, d, visit);
        else
          each_share<w(), false>(rows, spec.n_tiles(), ids, listed.n, d, visit);
      });
    });
  });
}

// A sum over tiles in ascending order; see tile_sums.h.
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

void recurrent_shares(const LayerSpec& spec, const Loop& loop, const OwnSpikes& listed, const CurrentGrads& d_current,
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

// Part of a list.
inline OwnSpikes piece_of(const OwnSpikes& list, std::int64_t from, std::int64_t n) {
  return {static_cast<const char*>(list.ids) + from * (list.wide ? 4 : 2), n, list.wide};
}

// sum[j] = e[j] + Σ over all neurons of weight[id_j, ·]·d_current[·] for a loop; `sum` may be `e`.
void add_shares(const LayerSpec& spec, const Loop& loop, const OwnSpikes& listed, const CurrentGrads& d_current,
                const float* e, float* sum) {
  if (loop.rows) {
    float shares[share_piece];
    for (std::int64_t from = 0; from < listed.n; from += share_piece) {
      const std::int64_t n = std::min<std::int64_t>(share_piece, listed.n - from);
      const CurrentGrads d = d_current.one ? d_current : CurrentGrads(d_current.each + from);
      sparse_shares(spec, loop, piece_of(listed, from, n), d, shares, 0);
      for (std::int64_t j = 0; j < n; ++j) sum[from + j] = e[from + j] + shares[j];
    }
    return;
  }
  const int n_tiles = spec.n_tiles();
  TileSum tiles;
  each_recurrent_share(spec, loop.weight, listed, d_current,
                       [&](int p, std::int64_t j, int n, Vector share) __attribute__((always_inline)) {
                         tiles.add(p, share);
                         if (p + 1 < n_tiles) return;
                         float lane[vector_width];
                         store(lane, tiles.take());
                         for (int r = 0; r < n; ++r) sum[j + r] = e[j + r] + lane[r];
                       });
}

// Calls put(j, earlier, later, f) for the entries of a list of step t: the gradients through a loop with axonal delays
// of the parts 1 - f and f of each. Separate from its caller, whose own loop would be a tenth slower with this inlined.
template <class Put>
[[gnu::noinline]] void each_part_share(const BackwardPass& pass, const Loop& loop, int t, int sample,
                                       const OwnSpikes& listed, Put&& put) {
  constexpr std::int64_t most = 64;
  constexpr float zeros[most] = {};
  for (std::int64_t from = 0; from < listed.n; from += most) {
    const OwnSpikes piece = piece_of(listed, from, std::min(most, listed.n - from));
    float shares[2][most] = {};
    for (int part = 0; part < loop.axonal.n_parts(); ++part) {
      const float* d[most];
      for (std::int64_t j = 0; j < piece.n; ++j) d[j] = pass.d_current_at(loop, t, piece.id(j), part, sample);
      add_shares(*pass.spec, loop, piece, d, zeros, shares[part]);
    }
    for (std::int64_t j = 0; j < piece.n; ++j)
      put(from + j, shares[0][j], shares[1][j], loop.axonal.fraction ? loop.axonal.fraction[piece.id(j)] : 0.0f);
  }
}

// ∂L/∂d_m of a sample's spikes through loop k, [P·W]; null if the delays are not trained.
inline double* d_delays_of(const BackwardPass& pass, int k, int sample) {
  if (!pass.d_delays || !pass.d_delays[k]) return nullptr;
  return pass.d_delays[k] + static_cast<std::size_t>(sample) * pass.spec->n_padded();
}

// Adds the gradients of the axonal delays from spikes before the first step.
void delay_grads_before(const BackwardPass& pass, int sample) {
  for (int k = 0; k < pass.n_loops; ++k) {
    double* const d_delays = d_delays_of(pass, k, sample);
    for (int t = -1; d_delays && t >= -pass.n_before; --t) {
      const std::int64_t i = static_cast<std::int64_t>(pass.n_before + t) * pass.n_samples + sample;
      const OwnSpikes fired{pass.own_before.at(pass.own_before.offsets[i]), pass.own_before.n_spikes[i],
                            pass.own_before.wide};
      each_part_share(pass, pass.loops[k], t, sample, fired, [&](std::int64_t j, float earlier, float later, float) {
        d_delays[fired.id(j)] += static_cast<double>(later) - earlier;
      });
    }
  }
}

}  // namespace

void listed_grad(const BackwardPass& pass, int t, int sample) {
  const std::int64_t i = static_cast<std::int64_t>(t) * pass.n_samples + sample;
  const std::int64_t begin = pass.lists.offsets[i], n = pass.lists.offsets[i + 1] - begin;
  const float *const slope = pass.fields + begin, *e = pass.d_values + begin;
  float* const q = pass.d_slots + begin;
  for (int k = 0; k < pass.n_loops; ++k) {
    const int later = t + pass.loops[k].delay;
    if (later >= pass.n_steps) continue;
    const OwnSpikes listed{pass.lists.at(begin), n, pass.lists.wide};
    if (pass.loops[k].axonal) {
      double* const d_delays = d_delays_of(pass, k, sample);
      each_part_share(pass, pass.loops[k], t, sample, listed, [&](std::int64_t j, float earlier, float later, float f) {
        q[j] = e[j] + ((1.0f - f) * earlier + f * later);
        if (d_delays && j < pass.lists.n_spikes[i]) d_delays[listed.id(j)] += static_cast<double>(later) - earlier;
      });
    } else if (pass.returned && later < pass.returned_end) {
      const float* const returned = pass.returned + k * pass.n_slots + begin;
      for (std::int64_t j = 0; j < n; ++j) q[j] = e[j] + returned[j];
    } else {
      add_shares(*pass.spec, pass.loops[k], listed, pass.d_current_of(later, sample), e, q);
    }
    e = q;
  }
  for (std::int64_t j = 0; j < n; ++j) q[j] = slope[j] * e[j];
}

namespace {

// Always inlined: GCC removes a call of a function that only prefetches.
template <int write, class T>
[[gnu::always_inline]] inline void ask_for(const T* from, std::size_t n) {
  const char* const begin = reinterpret_cast<const char*>(from);
  for (std::size_t k = 0; k < n * sizeof(T); k += 64) __builtin_prefetch(begin + k, write);
}

// Prefetches a step's inputs, which other threads may have cached, and its outputs: no hardware prefetcher foresees
// either.
[[gnu::always_inline]] inline void ask_for_step(const BackwardPass& pass, int t, int sample, const float* d_current,
                                                std::size_t stride) {
  const LayerSpec& spec = *pass.spec;
  const std::int64_t list = static_cast<std::int64_t>(t) * pass.n_samples + sample;
  for (int p = 0; p < spec.n_tiles(); ++p)
    ask_for<1>(d_current + p * stride, static_cast<std::size_t>(spec.tile_width));
  if (!spec.fires) {
    ask_for<0>(pass.d_potentials.at(t, sample, spec.n), static_cast<std::size_t>(spec.n));
    return;
  }
  const std::int64_t *const offsets = pass.lists.offsets + list, begin = offsets[0];
  const std::size_t n = static_cast<std::size_t>(offsets[1] - begin);
  ask_for<0>(static_cast<const char*>(pass.lists.at(begin)), n * (pass.lists.wide ? 4 : 2));
  ask_for<0>(pass.fields + begin, n);
  ask_for<0>(pass.d_values + begin, n);
  ask_for<1>(pass.d_slots + begin, n);
  if (t > 0) __builtin_prefetch(offsets - pass.n_samples);
}

}  // namespace

void state_grad_by_sample(const BackwardPass& pass, const Chunk& chunk, int t0, int t1, int sample, float* d_current) {
  const LayerSpec& spec = *pass.spec;
  const auto grad_step = neuron_kernels(spec).grad_step;
  const std::size_t w = static_cast<std::size_t>(spec.tile_width), n_rows = chunk.n_rows();
  for (int t = t1 - 1; t >= t0; --t) {
    if (t > t0) ask_for_step(pass, t - 1, sample, d_current + chunk.row(t - 1, sample) * w, n_rows * w);
    if (spec.fires) listed_grad(pass, t, sample);
    grad_step(pass, t, sample, d_current + chunk.row(t, sample) * w, n_rows * w);
  }
  if (!t0 && pass.n_before) delay_grads_before(pass, sample);
}

void state_grad_by_tile(const BackwardPass& pass, const ChunkPass& at_hand, int tile, float* d_current) {
  neuron_kernels(*pass.spec).grad_tile(pass, at_hand, tile, d_current);
}

}  // namespace sparsesnn::SPARSESNN_ISA
