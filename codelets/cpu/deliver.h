// Deliver: adds the weights of a spike list to the currents.
//
//   current[n] += Σ_{m in ids} weight[m, n]          for the W neurons of one tile
//
// weight: [M, W], the tile's columns, packed, so that one id reads one contiguous row; owned by the tile. float or
// Bf16, summed as float32. ids: [n_ids + ids_ahead], ascending; the sum runs in their order. current: W floats, kept in
// registers over the whole list. Cost: 4·W bytes (2·W as Bf16) read and W additions an id. Graded lists add
// value·weight[m, n]: products are rounded, then added.
//
// The address of a row is computed two rows before the row is read; otherwise its id would wait for all loads of the
// rows before it. Its first line is prefetched some rows before that.
#pragma once

#include "records.h"
#include "simd.h"

namespace sparsesnn::SPARSESNN_ISA {

// values: of each id if `graded`, else null.
template <int W, bool graded, class Weight, class Id>
[[gnu::always_inline]] inline void deliver(Columns<W>& current, const Weight* weight, const Id* ids,
                                           const float* values, std::int64_t n_ids) {
  static_assert(ids_ahead > 2, "a row is prefetched before its address is computed");
  const auto row_of = [&](Id id) { return weight + static_cast<std::size_t>(id) * W; };
  const Weight *row = row_of(ids[0]), *next = row_of(ids[1]);
  for (std::int64_t j = 0; j < n_ids; ++j) {
    const Weight* const next_but_one = row_of(ids[j + 2]);
    __builtin_prefetch(row_of(ids[j + ids_ahead]));
    for (int k = 0; k < W / vector_width; ++k) {
      if constexpr (graded)
        current.x[k] += broadcast(values[j]) * load(row + k * vector_width);
      else
        current.x[k] += load(row + k * vector_width);
    }
    row = next;
    next = next_but_one;
  }
}

// Like `deliver`, for whole rows of a weight [M, n] that does not fit in L2: a row is read from end to end, as the
// prefetcher likes it, four rows at a time to keep more loads under way. n is a multiple of 16; current lies in L1.
template <class Weight, class Id>
inline void deliver_rows(float* current, const Weight* weight, int n, const Id* ids, std::int64_t n_ids) {
  const std::size_t stride = static_cast<std::size_t>(n);
  std::int64_t j = 0;
  for (; j + 4 <= n_ids; j += 4) {
    const Weight *a = weight + ids[j] * stride, *b = weight + ids[j + 1] * stride, *c = weight + ids[j + 2] * stride,
                 *d = weight + ids[j + 3] * stride;
    for (int k = 0; k < n; k += vector_width)
      store(current + k, (((load(current + k) + load(a + k)) + load(b + k)) + load(c + k)) + load(d + k));
  }
  for (; j < n_ids; ++j) {
    const Weight* row = weight + ids[j] * stride;
    for (int k = 0; k < n; k += vector_width) store(current + k, load(current + k) + load(row + k));
  }
}

template <class Weight, class Id>
[[gnu::noinline]] void deliver_graded_rows(float* current, const Weight* weight, int n, const Id* ids,
                                           const float* values, std::int64_t n_ids) {
  for (std::int64_t j = 0; j < n_ids; ++j) {
    const Weight* row = weight + ids[j] * static_cast<std::size_t>(n);
    const Vector value = broadcast(values[j]);
    for (int k = 0; k < n; k += vector_width) store(current + k, load(current + k) + value * load(row + k));
  }
}

}  // namespace sparsesnn::SPARSESNN_ISA
