// What the engine is told about one layer, and the arrays that its passes share.
//
// Letters: T steps, B samples, N neurons, M presynaptic neurons, P tiles, W neurons a tile. Neurons are padded to
// P·W; a padded neuron has zero weights and thresholds of +inf, so it never fires. List (t, b) has index t·B + b.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace sparsesnn {

enum class Model : int { lif, cuba_lif, li };
enum class Reset : int { subtract, subtract_decays, zero, none };

// What the user gave is wrong; `kind` names the Python exception to raise.
struct InputError : std::runtime_error {
  InputError(const char* error_kind, const std::string& message) : std::runtime_error(message), kind(error_kind) {}
  const char* kind;
};

struct LayerSpec {
  Model model = Model::lif;
  Reset reset = Reset::subtract;
  bool detach_reset = true;
  int surrogate = 0;  // SurrogateKind
  float slope = 10.0f;
  float gain = 1.0f;
  int n = 0;            // N
  int tile_width = 64;  // W: 16, 32 or 64
  int capacity = 0;     // K, 0: no limit
  bool fixed = false;   // fixed activity: lists are filled to capacity
  bool bf16 = false;    // weights are read rounded to bfloat16
  bool save = true;     // keep what the backward pass needs
  bool learn_alpha = false, learn_beta = false, learn_threshold = false;
  std::uint64_t seed = 0;          // of the overflow rotation
  std::uint64_t first_step = 0;    // steps that came before this call, for the rotation
  std::uint64_t first_sample = 0;  // samples of the batch that other replicas run before this one's, likewise
  int population = 0;              // neurons of the whole population, of which these are a shard; 0: these are all
  int first = 0;                   // the population's neurons before these

  int n_all() const { return population ? population : n; }
  int first_tile() const { return first / tile_width; }
  int n_tiles() const { return (n + tile_width - 1) / tile_width; }
  int n_padded() const { return n_tiles() * tile_width; }
  // The factor γ = ∂v[t+1]/∂v[t] of a listed neuron differs from β: it is stored with the slot.
  bool stores_decay() const { return save && (reset == Reset::zero || !detach_reset); }
  bool learns() const { return save && (learn_alpha || learn_beta || learn_threshold); }
  // Floats stored per listed slot: v - θ, from which `slopes` makes σ', then γ if stored, then ∂v/∂α, ∂v/∂β,
  // ∂(v - θ)/∂θ where learnt.
  int n_fields() const {
    return save ? 1 + int(stores_decay()) + (learns() ? int(learn_alpha) + int(learn_beta) + int(learn_threshold) : 0)
                : 0;
  }
  // γ of an unlisted neuron that fired also differs from β: those ids are kept too.
  bool stores_silenced() const { return save && reset == Reset::zero && capacity > 0; }
  // Capacity decides who counts as listed; traces through the reset need to know before the next step.
  bool needs_step_order() const { return learns() && !detach_reset && capacity > 0; }
};

// Lists of one population, [T·B]; ids are uint16 or, `wide`, uint32.
struct Lists {
  const std::int64_t* offsets = nullptr;
  const void* ids = nullptr;
  const std::int32_t* n_spikes = nullptr;
  bool wide = false;

  const void* at(std::int64_t slot) const {
    return static_cast<const char*>(ids) + static_cast<std::size_t>(slot) * (wide ? 4 : 2);
  }
};

// A population that sends to the layer.
struct Source {
  Lists lists;
  int n_pre = 0;
  int delay = 0;                 // the layer's step t reads list t - delay
  const void* weight = nullptr;  // float or Bf16; tile by tile [P][M][W], sample by sample [M, P·W]
};

// The gradient of a parameter is a sum over groups of samples, each of which begins at zero: of a weight along a tree
// (group_tree.h), of a neuron's parameter one after the other. Replicas that own whole groups add up to the bits of one
// process.
constexpr int group_samples = 8;

// What the backward pass does at a time: steps t0..t1-1 of samples b0..b1-1. Either all steps of whole groups, or some
// steps of one group. Its rows lie [group][t][b].
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

// A population that sent to the layer (itself too), seen backwards.
struct SenderSums {
  int n_pre = 0;
  const float* weight = nullptr;    // [M, N]; null where the gradient of its list values is not wanted
  float* d_weight = nullptr;        // [M, N] or null
  float* d_weight_group = nullptr;  // [M, N], the sum of a group so far, where a group takes several chunks
};

// What a chunk received from one sender, sorted; see SenderEvents in codelets/deliver_grad.h.
struct SenderChunk {
  static constexpr std::size_t ahead = 8;  // rows behind the last event's, in bounds of d_current: asked for early
  const std::int32_t* starts = nullptr;
  const std::uint32_t* rows = nullptr;
  std::size_t n_events = 0;
  float* shares = nullptr;  // [P][events], the tiles' parts of ∂L/∂value; or null
};

// So many shares are added up at a time that they stay in a core's first cache.
constexpr std::size_t share_piece = 1024;

struct TileBlock;  // tile_sums.h

// q = σ'·e of a listed slot, and its place (row·W + neuron in the tile) in the rows of its tile.
struct ListedGrad {
  std::uint32_t place;
  float q;
};

// Growing store of slot records. Its memory functions live in forward.cpp, outside the per-instruction-set builds.
// On cache lines of its own, two for the prefetcher's sake: neighbours belong to other threads.
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

// Parameters per neuron, each [P·W].
struct NeuronParameters {
  const float *alpha = nullptr, *beta = nullptr, *threshold = nullptr, *grad_threshold = nullptr, *bias = nullptr;
};

// Ids of one list of the population itself.
struct OwnSpikes {
  const void* ids = nullptr;
  std::int64_t n = 0;
  bool wide = false;
};

struct ForwardPass {
  const LayerSpec* spec;
  NeuronParameters neuron;
  int n_steps, n_samples;
  const Source* sources;
  int n_sources;
  const void* recurrent_weight;  // [N, P·W], float or Bf16, or null
  Lists own_before;              // own lists of the step before the first, or none
  bool wide;                     // own ids are uint32
  // state, each [P][B][W]; null where the model has none
  float *v, *i_syn;
  // ∂v/∂α, ∂i_syn/∂α, ∂v/∂β, ∂v/∂θ, and the reset's own part of γ at the step before; [P][B][W] where learnt
  float *v_by_alpha, *i_syn_by_alpha, *v_by_beta, *v_by_threshold, *reset_gamma;
  // select: one bit per neuron of the tile, [P][T·B]. Candidates; then what is sent as spikes and listed as
  // near-spikes, which are other arrays only where a capacity may drop some.
  std::uint64_t *fired, *listed, *sent, *near;
  SlotBuffer* slots;  // [P][blocks of samples]
  int n_blocks;
  float* potentials;  // [T, B, N] of a readout
  // Nobody has fired before the first step; the potential 0 alone would say so only where no θ is negative.
  bool starts_above_threshold;
};

// The finished lists of a layer, filled from masks and slot records.
struct ListsOut {
  const std::int64_t* offsets;  // [T·B + 1]
  const std::int32_t* n_spikes;
  void* ids;
  bool wide;
  float* values;  // [n_slots]: 1 for spikes, 0 for near-spikes; null if nothing is kept for a backward pass
  float* fields;  // [n_fields][n_slots]
  std::int64_t n_slots;
  const std::int64_t* silenced_offsets;  // [T·B + 1] or null
  std::uint32_t* silenced_ids;
};

struct BackwardPass {
  const LayerSpec* spec;
  NeuronParameters neuron;
  int n_steps, n_samples;
  Lists lists;          // the layer's own output
  const float* fields;  // [n_fields][slots]
  std::int64_t n_slots;
  const std::int64_t* silenced_offsets;  // [T·B + 1], fired but dropped; null if not stored
  const std::uint32_t* silenced_ids;
  const void* recurrent_weight;  // [N, P·W], float or Bf16, or null
  const float* d_values;         // [slots], ∂L/∂value
  float* d_slots;                // [slots], σ'·e; null if nobody asks
  const float* potentials;       // [T, B, N] of a readout, for ∂L/∂β
  const float* initial_v;        // [B, N] of a readout, or null
  const float* d_potentials;     // [T, B, N] of a readout
  float* d_beta_by_sample;       // [B, P·W] of a readout that learns β, or null
  float *d_v, *d_i_syn;          // running; tile by tile [P][B][W], else [B, P·W]
  float* d_current_next;         // [B, P·W], of the step after the one at hand; null if not recurrent
  int n_senders;
};

// One chunk of it.
struct ChunkPass {
  Chunk chunk;
  bool first;                         // gradients of parameters hold nothing yet: write, do not add
  float* d_bias;                      // [groups of the chunk][P·W] or null
  const SenderSums* sums;             // [n_senders]
  const SenderChunk* senders;         // [n_senders]
  const ListedGrad* listed;           // tile by tile: the listed slots, sorted by tile
  const std::int32_t* listed_starts;  // [P + 1]
};

// The numbers of one optimiser step; see codelets/adam.h. step_size = lr/c1, root_c2 = √c2.
struct AdamStep {
  float lr, one_minus_beta1, beta2, one_minus_beta2;  // of the doubles: 1 - 0.999f is off by 5e-5 of itself
  float eps, weight_decay, step_size, root_c2;
  bool decoupled;
};

// The passes, built once per instruction set.
struct Kernels {
  const char* name;
  // One tile, samples b0..b1-1, all steps.
  void (*forward)(const ForwardPass&, int tile, int block, int b0, int b1);
  // The same without step and select, for benchmarks. Returns a number that depends on every current.
  float (*deliver_tile)(const ForwardPass&, int tile, int b0, int b1);
  // One sample, all tiles, all steps; applies the capacity too.
  void (*forward_sample)(const ForwardPass&, int b, float* current, void* own_ids, std::int32_t* dropped);
  // The same without step and select, for benchmarks; `own` are the lists that the layer has put out.
  float (*deliver_sample)(const ForwardPass&, int b, float* current, const Lists& own);
  // One step of one sample, all tiles; `own`: the population's spikes of the step before.
  void (*forward_step)(const ForwardPass&, int t, int b, float* current, const OwnSpikes& own);
  // Applies the capacity to list `t, b`; returns what was dropped. `others`: fired and near candidates of the other
  // shards, all and before this one, [4]; null if there are none.
  int (*select)(const ForwardPass&, int t, int b, const std::int32_t* others);
  // hash(seed, step, sample), by which candidates that do not fit are chosen.
  std::uint64_t (*rotation)(const LayerSpec&, int t, int b);
  // How many neurons fired and how many nearly did in lists i0..i1-1, [lists][2].
  void (*count_candidates)(const ForwardPass&, std::int64_t i0, std::int64_t i1, std::int32_t* counts);
  // Spikes, near-spikes and fired-but-dropped neurons of lists i0..i1-1.
  void (*count)(const ForwardPass&, std::int64_t i0, std::int64_t i1, std::int32_t* n_spikes, std::int32_t* n_listed,
                std::int32_t* n_silenced);
  // Writes the lists of one block of samples b0..b1-1.
  void (*fill)(const ForwardPass&, const ListsOut&, int block, int b0, int b1);
  // x ← σ'(x): the first field of slots j0..j1-1.
  void (*slopes)(const LayerSpec&, float* fields, std::int64_t j0, std::int64_t j1);
  // ∂L/∂i of a chunk, of one tile into `d_current` [rows][W], or of one sample into [P][rows][W].
  void (*state_grad_by_tile)(const BackwardPass&, const ChunkPass&, int tile, float* d_current);
  void (*state_grad_by_sample)(const BackwardPass&, const Chunk&, int sample, float* d_current);
  // sums[k·stride + j] = Σ_n in block k of the tiles weight[id_j, n]·d_current[n]; `weight` as packed for a recurrent
  // layer.
  void (*recurrent_shares)(const LayerSpec&, const void* weight, const OwnSpikes& listed, const float* d_current,
                           const TileBlock* blocks, float* sums, std::size_t stride);
  // sum[j] = Σ over n_tiles, one block, of shares[p·stride + j]; n at most share_piece.
  void (*add_tiles)(const float* shares, std::size_t stride, int n_tiles, std::size_t n, float* sum);
  // From the tile's `d_current` to the gradients of weights, bias and list values.
  void (*weight_grad)(const BackwardPass&, const ChunkPass&, int tile, const float* d_current);
  void (*adam)(float* w, float* m, float* s, const float* d, std::size_t n, const AdamStep&);
  // For benchmarks: reads n floats, a multiple of 128, and returns their sum; adds 1 to each of them.
  float (*read_memory)(const float*, std::size_t n);
  void (*update_memory)(float*, std::size_t n);
};

}  // namespace sparsesnn
