#include "readout_backward.h"

#include <algorithm>
#include <utility>

#include "events.h"
#include "host/src/cpu/kernels/kernels.h"
#include "host/src/machine/isa.h"
#include "host/src/machine/thread_pool.h"
#include "host/src/training/group_sums.h"
#include "packing.h"
#include "phases.h"

namespace sparsesnn {
namespace {

// A weight [M, N] as the forward pass read it, its rows padded with zeros.
Array<float> padded_rows(const float* weight, int n_pre, const LayerSpec& spec) {
  const int n = spec.n, width = spec.n_padded();
  Array<float> rows(static_cast<std::size_t>(n_pre) * width);
  float* row = rows.data();
  for (int m = 0; m < n_pre; ++m, weight += n, row += width) {
    for (int k = 0; k < n; ++k) row[k] = spec.bf16 ? rounded_to_bf16(weight[k]) : weight[k];
    std::fill(row + n, row + width, 0.0f);
  }
  return rows;
}

class Backward {
 public:
  Backward(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved, const OutputGrads& d_out,
           const Wanted& wanted, const OutputGrads& d_potentials);
  LayerGradients run();

 private:
  // A source, with memory for the sum of each group of a leaf, [M, W].
  struct Sender {
    ListSender lists;
    LeafSums sums;  // of d_weight [K, M, N]
    std::size_t n_padded;
    std::vector<Array<float>> groups;
  };

  void run_leaf(const Leaf& leaf);
  void add_groups_of(const Leaf& leaf, const Sender& from) const;

  const LayerSpec& spec_;
  const Wanted& wanted_;
  const Kernels& kernels_ = chosen_kernels();
  const int n_steps_, n_samples_;
  const std::size_t n_, row_;  // neurons; the same padded to the tile
  const bool separate_;
  const Padded neuron_;
  const std::vector<Leaf> leaves_;
  std::vector<Array<float>> weights_, d_parameters_by_sample_;
  std::vector<Sender> senders_;
  Array<float> d_bias_, d_state_;      // [groups][W]; [S][B, W]
  Array<float> d_slots_, d_currents_;  // of neurons that fire: [slots]; [B, W]
  BackwardPass pass_;
  LayerGradients out_;
};

Backward::Backward(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved, const OutputGrads& d_out,
                   const Wanted& wanted, const OutputGrads& d_potentials)
    : spec_(spec),
      wanted_(wanted),
      n_steps_(input.n_steps),
      n_samples_(input.n_samples),
      n_(static_cast<std::size_t>(spec.n)),
      row_(static_cast<std::size_t>(spec.n_padded())),
      separate_(wanted.n_batch > 0),
      neuron_(spec, input),
      leaves_(make_leaves(input.n_samples, spec.first_sample, wanted.n_batch)),
      d_bias_(wanted.bias ? Array<float>::zeros(count_groups(input.n_samples) * row_) : Array<float>()),
      d_state_(Array<float>::zeros(static_cast<std::size_t>(input.n_samples) * row_ * spec.shape->n_states)),
      pass_(backward_pass(spec, input, saved, neuron_, {})) {
  const bool any = n_steps_ > 0 && !leaves_.empty();
  const std::size_t n_branches = !separate_ ? 1 : leaves_.empty() ? 0 : leaves_.back().branch + 1;
  for (std::size_t k = 0; k < input.sources.size(); ++k) {
    const SourceInput& from = input.sources[k];
    const std::size_t n_weights = from.n_pre * n_, size = n_weights * n_branches;
    out_.d_weight.emplace_back();
    out_.d_value.emplace_back();
    ListSender lists{from.lists, from.n_pre, from.delay};
    if (wanted.weight[k])
      out_.d_weight[k] = !any        ? Array<float>::zeros(size)
                         : separate_ ? Array<float>::shared(size)  // for the replicas on this host
                                     : Array<float>(size);
    if (wanted.value[k]) {
      out_.d_value[k] = value_grads(from, n_steps_, n_samples_, 1);
      weights_.push_back(padded_rows(from.weight, from.n_pre, spec));
      lists.weight = weights_.back().data();
      lists.d_value = out_.d_value[k].data();
    }
    senders_.push_back({lists, LeafSums(out_.d_weight[k].data(), n_weights, leaves_), from.n_pre * row_, {}});
  }
  out_.d_parameters.resize(spec.n_learnt());
  for (int k = 0; k < spec.n_learnt(); ++k) {
    d_parameters_by_sample_.push_back(Array<float>::zeros(n_samples_ * row_));
    pass_.d_parameters_by_sample[k] = d_parameters_by_sample_[k].data();
  }
  pass_.potentials = saved.potentials;
  pass_.rows = saved.rows;
  std::copy(std::begin(input.state), std::end(input.state), pass_.initial_state);
  pass_.d_potentials = spec.fires ? d_potentials : d_out;
  if (spec.fires) {
    pass_.n_slots = saved.lists.offsets[static_cast<std::int64_t>(n_steps_) * n_samples_];
    d_slots_ = Array<float>(static_cast<std::size_t>(pass_.n_slots));
    d_currents_ = Array<float>(n_samples_ * row_);
    pass_.d_values = d_out.data;
    pass_.d_slots = d_slots_.data();
    pass_.d_currents = d_currents_.data();
    pass_.n_kept = 1;
  }
  for (int s = 0; s < spec.shape->n_states; ++s) pass_.d_state[s] = d_state_.data() + s * n_samples_ * row_;
  pass_.n_senders = static_cast<int>(senders_.size());
}

LayerGradients Backward::run() {
  for (const Leaf& leaf : leaves_)
    if (n_steps_) run_leaf(leaf);
  if (wanted_.bias) out_.d_bias = sum_padded_groups(d_bias_, row_, n_, separate_);
  for (std::size_t q = 0; q < d_parameters_by_sample_.size(); ++q)
    if (const Array<float>& by_sample = d_parameters_by_sample_[q])
      out_.d_parameters[q] = sum_samples(by_sample, row_, n_samples_, n_, separate_);
  return std::move(out_);
}

// All steps of the groups of a leaf, each group separately; then their sums.
void Backward::run_leaf(const Leaf& leaf) {
  const int n_groups = leaf.hi - leaf.lo, n_workers = std::min(n_groups, num_threads());
  for (Sender& from : senders_)
    while (from.sums && static_cast<int>(from.groups.size()) < n_groups) from.groups.emplace_back(from.n_padded);
  parallel_for(n_groups, [&](int k, int) {
    const PhaseTimer timer(Phase::deliver_grad, n_workers);
    std::vector<ListSender> lists;
    for (const Sender& from : senders_) {
      lists.push_back(from.lists);
      if (!from.sums) continue;
      lists.back().sum = from.groups[k].data();
      std::fill_n(lists.back().sum, from.n_padded, 0.0f);
    }
    const int group = leaf.lo + k;
    kernels_.list_grads(pass_, lists.data(), group, d_bias_ ? d_bias_.data() + group * row_ : nullptr);
  });
  for (const Sender& from : senders_) {
    if (!from.sums) continue;
    add_groups_of(leaf, from);
    from.sums.fold(leaf);
  }
}

// The gradient of a leaf: the sums of its groups, in order.
void Backward::add_groups_of(const Leaf& leaf, const Sender& from) const {
  constexpr int piece = 256;  // senders
  const int n_pre = from.lists.n_pre, n_items = (n_pre + piece - 1) / piece;
  float* const total = from.sums.of(leaf);
  parallel_for(n_items, [&](int item, int) {
    const PhaseTimer timer(Phase::deliver_grad, std::min(n_items, num_threads()));
    for (int m = item * piece; m < std::min(n_pre, (item + 1) * piece); ++m) {
      float* const to = total + m * n_;
      std::copy_n(&from.groups[0][m * row_], n_, to);
      for (int g = 1; g < leaf.hi - leaf.lo; ++g) {
        const float* const group = &from.groups[g][m * row_];
        for (std::size_t k = 0; k < n_; ++k) to[k] += group[k];
      }
    }
  });
}

}  // namespace

LayerGradients readout_backward(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved,
                                const OutputGrads& d_out, const Wanted& wanted, const OutputGrads& d_potentials) {
  return Backward(spec, input, saved, d_out, wanted, d_potentials).run();
}

}  // namespace sparsesnn
