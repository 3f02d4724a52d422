#include "group_sums.h"

namespace sparsesnn {

Array<float> add_groups(const Array<float>& groups, std::size_t n) {
  Array<float> total = Array<float>::zeros(n);
  for (std::size_t g = 0; g < groups.size(); g += n)
    for (std::size_t k = 0; k < n; ++k) total[k] += groups[g + k];
  return total;
}

void parameter_grads(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved, const float* d_slots,
                     std::int64_t n_slots, bool separate, LayerGradients& out) {
  int field = 1 + int(spec.model->reads_x);
  for (int k = 0; k < spec.model->n_parameters; ++k) {
    if (!spec.learns[k]) continue;
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
