// Lists of pooled maps: windows over each channel, applied to spike lists, as lists again.
//
// The entries of a window become one. Its value is their sum, `share` times; or (maximum) the largest value of the
// window, where unlisted neurons count 0. A window without spikes is listed as a near-spike if one of its near-spikes
// gets a gradient through it.
#pragma once

#include "host/src/cpu/engine.h"

namespace sparsesnn {

struct PoolShape {
  int pre_height, pre_width, channels;
  bool channels_first;  // of the sender's neurons; the result has its channels last
  int size[2], stride[2];
  bool maximum;
  float share;

  int height() const { return (pre_height - size[0]) / stride[0] + 1; }
  int width() const { return (pre_width - size[1]) / stride[1] + 1; }
};

struct PooledLists {
  Array<std::int64_t> offsets;  // [lists + 1]
  Array<unsigned char> ids;
  bool wide = false;
  Array<std::int32_t> n_spikes;
  Array<float> values;                // of each entry; none if all spikes are 1
  Array<std::int64_t> ends, entries;  // entry j passes its gradient to entries[ends[j - 1]..ends[j] - 1] of the sender
};

PooledLists pool_lists(const Lists& lists, std::int64_t n_lists, const PoolShape& shape);

// d_values[of the sender] = Σ share·d_pooled, entries ascending. d_values must be zero at first.
void pool_lists_grad(const std::int64_t* ends, const std::int64_t* entries, const float* d_pooled, std::size_t n_pooled,
                     float share, float* d_values);

}  // namespace sparsesnn
