// Shared by the kernels of layers with windows as input (window_forward_kernels.cpp, window_backward_kernels.cpp).
#pragma once

#include "codelets/cpu/deliver_window.h"
#include "codelets/neuron.h"
#include "host/src/cpu/kernels/kernel_parts.h"
#include "window_passes.h"

namespace sparsesnn::SPARSESNN_ISA {

inline constexpr int W = window_block;
// Vectors processed together, so that an operation need not wait for the result of the one before.
inline constexpr int n_together = W / vector_width < 4 ? W / vector_width : 4;

inline float* copied(float* to, const float* from, int n, int n_room, float fill) {
  std::memcpy(to, from, sizeof(float) * static_cast<std::size_t>(n));
  for (int k = n; k < n_room; ++k) to[k] = fill;
  return to;
}

// The spikes of a source, or (`near`) near-spikes, that reach a row at step t.
struct StepEntries {
  const RowSource& from;
  const std::uint32_t* starts = nullptr;
  std::int64_t first = 0;  // slot

  StepEntries(const RowSource& source, int t, int n_samples, int sample, bool near) : from(source) {
    if (t < from.delay) return;
    starts = from.starts + from.stride * static_cast<std::size_t>(t - from.delay) + (near ? from.n_pre_rows + 1 : 0);
    first = from.lists.offsets[static_cast<std::int64_t>(t - from.delay) * n_samples + sample];
  }

  bool more_than(int n) const {
    for (const HeardRow* heard = from.heard; starts && heard < from.heard_end; ++heard)
      n -= static_cast<int>(starts[heard->row + 1] - starts[heard->row]);
    return n < 0;
  }

  // Calls visit(slot, run, weight), the place of the run among `runs`.
  template <class Visit>
  void each(Visit&& visit) const {
    if (!starts) return;
    with_ids(from.lists.wide, from.lists.ids, [&](auto* ids) {
      for (const HeardRow* heard = from.heard; heard < from.heard_end; ++heard) {
        const std::uint32_t begin = starts[heard->row], end = starts[heard->row + 1], base = heard->base;
        const float* const weight = from.weight + heard->weight;
        if (!from.run_starts) {
          for (std::int64_t slot = first + begin; slot < first + end; ++slot) visit(slot, ids[slot] - base, weight);
        } else {
          for (std::int64_t slot = first + begin; slot < first + end; ++slot)
            for (std::uint32_t k = from.run_starts[ids[slot] - base]; k < from.run_starts[ids[slot] - base + 1]; ++k)
              visit(slot, k, weight);
        }
      }
    });
  }
};

}  // namespace sparsesnn::SPARSESNN_ISA
