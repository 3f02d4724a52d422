#include <algorithm>
#include <atomic>
#include <optional>

#include "axonal_delays.h"
#include "constant_sources.h"
#include "engine.h"
#include "host/src/cpu/kernels/kernels.h"
#include "host/src/machine/isa.h"
#include "host/src/machine/thread_pool.h"
#include "host/src/maps/windows.h"
#include "host/src/ranks/sharded.h"
#include "loop_order.h"
#include "packing.h"
#include "phases.h"
#include "sparse_rows.h"

namespace sparsesnn {

void SlotBuffer::grow(std::size_t n) {
  room = std::max<std::size_t>({n, 2 * room, 4000});
  float* grown = static_cast<float*>(allocate(room * sizeof(float)));
  if (size) std::memcpy(grown, data, size * sizeof(float));
  release(data);
  data = grown;
}

SlotBuffer::~SlotBuffer() { release(data); }

namespace {

// State [B, N] into tiles [P][B][W].
Array<float> state_to_tiles(const LayerSpec& spec, const float* state, int n_samples) {
  const int w = spec.tile_width;
  Array<float> tiles = Array<float>::zeros(static_cast<std::size_t>(n_samples) * spec.n_padded());
  if (!state) return tiles;
  for (int p = 0; p < spec.n_tiles(); ++p)
    for (int b = 0; b < n_samples; ++b)
      std::memcpy(tiles.data() + (static_cast<std::size_t>(p) * n_samples + b) * w,
                  state + static_cast<std::size_t>(b) * spec.n + p * w, sizeof(float) * std::min(w, spec.n - p * w));
  return tiles;
}

// The states of a layer and their derivatives by the trained parameters.
struct Traces {
  std::vector<Array<float>> states;               // [S], each [P][B][W]
  std::vector<std::vector<Array<float>>> traces;  // [trained parameters][S], of neurons that fire
  Array<float> slope;                             // σ' of the step before, if derivatives pass through spikes

  Traces(const LayerSpec& spec, const LayerInput& input) : traces(spec.fires ? spec.n_learnt() : 0) {
    for (int s = 0; s < spec.shape->n_states; ++s)
      states.push_back(state_to_tiles(spec, input.state[s], input.n_samples));
    for (std::vector<Array<float>>& of : traces)
      for (int s = 0; s < spec.shape->n_states; ++s) of.push_back(Array<float>::zeros(states[0].size()));
    if (spec.fires && spec.traces_spikes()) slope = Array<float>::zeros(states[0].size());
  }

  void give(ForwardPass& pass) const {
    for (std::size_t s = 0; s < states.size(); ++s) pass.state[s] = states[s].data();
    for (std::size_t k = 0; k < traces.size(); ++k)
      for (std::size_t s = 0; s < traces[k].size(); ++s) pass.trace[k][s] = traces[k][s].data();
    pass.n_traces = static_cast<int>(traces.size());
    pass.slope = slope.data();
  }
};

// Sources with whole rows of weights; `packed` keeps the rows alive.
std::vector<Source> whole_rows(const LayerSpec& spec, const LayerInput& input, std::vector<Packed>& packed) {
  std::vector<Source> sources(input.sources.size());
  for (std::size_t k = 0; k < sources.size(); ++k) {
    const SourceInput& from = input.sources[k];
    packed.push_back(from.rows ? pack_rows_of(*from.rows, from.weight, spec.bf16, "weight")
                     : from.windows
                         ? pack_windows(*from.windows, from.weight, spec.bf16)
                         : pack_unless(from.packed, from.weight, from.n_pre, spec, spec.n_padded(), "weight"));
    sources[k] = {from.lists, from.n_pre, from.delay, packed.back().data, from.rows, from.windows};
  }
  return sources;
}

// Feed-forward: the blocks of samples of a tile, one after another, each over the whole sequence; then the capacity.
void run_by_tile(const Kernels& kernels, const ForwardPass& pass, TileColumns& columns, const LayerRanks* ranks,
                 Array<std::int32_t>& dropped) {
  const int n_items = pass.spec->n_tiles() * pass.n_blocks, n_workers = std::min(n_items, num_threads());
  parallel_for(n_items, [&](int item, int worker) {
    const int p = item / pass.n_blocks, block = item % pass.n_blocks, b0 = block * pass.block_size;
    ForwardPass here = pass;
    here.sources = columns.of(p, worker);
    const PhaseTimer timer(Phase::forward, n_workers);
    kernels.forward(here, p, block, b0, std::min(pass.n_samples, b0 + pass.block_size));
  });
  if (!dropped) return;
  if (ranks) return select_shards(kernels, pass, *ranks->exchange, dropped.data());
  parallel_for(pass.n_steps, [&](int t, int) {
    for (int b = 0; b < pass.n_samples; ++b)
      dropped[static_cast<std::size_t>(t) * pass.n_samples + b] = kernels.select(pass, t, b, nullptr);
  });
}

// Recurrent: sample by sample, step by step; a sample's spikes become its own input some steps later. Calls body(pass,
// b, t0, t1, current, stride). With `columns` a few samples (or one) run some steps, then the next samples. Each
// current is the same sum in the same order.
template <class Body>
void each_sample(const Kernels& kernels, const ForwardPass& pass, TileColumns* columns, Body&& body) {
  const PhaseTimer timer(Phase::forward);
  const std::size_t n = static_cast<std::size_t>(pass.spec->n_padded());
  const int n_threads = num_threads(), n_samples = pass.n_samples, n_steps = pass.n_steps;
  int n_beside = 1, n_together = n_steps;  // samples and steps at a time
  if (columns) {
    const int most = std::max(1, waiting_rows / n_steps),
              n_rounds = (n_samples + n_threads * most - 1) / (n_threads * most);
    n_beside = (n_samples + n_threads * n_rounds - 1) / (n_threads * n_rounds);  // the same number for each thread
    n_together = std::min(n_steps, waiting_rows / n_beside);
  }
  const int n_items = (n_samples + n_beside - 1) / n_beside;
  parallel_for(n_items, [&](int item, int worker) {
    const int b0 = item * n_beside, b1 = std::min(n_samples, b0 + n_beside);
    if (!columns) {
      const Array<float> current = Array<float>::zeros(n + window_slack);
      return body(pass, b0, 0, n_steps, current.data(), std::size_t{0});
    }
    const Array<float> waiting(n * n_beside * n_together);
    ForwardPass here = pass;
    for (int t0 = 0; t0 < n_steps; t0 += n_together) {
      const int t1 = std::min(n_steps, t0 + n_together);
      here.sources_wait = false;
      for (int p = 0; p < pass.spec->n_tiles(); ++p) {
        here.sources = columns->of(p, worker);
        kernels.hear_sources(here, p, t0, t1, b0, b1, waiting.data());
      }
      here.sources_wait = true;
      for (int b = b0; b < b1; ++b) body(here, b, t0, t1, waiting.data() + n * (t1 - t0) * (b - b0), n);
    }
  });
}

void run_by_sample(const Kernels& kernels, const ForwardPass& pass, TileColumns* columns, std::int32_t* dropped) {
  const std::size_t n = static_cast<std::size_t>(pass.spec->n_padded());
  std::vector<UnderWay> under_way;
  for (int b = 0; b < pass.n_samples; ++b) under_way.emplace_back(pass);
  each_sample(
      kernels, pass, columns, [&](const ForwardPass& here, int b, int t0, int t1, float* current, std::size_t stride) {
        const Array<OwnSpikes> own(pass.n_loops);
        const Array<std::uint32_t> own_ids(n * pass.n_loops);
        kernels.forward_sample(here, b, t0, t1,
                               {current, stride, own.data(), own_ids.data(), under_way[b].pointers.data()}, dropped);
      });
}

void prefix_sum(const std::int32_t* counts, std::int64_t n, std::int64_t* offsets) {
  offsets[0] = 0;
  for (std::int64_t i = 0; i < n; ++i) offsets[i + 1] = offsets[i] + counts[i];
}

// Converts masks and slot records into the population's lists.
void collect_lists(const Kernels& kernels, const ForwardPass& pass, LayerOutput& out) {
  const PhaseTimer timer(Phase::collect);
  const LayerSpec& spec = *pass.spec;
  const std::int64_t n_lists = static_cast<std::int64_t>(pass.n_steps) * pass.n_samples;
  const bool silenced = spec.stores_silenced();
  out.offsets = Array<std::int64_t>(n_lists + 1);
  out.n_spikes = Array<std::int32_t>(n_lists);
  Array<std::int32_t> n_listed(n_lists), n_silenced(silenced ? n_lists : 0);
  constexpr std::int64_t piece = 1024;
  parallel_for(static_cast<int>((n_lists + piece - 1) / piece), [&](int k, int) {
    kernels.count(pass, k * piece, std::min(n_lists, (k + 1) * piece), out.n_spikes.data(), n_listed.data(),
                  silenced ? n_silenced.data() : nullptr);
  });
  prefix_sum(n_listed.data(), n_lists, out.offsets.data());
  const std::int64_t n_slots = out.offsets[n_lists];
  if (silenced) {
    out.silenced_offsets = Array<std::int64_t>(n_lists + 1);
    prefix_sum(n_silenced.data(), n_lists, out.silenced_offsets.data());
    out.silenced_ids = Array<std::uint32_t>(out.silenced_offsets[n_lists]);
  }
  out.ids = Array<unsigned char>(static_cast<std::size_t>(n_slots) * (out.wide ? 4 : 2));
  out.fields = Array<float>(static_cast<std::size_t>(n_slots) * spec.n_fields());
  const ListsOut lists{
      out.offsets.data(),          out.n_spikes.data(),    out.ids.data(), out.wide, out.fields.data(), n_slots,
      out.silenced_offsets.data(), out.silenced_ids.data()};
  // Whole blocks of at least 8 samples: fewer would share cache lines of masks and lists.
  const int n_together = (7 / pass.block_size + 1) * pass.block_size;
  parallel_for((pass.n_samples + n_together - 1) / n_together, [&](int k, int) {
    kernels.fill(pass, lists, k * n_together, std::min(pass.n_samples, (k + 1) * n_together));
  });
  if (!spec.n_fields()) return;
  constexpr std::int64_t slots_piece = 16384;
  parallel_for(static_cast<int>((n_slots + slots_piece - 1) / slots_piece), [&](int k, int) {
    kernels.slopes(spec, out.fields.data(), k * slots_piece, std::min(n_slots, (k + 1) * slots_piece));
  });
}

// Whether gradients of a readout's parameters read more than its potentials.
bool keeps_rows(const LayerSpec& spec, const LayerInput& input) {
  if (spec.shape->n_states > 1) return true;
  for (const std::vector<PerNeuron>& by : input.derivatives)
    for (std::size_t k = 0; k < by.size(); ++k)
      if (by[k] && spec.shape->entries[k] == "B0") return true;
  return false;
}

}  // namespace

Array<float> state_from_tiles(const LayerSpec& spec, const Array<float>& tiles, int n_samples) {
  const int w = spec.tile_width;
  Array<float> state(static_cast<std::size_t>(n_samples) * spec.n);
  for (int p = 0; p < spec.n_tiles(); ++p)
    for (int b = 0; b < n_samples; ++b)
      std::memcpy(state.data() + static_cast<std::size_t>(b) * spec.n + p * w,
                  tiles.data() + (static_cast<std::size_t>(p) * n_samples + b) * w,
                  sizeof(float) * std::min(w, spec.n - p * w));
  return state;
}

LayerOutput layer_forward(const LayerSpec& spec, const LayerInput& input) {
  check_layer(spec, input);
  if (has_constant_sources(input)) return forward_constant_sources(spec, input);
  const ForwardPolicy policy = forward_policy(spec, input);
  if (policy.order == LoopOrder::by_row) return window_forward(spec, input);
  const Kernels& kernels = chosen_kernels();
  const int n_samples = input.n_samples, n_tiles = spec.n_tiles();
  const bool spiking = spec.fires;
  const bool by_sample = policy.order == LoopOrder::by_sample;
  const std::size_t n_words = static_cast<std::size_t>(n_tiles) * input.n_steps * n_samples;

  const Padded neuron(spec, input);
  std::vector<Packed> packed;
  std::vector<Source> sources;
  std::optional<TileColumns> columns;
  if (!by_sample || policy.sources_first)
    columns.emplace(spec, input, by_sample);
  else
    sources = whole_rows(spec, input, packed);
  const PackedLoops loops(spec, input);

  Traces states(spec, input);
  const auto words = [&](bool wanted) { return wanted ? Array<std::uint64_t>(n_words) : Array<std::uint64_t>(); };
  const bool limited = spiking && spec.capacity > 0;
  const Array<std::uint64_t> fired = words(spiking), listed = words(spiking), sent = words(limited),
                             near = words(limited);

  const int block_size = by_sample ? 1 : std::clamp((n_samples + 5) / 6, 1, 16);
  const int n_blocks = (n_samples + block_size - 1) / block_size;
  std::vector<SlotBuffer> slots(static_cast<std::size_t>(n_tiles) * n_blocks);

  LayerOutput out;
  out.wide = spec.n > 65536;
  const std::size_t n_potentials = static_cast<std::size_t>(input.n_steps) * n_samples * spec.n;
  if (!spiking || input.gives_potentials) out.potentials = Array<float>(n_potentials);
  if (!spiking && spec.n_learnt() && keeps_rows(spec, input)) {
    for (int s = 1; s < spec.shape->n_states; ++s) out.rows.emplace_back(n_potentials);
    out.currents = Array<float>(n_potentials);
  }
  if (limited) out.dropped = Array<std::int32_t>(static_cast<std::size_t>(input.n_steps) * n_samples);

  ForwardPass pass{};
  pass.spec = &spec;
  pass.neuron = neuron.pointers();
  pass.n_steps = input.n_steps;
  pass.n_samples = n_samples;
  pass.currents = input.currents;
  pass.sources = sources.data();
  pass.n_sources = static_cast<int>(input.sources.size());
  pass.loops = loops.loops.data();
  pass.n_loops = static_cast<int>(loops.loops.size());
  pass.own_before = input.own_before;
  pass.n_before = input.n_before;
  pass.wide = out.wide;
  states.give(pass);
  pass.fired = fired.data();
  pass.listed = listed.data();
  pass.sent = limited ? sent.data() : fired.data();
  pass.near = near.data();
  pass.slots = slots.data();
  pass.n_blocks = n_blocks;
  pass.block_size = block_size;
  pass.potentials = out.potentials.data();
  for (std::size_t s = 0; s < out.rows.size(); ++s) pass.rows.state[s + 1] = out.rows[s].data();
  pass.rows.current = out.currents.data();
  pass.starts_above_threshold = spiking && !input.state[0] && neuron.any_threshold_below_zero();
  TileColumns* const sources_first = policy.sources_first ? &*columns : nullptr;
  if (!by_sample)
    run_by_tile(kernels, pass, *columns, input.ranks, out.dropped);
  else if (input.ranks)
    run_by_step(kernels, pass, sources_first, *input.ranks, out.dropped.data());
  else
    run_by_sample(kernels, pass, sources_first, out.dropped.data());
  if (spiking) collect_lists(kernels, pass, out);
  out.state = std::move(states.states);
  out.state_in_tiles = true;
  return out;
}

}  // namespace sparsesnn
