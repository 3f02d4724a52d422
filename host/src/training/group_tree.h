// The order in which the gradients of a batch's samples are added.
//
// A weight's gradient is a sum over groups of samples (`group_samples` in layer.h), each of which begins at zero. Up to
// `leaf_groups` of them are added one after the other. The sum of more is that of the first half plus that of the
// second; an odd one belongs to the first. So a rank with some groups of a batch adds them up to a few branches of that
// tree, half of a large batch to one, and all arrive at the same bits.
#pragma once

#include <cstddef>
#include <vector>

namespace sparsesnn {

constexpr int leaf_groups = 8;

// Groups lo..hi-1, whose sum is added to the last `folds` of the pending sums before it, the latest first.
struct Branch {
  int lo, hi, folds;
};

// The branches of `n_groups` groups, cut at `edges` (ascending): as few as possible, none crosses an edge. A leaf that
// an edge cuts is the sum of the groups before it and, one by one, those after it.
std::vector<Branch> find_branches(int n_groups, const std::vector<int>& edges);

// The leaves of groups lo..hi-1 if these are one branch.
std::vector<Branch> find_leaves(int lo, int hi);

// total[k] = the sum of the branches' k-th numbers, folded accordingly. `total` may be one of them.
void add_branches(const std::vector<const float*>& branches, const std::vector<int>& folds, std::size_t n,
                  float* total);

// The same for the active ones among rows of `length`, which are then copied to each of `copies`, in the memory of
// other processes; `total` and the copies keep the other rows.
void add_active_rows(const std::vector<const float*>& branches, const std::vector<int>& folds, const bool* active,
                     std::size_t n_rows, std::size_t length, float* total, const std::vector<float*>& copies);

}  // namespace sparsesnn
