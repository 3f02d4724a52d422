// Axonal delays: a neuron's spikes arrive as many steps later as the neuron says, so entries move from list to list.
//
//   entry (t, m) -> (t + d_m, m)                                  d_m whole
//   entry (t, m) -> (t + d, m) by 1 - f and (t + d + 1, m) by f   d_m = d + f, while it learns: graded lists
//
// What meets in one list from two steps becomes one entry, whose value is the sum.
#pragma once

#include "engine.h"

namespace sparsesnn {

struct AxonalDelays {
  const std::int32_t* steps;        // [M], at least 0
  const float* fraction = nullptr;  // [M], 0 <= f < 1; null: delays are whole
};

struct DelayedLists {
  Array<std::int64_t> offsets;
  Array<unsigned char> ids;
  Array<std::int32_t> n_spikes;
  Array<float> values;           // of fractional delays and of graded lists, else none
  Array<std::int32_t> slots[2];  // where each entry went: by 1 - f and by f; -1: to no step of the result
};

// The result has the lists' steps from `first_step` on.
DelayedLists delay_lists(const Lists& lists, int n_steps, int n_samples, int n_neurons, const AxonalDelays& delays,
                         int first_step);

// From ∂L/∂value of the moved entries to that of the entries as they were, and, unless null, ∂L/∂d_m [M]: for each
// spike value·(what its later entry says - what its earlier one says).
void delay_lists_grad(const Lists& lists, std::int64_t n_lists, int n_neurons, const AxonalDelays& delays,
                      const std::int32_t* const slots[2], const float* d_moved, float* d_values, float* d_delays);

}  // namespace sparsesnn
