// Windows of a layer that runs step by step: their input currents, and their gradients.
#include <cstring>

#include "codelets/cpu/deliver_window.h"
#include "host/src/cpu/kernels/kernel_parts.h"
#include "windows.h"

namespace sparsesnn::SPARSESNN_ISA {

void deliver_windows(float* current, const Windows& windows, const float* weight, const OwnSpikes& spikes,
                     const float* values) {
  const std::size_t length = static_cast<std::size_t>(windows.row_length());
  with_ids(spikes.wide, spikes.ids, [&](auto* ids) {
    for (std::int64_t j = 0; j < spikes.n; ++j)
      windows.each_run(ids[j], [&](std::uint32_t row, std::uint32_t to, std::uint32_t n, std::uint32_t at) {
        float* const i = current + row * length + to;
        if (values)
          deliver_run(i, weight + at, static_cast<int>(n), values[j]);
        else
          deliver_run(i, weight + at, static_cast<int>(n));
      });
  });
}

// Steps descending, then entries and runs in the order of the forward pass. ∂L/∂i of a step is first gathered from the
// tiles, because runs may cross tiles.
void windows_grad(const BackwardPass& pass, const Chunk& chunk, const WindowSender& from, int sample,
                  const float* d_current, float* row, float* d_weight) {
  const int width = pass.spec->tile_width, n_tiles = pass.spec->n_tiles();
  const std::size_t w = static_cast<std::size_t>(width), tile_stride = chunk.n_rows() * w;
  const std::size_t length = static_cast<std::size_t>(from.windows->row_length());
  for (int t = chunk.t1 - 1; t >= chunk.t0 && t >= from.delay; --t) {
    const std::int64_t list = static_cast<std::int64_t>(t - from.delay) * pass.n_samples + sample;
    const std::int64_t begin = from.lists.offsets[list], fired = begin + from.lists.n_spikes[list];
    const std::int64_t end = from.d_value ? from.lists.offsets[list + 1] : fired;
    if (begin == end) continue;
    const float* tile = d_current + chunk.row(t, sample) * w;
    for (int p = 0; p < n_tiles; ++p, tile += tile_stride) std::memcpy(row + p * w, tile, sizeof(float) * w);
    for (std::int64_t slot = begin; slot < end; ++slot) {
      float share = 0.0f;
      from.windows->each_run(id_at(from.lists, slot),
                             [&](std::uint32_t y, std::uint32_t to, std::uint32_t n_run, std::uint32_t at) {
                               const float* const d = row + y * length + to;
                               const int n = static_cast<int>(n_run);
                               if (from.d_value) share += share_of_run(from.weight + at, d, n);
                               if (!d_weight || slot >= fired) return;
                               if (from.lists.values)
                                 deliver_run(d_weight + at, d, n, from.lists.values[slot]);
                               else
                                 deliver_run(d_weight + at, d, n);
                             });
      if (from.d_value) from.d_value[slot] = share;
    }
  }
}

}  // namespace sparsesnn::SPARSESNN_ISA
