// The optimizer's step over some parameters, all threads.
#pragma once

#include <cstddef>
#include <vector>

#include "codelets/cpu/records.h"

namespace sparsesnn {

// One parameter: its weights, moments and gradient, n floats each; see codelets/cpu/adam.h.
struct AdamUpdate {
  float *w, *m, *s;
  const float* d;
  std::size_t n;
  AdamStep step;
};

void adam_step(const std::vector<AdamUpdate>& updates);

}  // namespace sparsesnn
