// Gradients of deliver, for one tile, senders m0..m1-1 and a chunk of rows (t, b).
//
//   d_weight[m, n] += Σ_{rows in which m fired}  d_current[row, n]  a group of samples at a time
//   share[event]    = Σ_n weight[m, n]·d_current[row, n]            event: m is listed in `row`, spike or near-spike
//
// A graded spike counts `value` times in the first sum.
// Events come sorted by sender m, so that a sender's weights and its gradient stay in registers while the rows of
// d_current, which fit in L2, are gathered once for both gradients: no read-modify-write, and no row of weights is read
// twice. Within a sender, spikes come before near-spikes, each by group of samples, then step descending, then sample:
// the order of sums. A group's sum begins at zero and is added to d_weight when it is complete, so that a rank with
// some groups of a batch gets the same bits.
//
// d_current: [rows, W], the tile's columns; owned by the tile. weight, d_weight: [M, N] row-major, of which the tile
// reads and writes its own columns. share: [events], the tile's part of ∂L/∂value; the engine adds those of all tiles.
// Cost: 4·W bytes read an event, 2·W flops for each of the two gradients, and 12·W bytes a sender and group.
#pragma once

#include "caches.h"
#include "records.h"
#include "simd.h"

namespace sparsesnn::SPARSESNN_ISA {

// A sender's events are [starts[2m], starts[2m + 1]) spikes and [starts[2m + 1], starts[2m + 2]) near-spikes.
struct SenderEvents {
  const std::int32_t* starts = nullptr;  // [2·M + 1]
  const std::uint32_t* rows = nullptr;   // [events + events_ahead]
  std::uint32_t group_rows = 0;          // rows of one group of samples
  const float* values = nullptr;         // [events] of graded lists; null: spikes are 1
};

// The destination of a sender's weight gradient. A chunk holds all steps of whole groups, or some steps of one group;
// the sum of that group then stays in `part` until the next chunk.
struct WeightGrad {
  float *total = nullptr, *part = nullptr;  // [M, N]; total null: not computed
  bool first = true;                        // total holds nothing yet: write, do not add
  bool begins = true, ends = true;          // the chunk holds the last step, the first step
};

// Dot products whose lanes are not yet summed: a vector's worth of them is summed at once.
class PendingDots {
 public:
  explicit PendingDots(float* out) : out_(out) {}

  void add(Vector lanes) {
    rows_[n_] = lanes;
    if (++n_ < vector_width) return;
    store_sums(out_, rows_);
    out_ += vector_width;
    n_ = 0;
  }

  void finish() {
    if (!n_) return;
    for (int r = n_; r < vector_width; ++r) rows_[r] = Vector{};
    store_first(out_, sum_rows(rows_), n_);
    n_ = 0;
  }

 private:
  Vector rows_[vector_width];
  int n_ = 0;
  float* out_;
};

// The 16 lanes of Σ a[n]·b[n] over W elements, folded to one vector.
template <int W>
inline Vector dot(const Vector (&a)[W / vector_width], const Vector (&b)[W / vector_width]) {
  Vector lanes[dot_vectors];
  for (int k = 0; k < dot_vectors; ++k) lanes[k] = a[k] * b[k];
  for (int k = dot_vectors; k < W / vector_width; ++k) lanes[k % dot_vectors] += a[k] * b[k];
  return fold_lanes(lanes);
}

// The rows of events, in turn. The address of the next row is computed before this one is read; otherwise its number
// would wait for this row's loads. The first line of a later row is prefetched explicitly, because no hardware
// prefetcher foresees a gather; only the first, because loads are the bottleneck and each request takes the place of
// one.
template <int W>
class RowsInTurn {
 public:
  RowsInTurn(const float* d_current, const SenderEvents& events) : d_current_(d_current), rows_(events.rows) {}

  void begin_at(std::int32_t event) { next_ = row(rows_[event]); }

  const float* take(std::int32_t event) {
    const float *const here = next_, *const later = row(rows_[event + events_ahead]);
    next_ = row(rows_[event + 1]);
    __builtin_prefetch(later);
    return here;
  }

 private:
  const float* row(std::uint32_t r) const { return d_current_ + static_cast<std::size_t>(r) * W; }

  const float *d_current_, *next_ = nullptr;
  const std::uint32_t* rows_;
};

// Prefetches the first `n` columns of a row that a later sender needs: the rows are a whole row of the weight apart, a
// stride that no hardware prefetcher follows.
inline void ask_for_columns(const float* row, int n) {
  for (int k = 0; k < n; k += 16) __builtin_prefetch(row + k);
}

// The maximum number of senders ahead for which deliver_grad prefetches weights and gradient.
inline constexpr int most_senders_ahead = 2;

// The number of senders to prefetch ahead: the rows of the events in between must not evict the prefetched lines from
// L1.
template <int W>
inline int senders_early(const SenderEvents& events, int m0, int m1) {
  constexpr std::int64_t row_bytes = W * sizeof(float);
  const std::int64_t n_bytes = (std::int64_t{events.starts[2 * m1]} - events.starts[2 * m0]) * row_bytes;
  int early = most_senders_ahead;
  while (early > 1 && early * n_bytes > prefetched_bytes * (m1 - m0)) --early;
  return early;
}

// total += sum, or total = sum; sum = 0.
template <int W>
inline void fold(float* total, bool first, Vector (&sum)[W / vector_width], int n_columns) {
  if (!first) {
    Vector before[W / vector_width];
    load_columns<W>(before, total, n_columns);
    for (int k = 0; k < W / vector_width; ++k) sum[k] = before[k] + sum[k];
  }
  store_columns<W>(total, sum, n_columns);
  for (Vector& x : sum) x = Vector{};
}

// weight and share may be null: that gradient is not computed. Row m of the tile begins at m·row_stride; `n_columns` of
// its W columns exist. `bf16`: the forward pass read the weights rounded.
template <int W, bool graded>
inline void deliver_grad_of(const float* d_current, const SenderEvents& events, int m0, int m1, const float* weight,
                            bool bf16, const WeightGrad& to, std::size_t row_stride, int n_columns, float* share) {
  constexpr int n_vectors = W / vector_width;
  // copies: the compiler must assume that stores change the originals
  const std::int32_t* const starts = events.starts;
  const std::uint32_t* const rows = events.rows;
  const std::uint32_t group_rows = events.group_rows;
  const int senders_ahead = senders_early<W>(events, m0, m1);
  RowsInTurn<W> in_turn(d_current, events);
  in_turn.begin_at(starts[2 * m0]);
  PendingDots dots(share ? share + starts[2 * m0] : nullptr);
  for (int m = m0; m < m1; ++m) {
    const std::int32_t begin = starts[2 * m], near = starts[2 * m + 1], end = starts[2 * m + 2];
    float* total = to.total ? to.total + m * row_stride : nullptr;
    float* part = to.part ? to.part + m * row_stride : nullptr;
    if (m + senders_ahead < m1) {
      if (weight) ask_for_columns(weight + (m + senders_ahead) * row_stride, n_columns);
      if (total) ask_for_columns(total + senders_ahead * row_stride, n_columns);
    }
    Vector w[n_vectors] = {}, sum[n_vectors] = {};
    if (begin == end && to.begins && to.ends) {
      if (total && to.first) store_columns<W>(total, sum, n_columns);
      continue;
    }
    if (weight) load_columns<W>(w, weight + m * row_stride, n_columns);
    if (bf16)
      for (Vector& x : w) x = round_to_bf16(x);
    if (total && !to.begins) load_columns<W>(sum, part, n_columns);
    bool first = to.first;
    std::int32_t j = begin;
    for (std::uint32_t limit = group_rows; j < near; limit += group_rows) {
      const std::int32_t group_begin = j;
      for (; j < near && rows[j] < limit; ++j) {
        const float* row = in_turn.take(j);
        Vector d[n_vectors];
        for (int k = 0; k < n_vectors; ++k) d[k] = load(row + k * vector_width);
        if constexpr (graded) {
          const Vector value = broadcast(events.values[j]);
          for (int k = 0; k < n_vectors; ++k) sum[k] += value * d[k];
        } else {
          for (int k = 0; k < n_vectors; ++k) sum[k] += d[k];
        }
        if (weight) dots.add(dot<W>(w, d));
      }
      if (total && j < near && j > group_begin) {
        fold<W>(total, first, sum, n_columns);
        first = false;
      }
    }
    // before the near-spikes, whose products need the registers
    if (total && !to.ends)
      store_columns<W>(part, sum, n_columns);
    else if (total && (first || near > begin || !to.begins))
      fold<W>(total, first, sum, n_columns);
    if (!weight) {
      if (j < end) in_turn.begin_at(end);
      continue;
    }
    for (; j < end; ++j) {
      const float* row = in_turn.take(j);
      Vector d[n_vectors];
      for (int k = 0; k < n_vectors; ++k) d[k] = load(row + k * vector_width);
      dots.add(dot<W>(w, d));
    }
  }
  if (weight) dots.finish();
}

template <int W>
inline void deliver_grad(const float* d_current, const SenderEvents& events, int m0, int m1, const float* weight,
                         bool bf16, const WeightGrad& to, std::size_t row_stride, int n_columns, float* share) {
  if (events.values)
    deliver_grad_of<W, true>(d_current, events, m0, m1, weight, bf16, to, row_stride, n_columns, share);
  else
    deliver_grad_of<W, false>(d_current, events, m0, m1, weight, bf16, to, row_stride, n_columns, share);
}

}  // namespace sparsesnn::SPARSESNN_ISA
