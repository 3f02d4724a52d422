// The cross-entropy of a readout's potentials, decoded over time or at every step, and its gradient, as defined in
// sparsesnn/loss.py.
//
// All of it is plain arithmetic in double precision, rounded once at the end: the same bits on every machine.
#pragma once

#include <cstdint>

namespace sparsesnn {

// How potentials v[t] of a neuron become one logit; step: each is a logit, for a label of its step.
enum class OverTime { mean, sum, last, max, step };

// Throws InputError for another name.
OverTime find_over_time(const char* name);

struct CrossEntropy {
  const float* potentials;  // [T, B, C], T at least 1
  int n_steps, n_samples, n_classes;
  OverTime over_time;
  const std::int64_t* labels;  // [B], or null; [T, B] with one for each step, where -1 stands for no label
  const float* shares;         // [B, C] of each class in a mixed sample, or null
  const float* class_weights;  // [C], a factor on the terms of each class, or null
  double label_smoothing;
  double n_whole;  // labels of the whole batch, of which these may be a part

  // The logits [B, C] (null if each step has labels: the potentials are the logits) and the losses of the samples [B],
  // with the sum over their steps; returns their sum / n_whole. Throws InputError for labels out of range.
  double losses(float* logits, float* losses) const;
  // Whether all steps have the same gradient, which is then returned once, as if T were 1.
  bool same_at_all_steps() const { return over_time == OverTime::mean || over_time == OverTime::sum; }
  // d_loss · ∂(Σ losses / n_whole)/∂v [T, B, C], from the logits.
  void gradient(const float* logits, float d_loss, float* d_potentials) const;

 private:
  // `label`: number of the row's label, b, or t·B + b if each step has labels
  double target(std::size_t label, int c) const;
  bool has_label(std::size_t label) const { return !labels || labels[label] >= 0; }
  double row_loss(const float* logits, std::size_t label, double* exps) const;
  void row_gradient(const float* logits, std::size_t label, double scale, double* exps, float* d_logits) const;
  void check_labels() const;
};

}  // namespace sparsesnn
