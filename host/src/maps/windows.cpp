#include "windows.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "host/src/cpu/packing.h"
#include "host/src/cpu/phases.h"
#include "window_passes.h"

namespace sparsesnn {
namespace {

// The places of one side that receive from place `from`: calls visit(place, tap), places ascending.
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
  if (height_ < 1 || width_ < 1) throw InputError("ShapeError", "Windows: the receiver's maps are empty");
  group_senders_ = static_cast<std::uint32_t>(shape.pre_channels / shape.groups);
  group_channels_ = static_cast<std::uint32_t>(shape.channels / shape.groups);
  // Taps used by the same spike are contiguous, those for earlier places first.
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
        runs.push_back({static_cast<std::uint32_t>(column), 1, at, 0, 1});
    });
  find_whole_runs();
  list_runs();
}

// The extent of runs in the packed weights if rows had no ends.
void Windows::find_whole_runs() {
  std::vector<int> taps(order_.size());
  for (std::size_t k = 0; k < taps.size(); ++k) taps[order_[k]] = static_cast<int>(k);
  const auto reaches = [&](int x, int at, int column) {
    return shape_.groups == 1 && at >= 0 && at < shape_.kernel[1] &&
           x + shape_.padding[1] - taps[at] * shape_.dilation[1] == column * shape_.stride[1];
  };
  for (int x = 0; x < shape_.pre_width; ++x)
    for (Run& run : runs_[x]) {
      const int column = static_cast<int>(run.column), tap = static_cast<int>(run.tap);
      int left = 0, right = static_cast<int>(run.n_taps);
      while (reaches(x, tap - left - 1, column - left - 1)) ++left;
      while (reaches(x, tap + right, column + right)) ++right;
      run.n_left = left;
      run.n_whole = left + right;
      margin_ = std::max(margin_, std::max(left, right - static_cast<int>(run.n_taps)) * shape_.channels);
    }
}

// The same runs as in `each_run`, from the view of a row of the receiver.
void Windows::list_runs() {
  const std::uint32_t n_channels = shape_.pre_channels, width = shape_.pre_width, height = shape_.pre_height;
  const std::uint32_t tap = group_senders_ * shape_.kernel[1] * shape_.channels;
  heard_.resize(height_);
  for (std::uint32_t c = 0; c < (shape_.channels_first ? n_channels : 1); ++c)
    for (std::uint32_t y = 0; y < height; ++y)
      for (const Row& row : rows_[y]) {
        const std::uint32_t from = c * height + y, first = from * n_pre_row();
        heard_[row.row].push_back({from, first - c * width, row.tap * tap});
      }
  std::vector<std::uint32_t> places(width);
  for (std::uint32_t x = 0; x < width; ++x) {
    places[x] = n_places_;
    n_places_ += static_cast<int>(runs_[x].size()) * shape_.groups;
  }
  for (std::uint32_t k = 0; k < n_channels * width; ++k) {
    const std::uint32_t c = shape_.channels_first ? k / width : k % n_channels;
    const std::uint32_t x = shape_.channels_first ? k % width : k / n_channels;
    const std::uint32_t group = c / group_senders_, first = group * group_channels_;
    run_starts_.push_back(static_cast<std::uint32_t>(row_runs_.size()));
    std::uint32_t place = places[x] + group * static_cast<std::uint32_t>(runs_[x].size());
    one_run_ = one_run_ && runs_[x].size() == 1;
    for (const Run& run : runs_[x]) {
      const std::int32_t to = run.column * shape_.channels + first;
      const std::uint32_t at = (c % group_senders_ * shape_.kernel[1] + run.tap) * shape_.channels + first;
      const std::uint32_t left = run.n_left * shape_.channels;
      row_runs_.push_back({to, run.n_taps * group_channels_, at, place});
      whole_runs_.push_back({to - static_cast<std::int32_t>(left), run.n_whole * group_channels_, at - left, place++});
    }
  }
  run_starts_.push_back(static_cast<std::uint32_t>(row_runs_.size()));
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
  return spec.fires && !spec.fixed && !spec.needs_step_order() && !input.currents && !input.gives_potentials;
}

void RowStarts::find(const Lists& lists, int n_steps, int n_samples, int sample, int n_rows, int length, bool near) {
  with_ids(lists.wide, lists.ids,
           [&](auto* ids) { find_ids(lists, ids, n_steps, n_samples, sample, n_rows, length, near); });
}

template <class Id>
void RowStarts::find_ids(const Lists& lists, const Id* ids, int n_steps, int n_samples, int sample, int n_rows,
                         int length, bool near) {
  stride_ = (near ? 2 : 1) * (static_cast<std::size_t>(n_rows) + 1);
  starts_.resize(stride_ * n_steps);
  std::uint32_t* to = starts_.data();
  for (int t = 0; t < n_steps; ++t) {
    const std::int64_t i = static_cast<std::int64_t>(t) * n_samples + sample;
    const std::int64_t begin = lists.offsets[i], end = lists.offsets[i + 1];
    const std::int64_t fired = lists.n_spikes ? begin + lists.n_spikes[i] : end;
    const auto add = [&](std::int64_t slot, std::int64_t last) {
      std::uint32_t bound = 0;
      for (int row = 0; row < n_rows; ++row) {
        *to++ = static_cast<std::uint32_t>(slot - begin);
        for (bound += length; slot < last && ids[slot] < bound;) ++slot;
      }
      *to++ = static_cast<std::uint32_t>(last - begin);
    };
    add(begin, fired);
    if (near) add(fired, end);
  }
}

void set_up(WindowPass& pass, const LayerSpec& spec, const LayerInput& input, const Padded& neuron) {
  pass.spec = &spec;
  pass.neuron = neuron.pointers();
  pass.n_steps = input.n_steps;
  pass.n_samples = input.n_samples;
  pass.length = WindowRows(input).length;
  pass.n_sources = static_cast<int>(input.sources.size());
}

RowSources::RowSources(const LayerInput& input, const PackedWindows& packed, const std::vector<bool>& near)
    : input_(input), near_(near), starts_(input.sources.size()) {
  std::size_t n_places = 0;
  for (const SourceInput& from : input.sources) n_places += from.windows->n_places();
  seen_ = Array<std::int32_t>(n_places);
  std::int32_t* seen = seen_.data();
  for (std::size_t k = 0; k < input.sources.size(); ++k) {
    const SourceInput& from = input.sources[k];
    const Windows& windows = *from.windows;
    RowSource source{};
    source.lists = from.lists;
    source.delay = from.delay;
    source.weight = packed.data.data() + packed.first[k];
    source.n_pre_rows = windows.n_pre_rows();
    source.run_starts = windows.run_starts();
    source.clipped = windows.runs(false);
    source.runs = windows.runs(!(near[k] && !windows.same_lanes()));
    source.seen = seen;
    seen += windows.n_places();
    sources_.push_back(source);
  }
}

void RowSources::find(int sample) {
  for (std::size_t k = 0; k < sources_.size(); ++k) {
    const Windows& windows = *input_.sources[k].windows;
    const int n_lists = std::max(0, input_.n_steps - sources_[k].delay);
    starts_[k].find(sources_[k].lists, n_lists, input_.n_samples, sample, windows.n_pre_rows(), windows.n_pre_row(),
                    near_[k]);
    sources_[k].starts = starts_[k].data();
    sources_[k].stride = starts_[k].stride();
  }
}

const RowSource* RowSources::of_row(int row) {
  for (std::size_t k = 0; k < sources_.size(); ++k) {
    const std::vector<HeardRow>& heard = input_.sources[k].windows->heard(row);
    sources_[k].heard = heard.data();
    sources_[k].heard_end = heard.data() + heard.size();
  }
  std::fill_n(seen_.data(), seen_.size(), -1);
  return sources_.data();
}

WindowRows::WindowRows(const LayerInput& input)
    : n_rows(input.sources[0].windows->n_rows()), length(input.sources[0].windows->row_length()) {
  for (const SourceInput& source : input.sources) margin = std::max(margin, source.windows->margin());
  margin = (margin + 15) / 16 * 16;
}

}  // namespace sparsesnn
