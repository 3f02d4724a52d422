#include "group_sums.h"

#include <string>
#include <utility>

#include "host/src/machine/thread_pool.h"

namespace sparsesnn {

std::vector<Leaf> make_leaves(int n_samples, std::uint64_t first_sample, int n_batch) {
  const int n_groups = count_groups(n_samples);
  std::vector<Branch> branches;
  if (!n_batch) {
    branches = find_branches(n_groups, {});
  } else if (n_samples) {
    if (first_sample % group_samples || first_sample + n_samples > static_cast<std::uint64_t>(n_batch))
      throw InputError("ShapeError", "backward: " + std::to_string(n_samples) + " samples from " +
                                         std::to_string(first_sample) + " on are not whole groups of " +
                                         std::to_string(group_samples) + " of a batch of " + std::to_string(n_batch));
    const int before = static_cast<int>(first_sample / group_samples);
    for (const Branch& branch : find_branches(count_groups(n_batch), {before, before + n_groups}))
      if (branch.lo >= before && branch.hi <= before + n_groups)
        branches.push_back({branch.lo - before, branch.hi - before, 0});
  }
  std::vector<Leaf> leaves;
  for (int k = 0; k < static_cast<int>(branches.size()); ++k) {
    int n_waiting = 0;
    for (const Branch& leaf : find_leaves(branches[k].lo, branches[k].hi)) {
      leaves.push_back({leaf.lo, leaf.hi, k, n_waiting, leaf.folds});
      n_waiting += 1 - leaf.folds;
    }
  }
  return leaves;
}

void add_samples(const float* by_sample, std::size_t stride, std::size_t n, int n_samples, bool first, float* total) {
  constexpr std::size_t piece = 4096;
  parallel_for(static_cast<int>((n + piece - 1) / piece), [&](int item, int) {
    for (std::size_t k = item * piece; k < std::min(n, (item + 1) * piece); ++k) {
      float sum = first ? 0.0f : total[k];
      for (int b = 0; b < n_samples; b += group_samples) {
        float group = 0.0f;
        for (int j = b; j < std::min(n_samples, b + group_samples); ++j) group += by_sample[stride * j + k];
        sum += group;
      }
      total[k] = sum;
    }
  });
}

Array<float> add_groups(const Array<float>& groups, std::size_t n) {
  Array<float> total = Array<float>::zeros(n);
  for (std::size_t g = 0; g < groups.size(); g += n)
    for (std::size_t k = 0; k < n; ++k) total[k] += groups[g + k];
  return total;
}

Array<float> sum_samples(const Array<float>& by_sample, std::size_t stride, int n_samples, std::size_t n,
                         bool separate) {
  return sum_groups(n_samples, n, separate, [&](int b0, int b1, double* sum) {
    for (int b = b0; b < b1; ++b)
      for (std::size_t k = 0; k < n; ++k) sum[k] += by_sample[b * stride + k];
  });
}

Array<float> sum_padded_groups(const Array<float>& by_group, std::size_t stride, std::size_t n, bool separate) {
  const std::size_t n_groups = by_group.size() / stride;
  Array<float> groups(n_groups * n);
  for (std::size_t g = 0; g < n_groups; ++g) std::copy_n(by_group.data() + g * stride, n, groups.data() + g * n);
  return separate ? std::move(groups) : add_groups(groups, n);
}

void parameter_grads(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved, const float* d_slots,
                     std::int64_t n_slots, bool separate, LayerGradients& out) {
  int field = 1 + int(spec.records_x());
  for (int k = 0; k < spec.n_learnt(); ++k) {
    const float* trace = saved.fields + static_cast<std::size_t>(field++) * n_slots;
    out.d_parameters[k] = sum_groups(input.n_samples, spec.n, separate, [&](int b0, int b1, double* total) {
      for (int t = 0; t < input.n_steps; ++t) {
        const std::int64_t* offsets = saved.lists.offsets + static_cast<std::int64_t>(t) * input.n_samples;
        for (std::int64_t j = offsets[b0]; j < offsets[b1]; ++j)
          total[saved.lists.id(j)] += static_cast<double>(d_slots[j]) * trace[j];
      }
    });
  }
}

}  // namespace sparsesnn
