#include "packing.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "codelets/cpu/records.h"
#include "host/src/machine/thread_pool.h"
#include "phases.h"

namespace sparsesnn {

namespace {

// The upper half of x, rounded.
std::uint16_t to_bf16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// Throws if a weight holds NaN or infinity.
void check_finite(const float* weight, int n_pre, int n, const char* name) {
  for (std::size_t k = 0; k < static_cast<std::size_t>(n_pre) * n; ++k)
    if (!std::isfinite(weight[k]))
      throw InputError("NumericError", std::string(name) + " holds " + (std::isnan(weight[k]) ? "NaN" : "infinity") +
                                           " at [" + std::to_string(k / n) + ", " + std::to_string(k % n) +
                                           "]; weights must be finite: lower the learning rate or clip gradients");
}

[[noreturn]] void refuse_changed(const char* name) {
  throw InputError("NumericError",
                   std::string(name) + " changed while it was read; do not write weights during a call");
}

// Copies columns first..first+n_columns-1 of rows begin..end-1 into rows of `width` at `out`, unless that is null.
// Returns whether all are finite.
bool pack_piece(const float* weight, int n, int first, int n_columns, int begin, int end, int width, bool bf16,
                void* out) {
  float zero[16] = {};         // stay 0 unless an entry is NaN or infinite
  constexpr int n_ahead = 8;   // rows lie too far apart for the prefetcher
  constexpr int in_line = 16;  // floats
  for (int m = begin; m < end; ++m) {
    const float* row = weight + static_cast<std::size_t>(m) * n + first;
    if (m + n_ahead < end)
      for (int k = 0; k < n_columns; k += in_line) __builtin_prefetch(row + n_ahead * static_cast<std::size_t>(n) + k);
    for (int k = 0; k + 16 <= n_columns; k += 16)
      for (int l = 0; l < 16; ++l) zero[l] += row[k + l] * 0.0f;
    for (int k = n_columns / 16 * 16; k < n_columns; ++k) zero[0] += row[k] * 0.0f;
    if (!out) continue;
    const std::size_t to = static_cast<std::size_t>(m - begin) * width;
    if (bf16) {
      std::uint16_t* packed = static_cast<std::uint16_t*>(out) + to;
      for (int k = 0; k < n_columns; ++k) packed[k] = to_bf16(row[k]);
      std::memset(packed + n_columns, 0, sizeof(std::uint16_t) * (width - n_columns));
    } else {
      float* packed = static_cast<float*>(out) + to;
      std::memcpy(packed, row, sizeof(float) * n_columns);
      std::memset(packed + n_columns, 0, sizeof(float) * (width - n_columns));
    }
  }
  float sum = 0.0f;
  for (float x : zero) sum += x;
  return sum == 0.0f;
}

}  // namespace

float rounded_to_bf16(float x) { return std::bit_cast<float>(static_cast<std::uint32_t>(to_bf16(x)) << 16); }

Packed pack(const float* weight, int n_pre, const LayerSpec& spec, int width, const char* name) {
  Packed packed{weight, {}};
  if (spec.bf16 || width != spec.n) {
    packed.own = Array<unsigned char>(packed_bytes(n_pre, spec));
    packed.data = packed.own.data();
  }
  pack_rows(weight, n_pre, spec, width, 0, n_pre, packed.own.data(), name);
  return packed;
}

Packed pack_unless(const void* packed, const float* weight, int n_pre, const LayerSpec& spec, int width,
                   const char* name) {
  return packed ? Packed{packed, {}} : pack(weight, n_pre, spec, width, name);
}

std::size_t packed_bytes(int n_pre, const LayerSpec& spec) {
  return static_cast<std::size_t>(n_pre) * spec.n_padded() * (spec.bf16 ? sizeof(std::uint16_t) : sizeof(float));
}

void pack_rows(const float* weight, int n_pre, const LayerSpec& spec, int width, int begin, int end, void* out,
               const char* name) {
  const PhaseTimer timer(Phase::pack);
  constexpr int piece = 256;  // rows
  const int n_slabs = spec.n_padded() / width, n_pieces = (end - begin + piece - 1) / piece;
  const std::size_t slab_bytes = packed_bytes(n_pre, spec) / n_slabs;
  std::vector<char> finite(static_cast<std::size_t>(n_slabs) * n_pieces);
  parallel_for(static_cast<int>(finite.size()), [&](int item, int) {
    const int slab = item / n_pieces, from = begin + item % n_pieces * piece, first = slab * width;
    unsigned char* to =
        out ? static_cast<unsigned char*>(out) + slab * slab_bytes + slab_bytes / n_pre * from : nullptr;
    finite[item] = pack_piece(weight, spec.n, first, std::min(width, spec.n - first), from, std::min(end, from + piece),
                              width, spec.bf16, to);
  });
  if (std::find(finite.begin(), finite.end(), 0) == finite.end()) return;
  check_finite(weight, n_pre, spec.n, name);
  refuse_changed(name);
}

namespace {

// A copy of the last lists, those without `ids_ahead` ids after their spikes, padded by as many.
Array<unsigned char> copy_last(Source& source, std::int64_t n_lists) {
  const Lists& lists = source.lists;
  const std::int64_t end = lists.offsets[n_lists];
  std::int64_t first = n_lists;
  while (first && lists.offsets[first - 1] + lists.n_spikes[first - 1] + ids_ahead > end) --first;
  source.last = lists.offsets[first];
  const std::size_t id_bytes = lists.wide ? 4 : 2, n_bytes = static_cast<std::size_t>(end - source.last) * id_bytes;
  Array<unsigned char> ids = Array<unsigned char>::zeros(n_bytes + ids_ahead * id_bytes);
  std::copy_n(static_cast<const unsigned char*>(lists.at(source.last)), n_bytes, ids.data());
  source.last_ids = ids.data();
  return ids;
}

}  // namespace

TileColumns::TileColumns(const LayerSpec& spec, const LayerInput& input, bool before)
    : spec_(spec), input_(input), workers_(num_threads()) {
  const bool tiles_for_all = !before && spec.n_tiles() >= 2 * num_threads();
  std::vector<Source> sources;
  for (const SourceInput& from : input.sources) {
    if (tiles_for_all)
      packed_.push_back({from.packed, {}});
    else
      packed_.push_back(pack_unless(from.packed, from.weight, from.n_pre, spec, spec.tile_width, "weight"));
    by_worker |= !packed_.back().data;
    sources.push_back({from.lists, from.n_pre, from.delay});
    last_ids_.push_back(copy_last(sources.back(), static_cast<std::int64_t>(from.n_list_steps) * input.n_samples));
  }
  for (Worker& worker : workers_) worker.sources = sources;
}

std::size_t TileColumns::row_bytes() const {
  return spec_.tile_width * (spec_.bf16 ? sizeof(std::uint16_t) : sizeof(float));
}

const Source* TileColumns::of(int tile, int worker) {
  Worker& at = workers_[worker];
  if (at.tile != tile) pack_tile(tile, at);
  return at.sources.data();
}

void TileColumns::pack_tile(int tile, Worker& worker) const {
  std::optional<PhaseTimer> timer;
  if (by_worker) timer.emplace(Phase::pack, std::min(spec_.n_tiles(), num_threads()));
  std::size_t n_rows = 0;
  for (std::size_t k = 0; k < packed_.size(); ++k) n_rows += packed_[k].data ? 0 : input_.sources[k].n_pre;
  if (n_rows && !worker.columns) worker.columns = Array<unsigned char>(n_rows * row_bytes());
  unsigned char* to = worker.columns.data();
  bool finite = true;
  for (std::size_t k = 0; k < packed_.size(); ++k) {
    const SourceInput& from = input_.sources[k];
    const std::size_t n_bytes = from.n_pre * row_bytes();
    if (const void* all = packed_[k].data) {
      worker.sources[k].weight = static_cast<const unsigned char*>(all) + tile * n_bytes;
      continue;
    }
    const int first = tile * spec_.tile_width;
    finite &= pack_piece(from.weight, spec_.n, first, std::min(spec_.tile_width, spec_.n - first), 0, from.n_pre,
                         spec_.tile_width, spec_.bf16, to);
    worker.sources[k].weight = to;
    to += n_bytes;
  }
  worker.tile = tile;
  if (finite) return;
  // The first in the order of sources and rows, whichever tile it was found in.
  for (std::size_t k = 0; k < packed_.size(); ++k)
    if (!packed_[k].data) check_finite(input_.sources[k].weight, input_.sources[k].n_pre, spec_.n, "weight");
  refuse_changed("weight");
}

Padded::Padded(const LayerSpec& spec, const LayerInput& input) : spec_(spec) {
  using Limits = std::numeric_limits<float>;
  constexpr float never = Limits::max();
  const NeuronShape& shape = *spec.shape;
  const std::size_t n_entries = shape.entries.size(), n_learnt = static_cast<std::size_t>(spec.n_learnt());
  std::size_t n_arrays = n_entries + 3;  // zeros, θ_grad and the bias
  for (const std::vector<PerNeuron>& by : input.derivatives)
    n_arrays += std::count_if(by.begin(), by.end(), [](const PerNeuron& one) { return static_cast<bool>(one); });
  constexpr std::size_t cache_line = 64 / sizeof(float);
  const std::size_t stride = static_cast<std::size_t>(spec.n_padded()) + cache_line;
  numbers_ = Array<float>(n_arrays * stride);
  float* next = numbers_.data();
  const auto copy = [&](PerNeuron from, float fill, const char* name, bool finite) -> const float* {
    if (!from) return nullptr;
    float* const to = std::exchange(next, next + stride);
    for (int k = 0; k < spec.n; ++k) {
      const float x = from[k];
      if (std::isnan(x) || (finite && std::isinf(x)))
        throw InputError("NumericError", std::string(name) + " of neuron " + std::to_string(k) + " is " +
                                             std::to_string(x) + "; it must be finite");
      to[k] = x;
    }
    std::fill(to + spec.n, to + spec.n_padded(), fill);
    return to;
  };
  for (std::size_t k = 0; k < n_entries; ++k) {
    const bool threshold = spec.fires && static_cast<int>(k) == shape.threshold;
    pointers_.entries[k] = copy(input.entries[k], threshold ? never : 0.0f, shape.entries[k].c_str(), true);
  }
  const float zero = 0.0f, *const zeros = copy({&zero, true}, 0.0f, "", true);
  for (std::size_t q = 0; q < n_learnt; ++q) {
    derivatives_.emplace_back();
    for (std::size_t k = 0; k < n_entries; ++k) {
      const float* const by = copy(input.derivatives[q][k], 0.0f, shape.entries[k].c_str(), true);
      derivatives_.back().push_back(by ? by : zeros);
    }
  }
  for (std::size_t q = 0; q < n_learnt; ++q) pointers_.derivatives[q] = derivatives_[q].data();
  pointers_.grad_threshold = copy(input.grad_threshold, never, "grad_threshold", false);
  pointers_.bias = copy(input.bias, 0.0f, "bias", true);
}

bool Padded::any_threshold_below_zero() const {
  const float* const threshold = pointers_.entries[spec_.shape->threshold];
  return std::any_of(threshold, threshold + spec_.n, [](float x) { return x < 0.0f; });
}

BackwardPass backward_pass(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved,
                           const Padded& neuron, const std::vector<Loop>& loops) {
  BackwardPass pass{};
  pass.spec = &spec;
  pass.neuron = neuron.pointers();
  pass.n_steps = input.n_steps;
  pass.n_samples = input.n_samples;
  pass.lists = saved.lists;
  pass.fields = saved.fields;
  pass.silenced_offsets = saved.silenced_offsets;
  pass.silenced_ids = saved.silenced_ids;
  pass.loops = loops.data();
  pass.n_loops = static_cast<int>(loops.size());
  return pass;
}

}  // namespace sparsesnn
