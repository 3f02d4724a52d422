// Axonal delays: a neuron's spikes arrive as many steps later as the neuron says, so entries move from list to list.
//
//   entry (t, m) -> (t + d_m, m)                                  d_m whole
//   entry (t, m) -> (t + d, m) by 1 - f and (t + d + 1, m) by f   d_m = d + f, while it learns: graded lists
//
// What meets in one list from two steps becomes one entry, whose value is the sum.
#pragma once

#include "engine.h"

namespace sparsesnn {

// With `longest`; steps and fraction are of m neurons.
AxonalDelays axonal_delays(const std::int32_t* steps, const float* fraction, int m);

struct DelayedLists {
  Array<std::int64_t> offsets;
  Array<unsigned char> ids;
  Array<std::int32_t> n_spikes;
  Array<float> values;           // of fractional delays and of graded lists, else none
  Array<std::int32_t> slots[2];  // where each entry went: by 1 - f and by f; -1: to no step of the result

  Lists view(bool wide) const { return {offsets.data(), ids.data(), n_spikes.data(), wide, values.data()}; }
};

// The result has the lists' steps from `first_step` on; every entry takes `more` steps beside the neuron's own.
DelayedLists delay_lists(const Lists& lists, int n_steps, int n_samples, int n_neurons, const AxonalDelays& delays,
                         int first_step, int more = 0);

// What the population's own lists bring through a loop with axonal delays, as lists of the T steps of a pass; `before`:
// its lists of the n_before steps before.
DelayedLists heard_lists(const Lists& before, int n_before, const Lists& lists, int n_steps, int n_samples,
                         int n_neurons, const LoopInput& loop);

// From ∂L/∂value of the moved entries to that of the entries as they were, and, unless empty, ∂L/∂d_m [G, M] of each
// group of samples: for each spike value·(what its later entry says - what its earlier one says).
void delay_lists_grad(const Lists& lists, int n_steps, int n_samples, int n_neurons, const AxonalDelays& delays,
                      const std::int32_t* const slots[2], const float* d_moved, float* d_values,
                      const Array<float>& d_delays);

// A sample's own spikes on their way through a loop with axonal delays. Takes memory for those under way alone.
class SpikesUnderWay {
 public:
  explicit SpikesUnderWay(const Loop& loop);
  // Takes what fired at step t; steps ascend, and may begin before 0.
  void send(int t, const OwnSpikes& fired);
  // What arrives at step t, ids ascending; valid until the next call. Every step from 0 on is asked for once.
  OwnSpikes arrive(int t);

 private:
  struct Part {
    std::uint32_t id;
    float value;
  };
  std::vector<Part>& at(int step) { return parts_[static_cast<std::size_t>(step) % parts_.size()]; }

  const int delay_;
  const AxonalDelays delays_;
  std::vector<std::vector<Part>> parts_;  // by step of arrival, in a ring
  std::vector<std::uint32_t> ids_;
  std::vector<float> values_;
};

// The same of all loops of a layer, null where one has no axonal delays.
struct UnderWay {
  std::vector<std::unique_ptr<SpikesUnderWay>> own;
  std::vector<SpikesUnderWay*> pointers;

  explicit UnderWay(const ForwardPass& pass) {
    for (int k = 0; k < pass.n_loops; ++k) {
      if (pass.loops[k].axonal) own.push_back(std::make_unique<SpikesUnderWay>(pass.loops[k]));
      pointers.push_back(pass.loops[k].axonal ? own.back().get() : nullptr);
    }
  }
};

// ∂L/∂d of a layer's loops with axonal delays, sample by sample while a backward pass runs.
class DelayGrads {
 public:
  // wanted: per loop.
  DelayGrads(const LayerSpec& spec, const LayerInput& input, const std::vector<bool>& wanted);
  void give(BackwardPass& pass) const;
  // [N] per loop, empty where none is wanted: groups of samples, added up or, `separate`, one after another.
  std::vector<Array<float>> sums(const LayerSpec& spec, int n_samples, bool separate) const;

 private:
  std::vector<Array<double>> by_sample_;  // [B, P·W]
  std::vector<double*> pointers_;
  Array<float> nothing_;
};

}  // namespace sparsesnn
