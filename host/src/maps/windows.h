// Synapses from maps to maps: every place of the receiver reads the same window of weights around its place in the
// sender, as in a convolution.
//
// A spiking layer with no other input runs sample by sample and row by row of its maps, each over the whole sequence:
// the states of a row stay in L1. A spike's contribution to a row consists of contiguous runs
// (codelets/cpu/deliver_window.h). Other layers run step by step, as those with sparse synapses do.
#pragma once

#include <cstdint>
#include <vector>

#include "host/src/cpu/packing.h"

namespace sparsesnn {

struct WindowShape {
  int pre_height, pre_width, pre_channels;
  bool channels_first;  // the sender's neurons are [channels, height, width], else [height, width, channels]
  int kernel[2], stride[2], padding[2], dilation[2];
  int groups, channels;
};

// Runs are processed 16 numbers at a time: arrays that they touch have this many more.
inline constexpr std::size_t window_slack = 16;

// The contribution of a sender's neuron to a row of the receiver: `n` numbers from `to` on, weights from `weight` on.
// Runs with the same `place` reach the same numbers.
struct RowRun {
  std::int32_t to;
  std::uint32_t n, weight, place;
};

// A row of the sender's maps from which a row of the receiver receives; with channels first, of one channel.
struct HeardRow {
  std::uint32_t row;
  std::uint32_t base;    // the runs of neuron m begin at run_starts[m - base]
  std::uint32_t weight;  // of its tap, added to that of a run
};

class Windows {
 public:
  // Throws InputError if the numbers do not define maps.
  explicit Windows(const WindowShape& shape);

  int n_pre() const { return shape_.pre_height * shape_.pre_width * shape_.pre_channels; }
  int row_length() const { return width_ * shape_.channels; }
  int n_rows() const { return height_; }
  int n_post() const { return n_rows() * row_length(); }
  // [kernel, kernel, channels of the sender / groups, channels]
  std::vector<std::size_t> weight_shape() const;
  std::size_t n_weights() const;

  // Packed, a run's weights are contiguous. Throws for NaN and infinity.
  void pack(const float* weight, bool bf16, float* packed) const;
  void unpack(const float* packed, float* weight) const;

  // Rows of the sender, of n_pre_row() neurons each, ascending in their ids.
  int n_pre_rows() const { return shape_.pre_height * (shape_.channels_first ? shape_.pre_channels : 1); }
  int n_pre_row() const { return shape_.pre_width * (shape_.channels_first ? 1 : shape_.pre_channels); }
  // The rows from which a row of the receiver receives, ascending, and the runs of their neurons.
  const std::vector<HeardRow>& heard(int row) const { return heard_[row]; }
  // Null if every neuron has one run: that of neuron m is then the one at m - base.
  const std::uint32_t* run_starts() const { return one_run_ ? nullptr : run_starts_.data(); }
  // `whole`: including the taps that reach beyond the ends of the row, by up to `margin()` numbers, so that nearly all
  // runs have one length.
  const RowRun* runs(bool whole) const { return whole ? whole_runs_.data() : row_runs_.data(); }
  int margin() const { return margin_; }
  // Whether the lanes of a sum over a run are the same with those taps.
  bool same_lanes() const { return group_channels_ % 16 == 0; }
  int n_places() const { return n_places_; }

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
    std::uint32_t n_left, n_whole;  // taps that the left end cuts off; the number of taps without ends
  };
  std::size_t packed_row(int y, int x, int c) const {
    return ((static_cast<std::size_t>(y) * group_senders_ + c) * shape_.kernel[1] + order_[x]) * shape_.channels;
  }

  void find_whole_runs();
  void list_runs();

  WindowShape shape_;
  int height_, width_;                            // of the receiver
  std::uint32_t group_senders_, group_channels_;  // channels of a group
  std::vector<int> order_;                        // of the taps of a row, in the packed weights
  std::vector<std::vector<Row>> rows_;            // of the receiver, reached by a row of the sender, and the taps
  std::vector<std::vector<Run>> runs_;            // likewise for columns
  std::vector<std::vector<HeardRow>> heard_;      // of each row of the receiver
  std::vector<std::uint32_t> run_starts_;
  std::vector<RowRun> row_runs_, whole_runs_;
  int n_places_ = 0, margin_ = 0;
  bool one_run_ = true;
};

// The weights of all sources of a layer, packed one after the other.
struct PackedWindows {
  std::vector<std::uint32_t> first;  // of each source
  Array<float> data;

  PackedWindows(const LayerSpec& spec, const LayerInput& input);
};

// The positions of the entries of each row of a population in the lists of one sample; ids ascend, so rows are
// contiguous.
class RowStarts {
 public:
  // Rows of `length` neurons. n_spikes of the lists null: all entries are spikes. `near`: near-spikes too.
  void find(const Lists& lists, int n_steps, int n_samples, int sample, int n_rows, int length, bool near);
  // Those of step t from t·stride() on [n_rows + 1], then those of near-spikes; counted from the list's first entry.
  const std::uint32_t* data() const { return starts_.data(); }
  std::size_t stride() const { return stride_; }

 private:
  template <class Id>
  void find_ids(const Lists& lists, const Id* ids, int n_steps, int n_samples, int sample, int n_rows, int length,
                bool near);

  std::vector<std::uint32_t> starts_;
  std::size_t stride_ = 0;
};

// Rows of a layer with windows as input, the numbers in each, and how many more runs may touch before and after them.
struct WindowRows {
  int n_rows, length, margin = 0;
  explicit WindowRows(const LayerInput& input);
};

// Whether a layer runs row by row: its inputs are all windows, over maps with the same rows, and no step of a row
// depends on another row.
bool runs_by_row(const LayerSpec& spec, const LayerInput& input);

// A weight in the form of `Source` and `WindowSender`.
Packed pack_windows(const Windows& windows, const float* weight, bool bf16);

LayerOutput window_forward(const LayerSpec& spec, const LayerInput& input);
LayerGradients window_backward(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved,
                               const float* d_values, const Wanted& wanted);

}  // namespace sparsesnn
