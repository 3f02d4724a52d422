// Declarations shared by the kernel files, each compiled once per instruction set: forward_kernels.cpp,
// neuron_kernels.cpp, list_kernels.cpp, state_grad_kernels.cpp, weight_grad_kernels.cpp, dense_share_kernels.cpp,
// sparse_kernels.cpp, window_forward_kernels.cpp, window_backward_kernels.cpp, window_sample_kernels.cpp, and
// kernels.cpp with the table of them.
#pragma once

#include <type_traits>

#include "codelets/cpu/simd.h"
#include "kernels.h"

namespace sparsesnn::SPARSESNN_ISA {

using Id16 = std::uint16_t;
using Id32 = std::uint32_t;

// ---- forward_kernels.cpp
void forward(const ForwardPass&, int tile, int block, int b0, int b1);
void hear_sources(const ForwardPass&, int tile, int t0, int t1, int b0, int b1, float* currents);
void forward_sample(const ForwardPass&, int b, int t0, int t1, const SampleRoom& room, std::int32_t* dropped);
void forward_step(const ForwardPass&, int t, int b, float* current, const OwnSpikes* own);

// ---- list_kernels.cpp
int select(const ForwardPass&, int t, int b, const std::int32_t* others);
std::uint64_t rotation_of(const LayerSpec&, int t, int b);
void count_candidates(const ForwardPass&, std::int64_t i0, std::int64_t i1, std::int32_t* counts);
void count(const ForwardPass&, std::int64_t i0, std::int64_t i1, std::int32_t* n_spikes, std::int32_t* n_listed,
           std::int32_t* n_silenced);
void fill(const ForwardPass&, const ListsOut&, int b0, int b1);
// Ids of the spikes sent in list `list`, ascending; returns their number. `ids` has room for all neurons.
std::int64_t sent_ids(const ForwardPass&, std::int64_t list, void* ids);

// ---- state_grad_kernels.cpp
void state_grad_by_tile(const BackwardPass&, const ChunkPass&, int tile, float* d_current);
void state_grad_by_sample(const BackwardPass&, const Chunk&, int t0, int t1, int sample, float* d_current);
// q = σ'·e at the listed neurons of one list, including gradients through the loops from later steps.
void listed_grad(const BackwardPass&, int t, int sample);
void recurrent_shares(const LayerSpec&, const Loop&, const OwnSpikes& listed, const CurrentGrads& d_current,
                      const TileBlock* blocks, float* sums, std::size_t stride);
void add_tiles(const float* shares, std::size_t stride, int n_tiles, std::size_t n, float* sum);

// ---- weight_grad_kernels.cpp
void weight_grad(const BackwardPass&, const ChunkPass&, int tile, Part part, const float* d_current);
void list_grads(const BackwardPass&, const ListSender* senders, int group, float* d_bias);

// ---- dense_share_kernels.cpp
void dense_shares(const LayerSpec&, const float* weight, const DenseBlock&, const TileBlock& tiles,
                  const float* d_current, float* room, float* sums);

// ---- sparse_kernels.cpp
// As `recurrent_shares`, for a loop of sparse synapses.
void sparse_shares(const LayerSpec&, const Loop&, const OwnSpikes& listed, const CurrentGrads& d_current, float* sums,
                   std::size_t stride);
void sparse_grad(const BackwardPass&, const ChunkPass&, int sender, int m0, int m1, const float* d_current, float* sum);

// ---- window_sample_kernels.cpp
// Adds the spikes of a list, through windows, to the currents of a layer; `values`: of each spike, or null.
void deliver_windows(float* current, const Windows& windows, const float* weight, const OwnSpikes& spikes,
                     const float* values);
void windows_grad(const BackwardPass&, const Chunk&, const WindowSender&, int sample, const float* d_current,
                  float* row, float* d_weight);

// ---- window_forward_kernels.cpp
void forward_row(const WindowForward&, int sample, int row, const RowSource* sources, const WindowForwardRoom&);

// ---- window_backward_kernels.cpp
void backward_row(const WindowBackward&, int sample, int row, const RowSource* sources, const OwnRows& own,
                  const WindowBackwardRoom&);

// ---- neuron_kernels.cpp: functions that depend on the shape, for tiles of one width

struct TileOf;

struct NeuronKernels {
  // Step, compare and record for one tile, one step, one sample, from its currents.
  void (*advance)(const ForwardPass&, const LayerSpec&, const TileOf&, int t, int b, const float* current);
  // ∂L/∂i of a tile and a chunk, [rows][W].
  void (*grad_tile)(const BackwardPass&, const ChunkPass&, int tile, float* d_current);
  // ∂L/∂i of all tiles at step t of one sample; that of tile p into d_current + p·stride. d_slots holds q.
  void (*grad_step)(const BackwardPass&, int t, int sample, float* d_current, std::size_t stride);
};

const NeuronKernels& neuron_kernels(const LayerSpec& spec);

// ---- shared by all

inline float* at(float* base, std::size_t offset) { return base ? base + offset : nullptr; }

inline std::size_t words_stride(const ForwardPass& pass) {
  return static_cast<std::size_t>(pass.n_steps) * pass.n_samples;
}

inline std::uint64_t valid_word(const LayerSpec& spec, int tile) {
  const int left = spec.n - tile * spec.tile_width;
  const int n_valid = left < spec.tile_width ? left : spec.tile_width;
  return n_valid == 64 ? ~0ull : (1ull << n_valid) - 1;
}

inline std::uint32_t id_at(const Lists& lists, std::int64_t slot) {
  return lists.wide ? static_cast<const Id32*>(lists.ids)[slot] : static_cast<const Id16*>(lists.ids)[slot];
}

// Values shared by all steps of one tile.
struct TileOf {
  TileOf(const ForwardPass& pass, const LayerSpec& spec, int tile, int block)
      : index(tile),
        first(static_cast<std::size_t>(tile) * spec.tile_width),
        valid(valid_word(spec, tile)),
        n_fields(spec.n_fields()),
        words(static_cast<std::size_t>(tile) * words_stride(pass)),
        slots(pass.slots + tile * pass.n_blocks + block) {}
  int index;
  std::size_t first;    // neuron
  std::uint64_t valid;  // its neurons that exist
  int n_fields;
  std::size_t words;  // of its first bit mask
  SlotBuffer* slots;
};

// Calls body with the width as a constant.
template <class Body>
inline void with_width(int width, Body&& body) {
  switch (width) {
    case 16:
      return body(std::integral_constant<int, 16>());
    case 32:
      return body(std::integral_constant<int, 32>());
    default:
      return body(std::integral_constant<int, 64>());
  }
}

// Calls body with the weights as their own type.
template <class Body>
inline void with_weight(bool bf16, const void* weight, Body&& body) {
  if (bf16)
    body(static_cast<const Bf16*>(weight));
  else
    body(static_cast<const float*>(weight));
}

}  // namespace sparsesnn::SPARSESNN_ISA
