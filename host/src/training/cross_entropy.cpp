#include "cross_entropy.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "host/src/cpu/engine.h"
#include "host/src/cpu/kernels/kernels.h"

namespace sparsesnn {

namespace {

// ln x for x >= 1: x = 2^e m, and 2 artanh((m - 1) / (m + 1)).
double log_of_sum(double x) {
  if (!(x < 0x1p1000)) return x;
  const auto bits = std::bit_cast<std::uint64_t>(x);
  int e = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000fffffffffffff) | 0x3ff0000000000000);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++e;
  }
  const double f = (m - 1.0) / (m + 1.0), f2 = f * f;
  double sum = 0.0;
  for (int k = 21; k > 0; k -= 2) sum = sum * f2 + 1.0 / k;
  return e * 0x1.62e42fefa39efp-1 + 2.0 * f * sum;
}

float largest(const float* logits, int n) {
  float most = logits[0];
  for (int c = 1; c < n; ++c) most = logits[c] > most || logits[c] != logits[c] ? logits[c] : most;
  return most;
}

}  // namespace

OverTime find_over_time(const char* name) {
  constexpr std::pair<const char*, OverTime> known[] = {
      {"mean", OverTime::mean}, {"sum", OverTime::sum}, {"last", OverTime::last}, {"max", OverTime::max}};
  for (const auto& [own, value] : known)
    if (!std::strcmp(own, name)) return value;
  throw InputError("DescriptionError", std::string("cross_entropy: no decoding over time is called ") + name);
}

double CrossEntropy::target(int b, int c) const {
  const double one = labels ? labels[b] == c : shares[static_cast<std::size_t>(b) * n_classes + c];
  return one * (1.0 - label_smoothing) + label_smoothing / n_classes;
}

double CrossEntropy::losses(float* logits, float* losses) const {
  const Kernels& kernels = chosen_kernels();
  const std::size_t row = static_cast<std::size_t>(n_samples) * n_classes;
  if (labels && n_samples) {
    const auto [low, high] = std::minmax_element(labels, labels + n_samples);
    if (*low < 0 || *high >= n_classes)
      throw InputError("ShapeError", "cross_entropy: labels run from " + std::to_string(*low) + " to " +
                                         std::to_string(*high) + "; allowed: 0 to " + std::to_string(n_classes - 1) +
                                         "; correct the labels or raise n_classes");
  }
  if (over_time == OverTime::last) {
    std::copy_n(potentials + (n_steps - 1) * row, row, logits);
  } else if (over_time == OverTime::max) {
    std::copy_n(potentials, row, logits);
    for (const float* v = potentials + row; v != potentials + n_steps * row; v += row)
      for (std::size_t k = 0; k < row; ++k) logits[k] = v[k] > logits[k] || v[k] != v[k] ? v[k] : logits[k];
  } else {
    std::vector<double> sums(row);
    kernels.column_sums(potentials, n_steps, row, 0, row, sums.data());
    const double divisor = over_time == OverTime::mean ? n_steps : 1;
    for (std::size_t k = 0; k < row; ++k) logits[k] = static_cast<float>(sums[k] / divisor);
  }
  std::vector<double> exps(n_classes);
  double whole = 0.0;
  for (int b = 0; b < n_samples; ++b) {
    const float* own = logits + static_cast<std::size_t>(b) * n_classes;
    const double most = largest(own, n_classes);
    kernels.exp_below(own, n_classes, most, exps.data());
    double sum = 0.0, loss = 0.0;
    for (int c = 0; c < n_classes; ++c) sum += exps[c];
    const double log_sum = log_of_sum(sum);
    // a class without a share adds nothing, even if its logit is -infinity
    for (int c = 0; c < n_classes; ++c)
      if (const double share = target(b, c)) loss += share * (log_sum - (own[c] - most));
    losses[b] = static_cast<float>(sum != sum ? sum : loss);
    whole += losses[b];
  }
  return whole / n_whole;
}

void CrossEntropy::gradient(const float* logits, float d_loss, float* d_potentials) const {
  const Kernels& kernels = chosen_kernels();
  const std::size_t row = static_cast<std::size_t>(n_samples) * n_classes;
  std::vector<float> own_d_logits(same_at_all_steps() ? 0 : row);
  float* const d_logits = same_at_all_steps() ? d_potentials : own_d_logits.data();
  std::vector<double> exps(n_classes);
  for (int b = 0; b < n_samples; ++b) {
    const float* own = logits + static_cast<std::size_t>(b) * n_classes;
    const double most = largest(own, n_classes);
    kernels.exp_below(own, n_classes, most, exps.data());
    double sum = 0.0, shares_sum = 0.0;
    for (int c = 0; c < n_classes; ++c) {
      sum += exps[c];
      shares_sum += target(b, c);
    }
    const double scale = static_cast<double>(d_loss) / n_whole / (over_time == OverTime::mean ? n_steps : 1);
    for (int c = 0; c < n_classes; ++c)
      d_logits[static_cast<std::size_t>(b) * n_classes + c] =
          static_cast<float>(scale * (exps[c] / sum * shares_sum - target(b, c)));
  }
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
