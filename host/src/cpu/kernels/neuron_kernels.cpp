// The passes over tiles that depend on the neurons' shape: one set of functions a shape and width.
#include <cstring>

#include "codelets/cpu/step.h"
#include "codelets/cpu/step_grad.h"
#include "codelets/neuron.h"
#include "codelets/surrogate.h"
#include "kernel_parts.h"

namespace sparsesnn::SPARSESNN_ISA {
namespace {

// ---- forward --------------------------------------------------------------------------------------------------------

// One record per listed neuron: x - θ, x, and the traces (LayerSpec::n_fields).
template <class M, int W>
inline void store_records(const ForwardPass& pass, const LayerSpec& spec, const TileOf& tile, std::size_t state,
                          std::uint64_t listed) {
  SlotBuffer& slots = *tile.slots;
  const float *x = pass.state[0] + state, *threshold = pass.neuron.entries[M::threshold] + tile.first;
  const std::size_t n_listed = static_cast<std::size_t>(__builtin_popcountll(listed));
  slots.reserve(n_listed * tile.n_fields + vector_width);  // differences_at writes whole vectors
  float* out = slots.data + slots.size;
  slots.size += n_listed * tile.n_fields;
  if (tile.n_fields == 1) {  // the usual case
    differences_at<W>(out, x, threshold, listed);
    return;
  }
  float* const slope = at(pass.slope, state);
  alignas(64) float sigma[W];
  if (slope) {
    std::memset(slope, 0, sizeof(float) * W);
    for (int k = 0; k < W; ++k) sigma[k] = x[k] - threshold[k];
    surrogate_all(spec.surrogate, spec.slope, sigma, W);
  }
  const bool records_x = spec.records_x();
  for (std::uint64_t bits = listed; bits; bits &= bits - 1) {
    const int k = __builtin_ctzll(bits);
    *out++ = x[k] - threshold[k];
    if (records_x) *out++ = x[k];
    if (slope) slope[k] = sigma[k];
    for (int q = 0; q < pass.n_traces; ++q)
      *out++ = pass.trace[q][0][state + k] - pass.neuron.derivatives[q][M::threshold][tile.first + k];
  }
}

template <class M>
inline TileNeurons<M> tile_neurons(const ForwardPass& pass, const TileOf& tile, std::size_t state) {
  TileNeurons<M> n;
  for (int s = 0; s < M::n_states; ++s) n.state[s] = pass.state[s] + state;
  n.entries = pass.neuron.entries;
  n.first = tile.first;
  return n;
}

// The step of neurons with trained parameters, and their traces. A separate function: its registers are not those of
// the usual step.
template <class M, int W>
[[gnu::noinline]] Masks step_with_traces(const ForwardPass& pass, const LayerSpec& spec, const TileNeurons<M>& neurons,
                                         const TileOf& tile, std::size_t state, const float* current, bool fresh) {
  const Traces<max_states> traces{pass.n_traces, pass.trace, pass.neuron.derivatives, at(pass.slope, state),
                                  spec.detach_reset};
  return step_with_traces<M, W>(neurons, pass.neuron.grad_threshold + tile.first, traces, state, current, fresh);
}

template <class M, int W>
void advance(const ForwardPass& pass, const LayerSpec& spec, const TileOf& tile, int t, int b, const float* current) {
  const std::size_t state = (static_cast<std::size_t>(tile.index) * pass.n_samples + b) * W;
  const std::size_t list = static_cast<std::size_t>(t) * pass.n_samples + b;
  const TileNeurons<M> neurons = tile_neurons<M>(pass, tile, state);
  Columns<W> columns;
  if constexpr (M::may_read_out)
    if (!spec.fires) {
      const int n_columns = __builtin_popcountll(tile.valid);
      const std::size_t at = list * spec.n + tile.first;
      load_columns<W>(columns.x, current, W);
      step_readout<M, W>(neurons, columns, n_columns, pass.potentials + at);
      if (pass.rows.current) {
        std::memcpy(pass.rows.current + at, current, sizeof(float) * n_columns);
        for (int s = 1; s < M::n_states; ++s)
          std::memcpy(pass.rows.state[s] + at, neurons.state[s], sizeof(float) * n_columns);
      }
      return;
    }
  if constexpr (M::may_fire) {
    const bool fresh = t == 0 && pass.starts_above_threshold;
    const auto give_potentials = [&] {
      if (pass.potentials)
        std::memcpy(pass.potentials + list * spec.n + tile.first, neurons.state[0],
                    sizeof(float) * static_cast<std::size_t>(__builtin_popcountll(tile.valid)));
    };
    const float* const grad_threshold = pass.neuron.grad_threshold + tile.first;
    if (tile.n_fields == 1 && !spec.fixed && !fresh) {  // the usual case
      SlotBuffer& slots = *tile.slots;
      slots.reserve(W + vector_width);  // store_selected writes whole vectors
      float* const record = slots.data + slots.size;
      Masks masks;
      load_columns<W>(columns.x, current, W);
      slots.size +=
          static_cast<std::size_t>(step_and_record<M, W>(neurons, grad_threshold, columns, masks, record) - record);
      pass.fired[tile.words + list] = masks.fired;
      pass.listed[tile.words + list] = masks.listed;
      give_potentials();
      return;
    }
    Masks masks = pass.n_traces ? step_with_traces<M, W>(pass, spec, neurons, tile, state, current, fresh)
                                : step<M, W>(neurons, grad_threshold, current, fresh);
    give_potentials();
    if (!spec.save && !spec.fixed) masks.listed = masks.fired;
    pass.fired[tile.words + list] = masks.fired;
    pass.listed[tile.words + list] = masks.listed;
    // Fixed activity may list any neuron, so every record is kept.
    const std::uint64_t stored = spec.fixed ? tile.valid : masks.listed;
    if (tile.n_fields && (stored || pass.slope)) store_records<M, W>(pass, spec, tile, state, stored);
  }
}

// ---- backward -------------------------------------------------------------------------------------------------------

// The gradients of the tile whose first neuron is `first`; `state`: the place of its running gradients.
template <class M>
inline TileGrads<M> tile_grads(const BackwardPass& pass, std::size_t first, std::size_t state) {
  TileGrads<M> n;
  for (int s = 0; s < M::n_states; ++s) n.d[s] = pass.d_state[s] + state;
  n.entries = pass.neuron.entries;
  n.first = first;
  return n;
}

// q += ∂L/∂x of a tile's potentials at one step and sample; q: W numbers, ∂L/∂x of its listed neurons.
inline void add_potential_grads(const BackwardPass& pass, int t, int sample, std::size_t first, int width, float* q) {
  const std::size_t left = static_cast<std::size_t>(pass.spec->n) - first;
  const float* const d = pass.d_potentials.at(t, sample, pass.spec->n) + first;
  for (int k = 0; k < (left < static_cast<std::size_t>(width) ? static_cast<int>(left) : width); ++k) q[k] += d[k];
}

// Calls body(row, t, b0, n) for the rows of a chunk, together those of n samples from b0 on: groups of samples
// ascending, steps descending.
template <class Body>
inline void each_step_backwards(const Chunk& chunk, Body&& body) {
  for (int g = chunk.b0; g < chunk.b1; g += group_samples)
    for (int t = chunk.t1 - 1; t >= chunk.t0; --t)
      body(std::size_t{chunk.row(t, g)}, t, g, chunk.b1 - g < group_samples ? chunk.b1 - g : group_samples);
}

// For a layer whose neurons are not connected to one another, so that ∂L/∂i never leaves the core's cache. The listed
// neurons of a step are put in place first, then each row is computed from that of the next step.
template <class M, int W>
void grad_tile(const BackwardPass& pass, const ChunkPass& at_hand, int tile, float* d_current) {
  if constexpr (M::may_fire) {
    const LayerSpec& spec = *pass.spec;
    const Chunk& chunk = at_hand.chunk;
    const std::size_t first = static_cast<std::size_t>(tile) * W, n_samples = static_cast<std::size_t>(pass.n_samples);
    const auto of_sample = [&](int b) { return tile_grads<M>(pass, first, (tile * n_samples + std::size_t(b)) * W); };
    std::int32_t j = at_hand.listed_starts[tile];
    const std::int32_t end = at_hand.listed_starts[tile + 1];
    if constexpr (M::adds_q)
      if (spec.adds_q()) {
        alignas(64) float q[group_samples * W] = {};  // of one step: stays in the core's L1
        each_step_backwards(chunk, [&](std::size_t row, int t, int b0, int n) {
          const std::int32_t begin = j;
          for (; j < end && at_hand.listed[j].place - row * W < std::size_t{group_samples} * W; ++j)
            q[at_hand.listed[j].place - row * W] = at_hand.listed[j].q;
          for (int k = 0; pass.d_potentials && k < n; ++k) add_potential_grads(pass, t, b0 + k, first, W, q + k * W);
          for (int k = 0; k < n; ++k) grad_row<M, W>(of_sample(b0 + k), q + k * W, d_current + (row + k) * W, nullptr);
          if (pass.d_potentials)
            std::memset(q, 0, sizeof(q));
          else
            for (std::int32_t i = begin; i < j; ++i) q[at_hand.listed[i].place - row * W] = 0.0f;
        });
        return;
      }
    const float* const threshold = pass.neuron.entries[M::threshold] + first;
    ListedRows<W> listed;
    each_step_backwards(chunk, [&](std::size_t first_row, int t, int b0, int n_rows) {
      for (int k = 0; k < n_rows; ++k) {
        const std::size_t row = first_row + k;
        const std::int32_t begin = j;
        for (; j < end && at_hand.states[j].place / W == row; ++j) {
          const ListedState& one = at_hand.states[j];
          const int n = static_cast<int>(one.place % W);
          listed.put(n, one.q, one.sigma, one.fired || (spec.fixed && one.x > threshold[n]), one.x);
        }
        if (pass.d_potentials) add_potential_grads(pass, t, b0 + k, first, W, listed.q);
        grad_row<M, W>(of_sample(b0 + k), d_current + row * W, nullptr, listed, spec.detach_reset);
        if (pass.d_potentials) std::memset(listed.q, 0, sizeof(listed.q));
        for (std::int32_t i = begin; i < j; ++i) listed.clear(static_cast<int>(at_hand.states[i].place % W));
      }
    });
  }
}

// A run of ascending ids, such as the spikes of a list, processed tile by tile.
struct Run {
  std::int64_t next, end;

  // Calls body(k, j) for the ids below `last`, k counted from `first`.
  template <class IdAt, class Body>
  void each_below(std::uint32_t first, std::uint32_t last, IdAt&& id, Body&& body) {
    for (; next < end && id(next) < last; ++next) body(static_cast<int>(id(next) - first), next);
  }
};

template <class M, int W>
inline void readout_step(const BackwardPass& pass, int t, int sample, float* d_current, std::size_t stride) {
  const std::size_t n = static_cast<std::size_t>(pass.spec->n), row = static_cast<std::size_t>(pass.spec->n_padded());
  const std::size_t own = sample * n, now = static_cast<std::size_t>(t) * pass.n_samples * n + own;
  const std::size_t before = now - static_cast<std::size_t>(pass.n_samples) * n;
  // State s of neuron k after this step, and before it.
  const auto state_of = [&](int s) { return s ? static_cast<const float*>(pass.rows.state[s]) : pass.potentials; };
  const auto state_before = [&](int s, std::size_t k) {
    return t > 0 ? state_of(s)[before + k] : pass.initial_state[s] ? pass.initial_state[s][own + k] : 0.0f;
  };
  for (int p = 0; p < pass.spec->n_tiles(); ++p) {
    const std::size_t first = static_cast<std::size_t>(p) * W, n_columns = n - first < W ? n - first : W;
    float* out = d_current + p * stride;
    Vector q[W / vector_width];
    load_columns<W>(q, pass.d_potentials.at(t, sample, pass.spec->n) + first, static_cast<int>(n_columns));
    store_columns<W>(out, q, W);
    const TileGrads<M> tile = tile_grads<M>(pass, first, sample * row + first);
    grad_row<M, W>(tile, out, out, nullptr);
    for (int q = 0; q < pass.spec->n_learnt(); ++q) {
      float* sum = pass.d_parameters_by_sample[q] + sample * row + first;
      for (std::size_t k = 0; k < n_columns; ++k) {
        float d[M::n_states], z[M::n_states], next[M::n_states], entry[M::n_entries], by[M::n_entries];
        for (int s = 0; s < M::n_states; ++s)
          d[s] = tile.d[s][k], z[s] = state_before(s, first + k), next[s] = state_of(s)[now + first + k];
        for (int r = 0; r < M::n_entries; ++r)
          entry[r] = tile.entries[r][first + k], by[r] = pass.neuron.derivatives[q][r][first + k];
        const float i = pass.rows.current ? pass.rows.current[now + first + k] : 0.0f;
        sum[k] += M::by_parameter(d, z, next, entry, by, Fired<float>{false}, i);
      }
    }
  }
}

template <class M, int W>
inline void spiking_step(const BackwardPass& pass, int t, int sample, float* d_current, std::size_t stride) {
  const LayerSpec& spec = *pass.spec;
  const std::int64_t list = static_cast<std::int64_t>(t) * pass.n_samples + sample;
  const std::size_t n_padded = static_cast<std::size_t>(spec.n_padded()), row = sample * n_padded;
  const std::int64_t begin = pass.lists.offsets[list], end = pass.lists.offsets[list + 1];
  float* const whole = pass.d_current_of(t, sample);
  if constexpr (M::adds_q)
    if (spec.adds_q()) {
      std::memset(whole, 0, sizeof(float) * n_padded);
      with_ids(pass.lists.wide, pass.lists.at(begin), [&](auto* id) {
        for (std::int64_t j = 0; j < end - begin; ++j) whole[id[j]] = pass.d_slots[begin + j];
      });
      if (pass.d_potentials) add_potential_grads(pass, t, sample, 0, spec.n, whole);
      for (std::size_t first = 0; first < n_padded; first += W, d_current += stride)
        grad_row<M, W>(tile_grads<M>(pass, first, row + first), whole + first, whole + first, d_current);
      return;
    }
  const std::int64_t near = begin + pass.lists.n_spikes[list];
  Run runs[] = {{begin, near}, {near, end}};
  Run silenced{};
  if (pass.silenced_offsets) silenced = {pass.silenced_offsets[list], pass.silenced_offsets[list + 1]};
  const auto id = [&](std::int64_t slot) { return id_at(pass.lists, slot); };
  const auto silenced_id = [&](std::int64_t j) { return pass.silenced_ids[j]; };
  const bool records_x = spec.records_x();
  ListedRows<W> listed;
  for (int p = 0; p < spec.n_tiles(); ++p) {
    const std::uint32_t first = static_cast<std::uint32_t>(p) * W, last = first + W;
    const float* const threshold = pass.neuron.entries[M::threshold] + first;
    int places[W], n_listed = 0;  // each neuron at most once
    for (Run& run : runs)
      run.each_below(first, last, id, [&](int k, std::int64_t slot) {
        const float x = records_x ? pass.fields[pass.n_slots + slot] : 0.0f;
        const bool fired = spec.fixed ? x > threshold[k] : &run == runs;
        listed.put(places[n_listed++] = k, pass.d_slots[slot], pass.fields[slot], fired, x);
      });
    silenced.each_below(first, last, silenced_id,
                        [&](int k, std::int64_t) { listed.put(places[n_listed++] = k, 0.0f, 0.0f, true, 0.0f); });
    if (pass.d_potentials) add_potential_grads(pass, t, sample, first, W, listed.q);
    grad_row<M, W>(tile_grads<M>(pass, first, row + first), whole + first, d_current + p * stride, listed,
                   spec.detach_reset);
    if (pass.d_potentials) std::memset(listed.q, 0, sizeof(listed.q));
    for (int j = 0; j < n_listed; ++j) listed.clear(places[j]);
  }
}

template <class M, int W>
void grad_step(const BackwardPass& pass, int t, int sample, float* d_current, std::size_t stride) {
  if constexpr (M::may_read_out)
    if (!pass.spec->fires) return readout_step<M, W>(pass, t, sample, d_current, stride);
  if constexpr (M::may_fire) spiking_step<M, W>(pass, t, sample, d_current, stride);
}

// ---- all shapes -----------------------------------------------------------------------------------------------------

template <class M, int W>
constexpr NeuronKernels kernels_of() {
  return {advance<M, W>, grad_tile<M, W>, grad_step<M, W>};
}

template <int W, class... M>
const NeuronKernels& kernel_of(int shape, List<M...>) {
  static constexpr NeuronKernels all[] = {kernels_of<M, W>()...};
  return all[shape];
}

}  // namespace

const NeuronKernels& neuron_kernels(const LayerSpec& spec) {
  const int shape = shape_index(*spec.shape);
  switch (spec.tile_width) {
    case 16:
      return kernel_of<16>(shape, Shapes());
    case 32:
      return kernel_of<32>(shape, Shapes());
    default:
      return kernel_of<64>(shape, Shapes());
  }
}

}  // namespace sparsesnn::SPARSESNN_ISA
