// The definition of one layer for the engine, and the arrays that its passes share.
//
// Letters: T steps, B samples, N neurons, M presynaptic neurons, P tiles, W neurons a tile. Neurons are padded to
// P·W; a padded neuron has zero weights and thresholds of +inf, so it never fires. List (t, b) has index t·B + b.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "codelets/cpu/records.h"
#include "shapes.h"

namespace sparsesnn {

// Invalid user input; `kind` names the Python exception to raise.
struct InputError : std::runtime_error {
  InputError(const char* error_kind, const std::string& message) : std::runtime_error(message), kind(error_kind) {}
  const char* kind;
};

struct LayerSpec {
  const NeuronShape* shape = nullptr;
  bool fires = true;
  int n_trained = 0;  // parameters of the neurons that are trained
  bool detach_reset = true;
  int surrogate = 0;  // index in codelets/surrogate.h
  float slope = 10.0f;
  int n = 0;                       // N
  int tile_width = 64;             // W: 16, 32 or 64
  int capacity = 0;                // K, 0: no limit
  bool fixed = false;              // fixed activity: lists are filled to capacity
  bool bf16 = false;               // weights are read rounded to bfloat16
  bool save = true;                // keep the data for the backward pass
  std::uint64_t seed = 0;          // of the overflow rotation, by population and training step: sparsesnn/rotation.py
  std::uint64_t first_step = 0;    // steps that came before this call, for the rotation
  std::uint64_t first_sample = 0;  // samples of the batch in earlier replicas, likewise
  int population = 0;              // neurons of the whole population if these are a shard; 0: these are all
  int first = 0;                   // the population's neurons before these

  int n_all() const { return population ? population : n; }
  int first_tile() const { return first / tile_width; }
  int n_tiles() const { return (n + tile_width - 1) / tile_width; }
  int n_padded() const { return n_tiles() * tile_width; }
  int n_learnt() const { return save ? n_trained : 0; }
  // The adjoint of a listed neuron reads x: if the reset passes a gradient, and for fixed activity, whose lists do not
  // tell which neurons fired.
  bool records_x() const { return shape->reads_spikes && (!detach_reset || fixed); }
  // Derivatives by parameters pass through spikes, not only from state to state.
  bool traces_spikes() const { return n_learnt() && (!detach_reset || shape->feeds_spikes); }
  // Floats stored per listed slot: x - θ, from which `slopes` computes σ', then x if the adjoint reads it, then ∂(x -
  // θ)/∂p of each trained parameter.
  int n_fields() const { return save && fires ? 1 + int(records_x()) + n_learnt() : 0; }
  // The gradient of an unlisted neuron that fired differs too: those ids are kept.
  bool stores_silenced() const { return save && fires && shape->reads_spikes && capacity > 0; }
  // The capacity decides which neurons count as listed; traces through spikes need the result before the next step.
  bool needs_step_order() const { return traces_spikes() && capacity > 0; }
  // Listing a neuron changes the gradient of its state by q alone.
  bool adds_q() const { return shape->adds_q && detach_reset; }
};

// Calls body with ids as their own type: uint32 if `wide`, else uint16.
template <class Body>
[[gnu::always_inline]] inline auto with_ids(bool wide, const void* ids, Body&& body) {
  return wide ? body(static_cast<const std::uint32_t*>(ids)) : body(static_cast<const std::uint16_t*>(ids));
}
template <class Body>
inline auto with_ids(bool wide, void* ids, Body&& body) {
  return wide ? body(static_cast<std::uint32_t*>(ids)) : body(static_cast<std::uint16_t*>(ids));
}

// Lists of one population, [T·B]; ids are uint16 or, if `wide`, uint32.
struct Lists {
  const std::int64_t* offsets = nullptr;
  const void* ids = nullptr;
  const std::int32_t* n_spikes = nullptr;
  bool wide = false;
  const float* values = nullptr;  // of every entry of graded lists; null: spikes are 1

  const void* at(std::int64_t slot) const {
    return static_cast<const char*>(ids) + static_cast<std::size_t>(slot) * (wide ? 4 : 2);
  }
  std::uint32_t id(std::int64_t slot) const {
    return wide ? static_cast<const std::uint32_t*>(ids)[slot] : static_cast<const std::uint16_t*>(ids)[slot];
  }
};

class Windows;

// A population that sends to the layer.
struct Source {
  Lists lists;
  int n_pre = 0;
  int delay = 0;                 // the layer's step t reads list t - delay
  const void* weight = nullptr;  // float or Bf16; tile by tile the columns [M, W] of a tile, sample by sample [M, P·W]
  const SparseRows* rows = nullptr;  // of sparse synapses: `weight` is float, in the order of the rows
  const Windows* windows = nullptr;  // of a convolution: `weight` is float, packed (windows.h)
  // For lists whose tiles are summed: the ids from slot `last` on, a copy padded by `ids_ahead` ids.
  const void* last_ids = nullptr;
  std::int64_t last = 0;

  const void* ids_at(std::int64_t slot) const {
    return slot < last ? lists.at(slot) : Lists{nullptr, last_ids, nullptr, lists.wide}.at(slot - last);
  }
};

// Delays of the M senders of a connection, in addition to its own; see axonal_delays.h.
struct AxonalDelays {
  const std::int32_t* steps = nullptr;  // [M], at least 0; null: no delays
  const float* fraction = nullptr;      // [M], 0 <= f < 1; null: delays are whole
  int longest = 0;                      // steps after which the last part arrives

  explicit operator bool() const { return steps != nullptr; }
  int n_parts() const { return fraction ? 2 : 1; }
};

// A recurrent connection: the layer's step t reads its own list t - delay.
struct Loop {
  const void* weight = nullptr;      // [N, P·W], float or Bf16
  const SparseRows* rows = nullptr;  // as `Source::rows`
  int delay = 1;
  AxonalDelays axonal;
};

// The gradient of a parameter is a sum over groups of samples, each of which begins at zero: of a weight along a tree
// (group_tree.h), of a neuron's parameter one after the other. The sums of replicas that own whole groups have the bits
// of one process.
constexpr int group_samples = 8;

// The unit of work of the backward pass: steps t0..t1-1 of samples b0..b1-1. Either all steps of whole groups, or some
// steps of one group. Its rows are in the order [group][t][b].
struct Chunk {
  int t0, t1, b0, b1;

  int group_rows() const { return (t1 - t0) * group_samples; }
  std::size_t n_rows() const {
    return static_cast<std::size_t>((b1 - b0 + group_samples - 1) / group_samples) * group_rows();
  }
  std::uint32_t row(int t, int b) const {
    const int k = b - b0;
    return static_cast<std::uint32_t>((k / group_samples * (t1 - t0) + t - t0) * group_samples + k % group_samples);
  }
};

// A population that sent to the layer (or the layer itself), in the backward pass.
struct SenderSums {
  int n_pre = 0;
  const float* weight = nullptr;    // [M, N]; null if the gradient of its list values is not wanted
  float* d_weight = nullptr;        // [M, N] or null
  float* d_weight_group = nullptr;  // [M, N], the sum of a group so far, if a group takes several chunks
  // For sparse synapses `weight` is in the order of the rows, and d_weight has one number per synapse, at its place.
  const SparseRows* rows = nullptr;
};

// The same if lists are processed one after the other (codelets/cpu/deliver_grad_lists.h).
struct ListSender {
  Lists lists;
  int n_pre = 0, delay = 0;
  const float* weight = nullptr;  // [M, W], padded; null if the gradient of its list values is not wanted
  float* d_value = nullptr;       // [slots], for lists that arrive; null if `weight` is null
  float* sum = nullptr;           // [M, W], of one group of samples: the gradient of the weight; null: not wanted
};

// The k-th of n nearly equal parts of a number of items.
struct Part {
  int k, n;
  int begin(int of) const { return static_cast<int>(static_cast<std::int64_t>(of) * k / n); }
  int end(int of) const { return static_cast<int>(static_cast<std::int64_t>(of) * (k + 1) / n); }
};

// The events of a chunk from one sender, sorted; see SenderEvents in codelets/cpu/deliver_grad.h.
struct SenderChunk {
  const std::int32_t* starts = nullptr;
  const std::uint32_t* rows = nullptr;
  std::size_t n_events = 0;
  const float* values = nullptr;  // [events] for graded lists, else null
  // [P][events], the tiles' parts of ∂L/∂value; for sparse synapses those of the blocks of tiles; or null.
  float* shares = nullptr;
};

// The number of shares that are added at a time, so that they stay in a core's L1.
constexpr std::size_t share_piece = 1024;

// The largest product of steps and samples whose currents are stored before the neurons advance.
constexpr int waiting_rows = 512;

struct TileBlock;  // tile_sums.h

// Senders and rows of a chunk whose list gradients are computed at a time, listed or not (dense_shares.h).
constexpr int dense_block = 64;

struct DenseBlock {
  int m0, n_senders;       // at most dense_block
  int row0, n_rows;        // likewise, n_rows a multiple of group_samples
  std::size_t chunk_rows;  // of d_current [P][rows][W]
};

// q = σ'·e of a listed slot, and its place (row·W + neuron in the tile) in the rows of its tile.
struct ListedGrad {
  std::uint32_t place;
  float q;
};

// The same if q is not sufficient: with σ', x if it was recorded, and whether the neuron fired.
struct ListedState {
  std::uint32_t place;
  float q, sigma, x;
  bool fired;
};

// Growing store of slot records. Its memory functions are in forward.cpp, outside the per-instruction-set builds. On
// its own cache lines, two because of the prefetcher: neighbors belong to other threads.
struct alignas(128) SlotBuffer {
  float* data = nullptr;
  std::size_t size = 0, room = 0;

  void reserve(std::size_t n_more) {
    if (size + n_more > room) grow(size + n_more);
  }
  void grow(std::size_t n);
  SlotBuffer() = default;
  SlotBuffer(const SlotBuffer&) = delete;
  SlotBuffer& operator=(const SlotBuffer&) = delete;
  ~SlotBuffer();
};

// Numbers per neuron, each [P·W]: the entries of its shape, and their derivatives by each trained parameter.
struct NeuronArrays {
  const float* entries[max_entries] = {};
  const float* const* derivatives[max_learnt] = {};  // [trained][entries]
  const float *grad_threshold = nullptr, *bias = nullptr;
};

// A population whose windows a layer reads step by step, in the backward pass.
struct WindowSender {
  const Windows* windows;
  Lists lists;
  int delay;
  const float* weight;  // packed
  float* d_value;       // of each entry, or null
};

// Ids of one list of the population itself.
struct OwnSpikes {
  const void* ids = nullptr;
  std::int64_t n = 0;
  bool wide = false;
  const float* values = nullptr;  // null: 1

  std::uint32_t id(std::int64_t j) const {
    return wide ? static_cast<const std::uint32_t*>(ids)[j] : static_cast<const std::uint16_t*>(ids)[j];
  }
};

// ∂L/∂i [P·W] by which the entries of a list are multiplied: one for all, or one for each.
struct CurrentGrads {
  const float* one = nullptr;
  const float* const* each = nullptr;

  CurrentGrads(const float* all) : one(all) {}
  CurrentGrads(const float* const* of_each) : each(of_each) {}
};

class SpikesUnderWay;  // axonal_delays.h

// The workspace of one sample over some steps: its currents [P·W], those of each step `stride` after those of the step
// before, the input of each loop [n_loops], and memory for that, [n_loops][P·W].
struct SampleRoom {
  float* current;
  std::size_t stride;
  OwnSpikes* own;
  std::uint32_t* own_ids;
  SpikesUnderWay* const* under_way;  // [n_loops], null for a loop without axonal delays
};

// Currents that a caller gives, [T, B, N]: a population's input beyond its lists, added right after the bias.
struct GivenCurrents {
  const float* data = nullptr;  // no backward pass reads them
  std::size_t row = 0;    // numbers of a sample: N, or of a shard all neurons of its population; 0: none are given
  bool constant = false;  // [B, N], the same at all steps

  explicit operator bool() const { return row > 0; }
  const float* at(int t, int sample, int n_samples) const {
    return data + ((constant ? 0 : static_cast<std::size_t>(t) * n_samples) + sample) * row;
  }
};

// The other states of a readout after each step and its currents, [T, B, N] each, for gradients of its parameters; null
// unless they are trained and read them.
struct ReadoutRows {
  float* state[max_states] = {};  // state 0 is the potential
  float* current = nullptr;
};

struct ForwardPass {
  const LayerSpec* spec;
  NeuronArrays neuron;
  int n_steps, n_samples;
  GivenCurrents currents;
  const Source* sources;
  int n_sources;
  bool sources_wait;  // sample by sample: currents hold the bias and all input except that of the loops already
  const Loop* loops;
  int n_loops;
  Lists own_before;  // own lists of the n_before steps before the first, or none
  int n_before;
  bool wide;                             // own ids are uint32
  float* state[max_states];              // each [P][B][W]
  float* trace[max_learnt][max_states];  // their derivatives by each trained parameter
  int n_traces;                          // trained parameters of neurons that fire
  float* slope;                          // σ' of the step before at listed neurons, else 0, [P][B][W]; or null
  // select: one bit per neuron of the tile, [P][T·B]. Candidates; then spikes that are sent and near-spikes that are
  // listed, separate arrays only if a capacity may drop some.
  std::uint64_t *fired, *listed, *sent, *near;
  SlotBuffer* slots;  // [P][blocks of samples]
  int n_blocks, block_size;
  float* potentials;  // [T, B, N] of a readout, or of neurons that fire if they are an output; else null
  ReadoutRows rows;   // of a readout with trained parameters
  // No neuron has fired before the first step; the state 0 alone implies that only if no θ is negative.
  bool starts_above_threshold;
};

// The finished lists of a layer, filled from masks and slot records.
struct ListsOut {
  const std::int64_t* offsets;  // [T·B + 1]
  const std::int32_t* n_spikes;
  void* ids;
  bool wide;
  float* fields;  // [n_fields][n_slots]
  std::int64_t n_slots;
  const std::int64_t* silenced_offsets;  // [T·B + 1] or null
  std::uint32_t* silenced_ids;
};

// ∂L/∂(list values) [slots] of a spiking layer, or ∂L/∂x [T, B, N] of potentials.
struct OutputGrads {
  const float* data = nullptr;
  std::size_t step = 0;  // of potentials, from one step to the next; 0: ∂L/∂x [B, N] is the same at all steps

  explicit operator bool() const { return data != nullptr; }
  const float* at(int t, int sample, int n) const { return data + t * step + static_cast<std::size_t>(sample) * n; }
};

struct BackwardPass {
  const LayerSpec* spec;
  NeuronArrays neuron;
  int n_steps, n_samples;
  Lists lists;          // the layer's own output
  const float* fields;  // [n_fields][slots]
  std::int64_t n_slots;
  const std::int64_t* silenced_offsets;  // [T·B + 1], fired but dropped; null if not stored
  const std::uint32_t* silenced_ids;
  const Loop* loops;
  int n_loops;
  const float* d_values;                      // [slots], ∂L/∂value
  float* d_slots;                             // [slots], σ'·e; null if not wanted
  const float* potentials;                    // [T, B, N] of a readout, for gradients of its parameters
  ReadoutRows rows;                           // likewise
  const float* initial_state[max_states];     // [B, N] of a readout, or null
  OutputGrads d_potentials;                   // of a readout, or of neurons that fire; null: none
  float* d_parameters_by_sample[max_learnt];  // [B, P·W] of a readout's trained parameters
  float* d_state[max_states];                 // running; tile by tile [P][B][W], else [B, P·W]
  float* d_currents;                          // [D][B, P·W], of the last D steps, step t in t mod D; sample by sample
  int n_kept;                                 // D, the longest delay of a loop, at least 1
  double* const* d_delays;  // [n_loops], of trained axonal delays [B, P·W], else null; null: of no loop
  const float* nothing;     // [P·W] zeros, if a loop has axonal delays
  // [n_loops][slots], the list gradients through each loop if computed for all neurons: of entries that arrive before
  // step `returned_end`; null: of no loop.
  const float* returned;
  int returned_end;
  Lists own_before;  // own lists of the n_before steps before the first, or none
  int n_before;
  int n_senders;

  // ∂L/∂i at the step in which a part (0, 1) of neuron m's spike of step t arrives through a loop with axonal delays.
  const float* d_current_at(const Loop& loop, int t, std::uint32_t m, int part, int sample) const {
    const int step = t + loop.delay + loop.axonal.steps[m] + part;
    return step < 0 || step >= n_steps ? nothing : d_current_of(step, sample);
  }
  float* d_current_of(int t, int sample) const {
    return d_currents + (static_cast<std::size_t>(t % n_kept) * n_samples + sample) * spec->n_padded();
  }
  // Whether a loop carries the lists of step t to a later step of this pass.
  bool is_heard(int t) const {
    for (int k = 0; k < n_loops; ++k)
      if (t + loops[k].delay < n_steps) return true;
    return false;
  }
};

// One chunk of the pass.
struct ChunkPass {
  Chunk chunk;
  bool first;                         // gradients of parameters hold nothing yet: write, do not add
  float* d_bias;                      // [groups of the chunk][P·W] or null
  const SenderSums* sums;             // [n_senders]
  const SenderChunk* senders;         // [n_senders]
  const ListedGrad* listed;           // the listed slots, tile by tile, within a tile in backward order of rows
  const ListedState* states;          // or these
  const std::int32_t* listed_starts;  // [P + 1]
};

}  // namespace sparsesnn
