// From ∂L/∂i of a tile to the gradients of weights, bias and list values.
#include "codelets/cpu/deliver_grad.h"
#include "codelets/cpu/deliver_grad_lists.h"
#include "kernel_parts.h"

namespace sparsesnn::SPARSESNN_ISA {
namespace {

// ∂L/∂bias of every group of samples: Σ rows of ∂L/∂i.
template <int W>
void bias_grad_tile(const BackwardPass& pass, const ChunkPass& at_hand, std::size_t first, const float* d_current) {
  const Chunk& chunk = at_hand.chunk;
  float* group = at_hand.d_bias + first;
  for (int g = chunk.b0; g < chunk.b1; g += group_samples, group += pass.spec->n_padded()) {
    Vector sum[W / vector_width] = {};
    if (chunk.t1 < pass.n_steps) load_columns<W>(sum, group, W);
    for (int t = chunk.t1 - 1; t >= chunk.t0; --t)
      for (int b = g; b < chunk.b1 && b < g + group_samples; ++b) {
        const float* row = d_current + static_cast<std::size_t>(chunk.row(t, b)) * W;
        for (int k = 0; k < W / vector_width; ++k) sum[k] += load(row + k * vector_width);
      }
    store_columns<W>(group, sum, W);
  }
}

template <int W>
void weight_grad_tile(const BackwardPass& pass, const ChunkPass& at_hand, int tile, Part part, const float* d_current) {
  const LayerSpec& spec = *pass.spec;
  const Chunk& chunk = at_hand.chunk;
  const std::size_t first = static_cast<std::size_t>(tile) * W, n = static_cast<std::size_t>(spec.n);
  const int n_columns = __builtin_popcountll(valid_word(spec, tile));
  if (at_hand.d_bias && part.k == 0) bias_grad_tile<W>(pass, at_hand, first, d_current);
  for (int k = 0; k < pass.n_senders; ++k) {
    const SenderSums& of = at_hand.sums[k];
    const SenderChunk& from = at_hand.senders[k];
    if (of.rows || (!of.weight && !of.d_weight)) continue;
    const SenderEvents events{from.starts, from.rows, static_cast<std::uint32_t>(chunk.group_rows()), from.values};
    const WeightGrad to{at(of.d_weight, first), at(of.d_weight_group, first), at_hand.first, chunk.t1 == pass.n_steps,
                        chunk.t0 == 0};
    deliver_grad<W>(d_current, events, part.begin(of.n_pre), part.end(of.n_pre),
                    of.weight ? of.weight + first : nullptr, spec.bf16, to, n, n_columns,
                    at(from.shares, tile * from.n_events));
  }
}

// Prefetches the lists of a step's samples, and the places of their gradients: they lie a batch before those of the
// next step, where no hardware prefetcher expects them.
inline void ask_for_lists(const ListSender& from, std::int64_t first, int n) {
  const std::int64_t begin = from.lists.offsets[first], end = from.lists.offsets[first + n];
  const char* const ids = static_cast<const char*>(from.lists.at(begin));
  const std::size_t n_bytes = static_cast<std::size_t>(end - begin) * (from.lists.wide ? 4 : 2);
  for (std::size_t k = 0; k < n_bytes; k += 64) __builtin_prefetch(ids + k);
  for (std::int64_t j = begin; from.d_value && j < end; j += 16) __builtin_prefetch(from.d_value + j, 1);
}

// The lists of n samples from `first` on, with their rows of ∂L/∂i.
template <int W>
void list_grads_of(const ListSender& from, std::int64_t first, int n, const float* rows) {
  const Lists& lists = from.lists;
  const std::int64_t begin = lists.offsets[first];
  PendingDots dots(at(from.d_value, static_cast<std::size_t>(begin)));
  with_ids(lists.wide, lists.at(begin), [&](auto* ids) {
    for (int k = 0; k < n; ++k) {
      const std::int64_t slot = lists.offsets[first + k] - begin, n_spikes = lists.n_spikes[first + k],
                         n_listed = lists.offsets[first + k + 1] - begin - slot;
      const float* const d = rows + k * W;
      if (lists.values)
        deliver_grad_list<W, true>(d, ids + slot, n_spikes, n_listed, lists.values + begin + slot, from.weight,
                                   from.sum, dots);
      else
        deliver_grad_list<W, false>(d, ids + slot, n_spikes, n_listed, nullptr, from.weight, from.sum, dots);
    }
  });
  if (from.weight) dots.finish();
}

template <int W>
void list_grads_tile(const BackwardPass& pass, const ListSender* senders, int group, float* d_bias) {
  const auto grad_step = neuron_kernels(*pass.spec).grad_step;
  const int b0 = group * group_samples, n = pass.n_samples - b0 < group_samples ? pass.n_samples - b0 : group_samples;
  alignas(64) float rows[group_samples * W];
  Vector bias[W / vector_width] = {};
  for (int t = pass.n_steps - 1; t >= 0; --t) {
    for (int k = 0; k < pass.n_senders; ++k)
      if (const int step = t - 1 - senders[k].delay; step >= 0)
        ask_for_lists(senders[k], static_cast<std::int64_t>(step) * pass.n_samples + b0, n);
    for (int k = 0; k < n; ++k) {
      float* const row = rows + k * W;
      if (pass.spec->fires) listed_grad(pass, t, b0 + k);
      grad_step(pass, t, b0 + k, row, W);
      for (int v = 0; v < W / vector_width; ++v) bias[v] += load(row + v * vector_width);
    }
    for (int k = 0; k < pass.n_senders; ++k)
      if (const int step = t - senders[k].delay; step >= 0)
        list_grads_of<W>(senders[k], static_cast<std::int64_t>(step) * pass.n_samples + b0, n, rows);
  }
  if (d_bias) store_columns<W>(d_bias, bias, W);
}

}  // namespace

void weight_grad(const BackwardPass& pass, const ChunkPass& at_hand, int tile, Part part, const float* d_current) {
  with_width(pass.spec->tile_width, [&](auto w) { weight_grad_tile<w()>(pass, at_hand, tile, part, d_current); });
}

void list_grads(const BackwardPass& pass, const ListSender* senders, int group, float* d_bias) {
  with_width(pass.spec->tile_width, [&](auto w) { list_grads_tile<w()>(pass, senders, group, d_bias); });
}

}  // namespace sparsesnn::SPARSESNN_ISA
