#include "cross_entropy.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "codelets/cross_entropy.h"
#include "host/src/cpu/engine.h"
#include "host/src/cpu/kernels/kernels.h"

namespace sparsesnn {

OverTime find_over_time(const char* name) {
  constexpr std::pair<const char*, OverTime> known[] = {{"mean", OverTime::mean},
                                                        {"sum", OverTime::sum},
                                                        {"last", OverTime::last},
                                                        {"max", OverTime::max},
                                                        {"step", OverTime::step}};
  for (const auto& [own, value] : known)
    if (!std::strcmp(own, name)) return value;
  throw InputError("DescriptionError", std::string("cross_entropy: no decoding over time is called ") + name);
}

void CrossEntropy::check_labels() const {
  const bool per_step = over_time == OverTime::step;
  const std::size_t n_labels = static_cast<std::size_t>(n_samples) * (per_step ? n_steps : 1);
  if (!labels || !n_labels) return;
  const auto [low, high] = std::minmax_element(labels, labels + n_labels);
  if (*low < (per_step ? -1 : 0) || *high >= n_classes)
    throw InputError("ShapeError", "cross_entropy: labels run from " + std::to_string(*low) + " to " +
                                       std::to_string(*high) + "; allowed: 0 to " + std::to_string(n_classes - 1) +
                                       (per_step ? ", and -1 for no label" : "") +
                                       "; correct the labels or raise n_classes");
}

double CrossEntropy::target(std::size_t label, int c) const {
  const double share = labels ? labels[label] == c : shares[label * n_classes + c];
  return base::target_of(share, label_smoothing, n_classes, class_weights ? class_weights[c] : 1.0);
}

double CrossEntropy::row_loss(const float* logits, std::size_t label, double* exps) const {
  const double most = base::largest(logits, n_classes);
  chosen_kernels().exp_below(logits, n_classes, most, exps);
  return base::row_loss(logits, exps, n_classes, most, [&](int c) { return target(label, c); });
}

void CrossEntropy::row_gradient(const float* logits, std::size_t label, double scale, double* exps,
                                float* d_logits) const {
  chosen_kernels().exp_below(logits, n_classes, base::largest(logits, n_classes), exps);
  base::row_gradient(exps, n_classes, scale, [&](int c) { return target(label, c); }, d_logits);
}

double CrossEntropy::losses(float* logits, float* losses) const {
  check_labels();
  const std::size_t row = static_cast<std::size_t>(n_samples) * n_classes;
  if (over_time == OverTime::step) {
    logits = nullptr;
  } else if (over_time == OverTime::last) {
    std::copy_n(potentials + (n_steps - 1) * row, row, logits);
  } else if (over_time == OverTime::max) {
    std::copy_n(potentials, row, logits);
    for (const float* v = potentials + row; v != potentials + n_steps * row; v += row)
      for (std::size_t k = 0; k < row; ++k) logits[k] = v[k] > logits[k] || v[k] != v[k] ? v[k] : logits[k];
  } else {
    std::vector<double> sums(row);
    chosen_kernels().column_sums(potentials, n_steps, row, 0, row, sums.data());
    const double divisor = over_time == OverTime::mean ? n_steps : 1;
    for (std::size_t k = 0; k < row; ++k) logits[k] = static_cast<float>(sums[k] / divisor);
  }
  std::vector<double> exps(n_classes);
  double whole = 0.0;
  for (int b = 0; b < n_samples; ++b) {
    double loss = 0.0;
    if (logits) loss = row_loss(logits + static_cast<std::size_t>(b) * n_classes, b, exps.data());
    for (int t = 0; !logits && t < n_steps; ++t) {
      const std::size_t label = static_cast<std::size_t>(t) * n_samples + b;
      if (has_label(label)) loss += row_loss(potentials + label * n_classes, label, exps.data());
    }
    losses[b] = static_cast<float>(loss);
    whole += losses[b];
  }
  return whole / n_whole;
}

void CrossEntropy::gradient(const float* logits, float d_loss, float* d_potentials) const {
  const std::size_t row = static_cast<std::size_t>(n_samples) * n_classes;
  const double scale = static_cast<double>(d_loss) / n_whole / (over_time == OverTime::mean ? n_steps : 1);
  std::vector<double> exps(n_classes);
  if (over_time == OverTime::step) {
    for (std::size_t label = 0; label < static_cast<std::size_t>(n_steps) * n_samples; ++label) {
      float* const d = d_potentials + label * n_classes;
      if (has_label(label))
        row_gradient(potentials + label * n_classes, label, scale, exps.data(), d);
      else
        std::fill_n(d, n_classes, 0.0f);
    }
    return;
  }
  std::vector<float> own_d_logits(same_at_all_steps() ? 0 : row);
  float* const d_logits = same_at_all_steps() ? d_potentials : own_d_logits.data();
  for (std::size_t b = 0; b < static_cast<std::size_t>(n_samples); ++b)
    row_gradient(logits + b * n_classes, b, scale, exps.data(), d_logits + b * n_classes);
  if (over_time == OverTime::last) {
    std::fill_n(d_potentials, (n_steps - 1) * row, 0.0f);
    std::copy_n(d_logits, row, d_potentials + (n_steps - 1) * row);
  } else if (over_time == OverTime::max) {
    // steps that hold the maximum share its gradient
    std::vector<int> holders(row);
    for (int t = 0; t < n_steps; ++t)
      for (std::size_t k = 0; k < row; ++k) holders[k] += potentials[t * row + k] == logits[k];
    for (std::size_t k = 0; k < row; ++k) d_logits[k] /= static_cast<float>(holders[k]);
    for (int t = 0; t < n_steps; ++t)
      for (std::size_t k = 0; k < row; ++k)
        d_potentials[t * row + k] = potentials[t * row + k] == logits[k] ? d_logits[k] : 0.0f;
  }
}

}  // namespace sparsesnn
