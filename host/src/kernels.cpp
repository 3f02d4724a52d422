// The passes over one tile or one sample, compiled once per instruction set (see codelets/simd.h).
#include "../../codelets/adam.h"
#include "../../codelets/deliver.h"
#include "../../codelets/deliver_grad.h"
#include "../../codelets/lif.h"
#include "../../codelets/lif_grad.h"
#include "../../codelets/select.h"
#include "../../codelets/surrogate.h"
#include "layer.h"
#include "tile_sums.h"

#define SPARSESNN_STRING_(x) #x
#define SPARSESNN_STRING(x) SPARSESNN_STRING_(x)

namespace sparsesnn::SPARSESNN_ISA {
namespace {

using Id16 = std::uint16_t;
using Id32 = std::uint32_t;

inline float* at(float* base, std::size_t offset) { return base ? base + offset : nullptr; }

inline std::size_t words_stride(const ForwardPass& pass) {
  return static_cast<std::size_t>(pass.n_steps) * pass.n_samples;
}

inline std::uint64_t valid_word(const LayerSpec& spec, int tile) {
  const int left = spec.n - tile * spec.tile_width;
  const int n_valid = left < spec.tile_width ? left : spec.tile_width;
  return n_valid == 64 ? ~0ull : (1ull << n_valid) - 1;
}

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

// Calls body with the weights as what they are.
template <class Body>
inline void with_weight(bool bf16, const void* weight, Body&& body) {
  if (bf16)
    body(static_cast<const Bf16*>(weight));
  else
    body(static_cast<const float*>(weight));
}

// Calls body with the ids as what they are.
template <class Body>
inline void with_ids(bool wide, const void* ids, Body&& body) {
  if (wide)
    body(static_cast<const Id32*>(ids));
  else
    body(static_cast<const Id16*>(ids));
}

std::uint64_t rotation_of(const LayerSpec& spec, int t, int b) {
  return rotation(spec.seed, spec.first_step + t, spec.first_sample + b);
}

int select(const ForwardPass& pass, int t, int b, const std::int32_t* others) {
  const LayerSpec& spec = *pass.spec;
  const std::size_t stride = words_stride(pass), i = static_cast<std::size_t>(t) * pass.n_samples + b;
  const int n_tiles = spec.n_tiles();
  OtherShards shards;
  if (others) shards = {others[0], others[1], others[2], others[3], spec.n_all() - spec.n, spec.first};
  const int dropped =
      select_capacity(pass.fired + i, pass.listed + i, pass.sent + i, pass.near + i, stride, n_tiles, spec.n,
                      spec.tile_width, spec.capacity, spec.fixed, rotation_of(spec, t, b), shards);
  if (pass.reset_gamma)  // an unlisted neuron has no gradient through its reset
    for (int p = 0; p < n_tiles; ++p) {
      float* gamma = pass.reset_gamma + (static_cast<std::size_t>(p) * pass.n_samples + b) * spec.tile_width;
      std::uint64_t unlisted = valid_word(spec, p) & ~(pass.sent[p * stride + i] | pass.near[p * stride + i]);
      for (; unlisted; unlisted &= unlisted - 1) gamma[__builtin_ctzll(unlisted)] = 0.0f;
    }
  return dropped;
}

void count_candidates(const ForwardPass& pass, std::int64_t i0, std::int64_t i1, std::int32_t* counts) {
  const std::size_t stride = words_stride(pass);
  std::memset(counts, 0, sizeof(std::int32_t) * 2 * static_cast<std::size_t>(i1 - i0));
  for (int p = 0; p < pass.spec->n_tiles(); ++p)
    for (std::int64_t i = i0; i < i1; ++i) {
      const std::uint64_t fired = pass.fired[p * stride + i], listed = pass.listed[p * stride + i];
      counts[2 * (i - i0)] += __builtin_popcountll(fired);
      counts[2 * (i - i0) + 1] += __builtin_popcountll(listed & ~fired);
    }
}

template <class Id>
inline std::int64_t decode_sent(const ForwardPass& pass, std::int64_t list, Id* ids) {
  const std::size_t stride = words_stride(pass);
  Id* out = ids;
  for (int p = 0; p < pass.spec->n_tiles(); ++p)
    for (std::uint64_t bits = pass.sent[p * stride + list]; bits; bits &= bits - 1)
      *out++ = static_cast<Id>(p * pass.spec->tile_width + __builtin_ctzll(bits));
  return out - ids;
}

// Ids of the spikes sent in list `list`, ascending; returns their number. `ids` has room for all neurons.
inline std::int64_t sent_ids(const ForwardPass& pass, std::int64_t list, void* ids) {
  return pass.wide ? decode_sent(pass, list, static_cast<Id32*>(ids))
                   : decode_sent(pass, list, static_cast<Id16*>(ids));
}

// One record per listed neuron: v - θ, γ, and the traces (LayerSpec::n_fields).
template <int W>
inline void store_records(const LayerSpec& spec, int n_fields, SlotBuffer& slots, const StepState& s,
                          const StepParameters& p, std::uint64_t listed, std::uint64_t fired) {
  const std::size_t n_listed = static_cast<std::size_t>(__builtin_popcountll(listed));
  slots.reserve(n_listed * n_fields + vector_width);  // differences_at writes whole vectors
  float* out = slots.data + slots.size;
  slots.size += n_listed * n_fields;
  if (n_fields == 1) {  // the usual case
    differences_at<W>(out, s.v, p.threshold, listed);
    return;
  }
  alignas(64) float slope[W];
  if (!spec.detach_reset) {
    for (int k = 0; k < W; ++k) slope[k] = s.v[k] - p.threshold[k];
    surrogate_all(static_cast<SurrogateKind>(spec.surrogate), spec.slope, slope, W);
  }
  if (s.reset_gamma) std::memset(s.reset_gamma, 0, sizeof(float) * W);
  for (std::uint64_t bits = listed; bits; bits &= bits - 1) {
    const int k = __builtin_ctzll(bits);
    *out++ = s.v[k] - p.threshold[k];
    if (spec.stores_decay()) {
      const bool cleared = spec.reset == Reset::zero && (fired >> k & 1);
      const float by_reset =
          spec.detach_reset ? 0.0f : rho_by_spike(spec.reset, s.v[k], p.beta[k], p.threshold[k]) * slope[k];
      *out++ = (cleared ? 0.0f : p.beta[k]) + by_reset;
      if (s.reset_gamma) s.reset_gamma[k] = by_reset;
    }
    if (s.v_by_alpha) *out++ = s.v_by_alpha[k];
    if (s.v_by_beta) *out++ = s.v_by_beta[k];
    if (s.v_by_threshold) *out++ = s.v_by_threshold[k] - 1.0f;
  }
}

// What the steps of one tile have in common.
struct TileOf {
  TileOf(const ForwardPass& pass, const LayerSpec& spec, int tile, int block)
      : index(tile), first(static_cast<std::size_t>(tile) * spec.tile_width), valid(valid_word(spec, tile)) {
    const NeuronParameters& n = pass.neuron;
    parameters = {n.alpha ? n.alpha + first : nullptr, n.beta + first, n.threshold ? n.threshold + first : nullptr,
                  n.grad_threshold ? n.grad_threshold + first : nullptr, spec.gain};
    n_fields = spec.n_fields();
    words = static_cast<std::size_t>(tile) * words_stride(pass);
    slots = pass.slots + tile * pass.n_blocks + block;
  }
  int index;
  std::size_t first;    // neuron
  std::uint64_t valid;  // its neurons that exist
  StepParameters parameters;
  int n_fields;
  std::size_t words;  // of its first bit mask
  SlotBuffer* slots;
};

// Step and select of one tile, one step, one sample, from its currents.
template <int W>
inline void advance(const ForwardPass& pass, const LayerSpec& spec, const TileOf& tile, int t, int b,
                    const float* current) {
  const std::size_t state = (static_cast<std::size_t>(tile.index) * pass.n_samples + b) * W;
  const std::size_t list = static_cast<std::size_t>(t) * pass.n_samples + b;
  if (spec.model == Model::li) {
    step_readout<W>(pass.v + state, tile.parameters, current);
    std::memcpy(pass.potentials + list * spec.n + tile.first, pass.v + state,
                sizeof(float) * __builtin_popcountll(tile.valid));
    return;
  }
  const StepState s{pass.v + state,
                    at(pass.i_syn, state),
                    at(pass.v_by_alpha, state),
                    at(pass.i_syn_by_alpha, state),
                    at(pass.v_by_beta, state),
                    at(pass.v_by_threshold, state),
                    at(pass.reset_gamma, state)};
  std::uint64_t fired = 0, listed = 0;
  const Reset reset = t == 0 && pass.starts_above_threshold ? Reset::none : spec.reset;
  step<W>(reset, s, tile.parameters, current, fired, listed);
  if (!spec.save && !spec.fixed) listed = fired;
  pass.fired[tile.words + list] = fired;
  pass.listed[tile.words + list] = listed;
  // Fixed activity may list any neuron, so every record is kept.
  const std::uint64_t stored = spec.fixed ? tile.valid : listed;
  if (tile.n_fields && (stored || s.reset_gamma))
    store_records<W>(spec, tile.n_fields, *tile.slots, s, tile.parameters, stored, fired);
}

// The currents of one tile, one step, one sample.
template <int W, class Weight>
inline void tile_current(const ForwardPass& pass, std::size_t first, int t, int b, float* current) {
  if (pass.neuron.bias)
    std::memcpy(current, pass.neuron.bias + first, sizeof(float) * W);
  else
    std::memset(current, 0, sizeof(float) * W);
  for (int k = 0; k < pass.n_sources; ++k) {
    const Source& source = pass.sources[k];
    if (t < source.delay) continue;
    const std::int64_t list = static_cast<std::int64_t>(t - source.delay) * pass.n_samples + b;
    const void* ids = source.lists.at(source.lists.offsets[list]);
    const Weight* columns = static_cast<const Weight*>(source.weight) + first * source.n_pre;
    with_ids(source.lists.wide, ids, [&](auto* id) { deliver<W>(current, columns, id, source.lists.n_spikes[list]); });
  }
}

// Deliver, step and select, fused, for one tile and a block of samples: currents live in registers and on the stack.
// `advance(t, b, current)` moves the neurons on.
template <int W, class Weight, class Advance>
inline void each_step(const ForwardPass& pass, int tile, int b0, int b1, Advance&& advance) {
  alignas(64) float current[W];
  for (int t = 0; t < pass.n_steps; ++t)
    for (int b = b0; b < b1; ++b) {
      tile_current<W, Weight>(pass, static_cast<std::size_t>(tile) * W, t, b, current);
      advance(t, b, current);
    }
}

// The usual layer: LIF whose records are v - θ alone. Not inlined: beside its siblings in one function, the loop's
// registers are spilled, and it takes a twelfth longer.
template <int W, class Weight, Reset reset>
[[gnu::noinline]] void forward_plain(const ForwardPass& pass, const TileOf& of, int b0, int b1) {
  const StepParameters parameters = of.parameters;
  float* const v = pass.v + static_cast<std::size_t>(of.index) * pass.n_samples * W;
  std::uint64_t *const fired = pass.fired + of.words, *const listed = pass.listed + of.words;
  SlotBuffer& slots = *of.slots;
  each_step<W, Weight>(pass, of.index, b0, b1, [&](int t, int b, const float* current) {
    slots.reserve(W + vector_width);  // store_selected writes whole vectors
    float* const record = slots.data + slots.size;
    const std::size_t list = static_cast<std::size_t>(t) * pass.n_samples + b;
    std::uint64_t fires, lists;
    slots.size += static_cast<std::size_t>(
        step_and_record<reset, W>(v + static_cast<std::size_t>(b) * W, parameters, current, fires, lists, record) -
        record);
    fired[list] = fires;
    listed[list] = lists;
  });
}

template <int W, class Weight>
void forward_tile(const ForwardPass& shared, int tile, int block, int b0, int b1) {
  // Copies: a store through a pointer cannot change them, so the loops need not read them again.
  const ForwardPass pass = shared;
  const LayerSpec spec = *pass.spec;
  const TileOf of(pass, spec, tile, block);
  if (spec.model == Model::lif && of.n_fields == 1 && !spec.fixed && !pass.starts_above_threshold) {
    if (spec.reset == Reset::subtract) return forward_plain<W, Weight, Reset::subtract>(pass, of, b0, b1);
    if (spec.reset == Reset::subtract_decays) return forward_plain<W, Weight, Reset::subtract_decays>(pass, of, b0, b1);
    if (spec.reset == Reset::none) return forward_plain<W, Weight, Reset::none>(pass, of, b0, b1);
  }
  each_step<W, Weight>(pass, tile, b0, b1,
                       [&](int t, int b, const float* current) { advance<W>(pass, spec, of, t, b, current); });
}

template <int W, class Weight>
float deliver_only(const ForwardPass& shared, int tile, int b0, int b1) {
  const ForwardPass pass = shared;
  float sum = 0.0f;
  each_step<W, Weight>(pass, tile, b0, b1, [&](int, int, const float* current) {
    for (int k = 0; k < W; k += vector_width) sum += current[k];
  });
  return sum;
}

// current[P·W] of one sample at one step, `own` spikes included. Rows of weights are read whole, as they come from
// beyond L2.
inline void sample_current(const ForwardPass& pass, int t, int b, const OwnSpikes& own, float* current) {
  const int n = pass.spec->n_padded();
  const auto send = [&](const void* weight, bool wide, const void* list, std::int64_t n_ids) {
    with_weight(pass.spec->bf16, weight, [&](auto* rows) {
      with_ids(wide, list, [&](auto* id) { deliver_rows(current, rows, n, id, n_ids); });
    });
  };
  if (pass.neuron.bias)
    std::memcpy(current, pass.neuron.bias, sizeof(float) * n);
  else
    std::memset(current, 0, sizeof(float) * n);
  for (int k = 0; k < pass.n_sources; ++k) {
    const Source& source = pass.sources[k];
    if (t < source.delay) continue;
    const std::int64_t list = static_cast<std::int64_t>(t - source.delay) * pass.n_samples + b;
    send(source.weight, source.lists.wide, source.lists.at(source.lists.offsets[list]), source.lists.n_spikes[list]);
  }
  if (pass.recurrent_weight) send(pass.recurrent_weight, own.wide, own.ids, own.n);
}

template <int W>
void step_all_tiles(const ForwardPass& pass, int t, int b, float* current, const OwnSpikes& own) {
  const LayerSpec spec = *pass.spec;
  sample_current(pass, t, b, own, current);
  for (int p = 0; p < spec.n_tiles(); ++p) advance<W>(pass, spec, TileOf(pass, spec, p, b), t, b, current + p * W);
}

void forward_step(const ForwardPass& pass, int t, int b, float* current, const OwnSpikes& own) {
  with_width(pass.spec->tile_width, [&](auto w) { step_all_tiles<w()>(pass, t, b, current, own); });
}

// Deliver, step and select for one sample, all tiles, step after step: what it fired is its own input one step later.
// `current`: [P·W]; `own_ids`: room for all neurons, of a recurrent layer.
template <int W>
void forward_steps(const ForwardPass& pass, int b, float* current, void* own_ids, std::int32_t* dropped) {
  OwnSpikes own{own_ids, 0, pass.wide};
  if (pass.own_before.offsets)
    own = {pass.own_before.at(pass.own_before.offsets[b]), pass.own_before.n_spikes[b], pass.wide};
  for (int t = 0; t < pass.n_steps; ++t) {
    step_all_tiles<W>(pass, t, b, current, own);
    const std::int64_t list = static_cast<std::int64_t>(t) * pass.n_samples + b;
    if (dropped) dropped[list] = select(pass, t, b, nullptr);
    own.ids = own_ids;
    if (pass.recurrent_weight) own.n = sent_ids(pass, list, own_ids);
  }
}

float deliver_sample(const ForwardPass& pass, int b, float* current, const Lists& own) {
  float sum = 0.0f;
  for (int t = 0; t < pass.n_steps; ++t) {
    const std::int64_t before = static_cast<std::int64_t>(t - 1) * pass.n_samples + b;
    const OwnSpikes spikes = t ? OwnSpikes{own.at(own.offsets[before]), own.n_spikes[before], own.wide} : OwnSpikes();
    sample_current(pass, t, b, spikes, current);
    for (int k = 0; k < pass.spec->n_padded(); k += 16) sum += current[k];
  }
  return sum;
}

// Calls body with the tile's width and with the weights' type, as a null pointer.
template <class Body>
inline void with_kernel(const LayerSpec& spec, Body&& body) {
  with_width(spec.tile_width, [&](auto w) {
    if (spec.bf16)
      body(w, static_cast<Bf16*>(nullptr));
    else
      body(w, static_cast<float*>(nullptr));
  });
}

void forward(const ForwardPass& pass, int tile, int block, int b0, int b1) {
  with_kernel(*pass.spec, [&](auto w, auto* weight) {
    forward_tile<w(), std::remove_pointer_t<decltype(weight)>>(pass, tile, block, b0, b1);
  });
}

float deliver_tile(const ForwardPass& pass, int tile, int b0, int b1) {
  float sum = 0.0f;
  with_kernel(*pass.spec, [&](auto w, auto* weight) {
    sum = deliver_only<w(), std::remove_pointer_t<decltype(weight)>>(pass, tile, b0, b1);
  });
  return sum;
}

void forward_sample(const ForwardPass& pass, int b, float* current, void* own_ids, std::int32_t* dropped) {
  with_width(pass.spec->tile_width, [&](auto w) { forward_steps<w()>(pass, b, current, own_ids, dropped); });
}

// Without a capacity `sent` is `fired`, and every other listed neuron is a near-spike.
inline std::uint64_t near_word(const ForwardPass& pass, std::size_t at) {
  return pass.near ? pass.near[at] : pass.listed[at] & ~pass.fired[at];
}

void count(const ForwardPass& pass, std::int64_t i0, std::int64_t i1, std::int32_t* n_spikes, std::int32_t* n_listed,
           std::int32_t* n_silenced) {
  const std::size_t stride = words_stride(pass);
  for (std::int64_t i = i0; i < i1; ++i) {
    n_spikes[i] = n_listed[i] = 0;
    if (n_silenced) n_silenced[i] = 0;
  }
  for (int p = 0; p < pass.spec->n_tiles(); ++p)
    for (std::int64_t i = i0; i < i1; ++i) {
      const std::size_t at = p * stride + i;
      const std::uint64_t sent = pass.sent[at], near = near_word(pass, at);
      n_spikes[i] += __builtin_popcountll(sent);
      n_listed[i] += __builtin_popcountll(sent | near);
      if (n_silenced) n_silenced[i] += __builtin_popcountll(pass.fired[at] & ~sent);
    }
}

// The ids of one list and the field of each: spikes to `spike` on, near-spikes to `near` on. Words list a neuron or
// two, so four are written without asking: what is too much goes where the next near-spike goes, which must be in
// bounds
// (`roomy`).
template <class Id, bool fields>
inline void fill_list(const ForwardPass& pass, const ListsOut& out, SlotBuffer* records, std::int64_t list,
                      std::int64_t spike, std::int64_t near, bool roomy) {
  const std::size_t stride = words_stride(pass);
  const int n_tiles = pass.spec->n_tiles(), w = pass.spec->tile_width;
  Id* const ids = static_cast<Id*>(out.ids);
  for (int p = 0; p < n_tiles; ++p) {
    const std::size_t at = p * stride + list;
    const std::uint64_t fired = pass.fired[at];
    std::uint64_t bits = pass.listed[at];
    SlotBuffer& tile = records[p * pass.n_blocks];
    const float* record = tile.data + tile.size;
    if (fields) tile.size += static_cast<std::size_t>(__builtin_popcountll(bits));
    const int first = p * w;
    const auto put = [&] {
      const std::uint64_t one = bits & -bits;  // 0 once nothing is left
      const std::int64_t is_spike = (fired & one) != 0, to = is_spike ? spike : near;
      ids[to] = static_cast<Id>(first + __builtin_ctzll(bits | 1ull << 63));
      if constexpr (fields) out.fields[to] = *record++;
      spike += is_spike;
      near += (one != 0) - is_spike;
      bits &= bits - 1;
    };
    if (roomy && (!fields || tile.data))
      for (int k = 0; k < 4; ++k) put();
    while (bits) put();
  }
}

template <int value>
inline void fill_values(float* values, std::int64_t slot, std::int64_t end, std::int64_t limit) {
  const Vector x = broadcast(static_cast<float>(value));
  for (; slot < end && slot + vector_width <= limit; slot += vector_width) store(values + slot, x);
  for (; slot < end; ++slot) values[slot] = value;
}

// The usual lists: no capacity, at most one field.
template <class Id, bool fields>
void fill_plain(const ForwardPass& pass, const ListsOut& out, int block, int b0, int b1) {
  SlotBuffer* const records = pass.slots + block;
  for (int p = 0; p < pass.spec->n_tiles(); ++p) records[p * pass.n_blocks].size = 0;
  for (int t = 0; t < pass.n_steps; ++t) {
    const std::int64_t row = static_cast<std::int64_t>(t) * pass.n_samples, limit = out.offsets[row + b1];
    for (int p = 0; p < pass.spec->n_tiles(); ++p) {  // of the next step: too many streams for the hardware to foresee
      const std::size_t word = p * words_stride(pass) + row + pass.n_samples + b0;
      __builtin_prefetch(pass.fired + word);
      __builtin_prefetch(pass.listed + word);
      __builtin_prefetch(records[p * pass.n_blocks].data + records[p * pass.n_blocks].size + 32);
    }
    for (std::int64_t i = row + b0; i < row + b1; ++i) {
      const std::int64_t begin = out.offsets[i], near = begin + out.n_spikes[i], end = out.offsets[i + 1];
      fill_list<Id, fields>(pass, out, records, i, begin, near, end < limit);
      if (!out.values) continue;
      fill_values<1>(out.values, begin, near, limit);
      fill_values<0>(out.values, near, end, limit);
    }
  }
}

// With a capacity, which may have dropped some of the records, or several fields.
template <class Id>
void fill_block(const ForwardPass& pass, const ListsOut& out, int block, int b0, int b1) {
  const LayerSpec& spec = *pass.spec;
  const bool limited = pass.near != nullptr;
  const std::size_t stride = words_stride(pass);
  const int n_tiles = spec.n_tiles(), n_fields = spec.n_fields(), w = spec.tile_width;
  Id* ids = static_cast<Id*>(out.ids);
  // Each tile's records lie in the order of its forward pass: by step, then sample.
  for (int p = 0; p < n_tiles; ++p) pass.slots[p * pass.n_blocks + block].size = 0;
  for (int t = 0; t < pass.n_steps; ++t)
    for (int b = b0; b < b1; ++b) {
      const std::int64_t i = static_cast<std::int64_t>(t) * pass.n_samples + b;
      const std::int64_t begin = out.offsets[i], near_begin = begin + out.n_spikes[i], end = out.offsets[i + 1];
      std::int64_t spike = begin, near_spike = near_begin;
      std::int64_t silenced = out.silenced_offsets ? out.silenced_offsets[i] : 0;
      for (int p = 0; p < n_tiles; ++p) {
        const std::size_t at = p * stride + i;
        const std::uint64_t sent = pass.sent[at], near = near_word(pass, at);
        const std::uint64_t stored = !limited ? pass.listed[at] : spec.fixed ? valid_word(spec, p) : pass.listed[at];
        SlotBuffer& records = pass.slots[p * pass.n_blocks + block];
        const float* record = records.data + records.size;
        records.size += static_cast<std::size_t>(__builtin_popcountll(stored)) * n_fields;
        for (std::uint64_t bits = stored; bits; bits &= bits - 1, record += n_fields) {
          const int k = __builtin_ctzll(bits);
          if (limited && !((sent | near) >> k & 1)) {
            if (out.silenced_offsets && pass.fired[at] >> k & 1)
              out.silenced_ids[silenced++] = static_cast<std::uint32_t>(p * w + k);
            continue;
          }
          // No branch on the kind: it is a toss-up that no predictor wins.
          const std::int64_t is_spike = sent >> k & 1, slot = is_spike ? spike : near_spike;
          spike += is_spike;
          near_spike += 1 - is_spike;
          ids[slot] = static_cast<Id>(p * w + k);
          for (int f = 0; f < n_fields; ++f) out.fields[f * out.n_slots + slot] = record[f];
        }
      }
      if (!out.values) continue;
      for (std::int64_t slot = begin; slot < near_begin; ++slot) out.values[slot] = 1.0f;
      for (std::int64_t slot = near_begin; slot < end; ++slot) out.values[slot] = 0.0f;
    }
}

template <class Id>
void fill_lists(const ForwardPass& pass, const ListsOut& out, int block, int b0, int b1) {
  if (pass.near || pass.spec->n_fields() > 1)
    fill_block<Id>(pass, out, block, b0, b1);
  else if (pass.spec->n_fields() == 1)
    fill_plain<Id, true>(pass, out, block, b0, b1);
  else
    fill_plain<Id, false>(pass, out, block, b0, b1);
}

void fill(const ForwardPass& pass, const ListsOut& out, int block, int b0, int b1) {
  if (out.wide)
    fill_lists<Id32>(pass, out, block, b0, b1);
  else
    fill_lists<Id16>(pass, out, block, b0, b1);
}

void slopes(const LayerSpec& spec, float* fields, std::int64_t j0, std::int64_t j1) {
  surrogate_all(static_cast<SurrogateKind>(spec.surrogate), spec.slope, fields + j0, j1 - j0);
}

// Calls visit(p, j, n, shares) for tile p and slots j..j+n-1, a vector of them: Σ over the tile's neurons of
// weight[id, ·]·d[·], tiles ascending for each vector of slots. Several rows at once, so that d stays in registers.
template <int W, class Weight, class Id, class Visit>
inline void each_share(const Weight* weight, int n_tiles, const Id* ids, std::int64_t n_ids, const float* d,
                       Visit&& visit) {
  constexpr int n_vectors = W / vector_width;
  const std::size_t row = static_cast<std::size_t>(n_tiles) * W;
  for (std::int64_t j = 0; j < n_ids; j += vector_width) {
    const int n = static_cast<int>(n_ids - j < vector_width ? n_ids - j : vector_width);
    for (int p = 0; p < n_tiles; ++p) {
      Vector here[n_vectors], rows[vector_width] = {};
      for (int k = 0; k < n_vectors; ++k) here[k] = load(d + p * W + k * vector_width);
      for (int r = 0; r < n; ++r) {
        const Weight* from = weight + ids[j + r] * row + static_cast<std::size_t>(p) * W;
        Vector columns[n_vectors];
        for (int k = 0; k < n_vectors; ++k) columns[k] = load(from + k * vector_width);
        rows[r] = dot<W>(columns, here);
      }
      visit(p, j, n, sum_rows(rows));
    }
  }
}

// The same with the types as they are.
template <class Visit>
inline void each_recurrent_share(const LayerSpec& spec, const void* weight, const OwnSpikes& listed, const float* d,
                                 Visit&& visit) {
  with_width(spec.tile_width, [&](auto w) {
    with_weight(spec.bf16, weight, [&](auto* rows) {
      with_ids(listed.wide, listed.ids,
               [&](auto* ids) { each_share<w()>(rows, spec.n_tiles(), ids, listed.n, d, visit); });
    });
  });
}

// A sum over tiles, which come in ascending order; see tile_sums.h.
class TileSum {
 public:
  // The share of the p-th tile of an aligned block.
  void add(int p, Vector share) {
    waiting_[n_++] = share;
    for (; p & 1; p >>= 1) fold();
  }
  Vector take() {
    while (n_ > 1) fold();
    n_ = 0;
    return waiting_[0];
  }

 private:
  void fold() {
    --n_;
    waiting_[n_ - 1] += waiting_[n_];
  }
  Vector waiting_[32];
  int n_ = 0;
};

void recurrent_shares(const LayerSpec& spec, const void* weight, const OwnSpikes& listed, const float* d_current,
                      const TileBlock* blocks, float* sums, std::size_t stride) {
  TileSum sum;
  int block = 0, done = 0;  // tiles in earlier blocks
  each_recurrent_share(spec, weight, listed, d_current, [&](int p, std::int64_t j, int n, Vector share) {
    if (!p) block = done = 0;
    sum.add(p - done, share);
    if (p + 1 < done + blocks[block].n) return;
    float lane[vector_width];
    store(lane, sum.take());
    std::memcpy(sums + static_cast<std::size_t>(block) * stride + j, lane, sizeof(float) * static_cast<std::size_t>(n));
    done += blocks[block++].n;
  });
}

// sum[j] = Σ over n_tiles, a power of two, of shares[p·stride + j].
template <int n_tiles>
inline void add_few_tiles(const float* shares, std::size_t stride, std::size_t n, float* sum) {
  const auto add = [&](std::size_t j, auto&& read) {
    decltype(read(0)) x[n_tiles];
    for (int p = 0; p < n_tiles; ++p) x[p] = read(p * stride + j);
    for (int step = 1; step < n_tiles; step *= 2)
      for (int p = 0; p < n_tiles; p += 2 * step) x[p] += x[p + step];
    return x[0];
  };
  std::size_t j = 0;
  for (; j + vector_width <= n; j += vector_width)
    store(sum + j, add(j, [&](std::size_t at) { return load(shares + at); }));
  for (; j < n; ++j) sum[j] = add(j, [&](std::size_t at) { return shares[at]; });
}

void add_tiles(const float* shares, std::size_t stride, int n_tiles, std::size_t n, float* sum) {
  switch (n_tiles) {
    case 1:
      return add_few_tiles<1>(shares, stride, n, sum);
    case 2:
      return add_few_tiles<2>(shares, stride, n, sum);
    case 4:
      return add_few_tiles<4>(shares, stride, n, sum);
    case 8:
      return add_few_tiles<8>(shares, stride, n, sum);
  }
  float second[share_piece];
  add_tiles(shares, stride, n_tiles / 2, n, sum);
  add_tiles(shares + static_cast<std::size_t>(n_tiles / 2) * stride, stride, n_tiles / 2, n, second);
  for (std::size_t j = 0; j < n; ++j) sum[j] += second[j];
}

inline std::uint32_t id_at(const Lists& lists, std::int64_t slot) {
  return lists.wide ? static_cast<const Id32*>(lists.ids)[slot] : static_cast<const Id16*>(lists.ids)[slot];
}

// δ at the listed neurons of list i; d_v already holds β·δ[t+1] everywhere else once this returns.
void listed_grad(const BackwardPass& pass, std::int64_t i, float* d_v, const float* d_current_next) {
  const LayerSpec& spec = *pass.spec;
  const std::int64_t begin = pass.lists.offsets[i], end = pass.lists.offsets[i + 1];
  const float* slope = pass.fields;
  const float* gamma = spec.stores_decay() ? pass.fields + pass.n_slots : nullptr;
  if (d_current_next) {
    TileSum sum;
    const OwnSpikes listed{pass.lists.at(begin), end - begin, pass.lists.wide};
    each_recurrent_share(spec, pass.recurrent_weight, listed, d_current_next,
                         [&](int p, std::int64_t j, int n, Vector share) {
                           sum.add(p, share);
                           if (p + 1 < spec.n_tiles()) return;
                           float lane[vector_width];
                           store(lane, sum.take());
                           for (int r = 0; r < n; ++r) {
                             const std::int64_t slot = begin + j + r;
                             pass.d_slots[slot] = slope[slot] * (pass.d_values[slot] + lane[r]);
                           }
                         });
  } else {
    for (std::int64_t j = begin; j < end; ++j) pass.d_slots[j] = slope[j] * pass.d_values[j];
  }
  if (!gamma) {
    decay_all(d_v, pass.neuron.beta, spec.n_padded());
    for (std::int64_t j = begin; j < end; ++j) d_v[id_at(pass.lists, j)] += pass.d_slots[j];
    return;
  }
  // γ applies to δ[t+1]: take the listed neurons out before all others decay. A neuron is listed once at most.
  constexpr int chunk = 256;
  float listed[chunk];
  if (end - begin <= chunk) {
    for (std::int64_t j = begin; j < end; ++j)
      listed[j - begin] = gamma[j] * d_v[id_at(pass.lists, j)] + pass.d_slots[j];
    decay_all(d_v, pass.neuron.beta, spec.n_padded());
    for (std::int64_t j = begin; j < end; ++j) d_v[id_at(pass.lists, j)] = listed[j - begin];
  } else {
    // Long lists: decay the unlisted ones by hand, walking spikes and near-spikes (each ascending) side by side.
    std::int64_t spike = begin, near = begin + pass.lists.n_spikes[i];
    const std::int64_t spikes_end = near;
    for (int n = 0; n < spec.n; ++n) {
      std::int64_t j = -1;
      if (spike < spikes_end && id_at(pass.lists, spike) == static_cast<std::uint32_t>(n)) j = spike++;
      if (near < end && id_at(pass.lists, near) == static_cast<std::uint32_t>(n)) j = near++;
      d_v[n] = j < 0 ? pass.neuron.beta[n] * d_v[n] : gamma[j] * d_v[n] + pass.d_slots[j];
    }
  }
  if (pass.silenced_offsets)
    for (std::int64_t j = pass.silenced_offsets[i]; j < pass.silenced_offsets[i + 1]; ++j)
      d_v[pass.silenced_ids[j]] = 0.0f;  // fired, found no slot: reset to zero all the same
}

void readout_grad(const BackwardPass& pass, std::int64_t i, int sample, float* d_v) {
  const LayerSpec& spec = *pass.spec;
  const int n = spec.n;
  decay_all(d_v, pass.neuron.beta, spec.n_padded());
  const float* d_potentials = pass.d_potentials + i * n;
  for (int k = 0; k < n; ++k) d_v[k] += d_potentials[k];
  if (!pass.d_beta_by_sample) return;
  const float* before = i >= pass.n_samples ? pass.potentials + (i - pass.n_samples) * n
                        : pass.initial_v    ? pass.initial_v + static_cast<std::size_t>(sample) * n
                                            : nullptr;
  float* d_beta = pass.d_beta_by_sample + static_cast<std::size_t>(sample) * spec.n_padded();
  if (before)
    for (int k = 0; k < n; ++k) d_beta[k] += d_v[k] * before[k];
}

void state_grad_by_sample(const BackwardPass& pass, const Chunk& chunk, int sample, float* d_current) {
  const LayerSpec& spec = *pass.spec;
  const std::size_t n = static_cast<std::size_t>(spec.n_padded()), w = static_cast<std::size_t>(spec.tile_width);
  float* d_v = pass.d_v + sample * n;
  float* d_i_syn = at(pass.d_i_syn, sample * n);
  float* d_current_next = at(pass.d_current_next, sample * n);
  for (int t = chunk.t1 - 1; t >= chunk.t0; --t) {
    const std::int64_t i = static_cast<std::int64_t>(t) * pass.n_samples + sample;
    if (spec.model == Model::li)
      readout_grad(pass, i, sample, d_v);
    else
      listed_grad(pass, i, d_v, t + 1 < pass.n_steps ? d_current_next : nullptr);
    const std::size_t row = chunk.row(t, sample), n_rows = chunk.n_rows();
    for (std::size_t p = 0; p * w < n; ++p)
      current_grad(d_current + (p * n_rows + row) * w, at(d_current_next, p * w), d_v + p * w, at(d_i_syn, p * w),
                   pass.neuron.alpha ? pass.neuron.alpha + p * w : nullptr, spec.gain, static_cast<int>(w));
  }
}

// Calls body(row, b) for the rows of a chunk: groups of samples ascending, steps descending, samples ascending.
template <class Body>
inline void each_row_backwards(const Chunk& chunk, Body&& body) {
  for (int g = chunk.b0; g < chunk.b1; g += group_samples) {
    const int b1 = g + group_samples < chunk.b1 ? g + group_samples : chunk.b1;
    for (int t = chunk.t1 - 1; t >= chunk.t0; --t) {
      const std::size_t row = chunk.row(t, g);
      for (int b = g; b < b1; ++b) body(row + static_cast<std::size_t>(b - g), b);
    }
  }
}

// The same for one tile of a layer whose neurons do not hear one another and forget at β whether listed or not, so that
// ∂L/∂i never leaves the core's cache: q is put in place in one go, then the rows follow from one another.
template <int W>
void state_grad_tile(const BackwardPass& pass, const ChunkPass& at_hand, int tile, float* d_current) {
  const Chunk& chunk = at_hand.chunk;
  const std::size_t first = static_cast<std::size_t>(tile) * W, n_samples = static_cast<std::size_t>(pass.n_samples);
  const float* alpha = pass.neuron.alpha ? pass.neuron.alpha + first : nullptr;
  std::memset(d_current, 0, sizeof(float) * W * chunk.n_rows());
  for (std::int32_t j = at_hand.listed_starts[tile]; j < at_hand.listed_starts[tile + 1]; ++j)
    d_current[at_hand.listed[j].place] = at_hand.listed[j].q;
  each_row_backwards(chunk, [&](std::size_t row, int b) {
    const std::size_t state = (tile * n_samples + static_cast<std::size_t>(b)) * W;
    step_grad<W>(d_current + row * W, pass.d_v + state, at(pass.d_i_syn, state), alpha, pass.neuron.beta + first,
                 pass.spec->gain);
  });
}

void state_grad_by_tile(const BackwardPass& pass, const ChunkPass& at_hand, int tile, float* d_current) {
  with_width(pass.spec->tile_width, [&](auto w) { state_grad_tile<w()>(pass, at_hand, tile, d_current); });
}

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
void weight_grad_tile(const BackwardPass& pass, const ChunkPass& at_hand, int tile, const float* d_current) {
  const LayerSpec& spec = *pass.spec;
  const Chunk& chunk = at_hand.chunk;
  const std::size_t first = static_cast<std::size_t>(tile) * W, n = static_cast<std::size_t>(spec.n);
  const int n_columns = __builtin_popcountll(valid_word(spec, tile));
  if (at_hand.d_bias) bias_grad_tile<W>(pass, at_hand, first, d_current);
  for (int k = 0; k < pass.n_senders; ++k) {
    const SenderSums& of = at_hand.sums[k];
    const SenderChunk& from = at_hand.senders[k];
    if (!of.weight && !of.d_weight) continue;
    const SenderEvents events{from.starts, from.rows, static_cast<std::uint32_t>(chunk.group_rows())};
    const WeightGrad to{at(of.d_weight, first), at(of.d_weight_group, first), at_hand.first, chunk.t1 == pass.n_steps,
                        chunk.t0 == 0};
    deliver_grad<W>(d_current, events, of.n_pre, of.weight ? of.weight + first : nullptr, spec.bf16, to, n, n_columns,
                    at(from.shares, tile * from.n_events));
  }
}

void weight_grad(const BackwardPass& pass, const ChunkPass& at_hand, int tile, const float* d_current) {
  with_width(pass.spec->tile_width, [&](auto w) { weight_grad_tile<w()>(pass, at_hand, tile, d_current); });
}

float read_memory(const float* data, std::size_t n) {
  Vector sum[8] = {};
  for (std::size_t k = 0; k < n; k += 8 * vector_width)
    for (int l = 0; l < 8; ++l) sum[l] += load(data + k + l * vector_width);
  for (int l = 1; l < 8; ++l) sum[0] += sum[l];
  return sum_lanes(sum[0]);
}

void update_memory(float* data, std::size_t n) {
  const Vector one = broadcast(1.0f);
  for (std::size_t k = 0; k < n; k += vector_width) store(data + k, load(data + k) + one);
}

}  // namespace

extern const Kernels kernels;
const Kernels kernels{SPARSESNN_STRING(SPARSESNN_ISA),
                      forward,
                      deliver_tile,
                      forward_sample,
                      deliver_sample,
                      forward_step,
                      select,
                      rotation_of,
                      count_candidates,
                      count,
                      fill,
                      slopes,
                      state_grad_by_tile,
                      state_grad_by_sample,
                      recurrent_shares,
                      add_tiles,
                      weight_grad,
                      adam,
                      read_memory,
                      update_memory};

}  // namespace sparsesnn::SPARSESNN_ISA
