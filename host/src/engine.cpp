#include "engine.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "isa.h"
#include "packing.h"
#include "phases.h"
#include "sharded.h"
#include "thread_pool.h"

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

// Rows (t, b) of current gradients that the backward pass keeps between its two halves: 256 kB a tile of 64 neurons,
// which leaves half of the smallest usual L2 to the rest.
constexpr int backward_chunk_rows = 1024;

// The chunks of a backward pass in their order: groups of samples ascending, within them steps descending. Sample by
// sample (`by_sample`) there must be something to do for every thread, if that fits.
std::vector<Chunk> make_chunks(int n_steps, int n_samples, bool by_sample, bool separate_groups) {
  std::vector<Chunk> chunks;
  if (!n_steps) return chunks;
  constexpr int most_steps = backward_chunk_rows / group_samples;
  int groups = 1;
  if (n_steps <= most_steps && !separate_groups) {
    groups = backward_chunk_rows / (n_steps * group_samples);
    if (by_sample) groups = std::max(groups, (num_threads() + group_samples - 1) / group_samples);
  }
  const int samples = std::min(groups, n_samples / group_samples + 1) * group_samples;
  for (int b0 = 0; b0 < n_samples; b0 += samples)
    for (int t1 = n_steps; t1 > 0; t1 -= most_steps)
      chunks.push_back({std::max(0, t1 - most_steps), t1, b0, std::min(n_samples, b0 + samples)});
  return chunks;
}

// State [B, N] into tiles [P][B][W] and back.
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

void check_layer(const LayerSpec& spec, const LayerInput& input) {
  const bool spiking = spec.model != Model::li;
  if (spec.n < 1 || input.n_steps < 0 || input.n_samples < 0)
    throw InputError("ShapeError", "layer: n, n_steps and n_samples must not be negative, and n at least 1");
  if (spec.tile_width != 16 && spec.tile_width != 32 && spec.tile_width != 64)
    throw InputError("ShapeError", "layer: tile_width is " + std::to_string(spec.tile_width) + "; allowed: 16, 32, 64");
  if (!input.beta || (spiking && (!input.threshold || !input.grad_threshold)) ||
      (spec.model == Model::cuba_lif && !input.alpha))
    throw InputError("ShapeError", "layer: alpha, beta, threshold or grad_threshold is missing for this model");
  if (spec.capacity < 0 || spec.capacity > spec.n_all() || (spec.fixed && !spec.capacity))
    throw InputError("ShapeError", "layer: capacity " + std::to_string(spec.capacity) + " for " +
                                       std::to_string(spec.n_all()) +
                                       " neurons; give 1 to n, and one with fixed activity");
  for (const SourceInput& source : input.sources)
    if (source.n_list_steps < input.n_steps - source.delay)
      throw InputError("ShapeError", "layer: a source covers " + std::to_string(source.n_list_steps) + " steps, " +
                                         std::to_string(input.n_steps - source.delay) + " are read");
}

// Sources with weights in slabs of `width` columns; `packed` keeps those alive.
std::vector<Source> make_sources(const LayerSpec& spec, const LayerInput& input, int width,
                                 std::vector<Packed>& packed) {
  std::vector<Source> sources(input.sources.size());
  for (std::size_t k = 0; k < sources.size(); ++k) {
    const SourceInput& from = input.sources[k];
    packed.push_back(pack(from.weight, from.n_pre, spec, width, "weight"));
    sources[k] = {from.lists, from.n_pre, from.delay, packed.back().data};
  }
  return sources;
}

// Feed-forward: tile by tile over the whole sequence, so that a tile's columns stay in its core's L2 cache.
void run_by_tile(const Kernels& kernels, const ForwardPass& pass, int block_size) {
  const PhaseTimer timer(Phase::forward);
  const int n_tiles = pass.spec->n_tiles();
  parallel_for(n_tiles * pass.n_blocks, [&](int item, int) {
    const int p = item / pass.n_blocks, block = item % pass.n_blocks;
    const int b0 = block * block_size, b1 = std::min(pass.n_samples, b0 + block_size);
    kernels.forward(pass, p, block, b0, b1);
  });
}

// Recurrent: sample by sample, step by step; what a sample fired is its own input one step later.
void run_by_sample(const Kernels& kernels, const ForwardPass& pass, std::int32_t* dropped) {
  const PhaseTimer timer(Phase::forward);
  const std::size_t n = static_cast<std::size_t>(pass.spec->n_padded());
  parallel_for(pass.n_samples, [&](int b, int) {
    const Array<float> current(n);
    const Array<std::uint32_t> own_ids(pass.recurrent_weight ? n : 0);
    kernels.forward_sample(pass, b, current.data(), own_ids.data(), dropped);
  });
}

// Phase::deliver: the deliveries of a forward pass once more, and nothing else.
void repeat_deliver(const Kernels& kernels, const ForwardPass& pass, bool by_sample, int block_size,
                    const LayerOutput& out) {
  const std::size_t n = static_cast<std::size_t>(pass.spec->n_padded());
  const Lists own{out.offsets.data(), out.ids.data(), out.n_spikes.data(), out.wide};
  std::atomic<float> sink{0.0f};  // so that no sum is left out as unused
  const PhaseTimer timer(Phase::deliver);
  if (by_sample)
    parallel_for(pass.n_samples, [&](int b, int) {
      const Array<float> current(n);
      sink.store(kernels.deliver_sample(pass, b, current.data(), own), std::memory_order_relaxed);
    });
  else
    parallel_for(pass.spec->n_tiles() * pass.n_blocks, [&](int item, int) {
      const int b0 = item % pass.n_blocks * block_size, b1 = std::min(pass.n_samples, b0 + block_size);
      sink.store(kernels.deliver_tile(pass, item / pass.n_blocks, b0, b1), std::memory_order_relaxed);
    });
}

void prefix_sum(const std::int32_t* counts, std::int64_t n, std::int64_t* offsets) {
  offsets[0] = 0;
  for (std::int64_t i = 0; i < n; ++i) offsets[i + 1] = offsets[i] + counts[i];
}

// Turns masks and slot records into the population's lists.
void collect_lists(const Kernels& kernels, const ForwardPass& pass, int block_size, LayerOutput& out) {
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
  if (spec.save) out.values = Array<float>(n_slots);
  const ListsOut lists{out.offsets.data(),     out.n_spikes.data(), out.ids.data(), out.wide,
                       out.values.data(),      out.fields.data(),   n_slots,        out.silenced_offsets.data(),
                       out.silenced_ids.data()};
  parallel_for(pass.n_blocks, [&](int block, int) {
    const int b0 = block * block_size, b1 = std::min(pass.n_samples, b0 + block_size);
    kernels.fill(pass, lists, block, b0, b1);
  });
  if (!spec.n_fields()) return;
  constexpr std::int64_t slots_piece = 16384;
  parallel_for(static_cast<int>((n_slots + slots_piece - 1) / slots_piece), [&](int k, int) {
    kernels.slopes(spec, out.fields.data(), k * slots_piece, std::min(n_slots, (k + 1) * slots_piece));
  });
}

// Whether ids are in range and ascend within each run, spikes or near-spikes of one list: a scan without branches, then
// one look at each border between runs, the only places where an id may be followed by one that is not larger.
template <class Id>
bool ids_are_good(const Lists& lists, std::int64_t n_lists, std::int64_t n_ids, int n_neurons) {
  const Id* ids = static_cast<const Id*>(lists.ids);
  Id largest = 0;
  for (std::int64_t j = 0; j < n_ids; ++j) largest = std::max(largest, ids[j]);
  if (n_ids && largest >= static_cast<std::uint32_t>(n_neurons)) return false;
  std::int64_t n_falls = 0, n_allowed = 0, last = 0;
  constexpr std::int64_t piece = 32768;  // short enough for a narrow counter, which the compiler can vectorise
  for (std::int64_t from = 1; from < n_ids; from += piece) {
    const std::int64_t to = std::min(n_ids, from + piece);
    Id falls = 0;
    for (std::int64_t j = from; j < to; ++j) falls = static_cast<Id>(falls + (ids[j] <= ids[j - 1]));
    n_falls += falls;
  }
  const auto look = [&](std::int64_t border) {
    if (border == last || border >= n_ids) return;
    n_allowed += ids[border] <= ids[border - 1];
    last = border;
  };
  for (std::int64_t i = 0; i < n_lists; ++i) {
    look(lists.offsets[i]);
    look(lists.offsets[i] + lists.n_spikes[i]);
  }
  return n_falls == n_allowed;
}

}  // namespace

void check_lists(const Lists& lists, std::int64_t n_lists, std::int64_t n_ids, int n_neurons, const char* name) {
  const auto fail = [&](std::int64_t i, const std::string& what) {
    throw InputError("SpikeListError", std::string(name) + ": list " + std::to_string(i) + " " + what);
  };
  if (lists.offsets[0] != 0 || lists.offsets[n_lists] != n_ids)
    fail(0,
         "to " + std::to_string(n_lists) + ": offsets must run from 0 to the number of ids, " + std::to_string(n_ids));
  for (std::int64_t i = 0; i < n_lists; ++i) {
    const std::int64_t begin = lists.offsets[i], end = lists.offsets[i + 1], n_spikes = lists.n_spikes[i];
    if (begin < 0 || end < begin || end > n_ids) fail(i, "has offsets that do not rise");
    if (n_spikes < 0 || n_spikes > end - begin)
      fail(i, "has " + std::to_string(end - begin) + " ids but says " + std::to_string(n_spikes) + " spikes");
  }
  if (lists.wide ? ids_are_good<std::uint32_t>(lists, n_lists, n_ids, n_neurons)
                 : ids_are_good<std::uint16_t>(lists, n_lists, n_ids, n_neurons))
    return;
  for (std::int64_t i = 0; i < n_lists; ++i) {
    const auto check_run = [&](std::int64_t from, std::int64_t to) {
      std::int64_t before = -1;
      for (std::int64_t j = from; j < to; ++j) {
        const std::int64_t id = lists.wide ? static_cast<const std::uint32_t*>(lists.ids)[j]
                                           : static_cast<const std::uint16_t*>(lists.ids)[j];
        if (id >= n_neurons)
          fail(i, "holds id " + std::to_string(id) + "; allowed: 0 to " + std::to_string(n_neurons - 1));
        if (id <= before) fail(i, "does not ascend: id " + std::to_string(id) + " after " + std::to_string(before));
        before = id;
      }
    };
    const std::int64_t begin = lists.offsets[i], near = begin + lists.n_spikes[i];
    check_run(begin, near);
    check_run(near, lists.offsets[i + 1]);
  }
}

LayerOutput layer_forward(const LayerSpec& spec, const LayerInput& input) {
  check_layer(spec, input);
  const Kernels& kernels = chosen_kernels();
  const int n_samples = input.n_samples, n_tiles = spec.n_tiles();
  const bool spiking = spec.model != Model::li, cuba = spec.model == Model::cuba_lif;
  const bool by_sample = input.recurrent_weight || spec.needs_step_order();
  const std::size_t n_words = static_cast<std::size_t>(n_tiles) * input.n_steps * n_samples;

  const Padded neuron(spec, input);
  std::vector<Packed> packed;
  const int slab = by_sample ? spec.n_padded() : spec.tile_width;
  const std::vector<Source> sources = make_sources(spec, input, slab, packed);
  const Packed recurrent =
      input.recurrent_weight ? pack(input.recurrent_weight, spec.n_all(), spec, slab, "recurrent_weight") : Packed();

  Array<float> v = state_to_tiles(spec, input.v, n_samples);
  Array<float> i_syn = cuba ? state_to_tiles(spec, input.i_syn, n_samples) : Array<float>();
  const auto trace = [&](bool wanted) { return wanted ? Array<float>::zeros(v.size()) : Array<float>(); };
  const bool learns = spec.learns() && spiking;
  const Array<float> v_by_alpha = trace(learns && spec.learn_alpha), i_syn_by_alpha = trace(learns && spec.learn_alpha),
                     v_by_beta = trace(learns && spec.learn_beta),
                     v_by_threshold = trace(learns && spec.learn_threshold),
                     reset_gamma = trace(learns && !spec.detach_reset);
  const auto words = [&](bool wanted) { return wanted ? Array<std::uint64_t>(n_words) : Array<std::uint64_t>(); };
  const bool limited = spiking && spec.capacity > 0;
  const Array<std::uint64_t> fired = words(spiking), listed = words(spiking), sent = words(limited),
                             near = words(limited);

  const int block_size = by_sample ? 1 : std::clamp((n_samples + 5) / 6, 1, 16);
  const int n_blocks = (n_samples + block_size - 1) / block_size;
  std::vector<SlotBuffer> slots(static_cast<std::size_t>(n_tiles) * n_blocks);

  LayerOutput out;
  out.wide = spec.n > 65536;
  if (!spiking) out.potentials = Array<float>(static_cast<std::size_t>(input.n_steps) * n_samples * spec.n);
  if (limited) out.dropped = Array<std::int32_t>(static_cast<std::size_t>(input.n_steps) * n_samples);

  const ForwardPass pass{&spec,
                         neuron.pointers(),
                         input.n_steps,
                         n_samples,
                         sources.data(),
                         static_cast<int>(sources.size()),
                         recurrent.data,
                         input.has_own_before ? input.own_before : Lists(),
                         out.wide,
                         v.data(),
                         i_syn.data(),
                         v_by_alpha.data(),
                         i_syn_by_alpha.data(),
                         v_by_beta.data(),
                         v_by_threshold.data(),
                         reset_gamma.data(),
                         fired.data(),
                         listed.data(),
                         limited ? sent.data() : fired.data(),
                         near.data(),
                         slots.data(),
                         n_blocks,
                         out.potentials.data()};
  if (by_sample && input.exchange) {
    run_by_step(kernels, pass, *input.exchange, out.dropped.data());
  } else if (by_sample) {
    run_by_sample(kernels, pass, out.dropped.data());
  } else {
    run_by_tile(kernels, pass, block_size);
    if (limited && input.exchange)
      select_shards(kernels, pass, *input.exchange, out.dropped.data());
    else if (limited)
      parallel_for(input.n_steps, [&](int t, int) {
        for (int b = 0; b < n_samples; ++b)
          out.dropped[static_cast<std::size_t>(t) * n_samples + b] = kernels.select(pass, t, b, nullptr);
      });
  }
  if (spiking) collect_lists(kernels, pass, block_size, out);
  if (probe_deliver.load(std::memory_order_relaxed)) repeat_deliver(kernels, pass, by_sample, block_size, out);
  out.v = state_from_tiles(spec, v, n_samples);
  if (cuba) out.i_syn = state_from_tiles(spec, i_syn, n_samples);
  return out;
}

namespace {

int count_groups(int n_samples) { return (n_samples + group_samples - 1) / group_samples; }

// Calls visit(b0, b1, sum) for each group of samples; `sum` [n] is zero at first. Returns the groups' sums, added up in
// order or, `separate`, one after another: [G, n].
template <class Visit>
Array<float> sum_groups(int n_samples, std::size_t n, bool separate, Visit&& visit) {
  const int n_groups = count_groups(n_samples);
  Array<float> out = Array<float>::zeros(separate ? n * n_groups : n);
  std::vector<double> sum(n);
  for (int g = 0; g < n_groups; ++g) {
    std::fill(sum.begin(), sum.end(), 0.0);
    visit(g * group_samples, std::min(n_samples, (g + 1) * group_samples), sum.data());
    float* to = out.data() + (separate ? n * g : 0);
    for (std::size_t k = 0; k < n; ++k) to[k] += static_cast<float>(sum[k]);
  }
  return out;
}

// ∂L/∂(α, β, θ) of a spiking layer: Σ over slots of σ'·e times the trace stored with the slot, in the order of slots
// within a group of samples.
void parameter_grads(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved, const float* d_slots,
                     std::int64_t n_slots, bool separate, LayerGradients& out) {
  int field = 1 + int(spec.stores_decay());
  const auto sum = [&](bool learns, Array<float>& to) {
    if (!learns) return;
    const float* trace = saved.fields + static_cast<std::size_t>(field++) * n_slots;
    to = sum_groups(input.n_samples, spec.n, separate, [&](int b0, int b1, double* total) {
      for (int t = 0; t < input.n_steps; ++t) {
        const std::int64_t* offsets = saved.lists.offsets + static_cast<std::int64_t>(t) * input.n_samples;
        for (std::int64_t j = offsets[b0]; j < offsets[b1]; ++j) {
          const std::uint32_t n = saved.lists.wide ? static_cast<const std::uint32_t*>(saved.lists.ids)[j]
                                                   : static_cast<const std::uint16_t*>(saved.lists.ids)[j];
          total[n] += static_cast<double>(d_slots[j]) * trace[j];
        }
      }
    });
  };
  sum(spec.learn_alpha, out.d_alpha);
  sum(spec.learn_beta, out.d_beta);
  sum(spec.learn_threshold, out.d_threshold);
}

// What one chunk received from one sender, sorted by sending neuron (codelets/deliver_grad.h).
struct Events {
  Array<std::int32_t> starts;  // [2·M + 1]
  Array<std::uint32_t> rows;   // the row of each event in the chunk
  Array<std::uint32_t> slots;  // its slot in the sender's lists, from first_slot on
  std::int64_t first_slot = 0;
  std::size_t n = 0;
};

// A sender as the backward pass has it. Own lists of a recurrent layer: delay 1, and `before` in front.
struct SenderInput {
  Lists lists;
  int n_pre, delay;
  const Lists* before;  // one step, or null
  bool with_near;       // near-spikes matter only where the gradient of the list values is wanted
};

// Calls visit(row, lists, list) for all lists that arrive in the chunk: groups of samples ascending, steps descending,
// samples ascending.
template <class Visit>
void visit_rows(const SenderInput& from, const Chunk& chunk, int n_samples, Visit&& visit) {
  for (int g = chunk.b0; g < chunk.b1; g += group_samples)
    for (int t = chunk.t1 - 1; t >= chunk.t0; --t)
      for (int b = g; b < std::min(chunk.b1, g + group_samples); ++b) {
        if (t >= from.delay)
          visit(chunk.row(t, b), from.lists, static_cast<std::int64_t>(t - from.delay) * n_samples + b);
        else if (from.before && t == from.delay - 1)
          visit(chunk.row(t, b), *from.before, static_cast<std::int64_t>(b));
      }
}

template <class Id>
Events sort_ids_by_sender(const SenderInput& from, const Chunk& chunk, int n_samples) {
  Events events;
  const std::size_t n_starts = 2 * static_cast<std::size_t>(from.n_pre) + 1;
  events.starts = Array<std::int32_t>::zeros(n_starts);
  events.first_slot = from.lists.offsets[static_cast<std::int64_t>(std::max(0, chunk.t0 - from.delay)) * n_samples];
  const auto each_event = [&](auto&& body) {
    visit_rows(from, chunk, n_samples, [&](std::uint32_t row, const Lists& lists, std::int64_t list) {
      const std::int64_t begin = lists.offsets[list], near = begin + lists.n_spikes[list];
      const std::int64_t end = from.with_near ? lists.offsets[list + 1] : near;
      const Id* ids = static_cast<const Id*>(lists.ids);
      for (std::int64_t j = begin; j < end; ++j) body(2 * static_cast<std::size_t>(ids[j]) + (j >= near), row, j);
    });
  };
  std::int32_t* starts = events.starts.data();
  each_event([&](std::size_t group, std::uint32_t, std::int64_t) { ++starts[group]; });
  std::int32_t n = 0;
  for (std::size_t g = 0; g < n_starts; ++g) {
    const std::int32_t count = starts[g];
    starts[g] = n;
    n += count;
  }
  events.n = static_cast<std::size_t>(n);
  events.rows = Array<std::uint32_t>(events.n);
  events.slots = Array<std::uint32_t>(from.with_near ? events.n : 0);
  each_event([&](std::size_t group, std::uint32_t row, std::int64_t slot) {
    const std::int32_t at = starts[group]++;
    events.rows[at] = row;
    if (from.with_near) events.slots[at] = static_cast<std::uint32_t>(slot - events.first_slot);
  });
  for (std::size_t g = n_starts - 1; g > 0; --g) starts[g] = starts[g - 1];  // each now holds the next one's start
  starts[0] = 0;
  return events;
}

Events sort_by_sender(const SenderInput& from, const Chunk& chunk, int n_samples) {
  return from.lists.wide ? sort_ids_by_sender<std::uint32_t>(from, chunk, n_samples)
                         : sort_ids_by_sender<std::uint16_t>(from, chunk, n_samples);
}

// The listed slots of one chunk, sorted by tile.
struct Listed {
  Array<ListedGrad> grads;
  Array<std::int32_t> starts;  // [P + 1]
};

// Also writes q of every slot into `d_slots`, unless null.
template <class Id>
Listed sort_ids_by_tile(const LayerSpec& spec, const LayerSaved& saved, const float* d_values, float* d_slots,
                        const Chunk& chunk, int n_samples) {
  const Id* ids = static_cast<const Id*>(saved.lists.ids);
  const int w = spec.tile_width, shift = std::countr_zero(static_cast<unsigned>(w)), n_tiles = spec.n_tiles();
  Listed listed;
  listed.starts = Array<std::int32_t>::zeros(n_tiles + 1);
  std::int32_t* starts = listed.starts.data();
  for (int t = chunk.t0; t < chunk.t1; ++t) {
    const std::int64_t* offsets = saved.lists.offsets + static_cast<std::int64_t>(t) * n_samples;
    for (std::int64_t j = offsets[chunk.b0]; j < offsets[chunk.b1]; ++j) ++starts[ids[j] >> shift];
  }
  std::int32_t n = 0;
  for (int p = 0; p <= n_tiles; ++p) n += std::exchange(starts[p], n);
  listed.grads = Array<ListedGrad>(n);
  for (int t = chunk.t0; t < chunk.t1; ++t) {
    const std::int64_t* offsets = saved.lists.offsets + static_cast<std::int64_t>(t) * n_samples;
    for (int b = chunk.b0; b < chunk.b1; ++b) {
      const std::uint32_t row = chunk.row(t, b) * static_cast<std::uint32_t>(w);
      for (std::int64_t j = offsets[b]; j < offsets[b + 1]; ++j) {
        const float q = saved.fields[j] * d_values[j];
        if (d_slots) d_slots[j] = q;
        listed.grads[starts[ids[j] >> shift]++] = {row + (ids[j] & static_cast<std::uint32_t>(w - 1)), q};
      }
    }
  }
  for (int p = n_tiles; p > 0; --p) starts[p] = starts[p - 1];  // each now holds the next one's start
  starts[0] = 0;
  return listed;
}

Listed sort_by_tile(const LayerSpec& spec, const LayerSaved& saved, const float* d_values, float* d_slots,
                    const Chunk& chunk, int n_samples) {
  return saved.lists.wide ? sort_ids_by_tile<std::uint32_t>(spec, saved, d_values, d_slots, chunk, n_samples)
                          : sort_ids_by_tile<std::uint16_t>(spec, saved, d_values, d_slots, chunk, n_samples);
}

// d_value[slot] += Σ over tiles, ascending, of their shares; one addition after the other.
void add_shares(const Events& events, const float* shares, int n_tiles, float* d_value) {
  const PhaseTimer timer(Phase::sum_shares);
  constexpr std::size_t piece = 4096;
  parallel_for(static_cast<int>((events.n + piece - 1) / piece), [&](int k, int) {
    const std::size_t from = k * piece, to = std::min(events.n, from + piece);
    float sum[piece];
    for (std::size_t j = from; j < to; ++j) sum[j - from] = d_value[events.first_slot + events.slots[j]];
    for (int p = 0; p < n_tiles; ++p)
      for (std::size_t j = from; j < to; ++j) sum[j - from] += shares[p * events.n + j];
    for (std::size_t j = from; j < to; ++j) d_value[events.first_slot + events.slots[j]] = sum[j - from];
  });
}

// The same where earlier ranks hold the tiles before these and later ranks those after: in pieces that travel while the
// next one is added up. Every rank has the same events; the last one has the sums.
void add_shares_on(const Events& events, const float* shares, int n_tiles, float* d_value, Exchange& exchange) {
  const PhaseTimer timer(Phase::sum_shares);
  constexpr std::size_t piece = 8192;  // few enough bytes for MPI to send at once
  const bool is_first = exchange.rank() == 0, is_last = exchange.rank() + 1 == exchange.size();
  std::vector<float> sum(std::min(piece, events.n));
  for (std::size_t from = 0; from < events.n; from += piece) {
    const std::size_t n = std::min(piece, events.n - from);
    if (is_first)
      for (std::size_t j = 0; j < n; ++j) sum[j] = d_value[events.first_slot + events.slots[from + j]];
    else
      exchange.receive_sums(sum.data(), n);
    for (int p = 0; p < n_tiles; ++p)
      for (std::size_t j = 0; j < n; ++j) sum[j] += shares[p * events.n + from + j];
    if (is_last)
      for (std::size_t j = 0; j < n; ++j) d_value[events.first_slot + events.slots[from + j]] = sum[j];
    else
      exchange.send_sums(sum.data(), n);
  }
}

}  // namespace

LayerGradients layer_backward(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved,
                              const float* d_values, const float* d_potentials, const Wanted& wanted) {
  check_layer(spec, input);
  const Kernels& kernels = chosen_kernels();
  const int n_steps = input.n_steps, n_samples = input.n_samples, n_tiles = spec.n_tiles();
  const int n_groups = count_groups(n_samples);
  const std::size_t row = static_cast<std::size_t>(spec.n_padded()), n_sources = input.sources.size();
  const std::size_t n = static_cast<std::size_t>(spec.n);
  const bool spiking = spec.model != Model::li, recurrent = input.recurrent_weight != nullptr;
  const bool by_tile = spiking && !recurrent && !spec.stores_decay();
  const std::int64_t n_slots = spiking ? saved.lists.offsets[static_cast<std::int64_t>(n_steps) * n_samples] : 0;
  const Padded neuron(spec, input);
  const std::vector<Chunk> chunks = make_chunks(n_steps, n_samples, !by_tile, wanted.separate_groups);
  const int n_chunks = static_cast<int>(chunks.size());
  const bool several_a_group = n_chunks > n_groups;

  // Gradients that grow over the chunks, and who sent: the sources, then the layer itself. A group's first chunk writes
  // all of a weight gradient; without a chunk there is none.
  const auto weight_like = [&](std::size_t n_pre) {
    const std::size_t size = n_pre * n * (wanted.separate_groups ? n_groups : 1);
    return n_chunks ? Array<float>(size) : Array<float>::zeros(size);
  };
  LayerGradients out;
  out.d_weight.resize(n_sources);
  out.d_value.resize(n_sources);
  std::vector<Array<float>> group_sums;
  std::vector<SenderInput> sender_inputs;
  std::vector<Sender> senders;
  std::vector<float*> d_weights;  // of each sender, of all groups
  const auto add_sender = [&](const SenderInput& from, const float* weight, float* d_weight) {
    group_sums.push_back(d_weight && several_a_group ? Array<float>(from.n_pre * n) : Array<float>());
    sender_inputs.push_back(from);
    senders.push_back({from.n_pre, weight, d_weight, group_sums.back().data()});
    d_weights.push_back(d_weight);
  };
  for (std::size_t k = 0; k < n_sources; ++k) {
    const SourceInput& from = input.sources[k];
    const std::size_t n_values = from.lists.offsets[static_cast<std::int64_t>(from.n_list_steps) * n_samples];
    if (wanted.weight[k]) out.d_weight[k] = weight_like(from.n_pre);
    if (wanted.value[k]) {
      out.d_value[k] = Array<float>::zeros(n_values);
      if (const float* before = wanted.value_before[k])
        std::memcpy(out.d_value[k].data(), before, sizeof(float) * n_values);
    }
    add_sender({from.lists, from.n_pre, from.delay, nullptr, wanted.value[k]}, wanted.value[k] ? from.weight : nullptr,
               out.d_weight[k].data());
  }
  if (wanted.recurrent_weight) {
    out.d_recurrent_weight = weight_like(n);
    add_sender({saved.lists, spec.n, 1, input.has_own_before ? &input.own_before : nullptr, false}, nullptr,
               out.d_recurrent_weight.data());
  }

  const int n_senders = static_cast<int>(senders.size());
  const Packed recurrent_weight =
      recurrent ? pack(input.recurrent_weight, spec.n, spec, spec.n_padded(), "recurrent_weight") : Packed();
  const Array<float> d_bias =
      wanted.bias ? Array<float>::zeros(wanted.separate_groups ? n_groups * row : row) : Array<float>();
  const Array<float> d_bias_group = wanted.bias ? Array<float>(row) : Array<float>();
  const bool learns_readout_beta = !spiking && spec.learn_beta;
  const Array<float> d_beta_by_sample = learns_readout_beta ? Array<float>::zeros(n_samples * row) : Array<float>();
  const Array<float> d_slots = spec.learns() || !by_tile ? Array<float>(n_slots) : Array<float>();
  const Array<float> d_v = Array<float>::zeros(n_samples * row);
  const Array<float> d_i_syn = spec.model == Model::cuba_lif ? Array<float>::zeros(n_samples * row) : Array<float>();
  std::size_t most_rows = 0;
  for (const Chunk& chunk : chunks) most_rows = std::max(most_rows, chunk.n_rows());
  const std::size_t tile_rows = most_rows * spec.tile_width;  // floats
  // Rows of ∂L/∂i: of all tiles, or of the one tile that a worker is at.
  const Array<float> d_current(by_tile ? 0 : tile_rows * n_tiles);
  std::vector<Array<float>> worker_d_current(by_tile ? max_threads : 0);
  // What arrived and what was listed, [chunk][sender] and [chunk], sorted.
  std::vector<Events> events(static_cast<std::size_t>(n_chunks) * n_senders);
  std::vector<Listed> listed(by_tile ? n_chunks : 0);
  {
    const PhaseTimer timer(Phase::sort);
    const int n_sorts = n_senders + by_tile;
    parallel_for(n_chunks * n_sorts, [&](int item, int) {
      const int c = item / n_sorts, k = item % n_sorts;
      if (k < n_senders)
        events[c * n_senders + k] = sort_by_sender(sender_inputs[k], chunks[c], n_samples);
      else
        listed[c] = sort_by_tile(spec, saved, d_values, d_slots.data(), chunks[c], n_samples);
    });
  }
  const Array<float> d_current_next = recurrent ? Array<float>(n_samples * row) : Array<float>();

  BackwardPass pass{&spec,
                    neuron.pointers(),
                    n_steps,
                    n_samples,
                    saved.lists,
                    saved.fields,
                    n_slots,
                    saved.silenced_offsets,
                    saved.silenced_ids,
                    recurrent_weight.data,
                    d_values,
                    d_slots.data(),
                    nullptr,
                    nullptr,
                    saved.potentials,
                    input.v,
                    d_potentials,
                    d_beta_by_sample.data(),
                    d_v.data(),
                    d_i_syn.data(),
                    d_current_next.data(),
                    d_bias.data(),
                    d_bias_group.data(),
                    {},
                    senders.data(),
                    n_senders};

  // A chunk at a time: ∂L/∂i, sample by sample where neurons hear one another, else tile by tile; from it, tile by
  // tile, the weight gradients and the tiles' shares of the list gradients; then the sum of the shares.
  const int n_workers = std::min(n_tiles, num_threads());
  std::vector<Array<float>> shares(n_sources);
  for (int c = 0; c < n_chunks; ++c) {
    const Chunk& chunk = pass.chunk = chunks[c];
    const std::size_t group = wanted.separate_groups ? chunk.b0 / group_samples : 0;
    if (by_tile) {
      pass.listed = listed[c].grads.data();
      pass.listed_starts = listed[c].starts.data();
    } else {
      const PhaseTimer timer(Phase::step_grad);
      parallel_for(chunk.b1 - chunk.b0,
                   [&](int k, int) { kernels.state_grad_by_sample(pass, chunk.b0 + k, d_current.data()); });
    }
    if (wanted.bias) pass.d_bias = d_bias.data() + group * row;
    for (int k = 0; k < n_senders; ++k) {
      const Events& from = events[c * n_senders + k];
      if (d_weights[k]) senders[k].d_weight = d_weights[k] + group * senders[k].n_pre * n;
      senders[k].first = wanted.separate_groups || chunk.b0 == 0;
      senders[k].starts = from.starts.data();
      senders[k].rows = from.rows.data();
      senders[k].n_events = from.n;
      if (!senders[k].weight) continue;
      const std::size_t needed = from.n * n_tiles;
      if (!shares[k] || shares[k].size() < needed) shares[k] = Array<float>(needed + needed / 8);
      senders[k].shares = shares[k].data();
    }
    parallel_for(n_tiles, [&](int p, int worker) {
      float* tile_d_current = d_current.data() + (by_tile ? 0 : chunk.n_rows() * spec.tile_width * p);
      if (by_tile) {
        if (!worker_d_current[worker]) worker_d_current[worker] = Array<float>(tile_rows);
        tile_d_current = worker_d_current[worker].data();
        const PhaseTimer timer(Phase::step_grad, n_workers);
        kernels.state_grad_by_tile(pass, p, tile_d_current);
      }
      const PhaseTimer timer(Phase::deliver_grad, n_workers);
      kernels.weight_grad(pass, p, tile_d_current);
    });
    for (std::size_t k = 0; k < n_sources; ++k) {
      if (!senders[k].weight) continue;
      const Events& from = events[c * n_senders + k];
      if (wanted.exchange)
        add_shares_on(from, senders[k].shares, n_tiles, out.d_value[k].data(), *wanted.exchange);
      else
        add_shares(from, senders[k].shares, n_tiles, out.d_value[k].data());
    }
  }

  if (wanted.bias) {
    const std::size_t n_rows = d_bias.size() / row;
    out.d_bias = Array<float>(n_rows * n);
    for (std::size_t k = 0; k < n_rows; ++k)
      std::memcpy(out.d_bias.data() + k * n, d_bias.data() + k * row, sizeof(float) * n);
  }
  if (spiking && spec.learns())
    parameter_grads(spec, input, saved, d_slots.data(), n_slots, wanted.separate_groups, out);
  if (learns_readout_beta)
    out.d_beta = sum_groups(n_samples, n, wanted.separate_groups, [&](int b0, int b1, double* sum) {
      for (int b = b0; b < b1; ++b)
        for (std::size_t k = 0; k < n; ++k) sum[k] += d_beta_by_sample[b * row + k];
    });
  return out;
}

}  // namespace sparsesnn
