// The cross-entropy of a readout's potentials, decoded over time, and its gradient, as defined in sparsesnn/loss.py.
//
// All of it is plain arithmetic in double precision, rounded once at the end: the same bits on every machine.
#pragma once

#include <cstdint>

namespace sparsesnn {

// How potentials v[t] of a neuron become one logit.
enum class OverTime { mean, sum, last, max };

// Throws InputError for another name.
OverTime find_over_time(const char* name);

struct CrossEntropy {
  const float* potentials;  // [T, B, C], T at least 1
  int n_steps, n_samples, n_classes;
  OverTime over_time;
  const std::int64_t* labels;  // [B], or null
  const float* shares;         // [B, C] of each class in a mixed sample, or null
  double label_smoothing;
  double n_whole;  // samples of the whole batch, of which these may be a part

  // The logits [B, C] and the losses of the samples [B]; returns their sum / n_whole. Throws InputError for labels out
  // of range.
  double losses(float* logits, float* losses) const;
  // Whether all steps have the same gradient, which is then returned once, as if T were 1.
  bool same_at_all_steps() const { return over_time == OverTime::mean || over_time == OverTime::sum; }
  // d_loss · ∂(Σ losses / n_whole)/∂v [T, B, C], from the logits.
  void gradient(const float* logits, float d_loss, float* d_potentials) const;

 private:
  double target(int b, int c) const;
};

}  // namespace sparsesnn
