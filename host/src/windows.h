// Synapses from maps to maps: every place of the receiver hears the same window of weights around its place in the
// sender, which is how a convolution connects.
//
// A spiking layer that hears nothing else runs sample by sample and row by row of its maps, each over the whole
// sequence: the states of a row stay in the first cache. What a spike adds to a row lies in runs without a gap
// (codelets/deliver_window.h). Other layers run step by step, as those with sparse synapses do.
#pragma once

#include <cstdint>
#include <vector>

#include "packing.h"

namespace sparsesnn {

struct WindowShape {
  int pre_height, pre_width, pre_channels;
  bool channels_first;  // the sender's neurons are [channels, height, width], else [height, width, channels]
  int kernel[2], stride[2], padding[2], dilation[2];
  int groups, channels;
};

// Runs are taken 16 numbers at a time: arrays that they touch are so many longer.
inline constexpr std::size_t window_slack = 16;

// What one entry of a list adds to one row of the receiver: `n` numbers from `to` on.
struct Hit {
  std::int64_t slot;  // of the entry
  std::int32_t t;     // step of the receiver
  std::uint32_t to, n;
  std::uint32_t weight;  // in the packed weights of all sources
  std::uint16_t source;
  bool is_spike;
};

class Windows {
 public:
  // Throws InputError where the numbers make no maps.
  explicit Windows(const WindowShape& shape);

  int n_pre() const { return shape_.pre_height * shape_.pre_width * shape_.pre_channels; }
  int row_length() const { return width_ * shape_.channels; }
  int n_rows() const { return height_; }
  int n_post() const { return n_rows() * row_length(); }
  // [kernel, kernel, channels of the sender / groups, channels]
  std::vector<std::size_t> weight_shape() const;
  std::size_t n_weights() const;

  // Packed, a run's weights lie one after the other. Throws for NaN and infinity.
  void pack(const float* weight, bool bf16, float* packed) const;
  void unpack(const float* packed, float* weight) const;

  // Calls visit(row, to, n, weight) for every run that a neuron of the sender adds to; rows ascending.
  template <class Visit>
  void each_run(std::uint32_t id, Visit&& visit) const {
    const std::uint32_t h = shape_.pre_height, w = shape_.pre_width, n = shape_.pre_channels;
    const std::uint32_t c = shape_.channels_first ? id / (h * w) : id % n;
    const std::uint32_t place = shape_.channels_first ? id % (h * w) : id / n;
    const std::uint32_t group = c / group_senders_, first = group * group_channels_;
    for (const Row& row : rows_[place / w]) {
      const std::uint32_t taps = (row.tap * group_senders_ + c % group_senders_) * shape_.kernel[1];
      for (const Run& run : runs_[place % w])
        visit(row.row, run.column * shape_.channels + first, run.n_taps * group_channels_,
              (taps + run.tap) * shape_.channels + first);
    }
  }

 private:
  struct Row {
    std::uint32_t row, tap;
  };
  struct Run {
    std::uint32_t column, n_taps, tap;
  };
  std::size_t packed_row(int y, int x, int c) const {
    return ((static_cast<std::size_t>(y) * group_senders_ + c) * shape_.kernel[1] + order_[x]) * shape_.channels;
  }

  WindowShape shape_;
  int height_, width_;                            // of the receiver
  std::uint32_t group_senders_, group_channels_;  // channels of a group
  std::vector<int> order_;                        // of the taps of a row, in the packed weights
  std::vector<std::vector<Row>> rows_;            // of the receiver that a row of the sender reaches, and by which tap
  std::vector<std::vector<Run>> runs_;            // likewise of columns
};

// The weights of all sources of a layer, packed one behind the other.
struct PackedWindows {
  std::vector<std::uint32_t> first;  // of each source
  Array<float> data;

  PackedWindows(const LayerSpec& spec, const LayerInput& input);
};

// Items in the order of their rows, those of a row as they came.
template <class Item>
class ByRow {
 public:
  // `each` calls visit(row, item) for all of them; it is called twice.
  template <class Each>
  void sort(int n_rows, Each&& each) {
    starts_.assign(static_cast<std::size_t>(n_rows) + 1, 0);
    each([&](std::uint32_t row, const Item&) { ++starts_[row + 1]; });
    for (std::size_t row = 1; row < starts_.size(); ++row) starts_[row] += starts_[row - 1];
    items_.resize(starts_.back());
    next_.assign(starts_.begin(), starts_.end());
    each([&](std::uint32_t row, const Item& item) { items_[next_[row]++] = item; });
  }
  const Item* begin(int row) const { return items_.data() + starts_[row]; }
  const Item* end(int row) const { return items_.data() + starts_[row + 1]; }

 private:
  std::vector<Item> items_;
  std::vector<std::size_t> starts_, next_;
};

// What a sample's lists add to each row, steps ascending, then sources, then ids.
struct RowHits : ByRow<Hit> {
  // `near`: near-spikes too, where the gradient of the source's values is wanted.
  void find(const LayerInput& input, const PackedWindows& packed, int sample, const std::vector<bool>& near);
};

// Rows of a layer that hears windows, and the numbers each.
struct WindowRows {
  int n_rows, length;
  explicit WindowRows(const LayerInput& input);
};

// Whether a layer runs row by row: all that it hears is windows, over maps with the same rows, no step of a row needs
// one of another row.
bool runs_by_row(const LayerSpec& spec, const LayerInput& input);

// A weight as `Source` and `WindowSender` have it.
Packed pack_windows(const Windows& windows, const float* weight, bool bf16);

LayerOutput window_forward(const LayerSpec& spec, const LayerInput& input);
LayerGradients window_backward(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved,
                               const float* d_values, const Wanted& wanted);

}  // namespace sparsesnn
