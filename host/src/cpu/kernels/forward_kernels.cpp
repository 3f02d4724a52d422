// The forward pass of a tile or a sample: deliver, step, compare.
#include <cstring>

#include "codelets/cpu/deliver.h"
#include "codelets/cpu/deliver_sparse.h"
#include "codelets/cpu/step.h"
#include "codelets/neuron.h"
#include "host/src/cpu/axonal_delays.h"
#include "host/src/machine/choices.h"
#include "kernel_parts.h"

namespace sparsesnn::SPARSESNN_ISA {
namespace {

inline bool any_graded(const ForwardPass& pass) {
  bool graded = false;
  for (int k = 0; k < pass.n_sources; ++k) graded |= pass.sources[k].lists.values != nullptr;
  return graded;
}

// Adds the input of source `k` to the currents of one tile, one step, one sample. `graded`: lists may be graded.
template <int W, class Weight, bool graded>
[[gnu::always_inline]] inline void hear(const ForwardPass& pass, int k, int t, int b, Columns<W>& current) {
  const Source& source = pass.sources[k];
  if (t < source.delay) return;
  const std::int64_t list = static_cast<std::int64_t>(t - source.delay) * pass.n_samples + b;
  const std::int64_t slot = source.lists.offsets[list];
  const Weight* columns = static_cast<const Weight*>(source.weight);
  const std::int32_t n_spikes = source.lists.n_spikes[list];
  const float* values = graded && source.lists.values ? source.lists.values + slot : nullptr;
  with_ids(source.lists.wide, source.ids_at(slot), [&](auto* ids) {
    if constexpr (!graded && std::is_same_v<Weight, float>) {
      deliver<W, false>(current, columns, ids, nullptr, n_spikes);
    } else {  // with a longer loop GCC would leave `current` in memory
      Columns<W> sum = current;
      if (values)
        deliver<W, true>(sum, columns, ids, values, n_spikes);
      else
        deliver<W, false>(sum, columns, ids, nullptr, n_spikes);
      current = sum;
    }
  });
}

// Sets the currents of a tile to the bias of its neurons, and adds those that are given. `given`: some may be.
template <int W, bool given>
[[gnu::always_inline]] inline void begin_current(const ForwardPass& pass, std::size_t first, int t, int b,
                                                 Columns<W>& current) {
  for (int k = 0; k < W / vector_width; ++k)
    current.x[k] = pass.neuron.bias ? load(pass.neuron.bias + first + k * vector_width) : Vector{};
  if constexpr (given)
    if (pass.currents) {
      const std::size_t left = static_cast<std::size_t>(pass.spec->n) - first;
      Vector more[W / vector_width];
      load_columns<W>(more, pass.currents.at(t, b, pass.n_samples) + first, left < W ? static_cast<int>(left) : W);
      for (int k = 0; k < W / vector_width; ++k) current.x[k] += more[k];
    }
}

// The currents of one tile, one step, one sample. `graded`, `given`: lists may be graded, currents may be given.
template <int W, class Weight, bool graded, bool given>
[[gnu::always_inline]] inline void tile_current(const ForwardPass& pass, std::size_t first, int t, int b,
                                                Columns<W>& current) {
  begin_current<W, given>(pass, first, t, b, current);
  for (int k = 0; k < pass.n_sources; ++k) hear<W, Weight, graded>(pass, k, t, b, current);
}

// Columns of a tile larger than `choices.columns_kb`, such as those of several delays, would evict one another from L2:
// each source is then summed over a block of steps, whose currents are stored, `waiting_rows` at most.
template <class Weight>
inline bool by_source(const ForwardPass& pass, int width, int n_samples) {
  std::size_t n_pre = 0;
  for (int k = 0; k < pass.n_sources; ++k) n_pre += static_cast<std::size_t>(pass.sources[k].n_pre);
  const std::size_t columns = n_pre * static_cast<std::size_t>(width) * sizeof(Weight);
  return pass.n_sources > 1 && columns > static_cast<std::size_t>(choices.columns_kb) << 10 &&
         n_samples <= waiting_rows;
}

// The currents of steps [t0, t1) and samples [b0, b1), source by source: each is the same sum in the same order. A
// layer without graded lists has no given ones here.
template <int W, class Weight, bool graded>
[[gnu::noinline]] void wait_for_sources(const ForwardPass& pass, std::size_t first, int t0, int t1, int b0, int b1,
                                        float* waiting) {
  for (int k = 0; k < pass.n_sources; ++k) {
    float* row = waiting;
    for (int t = t0; t < t1; ++t)
      for (int b = b0; b < b1; ++b, row += W) {
        Columns<W> current;
        if (k == 0)
          begin_current<W, graded>(pass, first, t, b, current);
        else
          load_columns<W>(current.x, row, W);
        hear<W, Weight, graded>(pass, k, t, b, current);
        store_columns<W>(row, current.x, W);
      }
  }
}

// Deliver, step and select, fused, for one tile and a block of samples: currents live in registers and on the stack.
// `advance(t, b, current)` advances the neurons.
template <int W, class Weight, bool graded, bool given, class Advance>
inline void each_step(const ForwardPass& pass, int tile, int b0, int b1, Advance&& advance) {
  for (int t = 0; t < pass.n_steps; ++t)
    for (int b = b0; b < b1; ++b) {
      Columns<W> current;
      tile_current<W, Weight, graded, given>(pass, static_cast<std::size_t>(tile) * W, t, b, current);
      advance(t, b, current);
    }
}

// The same, source by source.
template <int W, class Weight, bool graded, class Advance>
inline void each_block(const ForwardPass& pass, int tile, int b0, int b1, Advance&& advance) {
  alignas(64) float waiting[waiting_rows * W];
  const int n_together = waiting_rows / (b1 - b0);
  for (int t0 = 0; t0 < pass.n_steps; t0 += n_together) {
    const int t1 = t0 + n_together < pass.n_steps ? t0 + n_together : pass.n_steps;
    wait_for_sources<W, Weight, graded>(pass, static_cast<std::size_t>(tile) * W, t0, t1, b0, b1, waiting);
    const float* row = waiting;
    for (int t = t0; t < t1; ++t)
      for (int b = b0; b < b1; ++b, row += W) {
        Columns<W> current;
        load_columns<W>(current.x, row, W);
        advance(t, b, current);
      }
  }
}

// How a loop of the usual layer gets its currents: step by step, source by source for a block of steps, or step by step
// with given ones.
enum class Way { steps, blocks, given };

// The usual layer: a shape with its own loop, a readout or one whose records are x - θ alone, and no graded lists. Not
// inlined: in one function with its siblings, the loop's registers are spilled, and it takes a twelfth longer.
template <class M, bool fires, int W, class Weight, Way way>
[[gnu::noinline]] void forward_fused(const ForwardPass& pass, const TileOf& of, int b0, int b1) {
  const LayerSpec& spec = *pass.spec;
  TileNeurons<M> neurons;
  for (int s = 0; s < M::n_states; ++s)
    neurons.state[s] = pass.state[s] + static_cast<std::size_t>(of.index) * pass.n_samples * W;
  neurons.entries = pass.neuron.entries;
  neurons.first = of.first;
  const float* const grad_threshold = fires ? pass.neuron.grad_threshold + of.first : nullptr;
  std::uint64_t* const fired = fires ? pass.fired + of.words : nullptr;
  std::uint64_t* const listed = fires ? pass.listed + of.words : nullptr;
  SlotBuffer& slots = *of.slots;
  const int n_columns = __builtin_popcountll(of.valid);
  const auto advance = [&](int t, int b, const Columns<W>& current) {
    const std::size_t list = static_cast<std::size_t>(t) * pass.n_samples + b;
    TileNeurons<M> here = neurons;
    for (int s = 0; s < M::n_states; ++s) here.state[s] += static_cast<std::size_t>(b) * W;
    if constexpr (fires) {
      slots.reserve(W + vector_width);  // store_selected writes whole vectors
      float* const record = slots.data + slots.size;
      Masks masks;
      slots.size +=
          static_cast<std::size_t>(step_and_record<M, W>(here, grad_threshold, current, masks, record) - record);
      fired[list] = masks.fired;
      listed[list] = masks.listed;
    } else {
      step_readout<M, W>(here, current, n_columns, pass.potentials + list * spec.n + of.first);
    }
  };
  if constexpr (way == Way::blocks)
    each_block<W, Weight, false>(pass, of.index, b0, b1, advance);
  else
    each_step<W, Weight, false, way == Way::given>(pass, of.index, b0, b1, advance);
}

template <int W, class Weight>
void forward_tile(const ForwardPass& shared, int tile, int block, int b0, int b1) {
  // Copies: a store through a pointer cannot change them, so the loops need not read them again.
  const ForwardPass pass = shared;
  const LayerSpec spec = *pass.spec;
  const TileOf of(pass, spec, tile, block);
  const bool in_blocks = by_source<Weight>(pass, W, b1 - b0);
  bool done = false;
  const bool usual = spec.fires ? of.n_fields == 1 && !spec.fixed && !pass.starts_above_threshold && !pass.potentials
                                : !pass.rows.current;
  if (usual && !any_graded(pass))
    Shapes::with(shape_index(*spec.shape), [&](auto shape) {
      using M = decltype(shape);
      if constexpr (M::fused) {
        const auto run = [&](auto fires) {
          if (pass.currents)
            forward_fused<M, fires(), W, Weight, Way::given>(pass, of, b0, b1);
          else if (in_blocks)
            forward_fused<M, fires(), W, Weight, Way::blocks>(pass, of, b0, b1);
          else
            forward_fused<M, fires(), W, Weight, Way::steps>(pass, of, b0, b1);
          done = true;
        };
        if constexpr (M::may_fire)
          if (spec.fires) run(std::true_type());
        if constexpr (M::may_read_out)
          if (!spec.fires) run(std::false_type());
      }
    });
  if (done) return;
  const auto advance = neuron_kernels(spec).advance;
  const auto move_on = [&](int t, int b, const Columns<W>& current) {
    alignas(64) float row[W];
    store_columns<W>(row, current.x, W);
    advance(pass, spec, of, t, b, row);
  };
  if (in_blocks)
    each_block<W, Weight, true>(pass, tile, b0, b1, move_on);
  else
    each_step<W, Weight, true, true>(pass, tile, b0, b1, move_on);
}

template <int W, class Weight>
void tile_sources(const ForwardPass& shared, int tile, int t0, int t1, int b0, int b1, float* currents) {
  const ForwardPass pass = shared;
  const std::size_t first = static_cast<std::size_t>(tile) * W, row = static_cast<std::size_t>(pass.spec->n_padded());
  const auto run = [&](auto some_graded) {
    for (int t = t0; t < t1; ++t)
      for (int b = b0; b < b1; ++b) {
        Columns<W> current;
        tile_current<W, Weight, some_graded(), true>(pass, first, t, b, current);
        store_columns<W>(currents + (static_cast<std::size_t>(b - b0) * (t1 - t0) + (t - t0)) * row + first, current.x,
                         W);
      }
  };
  any_graded(pass) ? run(std::true_type()) : run(std::false_type());
}

// current[P·W] of one sample at one step, including the spikes through loops. Rows of weights are read whole, because
// they come from beyond L2.
inline void sample_current(const ForwardPass& pass, int t, int b, const OwnSpikes* own, float* current) {
  const int n = pass.spec->n_padded();
  const auto send = [&](const void* weight, const SparseRows* sparse, bool wide, const void* list, const float* values,
                        std::int64_t n_ids) {
    if (sparse) {
      const float* synapses = static_cast<const float*>(weight);
      with_ids(wide, list, [&](auto* id) { deliver_sparse(current, *sparse, synapses, id, values, n_ids); });
      return;
    }
    with_weight(pass.spec->bf16, weight, [&](auto* rows) {
      with_ids(wide, list, [&](auto* id) {
        if (values)
          deliver_graded_rows(current, rows, n, id, values, n_ids);
        else
          deliver_rows(current, rows, n, id, n_ids);
      });
    });
  };
  if (!pass.sources_wait) {
    if (pass.neuron.bias)
      std::memcpy(current, pass.neuron.bias, sizeof(float) * n);
    else
      std::memset(current, 0, sizeof(float) * n);
    if (pass.currents) {
      const float* const given = pass.currents.at(t, b, pass.n_samples);
      for (int k = 0; k < pass.spec->n; ++k) current[k] += given[k];
    }
  }
  for (int k = 0; k < (pass.sources_wait ? 0 : pass.n_sources); ++k) {
    const Source& source = pass.sources[k];
    if (t < source.delay) continue;
    const std::int64_t list = static_cast<std::int64_t>(t - source.delay) * pass.n_samples + b;
    const std::int64_t first = source.lists.offsets[list];
    const float* values = source.lists.values ? source.lists.values + first : nullptr;
    if (source.windows) {
      const OwnSpikes spikes{source.lists.at(first), source.lists.n_spikes[list], source.lists.wide};
      deliver_windows(current, *source.windows, static_cast<const float*>(source.weight), spikes, values);
      continue;
    }
    send(source.weight, source.rows, source.lists.wide, source.lists.at(first), values, source.lists.n_spikes[list]);
  }
  for (int k = 0; k < pass.n_loops; ++k)
    send(pass.loops[k].weight, pass.loops[k].rows, own[k].wide, own[k].ids, own[k].values, own[k].n);
}

}  // namespace

void forward_step(const ForwardPass& pass, int t, int b, float* current, const OwnSpikes* own) {
  const LayerSpec& spec = *pass.spec;
  const auto advance = neuron_kernels(spec).advance;
  sample_current(pass, t, b, own, current);
  for (int p = 0; p < spec.n_tiles(); ++p)
    advance(pass, spec, TileOf(pass, spec, p, b), t, b, current + p * spec.tile_width);
}

namespace {

// The spikes of one list, at step t of `lists`.
inline OwnSpikes spikes_of(const Lists& lists, int t, int n_samples, int b) {
  const std::int64_t list = static_cast<std::int64_t>(t) * n_samples + b;
  return {lists.at(lists.offsets[list]), lists.n_spikes[list], lists.wide};
}

}  // namespace

// Deliver, step and select for one sample, all tiles, step after step: its spikes become its own input some steps
// later.
void forward_sample(const ForwardPass& pass, int b, int t0, int t1, const SampleRoom& room, std::int32_t* dropped) {
  const auto send = [&](int t, auto&& fired) {
    for (int k = 0; k < pass.n_loops; ++k)
      if (room.under_way[k]) room.under_way[k]->send(t, fired(k));
  };
  for (int t = -pass.n_before; t0 == 0 && t < 0; ++t)
    send(t, [&](int) { return spikes_of(pass.own_before, pass.n_before + t, pass.n_samples, b); });
  for (int t = t0; t < t1; ++t) {
    for (int k = 0; k < pass.n_loops; ++k) {
      if (room.under_way[k]) {
        room.own[k] = room.under_way[k]->arrive(t);
        continue;
      }
      const int from = t - pass.loops[k].delay;
      std::uint32_t* const ids = room.own_ids + static_cast<std::size_t>(k) * pass.spec->n_padded();
      if (from >= 0)
        room.own[k] = {ids, sent_ids(pass, static_cast<std::int64_t>(from) * pass.n_samples + b, ids), pass.wide};
      else
        room.own[k] = pass.n_before ? spikes_of(pass.own_before, pass.n_before + from, pass.n_samples, b) : OwnSpikes();
    }
    forward_step(pass, t, b, room.current + (t - t0) * room.stride, room.own);
    const std::int64_t list = static_cast<std::int64_t>(t) * pass.n_samples + b;
    if (dropped) dropped[list] = select(pass, t, b, nullptr);
    send(t, [&](int k) {
      std::uint32_t* const ids = room.own_ids + static_cast<std::size_t>(k) * pass.spec->n_padded();
      return OwnSpikes{ids, sent_ids(pass, list, ids), pass.wide};
    });
  }
}

namespace {

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

}  // namespace

void forward(const ForwardPass& pass, int tile, int block, int b0, int b1) {
  with_kernel(*pass.spec, [&](auto w, auto* weight) {
    forward_tile<w(), std::remove_pointer_t<decltype(weight)>>(pass, tile, block, b0, b1);
  });
}

void hear_sources(const ForwardPass& pass, int tile, int t0, int t1, int b0, int b1, float* currents) {
  with_kernel(*pass.spec, [&](auto w, auto* weight) {
    tile_sources<w(), std::remove_pointer_t<decltype(weight)>>(pass, tile, t0, t1, b0, b1, currents);
  });
}

}  // namespace sparsesnn::SPARSESNN_ISA
