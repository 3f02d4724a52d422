// Gradients of numbers per neuron, as sums over groups of samples.
#pragma once

#include <algorithm>
#include <vector>

#include "group_tree.h"
#include "host/src/cpu/engine.h"

namespace sparsesnn {

inline int count_groups(int n_samples) { return (n_samples + group_samples - 1) / group_samples; }

// Groups of samples whose sum is complete after their last chunk.
struct Leaf {
  int lo, hi;
  int branch;  // the index of the requested sum that it belongs to
  int slot;    // the place of its sum; the slots before it hold pending sums, slot 0 the branch's own
  int folds;   // the number of pending sums it is then added to
};

// The leaves of these samples of a batch, groups counted from the first of them; n_batch: as in `Wanted`.
std::vector<Leaf> make_leaves(int n_samples, std::uint64_t first_sample, int n_batch);

// The gradient of a weight, [branches][size], while its leaves are added up; without a gradient (null) a no-op.
class LeafSums {
 public:
  LeafSums(float* total, std::size_t size, const std::vector<Leaf>& leaves) : total_(total), size_(size) {
    for (const Leaf& leaf : leaves)
      if (total && leaf.slot > static_cast<int>(later_.size())) later_.emplace_back(size);
  }
  explicit operator bool() const { return total_ != nullptr; }
  std::size_t size() const { return size_; }

  // The place of the sum of a leaf, [size].
  float* of(const Leaf& leaf) const { return slot(leaf, leaf.slot); }

  // Adds the sum of a leaf to the pending sums.
  void fold(const Leaf& leaf) const {
    for (int k = leaf.slot - 1; total_ && k >= leaf.slot - leaf.folds; --k)
      add_branches({slot(leaf, k), slot(leaf, k + 1)}, {0, 1}, size_, slot(leaf, k));
  }

 private:
  float* slot(const Leaf& leaf, int k) const {
    if (!total_) return nullptr;
    return k ? later_[k - 1].data() : total_ + leaf.branch * size_;
  }

  float* total_;
  std::size_t size_;
  std::vector<Array<float>> later_;  // [size] each, the slots behind slot 0, which is `total`
};

// total[k] = (first ? 0 : total[k]) + the sums of the groups, in order; a group's begins at zero and adds its samples,
// ascending. by_sample: [samples][stride], of which n are added.
void add_samples(const float* by_sample, std::size_t stride, std::size_t n, int n_samples, bool first, float* total);

// Sums of groups [G, n], added up in order.
Array<float> add_groups(const Array<float>& groups, std::size_t n);

// Calls visit(b0, b1, sum) for each group of samples; `sum` [n] is zero at first. Returns the groups' sums, added up in
// order or, if `separate`, one after another: [G, n].
template <class Visit>
Array<float> sum_groups(int n_samples, std::size_t n, bool separate, Visit&& visit) {
  const int n_groups = count_groups(n_samples);
  Array<float> groups(n * n_groups);
  std::vector<double> sum(n);
  for (int g = 0; g < n_groups; ++g) {
    std::fill(sum.begin(), sum.end(), 0.0);
    visit(g * group_samples, std::min(n_samples, (g + 1) * group_samples), sum.data());
    for (std::size_t k = 0; k < n; ++k) groups[n * g + k] = static_cast<float>(sum[k]);
  }
  return separate ? std::move(groups) : add_groups(groups, n);
}

// The same for numbers of each sample, [samples][stride].
Array<float> sum_samples(const Array<float>& by_sample, std::size_t stride, int n_samples, std::size_t n,
                         bool separate);

// The same for sums of each group, [groups][stride].
Array<float> sum_padded_groups(const Array<float>& by_group, std::size_t stride, std::size_t n, bool separate);

// Gradients of a spiking layer's parameters: Σ over slots of σ'·e times the trace stored with the slot, in the order of
// slots within a group of samples.
void parameter_grads(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved, const float* d_slots,
                     std::int64_t n_slots, bool separate, LayerGradients& out);

}  // namespace sparsesnn
