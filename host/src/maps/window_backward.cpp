// The backward pass of a layer with windows as input (windows.h): sample by sample, row by row, steps descending.
//
// The gradient of a weight is a sum over groups of samples (layer.h); a group's is that of its samples, ascending, each
// of which begins at zero and adds rows ascending, steps descending, hits in the order of the forward pass.
#include <algorithm>
#include <utility>

#include "host/src/cpu/kernels/kernels.h"
#include "host/src/cpu/packing.h"
#include "host/src/cpu/phases.h"
#include "host/src/machine/isa.h"
#include "host/src/machine/thread_pool.h"
#include "host/src/training/group_sums.h"
#include "host/src/training/group_tree.h"
#include "window_passes.h"

namespace sparsesnn {
namespace {

// Arrays of one worker.
class BackwardRoom {
 public:
  BackwardRoom(const LayerSpec& spec, const LayerInput& input, const PackedWindows& packed, const WindowRows& rows,
               const Wanted& wanted)
      : sources(input, packed, wanted.value),
        n_(window_row_floats(rows.length)),
        n_blocks_(window_blocks(rows.length)) {
    const int n_states = spec.shape->n_states, n_entries = static_cast<int>(spec.shape->entries.size());
    floats_ = Array<float>::zeros(n_ * (n_states + n_entries + 3) + 2 * rows.margin);
    steps_ = Array<std::int32_t>(3 * static_cast<std::size_t>(n_blocks_));
    alive_ = Array<bool>(n_blocks_);
    listed_ = Array<unsigned char>(window_listed_bytes * n_blocks_);
    float* next = floats_.data();
    const auto take = [&] { return std::exchange(next, next + n_); };
    for (int s = 0; s < n_states; ++s) room_.d_state[s] = take();
    for (int k = 0; k < n_entries; ++k) room_.entry[k] = take();
    room_.q = take();
    if (wanted.bias) room_.d_bias = take();
    room_.d_current = next + rows.margin;
    room_.next = steps_.data();
    room_.reached = steps_.data() + n_blocks_;
    room_.n_listed = steps_.data() + 2 * n_blocks_;
    room_.alive = alive_.data();
    room_.listed = listed_.data();
  }

  WindowBackwardRoom room(float* d_weight) const {
    WindowBackwardRoom room = room_;
    room.d_weight = d_weight;
    return room;
  }

  RowSources sources;
  RowStarts listed, silenced;  // of the layer's own lists

 private:
  std::size_t n_;
  int n_blocks_;
  Array<float> floats_;
  Array<std::int32_t> steps_;
  Array<bool> alive_;
  Array<unsigned char> listed_;
  WindowBackwardRoom room_{};
};

class Backward {
 public:
  Backward(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved, const float* d_values,
           const Wanted& wanted)
      : spec_(spec),
        input_(input),
        saved_(saved),
        wanted_(wanted),
        rows_(input),
        packed_(spec, input),
        neuron_(spec, input),
        n_slots_(saved.lists.offsets[static_cast<std::int64_t>(input.n_steps) * input.n_samples]),
        rooms_(num_threads()),
        d_slots_(n_slots_) {
    for (std::int64_t j = 0; j < n_slots_; ++j) d_slots_[j] = saved.fields[j] * d_values[j];
  }

  LayerGradients run();

 private:
  void run_sample(int sample, int worker, float* d_weight);
  void sum_weights();

  const LayerSpec& spec_;
  const LayerInput& input_;
  const LayerSaved& saved_;
  const Wanted& wanted_;
  const Kernels& kernels_ = chosen_kernels();
  const WindowRows rows_;
  const PackedWindows packed_;
  const Padded neuron_;
  const std::int64_t n_slots_;
  std::vector<std::unique_ptr<BackwardRoom>> rooms_;  // of each worker
  Array<float> d_slots_, d_bias_;                     // σ'·e of each slot; [B, N]
  WindowBackward pass_{};
  LayerGradients out_;
};

void Backward::run_sample(int sample, int worker, float* d_weight) {
  std::unique_ptr<BackwardRoom>& own = rooms_[worker];
  if (!own) own = std::make_unique<BackwardRoom>(spec_, input_, packed_, rows_, wanted_);
  own->sources.find(sample);
  const auto find = [&](RowStarts& starts, const Lists& lists) {
    starts.find(lists, input_.n_steps, input_.n_samples, sample, rows_.n_rows, rows_.length, lists.n_spikes != nullptr);
  };
  find(own->listed, pass_.lists);
  if (pass_.silenced.offsets) find(own->silenced, pass_.silenced);
  const OwnRows rows{own->listed.data(), own->silenced.data(), own->listed.stride(), own->silenced.stride(),
                     rows_.n_rows};
  const WindowBackwardRoom room = own->room(d_weight);
  for (int row = 0; row < rows_.n_rows; ++row) {
    kernels_.backward_row(pass_, sample, row, own->sources.of_row(row), rows, room);
    if (wanted_.bias)
      std::memcpy(d_bias_.data() + static_cast<std::size_t>(sample) * spec_.n + row * rows_.length, room.d_bias,
                  sizeof(float) * rows_.length);
  }
}

// Runs all samples, and adds up their gradients of the weights.
void Backward::sum_weights() {
  const std::size_t n = packed_.data.size();
  const bool any = std::find(wanted_.weight.begin(), wanted_.weight.end(), true) != wanted_.weight.end();
  const std::vector<Leaf> leaves = make_leaves(input_.n_samples, spec_.first_sample, wanted_.n_batch);
  const std::size_t n_branches = leaves.empty() ? 0 : leaves.back().branch + 1;
  std::vector<Array<float>> sums;
  std::vector<std::vector<const float*>> branches(std::max<std::size_t>(n_branches, !wanted_.n_batch));
  std::vector<std::vector<int>> folds(branches.size());
  for (const Leaf& leaf : leaves) {
    const int first = leaf.lo * group_samples, last = std::min(input_.n_samples, leaf.hi * group_samples);
    const Array<float> by_sample = any ? Array<float>(n * (last - first)) : Array<float>();
    parallel_for(last - first, [&](int k, int worker) {
      float* const d_weight = any ? by_sample.data() + n * k : nullptr;
      if (any) std::memset(d_weight, 0, sizeof(float) * n);
      run_sample(first + k, worker, d_weight);
    });
    if (!any) continue;
    sums.emplace_back(n);
    add_samples(by_sample.data(), n, n, last - first, true, sums.back().data());
    branches[leaf.branch].push_back(sums.back().data());
    folds[leaf.branch].push_back(leaf.folds);
  }
  for (std::size_t k = 0; k < input_.sources.size(); ++k) {
    if (!wanted_.weight[k]) continue;
    const std::size_t size = input_.sources[k].windows->n_weights() * branches.size();
    out_.d_weight[k] = wanted_.n_batch && size ? Array<float>::shared(size) : Array<float>(size);
  }
  for (std::size_t branch = 0; any && branch < branches.size(); ++branch) {
    const Array<float> total = Array<float>::zeros(n);
    if (!branches[branch].empty()) add_branches(branches[branch], folds[branch], n, total.data());
    for (std::size_t k = 0; k < input_.sources.size(); ++k) {
      const Windows& windows = *input_.sources[k].windows;
      if (wanted_.weight[k])
        windows.unpack(total.data() + packed_.first[k], out_.d_weight[k].data() + branch * windows.n_weights());
    }
  }
}

LayerGradients Backward::run() {
  const std::size_t n_sources = input_.sources.size(), n = static_cast<std::size_t>(spec_.n);
  out_.d_weight.resize(n_sources);
  out_.d_value.resize(n_sources);
  out_.d_parameters.resize(spec_.n_learnt());
  set_up(pass_, spec_, input_, neuron_);
  for (std::size_t k = 0; k < n_sources; ++k) {
    const SourceInput& from = input_.sources[k];
    if (wanted_.value[k])
      out_.d_value[k] =
          Array<float>::zeros(from.lists.offsets[static_cast<std::int64_t>(from.n_list_steps) * input_.n_samples]);
    pass_.d_value[k] = out_.d_value[k].data();
    pass_.first_d[k] = wanted_.weight[k] ? std::int64_t{packed_.first[k]} : -1;
  }
  pass_.lists = saved_.lists;
  pass_.silenced.offsets = saved_.silenced_offsets;
  pass_.silenced.ids = saved_.silenced_ids;
  pass_.silenced.wide = true;
  pass_.fields = saved_.fields;
  pass_.n_slots = n_slots_;
  pass_.d_slots = d_slots_.data();
  if (wanted_.bias) d_bias_ = Array<float>(n * input_.n_samples);
  {
    const PhaseTimer timer(Phase::deliver_grad);
    sum_weights();
  }
  if (wanted_.bias)
    out_.d_bias = sum_groups(input_.n_samples, n, wanted_.n_batch > 0, [&](int b0, int b1, double* sum) {
      for (int b = b0; b < b1; ++b)
        for (std::size_t k = 0; k < n; ++k) sum[k] += d_bias_[b * n + k];
    });
  if (spec_.n_learnt()) parameter_grads(spec_, input_, saved_, d_slots_.data(), n_slots_, wanted_.n_batch > 0, out_);
  return std::move(out_);
}

}  // namespace

LayerGradients window_backward(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved,
                               const float* d_values, const Wanted& wanted) {
  return Backward(spec, input, saved, d_values, wanted).run();
}

}  // namespace sparsesnn
