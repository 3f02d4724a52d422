// The passes of a layer and the loops of an optimizer, built once per instruction set (isa.h).
#pragma once

#include "codelets/cpu/records.h"
#include "host/src/cpu/layer.h"

namespace sparsesnn {

struct DenseKernels;
struct RandomKernels;
struct OwnRows;
struct RowSource;
struct WindowBackward;
struct WindowBackwardRoom;
struct WindowForward;
struct WindowForwardRoom;

struct Kernels {
  const char* name;
  // One tile, samples b0..b1-1, all steps.
  void (*forward)(const ForwardPass&, int tile, int block, int b0, int b1);
  // The input currents of one tile in steps t0..t1-1 of samples b0..b1-1, from sources and its bias, into currents [b1
  // - b0][t1 - t0][P·W].
  void (*hear_sources)(const ForwardPass&, int tile, int t0, int t1, int b0, int b1, float* currents);
  // One sample, all tiles, steps t0..t1-1; applies the capacity too.
  void (*forward_sample)(const ForwardPass&, int b, int t0, int t1, const SampleRoom& room, std::int32_t* dropped);
  // One step of one sample, all tiles; `own`: for each loop the population's spikes that arrive through it.
  void (*forward_step)(const ForwardPass&, int t, int b, float* current, const OwnSpikes* own);
  // Applies the capacity to list `t, b`; returns the number of dropped candidates. `others`: fired and near candidates
  // of the other shards, in all and before this one, [4]; null if there are none.
  int (*select)(const ForwardPass&, int t, int b, const std::int32_t* others);
  // hash(seed, step, sample), which chooses among candidates that do not fit.
  std::uint64_t (*rotation)(const LayerSpec&, int t, int b);
  // The numbers of neurons that fired and nearly fired in lists i0..i1-1, [lists][2].
  void (*count_candidates)(const ForwardPass&, std::int64_t i0, std::int64_t i1, std::int32_t* counts);
  // The numbers of spikes, near-spikes and dropped spikes of lists i0..i1-1.
  void (*count)(const ForwardPass&, std::int64_t i0, std::int64_t i1, std::int32_t* n_spikes, std::int32_t* n_listed,
                std::int32_t* n_silenced);
  // Writes the lists of samples b0..b1-1, whole blocks of them.
  void (*fill)(const ForwardPass&, const ListsOut&, int b0, int b1);
  // x ← σ'(x): the first field of slots j0..j1-1.
  void (*slopes)(const LayerSpec&, float* fields, std::int64_t j0, std::int64_t j1);
  // ∂L/∂i of a chunk, of one tile into `d_current` [rows][W], or of steps t0..t1-1 of one sample into [P][rows][W].
  void (*state_grad_by_tile)(const BackwardPass&, const ChunkPass&, int tile, float* d_current);
  void (*state_grad_by_sample)(const BackwardPass&, const Chunk&, int t0, int t1, int sample, float* d_current);
  // sums[k·stride + j] = Σ_n in block k of the tiles weight[id_j, n]·d_current[n] for a loop; for sparse synapses the
  // blocks are those of its rows.
  void (*recurrent_shares)(const LayerSpec&, const Loop&, const OwnSpikes& listed, const CurrentGrads& d_current,
                           const TileBlock* blocks, float* sums, std::size_t stride);
  // sum[j] = Σ over n_tiles, one block, of shares[p·stride + j]; n at most share_piece.
  void (*add_tiles)(const float* shares, std::size_t stride, int n_tiles, std::size_t n, float* sum);
  // sums[i·dense_block + j] = Σ over `tiles` of Σ_n weight[m0 + j, n]·d_current[row0 + i, n], with the bits of the same
  // shares of listed entries, added by add_tiles. `room`: dense_block² floats for each halving of the tiles, and one
  // more.
  void (*dense_shares)(const LayerSpec&, const float* weight, const DenseBlock&, const TileBlock& tiles,
                       const float* d_current, float* room, float* sums);
  // From the tile's `d_current` to the gradients of weights, bias and list values, for a part of every sender's
  // neurons.
  void (*weight_grad)(const BackwardPass&, const ChunkPass&, int tile, Part part, const float* d_current);
  // For a readout of one tile, all steps of a group of samples backward: the sums and list gradients of its senders,
  // and, unless null, the sum of ∂L/∂i [W] for the bias.
  void (*list_grads)(const BackwardPass&, const ListSender* senders, int group, float* d_bias);
  // The gradients of sparse weights and list values of senders m0..m1-1 of one population; d_current [P][rows][W],
  // `sum` holds the longest row.
  void (*sparse_grad)(const BackwardPass&, const ChunkPass&, int sender, int m0, int m1, const float* d_current,
                      float* sum);
  // The gradients of windows for one sample of a chunk: adds to d_weight, packed, unless null; d_current as above;
  // `row` holds one row of it.
  void (*windows_grad)(const BackwardPass&, const Chunk&, const WindowSender&, int sample, const float* d_current,
                       float* row, float* d_weight);
  // One row of one sample of a layer with windows as input, all steps, forward and backward (window_passes.h).
  void (*forward_row)(const WindowForward&, int sample, int row, const RowSource* sources, const WindowForwardRoom&);
  void (*backward_row)(const WindowBackward&, int sample, int row, const RowSource* sources, const OwnRows& own,
                       const WindowBackwardRoom&);
  // sum[k] += Σ_m x[m, k], or x[m, k]², of columns k0..k1-1, rows m ascending; x [n_rows, n_columns].
  void (*column_sums)(const float* x, std::size_t n_rows, std::size_t n_columns, std::size_t k0, std::size_t k1,
                      double* sum);
  void (*column_squares)(const float* x, std::size_t n_rows, std::size_t n_columns, std::size_t k0, std::size_t k1,
                         double* sum);
  // out[k] = e^(x[k] - most) for n numbers, none above `most`; NaN stays NaN.
  void (*exp_below)(const float* x, std::size_t n, double most, double* out);
  void (*adam)(float* w, float* m, float* s, const float* d, std::size_t n, const AdamStep&);
  const DenseKernels* dense;
  const RandomKernels* random;
};

// The kernels for the instruction set in use (isa.h).
const Kernels& chosen_kernels();

}  // namespace sparsesnn
