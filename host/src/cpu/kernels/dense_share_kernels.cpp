// Gradients of list values from products over all senders.
#include "codelets/cpu/deliver_grad_dense.h"
#include "host/src/training/tile_sums.h"
#include "kernel_parts.h"

namespace sparsesnn::SPARSESNN_ISA {
namespace {

constexpr std::size_t block_size = static_cast<std::size_t>(dense_block) * dense_block;

template <int W>
struct Shares {
  const LayerSpec& spec;
  const float* weight;
  const DenseBlock& block;
  const float* d_current;

  void of_tile(int p, const float* before, float* out) const {
    const std::size_t n = static_cast<std::size_t>(spec.n), m0 = static_cast<std::size_t>(block.m0);
    const std::size_t row = block.chunk_rows * static_cast<std::size_t>(p) + static_cast<std::size_t>(block.row0);
    deliver_grad_dense<W>(d_current + row * W, block.n_rows, weight + m0 * n + static_cast<std::size_t>(p) * W,
                          spec.bf16, n, block.n_senders, __builtin_popcountll(valid_word(spec, p)), before, out);
  }

  // The sum over n tiles, a power of two, as in add_tiles; the memory after `out` is workspace.
  void of_tiles(int p, int n, float* out) const {
    if (n == 1) return of_tile(p, nullptr, out);
    of_tiles(p, n / 2, out);
    if (n == 2) return of_tile(p + 1, out, out);
    float* const second = out + block_size;
    of_tiles(p + n / 2, n / 2, second);
    for (std::size_t j = 0; j < block_size; j += vector_width) store(out + j, load(out + j) + load(second + j));
  }
};

}  // namespace

void dense_shares(const LayerSpec& spec, const float* weight, const DenseBlock& block, const TileBlock& tiles,
                  const float* d_current, float* room, float* sums) {
  with_width(spec.tile_width,
             [&](auto w) { Shares<w()>{spec, weight, block, d_current}.of_tiles(tiles.first, tiles.n, room); });
  for (int m = 0; m < block.n_senders; m += dense_senders)
    for (int i = 0; i < block.n_rows; ++i)
      for (int s = 0; s < dense_senders; ++s)
        sums[i * dense_block + m + s] =
            room[m * block.n_rows + i / dense_rows * vector_width + i % dense_rows * dense_senders + s];
}

}  // namespace sparsesnn::SPARSESNN_ISA
