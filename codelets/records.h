// What codelets and the host both know.
#pragma once

#include <cstddef>

namespace sparsesnn {

// So many events behind its last one a list of events has, in bounds of what they point at: asked for early.
inline constexpr std::size_t events_ahead = 8;

// The numbers of one optimiser step; see adam.h. step_size = lr/c1, root_c2 = √c2.
struct AdamStep {
  float lr, one_minus_beta1, beta2, one_minus_beta2;  // of the doubles: 1 - 0.999f is off by 5e-5 of itself
  float eps, weight_decay, step_size, root_c2;
  bool decoupled;
};

}  // namespace sparsesnn
