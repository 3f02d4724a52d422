#include "batch.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "cached_lists.h"
#include "host/src/cpu/kernels/kernels.h"
#include "random.h"
#include "random_kernels.h"
#include "spike_sorter.h"

namespace sparsesnn {

namespace {

// The purpose of a random number, as in datasets/augment.py: part of the results.
enum Purpose {
  drop,
  time_stretch,
  time_shift,
  time_jitter,
  within_step,
  channel_shift,
  channel_jitter,
  time_crop,
  mix,
  spatial_shift,
  flip,
  rotation,
  blend,
  blend_spikes,
  time_mask,
  channel_mask,
};

std::int64_t floor_of(double x) {
  const auto truncated = static_cast<std::int64_t>(x);
  return truncated - (x < static_cast<double>(truncated));
}

// To the nearest integer, halves to even, for |x| < 2^51.
std::int64_t rounded(double x) {
  constexpr double magic = 0x1.8p52;
  return static_cast<std::int64_t>((x + magic) - magic);
}

// Uniform in -largest .. largest.
std::int64_t shift(const Draws& draws, std::int64_t largest, std::uint64_t counter = 0) {
  return draws.below(2 * largest + 1, counter) - largest;
}

template <class Id>
Batch with_offsets(const std::vector<std::int64_t>& n_spikes, bool graded) {
  Batch batch;
  batch.offsets = Array<std::int64_t>(n_spikes.size() + 1);
  batch.n_spikes = Array<std::int32_t>(n_spikes.size());
  std::int64_t at = 0;
  for (std::size_t list = 0; list < n_spikes.size(); ++list) {
    batch.offsets[list] = at;
    batch.n_spikes[list] = static_cast<std::int32_t>(n_spikes[list]);
    at += n_spikes[list];
  }
  batch.offsets[n_spikes.size()] = at;
  batch.ids = Array<unsigned char>(static_cast<std::size_t>(at) * sizeof(Id));
  if (graded) batch.values = Array<float>(static_cast<std::size_t>(at));
  return batch;
}

// ---- unchanged -----------------------------------------------------------------------------------------------------

template <class Id, class Length>
Batch plain(const Cache<Id, Length>& cache, const std::vector<std::int64_t>& chosen) {
  const std::size_t n_samples = chosen.size();
  std::vector<std::int64_t> n_spikes(static_cast<std::size_t>(cache.n_steps) * n_samples);
  for (std::size_t b = 0; b < n_samples; ++b)
    cache.lists(chosen[b], [&](std::int64_t t, std::int64_t, std::int64_t n) {
      n_spikes[static_cast<std::size_t>(t) * n_samples + b] = n;
    });
  Batch batch = with_offsets<Id>(n_spikes, cache.values);
  Id* ids = reinterpret_cast<Id*>(batch.ids.data());
  for (std::size_t b = 0; b < n_samples; ++b)
    cache.lists(chosen[b], [&](std::int64_t t, std::int64_t at, std::int64_t n) {
      // the length as it was read before, for which memory was allocated
      const std::size_t list = static_cast<std::size_t>(t) * n_samples + b;
      const std::int64_t room = std::min(n, n_spikes[list]), to = batch.offsets[list];
      std::copy_n(cache.ids + at, room, ids + to);
      if (!cache.values) return;
      for (std::int64_t k = 0; k < room; ++k) batch.values[to + k] = static_cast<float>(cache.value(at + k));
    });
  return batch;
}

// ---- augmented -----------------------------------------------------------------------------------------------------
//
// One sample at a time and one change at a time, in short loops over arrays that stay in the core's L1. Lists are short
// and the destinations of spikes are random, so a branch for each list or spike would be mispredicted half of the time,
// which would cost more than the arithmetic: the loops have no branches.

// Moves the spikes of one sample after the other.
class Mover {
 public:
  Mover(const AugmentSpec& a, std::int64_t n_steps, std::int64_t n_neurons)
      : a_(a), random_(*chosen_kernels().random), n_steps_(n_steps), n_neurons_(n_neurons) {}

  // Spikes that stay in order need no sorting, and no two of them coincide.
  bool keeps_order() const {
    return !(a_.time_stretch > 0 || a_.time_jitter > 0 || a_.channel_jitter > 0 || a_.flip > 0 || a_.rotation ||
             a_.blend > 0);
  }

  // Keeps about half of the first n_own spikes, the sample's, and of the others, its partner's, moved to one center.
  void merge(std::int64_t sample, Spikes& spikes, std::size_t n_own) {
    sample_ = sample;
    n_ = spikes.n;
    spikes.n = n_own;
    if (!n_own || n_ == n_own) return;
    step_ = spikes.step.data();
    neuron_ = spikes.neuron.data();
    const std::int64_t steps = apart(step_, n_own), neurons = a_.width ? 0 : apart(neuron_, n_own);
    const double* u = uniforms(blend_spikes);
    std::size_t n = 0;
    for (std::size_t k = 0; k < n_; ++k) {
      const bool theirs = k >= n_own;
      const std::int64_t t = step_[k] + (steps >> 1) - (theirs ? steps : 0);
      const std::int64_t id = neuron_[k] + (neurons >> 1) - (theirs ? neurons : 0);
      step_[n] = static_cast<std::int32_t>(t);
      neuron_[n] = static_cast<std::int32_t>(id);
      n += u[k] < 0.5 && t >= 0 && t < n_steps_ && id >= 0 && id < n_neurons_;
    }
    spikes.n = n;
  }

  void move(std::int64_t sample, Spikes& spikes) {
    sample_ = sample;
    n_ = spikes.n;
    step_ = spikes.step.data();
    neuron_ = spikes.neuron.data();
    if (a_.time_crop > 0) crop();
    if (a_.time_mask > 0)
      mask(time_mask, step_, n_steps_, static_cast<std::int64_t>(a_.time_mask * static_cast<double>(n_steps_)));
    if (a_.channel_mask) mask(channel_mask, neuron_, n_neurons_, std::min(a_.channel_mask, n_neurons_));
    if (a_.event_drop > 0) leave_out();
    if (a_.time_stretch > 0 || a_.time_jitter > 0 || a_.time_shift) move_in_time();
    if (a_.spatial_shift || a_.rotation || a_.flip > 0) move_image();
    if (a_.channel_shift || a_.channel_jitter > 0) move_channels();
  }

 private:
  Draws draws(Purpose purpose) const { return Draws(a_.seed, a_.epoch, sample_, purpose); }

  void crop() {
    const Draws crop = draws(time_crop);
    const auto largest = static_cast<std::int64_t>(a_.time_crop * static_cast<double>(n_steps_));
    const std::int64_t cut = crop.below(largest + 1, 0), from = crop.below(cut + 1, 1), to = from + n_steps_ - cut;
    for (std::size_t k = 0; k < n_; ++k) step_[k] = step_[k] >= from && step_[k] < to ? step_[k] : -1;
  }

  // Leaves out the spikes whose place is in a random stretch of the places 0 .. size-1.
  void mask(Purpose purpose, const std::int32_t* place, std::int64_t size, std::int64_t most) {
    const Draws draw = draws(purpose);
    const std::int64_t length = draw.below(most + 1, 0), from = draw.below(size - length + 1, 1), to = from + length;
    for (std::size_t k = 0; k < n_; ++k) step_[k] = place[k] >= from && place[k] < to ? -1 : step_[k];
  }

  // The distance of the center of the places from number n_own on from that of those before, rounded.
  std::int64_t apart(const std::int32_t* place, std::size_t n_own) const {
    std::int64_t own = 0, theirs = 0;
    for (std::size_t k = 0; k < n_own; ++k) own += place[k];
    for (std::size_t k = n_own; k < n_; ++k) theirs += place[k];
    return rounded(static_cast<double>(theirs) / static_cast<double>(n_ - n_own) -
                   static_cast<double>(own) / static_cast<double>(n_own));
  }

  void leave_out() {
    // an integer below ceil(p · 2^53) is one whose 2^-53 part is below p
    const auto limit = static_cast<std::uint64_t>(std::ceil(a_.event_drop * 0x1p53));
    random_.leave_out(draws(drop).key(), limit, step_, n_);
  }

  void move_in_time() {
    const std::int64_t by = a_.time_shift ? shift(draws(time_shift), a_.time_shift) : 0;
    const auto put = [this](std::size_t k, std::int64_t to) {
      step_[k] = step_[k] >= 0 && to >= 0 && to < n_steps_ ? static_cast<std::int32_t>(to) : -1;
    };
    if (!(a_.time_stretch > 0 || a_.time_jitter > 0)) {
      for (std::size_t k = 0; k < n_; ++k) put(k, step_[k] + by);
      return;
    }
    const double stretch = a_.time_stretch;
    const double factor = stretch > 0 ? 1.0 - stretch + 2.0 * stretch * draws(time_stretch).uniform(0) : 1.0;
    const double* within = uniforms(within_step);
    const std::int32_t* places = a_.time_jitter > 0 ? quantile_places(time_jitter) : nullptr;
    if (places)
      for (std::size_t k = 0; k < n_; ++k)
        put(k, floor_of((step_[k] + within[k]) * factor + a_.time_jitter * a_.quantiles[places[k]]) + by);
    else
      for (std::size_t k = 0; k < n_; ++k) put(k, floor_of((step_[k] + within[k]) * factor) + by);
  }

  const double* uniforms(Purpose purpose) {
    if (uniforms_.size() < n_) uniforms_.resize(n_);
    random_.uniforms(draws(purpose).key(), uniforms_.data(), n_);
    return uniforms_.data();
  }

  const std::int32_t* quantile_places(Purpose purpose) {
    if (places_.size() < n_) places_.resize(n_);
    random_.places(draws(purpose).key(), places_.data(), n_);
    return places_.data();
  }

  void move_image() {
    make_table();
    for (std::size_t k = 0; k < n_; ++k) neuron_[k] = table_[static_cast<std::size_t>(neuron_[k])];
  }

  // Neuron after rotation, mirroring and shift of the image; -1 outside.
  void make_table() {
    const std::int64_t width = a_.width, height = a_.height, n_pixels = width * height;
    const std::int64_t angle = a_.rotation ? draws(rotation).below(2 * a_.rotation + 1, 0) : 0;
    const bool mirrored = a_.flip > 0 && draws(flip).uniform(0) < a_.flip;
    const Draws shifts = draws(spatial_shift);
    const std::int64_t dx = a_.spatial_shift ? shift(shifts, a_.spatial_shift, 0) : 0;
    const std::int64_t dy = a_.spatial_shift ? shift(shifts, a_.spatial_shift, 1) : 0;
    table_.resize(static_cast<std::size_t>(n_neurons_));
    std::int32_t* const table = table_.data();
    std::fill_n(table, n_pixels, -1);
    if (a_.rotation) {
      const std::int32_t* const rotated = a_.rotated.data() + angle * n_pixels;
      for (std::int64_t pixel = 0; pixel < n_pixels; ++pixel) {
        const std::int64_t column = rotated[pixel] & 0xFFFF, x = (mirrored ? width - 1 - column : column) + dx,
                           y = (rotated[pixel] >> 16) + dy;
        const bool inside = rotated[pixel] >= 0 && x >= 0 && x < width && y >= 0 && y < height;
        table[pixel] = inside ? static_cast<std::int32_t>(y * width + x) : -1;
      }
    } else {
      for (std::int64_t y = std::max<std::int64_t>(0, -dy); y < std::min(height, height - dy); ++y) {
        // to column from + sign · x, for every x that stays inside
        const std::int64_t sign = mirrored ? -1 : 1, from = dx + (mirrored ? width - 1 : 0);
        const std::int64_t first = std::max<std::int64_t>(0, mirrored ? dx : -dx),
                           last = std::min(width, width + (mirrored ? dx : -dx));
        for (std::int64_t x = first; x < last; ++x)
          table[y * width + x] = static_cast<std::int32_t>((y + dy) * width + from + sign * x);
      }
    }
    for (std::int64_t plane = n_pixels; plane < n_neurons_; plane += n_pixels)  // the other polarities
      for (std::int64_t pixel = 0; pixel < n_pixels; ++pixel) {
        const std::int32_t to = table_[static_cast<std::size_t>(pixel)];
        table_[static_cast<std::size_t>(plane + pixel)] = to < 0 ? -1 : to + static_cast<std::int32_t>(plane);
      }
  }

  void move_channels() {
    const std::int64_t by = a_.channel_shift ? shift(draws(channel_shift), a_.channel_shift) : 0;
    const std::int32_t* places = a_.channel_jitter > 0 ? quantile_places(channel_jitter) : nullptr;
    for (std::size_t k = 0; k < n_; ++k) {
      const std::int64_t from = neuron_[k];
      std::int64_t to = from + by;
      if (places) to += rounded(a_.channel_jitter * a_.quantiles[places[k]]);
      neuron_[k] = from >= 0 && to >= 0 && to < n_neurons_ ? static_cast<std::int32_t>(to) : -1;
    }
  }

  const AugmentSpec& a_;
  const RandomKernels& random_;
  std::int64_t n_steps_, n_neurons_, sample_ = 0;
  std::size_t n_ = 0;
  std::int32_t* step_ = nullptr;
  std::int32_t* neuron_ = nullptr;
  std::vector<std::int32_t> table_, places_;
  std::vector<double> uniforms_;
};

template <class Id, class Length>
Batch augmented(const Cache<Id, Length>& cache, const std::vector<std::int64_t>& chosen, const AugmentSpec& a) {
  const std::size_t n_samples = chosen.size();
  std::vector<std::int64_t> n_spikes(static_cast<std::size_t>(cache.n_steps) * n_samples);
  std::vector<Id> found;            // sample by sample
  std::vector<float> found_values;  // for a cache with values
  std::size_t n_found = 0;
  Spikes spikes;
  Mover mover(a, cache.n_steps, cache.n_neurons);
  Sorter<Id> sorter(cache.n_steps, cache.n_neurons);
  for (std::size_t b = 0; b < n_samples; ++b) {
    const std::int64_t own = chosen[b];
    std::int64_t mate = own, partner = own, start = 0, stop = 0;  // steps [start, stop) are the partner's
    if (a.blend > 0) {
      const Draws draws(a.seed, a.epoch, own, blend);
      const std::int64_t* span = a.spans.data() + 2 * own;
      if (span[0] < span[1] && draws.uniform(0) < a.blend)
        mate = a.by_class[static_cast<std::size_t>(span[0] + draws.below(span[1] - span[0], 1))];
    }
    if (a.mix > 0 && mate == own) {
      const Draws draws(a.seed, a.epoch, own, mix);
      if (draws.uniform(0) < a.mix) {
        partner = a.partners[static_cast<std::size_t>(draws.below(static_cast<std::int64_t>(a.partners.size()), 1))];
        const std::int64_t length = draws.below(cache.n_steps + 1, 2);
        start = draws.below(cache.n_steps - length + 1, 3);
        stop = start + length;
      }
    }
    const std::int64_t other = mate == own ? partner : mate;
    spikes.begin(cache.end(own) - cache.begin(own) + cache.end(other) - cache.begin(other));
    spikes.add(cache, own, 0, start);
    spikes.add(cache, partner, start, stop);
    spikes.add(cache, own, stop, cache.n_steps);
    if (mate != own) {
      const std::size_t n_own = spikes.n;
      spikes.add(cache, mate, 0, cache.n_steps);
      mover.merge(own, spikes, n_own);
    }
    mover.move(own, spikes);
    if (const std::size_t room = n_found + spikes.n + Sorter<Id>::slack; found.size() < room)
      found.resize(std::max(room, spikes.n * (n_samples - b) + n_found));
    if (cache.values) found_values.resize(found.size());
    Id* out = found.data() + n_found;
    float* values = cache.values ? found_values.data() + n_found : nullptr;
    std::int64_t* lengths = n_spikes.data() + b;
    n_found += mover.keeps_order() && !values ? sorter.keep(spikes, out, lengths, n_samples)
                                              : sorter.sort(spikes, out, values, lengths, n_samples);
  }
  Batch batch = with_offsets<Id>(n_spikes, cache.values);
  Id* ids = reinterpret_cast<Id*>(batch.ids.data());
  std::size_t from = 0;
  for (std::size_t b = 0; b < n_samples; ++b)
    for (std::size_t list = b; list < n_spikes.size(); list += n_samples) {
      std::copy_n(found.data() + from, n_spikes[list], ids + batch.offsets[list]);
      if (cache.values)
        std::copy_n(found_values.data() + from, n_spikes[list], batch.values.data() + batch.offsets[list]);
      from += static_cast<std::size_t>(n_spikes[list]);
    }
  return batch;
}

template <class Id, class Length>
Batch typed(const EventCache& c, const std::vector<std::int64_t>& chosen, const AugmentSpec* augment) {
  const Cache<Id, Length> cache(c);
  return augment ? augmented(cache, chosen, *augment) : plain(cache, chosen);
}

template <class Id>
Batch of_length(const EventCache& c, const std::vector<std::int64_t>& chosen, const AugmentSpec* augment) {
  if (c.length_bytes == 1) return typed<Id, std::uint8_t>(c, chosen, augment);
  if (c.length_bytes == 2) return typed<Id, std::uint16_t>(c, chosen, augment);
  return typed<Id, std::int32_t>(c, chosen, augment);
}

void check_samples(const std::vector<std::int64_t>& samples, std::int64_t n, const char* what) {
  for (const std::int64_t sample : samples)
    if (sample < 0 || sample >= n)
      throw InputError("ShapeError", std::string("make_batch: ") + what + " holds " + std::to_string(sample) +
                                         "; allowed: 0 to " + std::to_string(n - 1));
}

}  // namespace

Batch make_batch(const EventCache& cache, const std::vector<std::int64_t>& chosen, const AugmentSpec* augment) {
  check_samples(chosen, cache.n_samples, "chosen");
  if (augment) {
    check_samples(augment->partners, cache.n_samples, "partners");
    check_samples(augment->by_class, cache.n_samples, "by_class");
    if (augment->blend > 0 && augment->spans.size() != 2 * static_cast<std::size_t>(cache.n_samples))
      throw InputError("ShapeError", "make_batch: spans must have one row for each sample");
  }
  return cache.wide ? of_length<std::int32_t>(cache, chosen, augment)
                    : of_length<std::uint16_t>(cache, chosen, augment);
}

}  // namespace sparsesnn
