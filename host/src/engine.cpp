#include "engine.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "isa.h"
#include "thread_pool.h"

namespace sparsesnn {

void SlotBuffer::grow(std::size_t n) {
  room = std::max<std::size_t>({n, room + room / 2, 1024});
  void* grown = std::realloc(data, room * sizeof(float));
  if (!grown) throw std::bad_alloc();
  data = static_cast<float*>(grown);
}

SlotBuffer::~SlotBuffer() { std::free(data); }

namespace {

// Bytes of current gradients that the backward pass keeps between its two halves; a quarter of a usual L3 share.
constexpr std::size_t backward_chunk_bytes = 4u << 20;

// Tiles' columns of a [M, N] weight, one after another: [P][M][W]. Also the place where NaN and infinity are found.
Array<float> pack(const float* weight, int n_pre, const LayerSpec& spec, const char* name) {
  const int w = spec.tile_width, n = spec.n, n_tiles = spec.n_tiles();
  Array<float> packed(static_cast<std::size_t>(n_tiles) * n_pre * w);
  std::vector<char> finite(n_tiles);
  parallel_for(n_tiles, [&](int p, int) {
    const int first = p * w, width = std::min(w, n - first);
    float* out = packed.data() + static_cast<std::size_t>(p) * n_pre * w;
    float zero = 0.0f;  // stays 0 unless an entry is NaN or infinite
    for (int m = 0; m < n_pre; ++m, out += w) {
      const float* row = weight + static_cast<std::size_t>(m) * n + first;
      std::memcpy(out, row, sizeof(float) * width);
      std::memset(out + width, 0, sizeof(float) * (w - width));
      float partial[16] = {};
      for (int k = 0; k < w; k += 16)
        for (int l = 0; l < 16; ++l) partial[l] += out[k + l] * 0.0f;
      for (float x : partial) zero += x;
    }
    finite[p] = zero == 0.0f;
  });
  if (std::find(finite.begin(), finite.end(), 0) == finite.end()) return packed;
  for (std::size_t k = 0; k < static_cast<std::size_t>(n_pre) * n; ++k)
    if (!std::isfinite(weight[k]))
      throw InputError("NumericError", std::string(name) + " holds " + (std::isnan(weight[k]) ? "NaN" : "infinity") +
                                           " at [" + std::to_string(k / n) + ", " + std::to_string(k % n) +
                                           "]; weights must be finite: lower the learning rate or clip gradients");
  throw InputError("NumericError", std::string(name) + " changed while it was read; do not write weights during a call");
}

Array<float> unpack(const Array<float>& packed, int n_pre, const LayerSpec& spec) {
  const int w = spec.tile_width, n = spec.n;
  Array<float> weight(static_cast<std::size_t>(n_pre) * n);
  parallel_for(spec.n_tiles(), [&](int p, int) {
    const int first = p * w, width = std::min(w, n - first);
    const float* in = packed.data() + static_cast<std::size_t>(p) * n_pre * w;
    for (int m = 0; m < n_pre; ++m, in += w)
      std::memcpy(weight.data() + static_cast<std::size_t>(m) * n + first, in, sizeof(float) * width);
  });
  return weight;
}

// Per-neuron parameters, padded so that a padded neuron never fires.
struct Padded {
  Array<float> alpha, beta, threshold, grad_threshold, bias;

  Padded(const LayerSpec& spec, const LayerInput& input) {
    const auto copy = [&](const float* from, float fill, const char* name, bool finite) {
      if (!from) return Array<float>();
      Array<float> to = Array<float>::filled(spec.n_padded(), fill);
      for (int k = 0; k < spec.n; ++k) {
        if (std::isnan(from[k]) || (finite && std::isinf(from[k])))
          throw InputError("NumericError", std::string(name) + " of neuron " + std::to_string(k) + " is " +
                                               std::to_string(from[k]) + "; it must be finite");
        to[k] = from[k];
      }
      return to;
    };
    constexpr float never = std::numeric_limits<float>::infinity();
    alpha = copy(input.alpha, 0.0f, "alpha", true);
    beta = copy(input.beta, 0.0f, "beta", true);
    threshold = copy(input.threshold, never, "threshold", true);
    grad_threshold = copy(input.grad_threshold, never, "grad_threshold", false);
    bias = copy(input.bias, 0.0f, "bias", true);
  }

  NeuronParameters pointers() const {
    return {alpha.data(), beta.data(), threshold.data(), grad_threshold.data(), bias.data()};
  }
};

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
  if (spec.capacity < 0 || spec.capacity > spec.n || (spec.fixed && !spec.capacity))
    throw InputError("ShapeError", "layer: capacity " + std::to_string(spec.capacity) + " for " + std::to_string(spec.n) +
                                       " neurons; give 1 to n, and one with fixed activity");
  for (const SourceInput& source : input.sources)
    if (source.n_list_steps < input.n_steps - source.delay)
      throw InputError("ShapeError", "layer: a source covers " + std::to_string(source.n_list_steps) + " steps, " +
                                         std::to_string(input.n_steps - source.delay) + " are read");
}

// Sources with packed weights; `packed` keeps those alive.
std::vector<Source> make_sources(const LayerSpec& spec, const LayerInput& input, const std::vector<bool>& with_weight,
                                 std::vector<Array<float>>& packed) {
  std::vector<Source> sources(input.sources.size());
  for (std::size_t k = 0; k < sources.size(); ++k) {
    const SourceInput& from = input.sources[k];
    sources[k].lists = from.lists;
    sources[k].n_pre = from.n_pre;
    sources[k].delay = from.delay;
    packed.push_back(with_weight[k] ? pack(from.weight, from.n_pre, spec, "weight") : Array<float>());
    sources[k].weight = packed.back().data();
  }
  return sources;
}

// Feed-forward: tile by tile over the whole sequence, so that a tile's columns stay in its core's L2 cache.
void run_by_tile(const Kernels& kernels, const ForwardPass& pass, int block_size) {
  const int n_tiles = pass.spec->n_tiles();
  parallel_for(n_tiles * pass.n_blocks, [&](int item, int) {
    const int p = item / pass.n_blocks, block = item % pass.n_blocks;
    const int b0 = block * block_size, b1 = std::min(pass.n_samples, b0 + block_size);
    kernels.forward(pass, {p, block, b0, b1, 0, pass.n_steps, nullptr, 0, false});
  });
}

// Recurrent: sample by sample, step by step; what a sample fired is its own input one step later.
void run_by_sample(const Kernels& kernels, const ForwardPass& pass, const LayerInput& input, std::int32_t* dropped,
                   bool wide) {
  const LayerSpec& spec = *pass.spec;
  parallel_for(pass.n_samples, [&](int b, int) {
    Array<unsigned char> own(static_cast<std::size_t>(spec.n) * (wide ? 4 : 2));
    const void* own_ids = own.data();
    std::int64_t n_own = 0;
    if (input.has_own_before) {
      own_ids = input.own_before.at(input.own_before.offsets[b]);
      n_own = input.own_before.n_spikes[b];
    }
    for (int t = 0; t < pass.n_steps; ++t) {
      for (int p = 0; p < spec.n_tiles(); ++p)
        kernels.forward(pass, {p, b, b, b + 1, t, t + 1, pass.recurrent_weight ? own_ids : nullptr, n_own, wide});
      const std::int64_t list = static_cast<std::int64_t>(t) * pass.n_samples + b;
      if (dropped) dropped[list] = kernels.select(pass, t, b);
      own_ids = own.data();
      if (pass.recurrent_weight) n_own = kernels.sent_ids(pass, list, own.data(), wide);
    }
  });
}

void prefix_sum(const std::int32_t* counts, std::int64_t n, std::int64_t* offsets) {
  offsets[0] = 0;
  for (std::int64_t i = 0; i < n; ++i) offsets[i + 1] = offsets[i] + counts[i];
}

// Turns masks and slot records into the population's lists.
void collect_lists(const Kernels& kernels, const ForwardPass& pass, int block_size, LayerOutput& out) {
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
  const ListsOut lists{out.offsets.data(), out.n_spikes.data(), out.ids.data(),
                       out.wide,           out.values.data(),   out.fields.data(),
                       n_slots,            out.silenced_offsets.data(), out.silenced_ids.data()};
  parallel_for(pass.n_blocks, [&](int block, int) {
    const int b0 = block * block_size, b1 = std::min(pass.n_samples, b0 + block_size);
    kernels.fill(pass, lists, block, b0, b1);
  });
}

}  // namespace

void check_lists(const Lists& lists, std::int64_t n_lists, std::int64_t n_ids, int n_neurons, const char* name) {
  const auto fail = [&](std::int64_t i, const std::string& what) {
    throw InputError("SpikeListError", std::string(name) + ": list " + std::to_string(i) + " " + what);
  };
  if (lists.offsets[0] != 0 || lists.offsets[n_lists] != n_ids)
    fail(0, "to " + std::to_string(n_lists) + ": offsets must run from 0 to the number of ids, " + std::to_string(n_ids));
  for (std::int64_t i = 0; i < n_lists; ++i) {
    const std::int64_t begin = lists.offsets[i], end = lists.offsets[i + 1], n_spikes = lists.n_spikes[i];
    if (begin < 0 || end < begin || end > n_ids) fail(i, "has offsets that do not rise");
    if (n_spikes < 0 || n_spikes > end - begin)
      fail(i, "has " + std::to_string(end - begin) + " ids but says " + std::to_string(n_spikes) + " spikes");
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
    check_run(begin, begin + n_spikes);
    check_run(begin + n_spikes, end);
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
  std::vector<Array<float>> packed;
  const std::vector<Source> sources = make_sources(spec, input, std::vector<bool>(input.sources.size(), true), packed);
  const Array<float> recurrent =
      input.recurrent_weight ? pack(input.recurrent_weight, spec.n, spec, "recurrent_weight") : Array<float>();

  Array<float> v = state_to_tiles(spec, input.v, n_samples);
  Array<float> i_syn = cuba ? state_to_tiles(spec, input.i_syn, n_samples) : Array<float>();
  const auto trace = [&](bool wanted) { return wanted ? Array<float>::zeros(v.size()) : Array<float>(); };
  const bool learns = spec.learns() && spiking;
  const Array<float> v_by_alpha = trace(learns && spec.learn_alpha), i_syn_by_alpha = trace(learns && spec.learn_alpha),
                     v_by_beta = trace(learns && spec.learn_beta), v_by_threshold = trace(learns && spec.learn_threshold),
                     reset_gamma = trace(learns && !spec.detach_reset);
  const auto words = [&](bool wanted) { return wanted ? Array<std::uint64_t>(n_words) : Array<std::uint64_t>(); };
  const bool limited = spiking && spec.capacity > 0;
  const Array<std::uint64_t> fired = words(spiking), listed = words(spiking), sent = words(limited), near = words(limited);

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
                         recurrent.data(),
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
  if (by_sample) {
    run_by_sample(kernels, pass, input, out.dropped.data(), out.wide);
  } else {
    run_by_tile(kernels, pass, block_size);
    if (limited)
      parallel_for(input.n_steps, [&](int t, int) {
        for (int b = 0; b < n_samples; ++b)
          out.dropped[static_cast<std::size_t>(t) * n_samples + b] = kernels.select(pass, t, b);
      });
  }
  if (spiking) collect_lists(kernels, pass, block_size, out);
  out.v = state_from_tiles(spec, v, n_samples);
  if (cuba) out.i_syn = state_from_tiles(spec, i_syn, n_samples);
  return out;
}

namespace {

// ∂L/∂(α, β, θ) of a spiking layer: Σ over slots of σ'·e times the trace stored with the slot, in the order of slots.
void parameter_grads(const LayerSpec& spec, const LayerSaved& saved, const float* d_slots, std::int64_t n_slots,
                     LayerGradients& out) {
  int field = 1 + int(spec.stores_decay());
  const auto sum = [&](bool learns, Array<float>& to) {
    if (!learns) return;
    const float* trace = saved.fields + static_cast<std::size_t>(field++) * n_slots;
    std::vector<double> total(spec.n);
    for (std::int64_t j = 0; j < n_slots; ++j) {
      const std::uint32_t n = saved.lists.wide ? static_cast<const std::uint32_t*>(saved.lists.ids)[j]
                                               : static_cast<const std::uint16_t*>(saved.lists.ids)[j];
      total[n] += static_cast<double>(d_slots[j]) * trace[j];
    }
    to = Array<float>(spec.n);
    for (int n = 0; n < spec.n; ++n) to[n] = static_cast<float>(total[n]);
  };
  sum(spec.learn_alpha, out.d_alpha);
  sum(spec.learn_beta, out.d_beta);
  sum(spec.learn_threshold, out.d_threshold);
}

// Adds the tiles' shares of ∂L/∂value, in the order of tiles.
void add_shares(const Source& source, int n_tiles, float* d_value) {
  constexpr std::int64_t piece = 4096;
  parallel_for(static_cast<int>((source.d_value_stride + piece - 1) / piece), [&](int k, int) {
    const std::int64_t from = k * piece, to = std::min(source.d_value_stride, from + piece);
    float* out = d_value + source.first_slot;
    for (std::int64_t j = from; j < to; ++j) out[j] = source.d_value[j];
    for (int p = 1; p < n_tiles; ++p) {
      const float* share = source.d_value + p * source.d_value_stride;
      for (std::int64_t j = from; j < to; ++j) out[j] += share[j];
    }
  });
}

}  // namespace

LayerGradients layer_backward(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved,
                              const float* d_values, const float* d_potentials, const Wanted& wanted) {
  check_layer(spec, input);
  const Kernels& kernels = chosen_kernels();
  const int n_steps = input.n_steps, n_samples = input.n_samples, n_tiles = spec.n_tiles(), w = spec.tile_width;
  const std::size_t row = static_cast<std::size_t>(spec.n_padded()), n_sources = input.sources.size();
  const bool spiking = spec.model != Model::li, recurrent = input.recurrent_weight != nullptr;
  const std::int64_t n_slots = spiking ? saved.lists.offsets[static_cast<std::int64_t>(n_steps) * n_samples] : 0;

  const Padded neuron(spec, input);
  std::vector<Array<float>> packed, d_packed(n_sources);
  std::vector<Source> sources = make_sources(spec, input, wanted.value, packed);
  LayerGradients out;
  out.d_weight.resize(n_sources);
  out.d_value.resize(n_sources);
  for (std::size_t k = 0; k < n_sources; ++k) {
    const SourceInput& from = input.sources[k];
    if (wanted.weight[k]) {
      d_packed[k] = Array<float>::zeros(static_cast<std::size_t>(n_tiles) * from.n_pre * w);
      sources[k].d_weight = d_packed[k].data();
    }
    if (wanted.value[k])
      out.d_value[k] = Array<float>::zeros(
          from.lists.offsets[static_cast<std::int64_t>(from.n_list_steps) * n_samples]);
  }
  const Array<float> recurrent_weight =
      recurrent ? pack(input.recurrent_weight, spec.n, spec, "recurrent_weight") : Array<float>();
  const Array<float> d_recurrent = wanted.recurrent_weight
                                       ? Array<float>::zeros(static_cast<std::size_t>(n_tiles) * spec.n * w)
                                       : Array<float>();
  const Array<float> d_bias = wanted.bias ? Array<float>::zeros(row) : Array<float>();
  const bool learns_readout_beta = !spiking && spec.learn_beta;
  const Array<float> d_beta_by_sample = learns_readout_beta ? Array<float>::zeros(n_samples * row) : Array<float>();

  Array<float> d_slots(n_slots);
  if (n_slots) std::memcpy(d_slots.data(), d_values, sizeof(float) * n_slots);
  const Array<float> d_v = Array<float>::zeros(n_samples * row);
  const Array<float> d_i_syn = spec.model == Model::cuba_lif ? Array<float>::zeros(n_samples * row) : Array<float>();
  const std::size_t step_bytes = std::max<std::size_t>(1, n_samples * row * sizeof(float));
  const int chunk = std::clamp(static_cast<int>(backward_chunk_bytes / step_bytes), 1, std::max(1, n_steps));
  const Array<float> d_current(static_cast<std::size_t>(chunk) * n_samples * row);
  const Array<float> d_current_next = recurrent ? Array<float>(n_samples * row) : Array<float>();

  const BackwardPass pass{&spec,
                          neuron.pointers(),
                          n_steps,
                          n_samples,
                          saved.lists,
                          saved.fields,
                          n_slots,
                          saved.silenced_offsets,
                          saved.silenced_ids,
                          recurrent_weight.data(),
                          d_recurrent.data(),
                          input.own_before,
                          input.has_own_before,
                          d_slots.data(),
                          saved.potentials,
                          input.v,
                          d_potentials,
                          d_beta_by_sample.data(),
                          d_v.data(),
                          d_i_syn.data(),
                          d_current.data(),
                          d_current_next.data(),
                          d_bias.data(),
                          sources.data(),
                          static_cast<int>(n_sources)};

  // Backwards through time, a chunk of steps at a time: first ∂L/∂i, sample by sample; then, tile by tile, the weight
  // gradients and the tiles' shares of the input gradients; then the sum of the shares.
  std::vector<Array<float>> shares(n_sources);
  for (int t1 = n_steps; t1 > 0; t1 -= chunk) {
    const int t0 = std::max(0, t1 - chunk);
    parallel_for(n_samples, [&](int b, int) { kernels.state_grad(pass, b, t0, t1); });
    for (std::size_t k = 0; k < n_sources; ++k) {
      if (!wanted.value[k]) continue;
      Source& source = sources[k];
      const std::int64_t from = std::max(0, t0 - source.delay), to = std::max(0, t1 - source.delay);
      source.first_slot = source.lists.offsets[from * n_samples];
      source.d_value_stride = source.lists.offsets[to * n_samples] - source.first_slot;
      const std::size_t needed = static_cast<std::size_t>(source.d_value_stride) * n_tiles;
      if (shares[k].size() < needed || !shares[k]) shares[k] = Array<float>(needed + needed / 8);
      source.d_value = shares[k].data();
    }
    parallel_for(n_tiles, [&](int p, int) { kernels.weight_grad(pass, p, t0, t1); });
    for (std::size_t k = 0; k < n_sources; ++k)
      if (wanted.value[k]) add_shares(sources[k], n_tiles, out.d_value[k].data());
  }

  for (std::size_t k = 0; k < n_sources; ++k)
    if (wanted.weight[k]) out.d_weight[k] = unpack(d_packed[k], input.sources[k].n_pre, spec);
  if (wanted.recurrent_weight) out.d_recurrent_weight = unpack(d_recurrent, spec.n, spec);
  if (wanted.bias) {
    out.d_bias = Array<float>(spec.n);
    std::memcpy(out.d_bias.data(), d_bias.data(), sizeof(float) * spec.n);
  }
  if (spiking && spec.learns()) parameter_grads(spec, saved, d_slots.data(), n_slots, out);
  if (learns_readout_beta) {
    out.d_beta = Array<float>::zeros(spec.n);
    for (int b = 0; b < n_samples; ++b)
      for (int n = 0; n < spec.n; ++n) out.d_beta[n] += d_beta_by_sample[b * row + n];
  }
  return out;
}

}  // namespace sparsesnn
