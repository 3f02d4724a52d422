#include "windows.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "packing.h"
#include "phases.h"
#include "window_passes.h"

namespace sparsesnn {
namespace {

// The places of one side that hear place `from`: calls visit(place, tap), places ascending.
template <class Visit>
void each_tap(const WindowShape& s, int side, int from, int n_places, Visit&& visit) {
  for (int tap = s.kernel[side] - 1; tap >= 0; --tap) {
    const int at = from + s.padding[side] - tap * s.dilation[side];
    if (at >= 0 && at % s.stride[side] == 0 && at / s.stride[side] < n_places) visit(at / s.stride[side], tap);
  }
}

int places(const WindowShape& s, int side, int length) {
  return (length + 2 * s.padding[side] - s.dilation[side] * (s.kernel[side] - 1) - 1) / s.stride[side] + 1;
}

}  // namespace

Windows::Windows(const WindowShape& shape) : shape_(shape) {
  int least = std::min({shape.pre_height, shape.pre_width, shape.pre_channels, shape.groups, shape.channels});
  for (int side = 0; side < 2; ++side)
    least = std::min({least, shape.kernel[side], shape.stride[side], shape.dilation[side], 1 + shape.padding[side]});
  if (least < 1 || shape.pre_channels % shape.groups || shape.channels % shape.groups)
    throw InputError("ShapeError",
                     "Windows: sides, channels, strides and dilations must be at least 1, and groups must "
                     "divide both numbers of channels");
  height_ = places(shape, 0, shape.pre_height);
  width_ = places(shape, 1, shape.pre_width);
  if (height_ < 1 || width_ < 1) throw InputError("ShapeError", "Windows: nothing is left of the sender's maps");
  group_senders_ = static_cast<std::uint32_t>(shape.pre_channels / shape.groups);
  group_channels_ = static_cast<std::uint32_t>(shape.channels / shape.groups);
  // Taps that a spike uses together lie together, those for earlier places first.
  std::vector<int> taps(shape.kernel[1]);
  std::iota(taps.begin(), taps.end(), 0);
  std::sort(taps.begin(), taps.end(), [&](int a, int b) {
    const int left = a * shape.dilation[1] % shape.stride[1], right = b * shape.dilation[1] % shape.stride[1];
    return left != right ? left < right : a > b;
  });
  order_.resize(taps.size());
  for (int k = 0; k < shape.kernel[1]; ++k) order_[taps[k]] = k;

  rows_.resize(shape.pre_height);
  for (int y = 0; y < shape.pre_height; ++y)
    each_tap(shape, 0, y, height_, [&](int row, int tap) {
      rows_[y].push_back({static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(tap)});
    });
  runs_.resize(shape.pre_width);
  for (int x = 0; x < shape.pre_width; ++x)
    each_tap(shape, 1, x, width_, [&](int column, int tap) {
      std::vector<Run>& runs = runs_[x];
      const auto at = static_cast<std::uint32_t>(order_[tap]);
      if (shape.groups == 1 && !runs.empty() && runs.back().tap + runs.back().n_taps == at &&
          runs.back().column + runs.back().n_taps == static_cast<std::uint32_t>(column))
        ++runs.back().n_taps;
      else
        runs.push_back({static_cast<std::uint32_t>(column), 1, at});
    });
}

std::vector<std::size_t> Windows::weight_shape() const {
  return {static_cast<std::size_t>(shape_.kernel[0]), static_cast<std::size_t>(shape_.kernel[1]), group_senders_,
          static_cast<std::size_t>(shape_.channels)};
}

std::size_t Windows::n_weights() const {
  std::size_t n = 1;
  for (const std::size_t side : weight_shape()) n *= side;
  return n;
}

void Windows::pack(const float* weight, bool bf16, float* packed) const {
  for (int y = 0; y < shape_.kernel[0]; ++y)
    for (int x = 0; x < shape_.kernel[1]; ++x)
      for (int c = 0; c < static_cast<int>(group_senders_); ++c) {
        float* const to = packed + packed_row(y, x, c);
        for (int k = 0; k < shape_.channels; ++k) {
          const float value = *weight++;
          if (!std::isfinite(value))
            throw InputError("NumericError",
                             std::string("weight holds ") + (std::isnan(value) ? "NaN" : "infinity") + " at [" +
                                 std::to_string(y) + ", " + std::to_string(x) + ", " + std::to_string(c) + ", " +
                                 std::to_string(k) +
                                 "]; weights must be finite: lower the learning rate or clip gradients");
          to[k] = bf16 ? rounded_to_bf16(value) : value;
        }
      }
}

void Windows::unpack(const float* packed, float* weight) const {
  for (int y = 0; y < shape_.kernel[0]; ++y)
    for (int x = 0; x < shape_.kernel[1]; ++x)
      for (int c = 0; c < static_cast<int>(group_senders_); ++c, weight += shape_.channels)
        std::copy_n(packed + packed_row(y, x, c), shape_.channels, weight);
}

PackedWindows::PackedWindows(const LayerSpec& spec, const LayerInput& input) {
  const PhaseTimer timer(Phase::pack);
  std::size_t n = 0;
  for (const SourceInput& source : input.sources) {
    first.push_back(static_cast<std::uint32_t>(n));
    n += source.windows->n_weights();
    if (n >> 32) throw InputError("ShapeError", "Windows: a layer reads more than 2^32 weights");
  }
  data = Array<float>::zeros(n + window_slack);
  for (std::size_t k = 0; k < input.sources.size(); ++k)
    input.sources[k].windows->pack(input.sources[k].weight, spec.bf16, data.data() + first[k]);
}

Packed pack_windows(const Windows& windows, const float* weight, bool bf16) {
  const PhaseTimer timer(Phase::pack);
  const std::size_t n = windows.n_weights();
  Packed packed{nullptr, Array<unsigned char>::zeros(sizeof(float) * (n + window_slack))};
  packed.data = packed.own.data();
  windows.pack(weight, bf16, reinterpret_cast<float*>(packed.own.data()));
  return packed;
}

bool runs_by_row(const LayerSpec& spec, const LayerInput& input) {
  if (input.sources.empty() || input.sources.size() > most_window_sources || !input.loops.empty()) return false;
  for (const SourceInput& source : input.sources)
    if (!source.windows || source.windows->n_rows() != WindowRows(input).n_rows) return false;
  return spec.model->fires() && !spec.fixed && !spec.needs_step_order();
}

void RowHits::find(const LayerInput& input, const PackedWindows& packed, int sample, const std::vector<bool>& near) {
  sort(WindowRows(input).n_rows, [&](auto&& visit) {
    for (int t = 0; t < input.n_steps; ++t)
      for (std::size_t k = 0; k < input.sources.size(); ++k) {
        const SourceInput& from = input.sources[k];
        if (t < from.delay) continue;
        const std::int64_t list = static_cast<std::int64_t>(t - from.delay) * input.n_samples + sample;
        const std::int64_t begin = from.lists.offsets[list], fired = begin + from.lists.n_spikes[list];
        const std::int64_t end = near[k] ? from.lists.offsets[list + 1] : fired;
        for (std::int64_t slot = begin; slot < end; ++slot) {
          from.windows->each_run(
              from.lists.id(slot), [&](std::uint32_t row, std::uint32_t to, std::uint32_t n, std::uint32_t weight) {
                visit(row, Hit{slot, t, to, n, packed.first[k] + weight, static_cast<std::uint16_t>(k), slot < fired});
              });
        }
      }
  });
}

void set_up(WindowPass& pass, const LayerSpec& spec, const LayerInput& input, const PackedWindows& packed,
            const Padded& neuron) {
  pass.spec = &spec;
  pass.neuron = neuron.pointers();
  pass.n_steps = input.n_steps;
  pass.length = WindowRows(input).length;
  pass.weight = packed.data.data();
  for (std::size_t k = 0; k < input.sources.size(); ++k) pass.values[k] = input.sources[k].lists.values;
}

WindowRows::WindowRows(const LayerInput& input)
    : n_rows(input.sources[0].windows->n_rows()), length(input.sources[0].windows->row_length()) {}

}  // namespace sparsesnn
