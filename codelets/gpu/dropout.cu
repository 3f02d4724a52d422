// Dropout of spikes as a transform: lists without the entries that are left out, and its adjoint on the values of the
// entries (host/src/transforms/dropout.cpp). Every layer that reads a population, but not itself, shares these lists;
// they begin where the population's own lists begin.
//
// An entry stays if the numbers of its neuron, and of its neuron and step, in its sample's streams are at least a limit
// (`DrawnDropout` of sparsesnn/train/prepare.py; streams: datasets/hashing.py). The adjoint draws them again.
//
// A block of one warp takes a list, its lanes take entries in turn.
#include "codelets/gpu/layout.h"
#include "codelets/splitmix.h"

namespace sparsesnn::SPARSESNN_ISA {

struct ThinArgs {
  DeviceLists lists;                            // the population's own
  Global<const uint64> draws;                   // [neurons, spikes][1 + B]: the limit, then the key of each sample
  Global<int32> n_spikes, n_listed;             // [T·B], of the lists without entries: written by `thin`
  Global<uint16> ids;                           // likewise
  Global<const float> d_thinned;                // ∂L/∂value of their entries, read by `thin_grad`
  Global<float> d_values;                       // of all entries, written by `thin_grad`, or added to
  int32 n_samples, adds, first_sample, n_wave;  // lists of the samples [first_sample, first_sample + n_wave)
};

// Calls visit(j, place) for the entries of the block's list, j from 0 on; place: among those that stay, or -1. All
// lanes call it together, those beyond the list with -1.
template <class Visit>
inline void each_entry(const ThinArgs& a, int list, Visit&& visit) {
  const int t = list / a.n_samples, b = list % a.n_samples, lane = thread_index();
  const int begin = a.lists.begin[list], n_listed = a.lists.n_listed[list];
  const auto number = [&](int row, uint64 counter) {
    return finalized(a.draws[row * (1 + a.n_samples) + 1 + b] + (counter + 1) * splitmix_step) >> 11;
  };
  const uint64 least_neuron = a.draws[0], least_spike = a.draws[1 + a.n_samples];
  int n_kept = 0;
  for (int j0 = 0; j0 < n_listed; j0 += 32) {
    const int j = j0 + lane;
    const bool exists = j < n_listed;
    const uint64 neuron = exists ? static_cast<uint64>(a.lists.ids[begin + j]) : 0;
    const bool stays = exists && number(0, neuron) >= least_neuron &&
                       number(1, (static_cast<uint64>(t) << 32) + neuron) >= least_spike;
    const uint32 kept = ballot(stays);
    visit(j, stays ? n_kept + count_bits_of(kept & ((1u << lane) - 1)) : -1);
    n_kept += count_bits_of(kept);
  }
}

inline int list_of_block(const ThinArgs& a) {
  return block_index() / a.n_wave * a.n_samples + a.first_sample + block_index() % a.n_wave;
}

KERNEL(thin, ThinArgs, 32) {
  const int list = list_of_block(a), begin = a.lists.begin[list], n_own = a.lists.n_spikes[list];
  int n_spikes = 0, n_listed = 0;
  each_entry(a, list, [&](int j, int place) {
    n_spikes += count_bits_of(ballot(place >= 0 && j < n_own));
    n_listed += count_bits_of(ballot(place >= 0));
    if (place >= 0) a.ids[begin + place] = a.lists.ids[begin + j];
  });
  if (thread_index() == 0) a.n_spikes[list] = n_spikes, a.n_listed[list] = n_listed;
}

KERNEL(thin_grad, ThinArgs, 32) {
  const int list = list_of_block(a), begin = a.lists.begin[list], n_listed = a.lists.n_listed[list];
  each_entry(a, list, [&](int j, int place) {
    if (j >= n_listed) return;
    const float d = place >= 0 ? static_cast<float>(a.d_thinned[begin + place]) : 0.0f;
    a.d_values[begin + j] = a.adds ? a.d_values[begin + j] + d : d;
  });
}

}  // namespace sparsesnn::SPARSESNN_ISA
