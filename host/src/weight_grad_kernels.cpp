// From ∂L/∂i of a tile to the gradients of weights, bias and list values.
#include "../../codelets/deliver_grad.h"
#include "choices.h"
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
    const SenderEvents events{from.starts,
                              from.rows,
                              static_cast<std::uint32_t>(chunk.group_rows()),
                              from.values,
                              static_cast<std::size_t>(choices.events_ahead),
                              choices.senders_ahead};
    const WeightGrad to{at(of.d_weight, first), at(of.d_weight_group, first), at_hand.first, chunk.t1 == pass.n_steps,
                        chunk.t0 == 0};
    deliver_grad<W>(d_current, events, part.begin(of.n_pre), part.end(of.n_pre),
                    of.weight ? of.weight + first : nullptr, spec.bf16, to, n, n_columns,
                    at(from.shares, tile * from.n_events));
  }
}

}  // namespace

void weight_grad(const BackwardPass& pass, const ChunkPass& at_hand, int tile, Part part, const float* d_current) {
  with_width(pass.spec->tile_width, [&](auto w) { weight_grad_tile<w()>(pass, at_hand, tile, part, d_current); });
}

}  // namespace sparsesnn::SPARSESNN_ISA
