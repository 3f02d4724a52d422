// A batch from an event cache: the lists of some samples, time-major, augmented if requested.
//
// datasets/augment.py and EventSet.batch are the specification in NumPy; the result here has the same bits. It costs
// one pass over the spikes: a few nanoseconds for each random number of each spike, two bytes read and two written. It
// runs on one thread, alongside the engine: the work is small, and the engine needs the other cores.
#pragma once

#include <cstdint>
#include <vector>

#include "host/src/cpu/engine.h"

namespace sparsesnn {

// The arrays of an EventSet; owned by the caller, who may have mapped them from a file.
struct EventCache {
  const void* ids;                    // uint16 or int32 [n_ids], sample by sample, step by step
  bool wide;                          // int32
  const void* lengths;                // uint8, uint16 or int32 [n_samples, n_steps], length of each list
  int length_bytes;                   // 1, 2 or 4
  const std::int64_t* sample_starts;  // [n_samples + 1]
  const void* values;                 // uint8, uint16 or int32 [n_ids], events counted in each spike; null: plain
  int value_bytes;                    // 1, 2 or 4
  std::int64_t n_ids, n_samples;
  int n_steps, n_neurons;
};

// The strengths of datasets/augment.py, see there; 0 switches a change off.
struct AugmentSpec {
  std::uint64_t seed = 0, epoch = 0;
  double time_jitter = 0, time_stretch = 0, time_crop = 0, channel_jitter = 0, event_drop = 0, mix = 0, flip = 0;
  double time_mask = 0, blend = 0;
  std::int64_t time_shift = 0, channel_shift = 0, channel_mask = 0, spatial_shift = 0, rotation = 0;
  int width = 0, height = 0;          // of the sensor; 0 if there is none
  const double* quantiles = nullptr;  // [4096], of the normal distribution
  // [2 rotation + 1, width height], the destination of a pixel: y << 16 | x, -1 outside
  std::vector<std::int32_t> rotated;
  std::vector<std::int64_t> partners;  // partners for mixing
  // partners for blending, class by class: those for sample s are [spans[2 s], spans[2 s + 1])
  std::vector<std::int64_t> by_class, spans;
};

struct Batch {
  Array<std::int64_t> offsets;   // [T B + 1]
  Array<std::int32_t> n_spikes;  // [T B]
  Array<unsigned char> ids;      // as wide as those of the cache
  Array<float> values;           // [ids] of a cache with values, else empty
};

// The lists of the samples `chosen`; `augment` may be null. Throws InputError if a sample does not exist or the cache
// contradicts itself: a mapped file may have changed since it was checked.
Batch make_batch(const EventCache& cache, const std::vector<std::int64_t>& chosen, const AugmentSpec* augment);

}  // namespace sparsesnn
