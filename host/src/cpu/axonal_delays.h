// Axonal delays: each neuron's spikes arrive later by its delay in steps, so entries move from list to list.
//
//   entry (t, m) -> (t + d_m, m)                                  d_m whole
//   entry (t, m) -> (t + d, m) by 1 - f and (t + d + 1, m) by f   d_m = d + f, while it is trained: graded lists
//
// Entries of one neuron that arrive in the same list from two steps become one, whose value is the sum.
#pragma once

#include "engine.h"

namespace sparsesnn {

// Computes `longest` too; steps and fraction are of m neurons.
AxonalDelays axonal_delays(const std::int32_t* steps, const float* fraction, int m);

struct DelayedLists {
  Array<std::int64_t> offsets;
  Array<unsigned char> ids;
  Array<std::int32_t> n_spikes;
  Array<float> values;           // of fractional delays and of graded lists, else none
  Array<std::int32_t> slots[2];  // the new slot of each entry's parts 1 - f and f; -1: outside the result

  Lists view(bool wide) const { return {offsets.data(), ids.data(), n_spikes.data(), wide, values.data()}; }
};

// The result has the lists' steps from `first_step` on; `more` steps are added to every neuron's delay.
DelayedLists delay_lists(const Lists& lists, int n_steps, int n_samples, int n_neurons, const AxonalDelays& delays,
                         int first_step, int more = 0);

// The population's own lists as they arrive through a loop with axonal delays, for the T steps of a pass; `before`: its
// lists of the n_before steps before.
DelayedLists heard_lists(const Lists& before, int n_before, const Lists& lists, int n_steps, int n_samples,
                         int n_neurons, const LoopInput& loop);

// From ∂L/∂value of the moved entries to that of the original entries, and, unless empty, ∂L/∂d_m [G, M] for each group
// of samples: for each spike value·(gradient of its later entry - gradient of its earlier one).
void delay_lists_grad(const Lists& lists, int n_steps, int n_samples, int n_neurons, const AxonalDelays& delays,
                      const std::int32_t* const slots[2], const float* d_moved, float* d_values,
                      const Array<float>& d_delays);

// A sample's own spikes on their way through a loop with axonal delays. Only spikes under way take memory.
class SpikesUnderWay {
 public:
  explicit SpikesUnderWay(const Loop& loop);
  // Sends the spikes fired at step t; steps ascend, and may begin before 0.
  void send(int t, const OwnSpikes& fired);
  // The spikes that arrive at step t, ids ascending; valid until the next call. Every step from 0 on is requested once.
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

// The same for all loops of a layer, null for one without axonal delays.
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
  // [N] per loop, empty if not wanted: groups of samples, added up or, if `separate`, one after another.
  std::vector<Array<float>> sums(const LayerSpec& spec, int n_samples, bool separate) const;

 private:
  std::vector<Array<double>> by_sample_;  // [B, P·W]
  std::vector<double*> pointers_;
  Array<float> nothing_;
};

}  // namespace sparsesnn
