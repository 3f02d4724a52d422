// Decoding over time, cross-entropy and its gradient (codelets/cross_entropy.h), one block for each sample, a thread
// for each class. Potentials are read twice for `max`, else once.
#include "codelets/cross_entropy.h"
#include "codelets/gpu/layout.h"

namespace sparsesnn::SPARSESNN_ISA {

// In the order of Python's names (`IN_KERNEL` of sparsesnn/engines/gpu/loss.py).
enum OverTime { mean, sum, last, max };

struct LossArgs {
  Global<const float> potentials;     // [T, B, C]
  Global<const int32> labels;         // [B]; or null
  Global<const float> shares;         // [B, C], of each class in a mixed sample; or null
  Global<const float> class_weights;  // [C]; or null
  Global<const double> numbers;       // label smoothing, labels of the whole batch
  Global<float> logits, losses;       // [B, C], [B]: written
  Global<float> d_potentials;         // [T, B, C], or [B, C] for all steps (mean, sum): written
  int32 n_steps, n_samples, n_classes, over_time;
};

KERNEL(loss, LossArgs, 1024) {
  const int b = block_index(), c = thread_index(), n_classes = a.n_classes;
  const bool exists = c < n_classes;
  const Shared<double> exps = shared_memory<double>(0);                 // [C]
  const Shared<float> logits = shared_memory<float>(n_classes * 8);     // [C]
  const Shared<float> gradient = shared_memory<float>(n_classes * 12);  // [C]
  const int64 row = static_cast<int64>(a.n_samples) * n_classes, first = static_cast<int64>(b) * n_classes;
  const auto at = [&](int t) { return t * row + first + c; };
  float logit = 0.0f;
  if (exists && a.over_time == last) {
    logit = a.potentials[at(a.n_steps - 1)];
  } else if (exists && a.over_time == max) {
    logit = a.potentials[at(0)];
    for (int t = 1; t < a.n_steps; ++t) {
      const float v = a.potentials[at(t)];
      logit = v > logit || v != v ? v : logit;
    }
  } else if (exists) {
    double total = 0.0;
    for (int t = 0; t < a.n_steps; ++t) total += static_cast<double>(a.potentials[at(t)]);
    logit = static_cast<float>(total / (a.over_time == mean ? a.n_steps : 1));
  }
  if (exists) logits[c] = logit;
  barrier();
  const double most = largest(logits, n_classes);
  if (exists) exps[c] = exp_below(logit, most);
  barrier();
  const double smoothing = a.numbers[0], n_whole = a.numbers[1];
  const auto target = [&](int k) {
    const double share = a.labels ? (a.labels[b] == k ? 1.0 : 0.0) : static_cast<double>(a.shares[first + k]);
    return target_of(share, smoothing, n_classes, a.class_weights ? static_cast<double>(a.class_weights[k]) : 1.0);
  };
  if (c == 0) {
    a.losses[b] = static_cast<float>(row_loss(logits, exps, n_classes, most, target));
    row_gradient(exps, n_classes, 1.0 / n_whole / (a.over_time == mean ? a.n_steps : 1), target, gradient);
  }
  barrier();
  if (!exists) return;
  a.logits[first + c] = logit;
  const float d = gradient[c];
  if (a.over_time == max) {  // steps that hold the maximum share its gradient
    int holders = 0;
    for (int t = 0; t < a.n_steps; ++t) holders += a.potentials[at(t)] == logit;
    const float each = d / static_cast<float>(holders);
    for (int t = 0; t < a.n_steps; ++t) a.d_potentials[at(t)] = a.potentials[at(t)] == logit ? each : 0.0f;
  } else if (a.over_time == last) {
    for (int t = 0; t < a.n_steps; ++t) a.d_potentials[at(t)] = t + 1 == a.n_steps ? d : 0.0f;
  } else {
    a.d_potentials[first + c] = d;
  }
}

}  // namespace sparsesnn::SPARSESNN_ISA
