#include "batch.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "random.h"

namespace sparsesnn {
namespace {

// What a random number is for, as in datasets/augment.py: part of the results.
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
};

// A sample's spikes are put in order by marking bits of [T, N] while a spike has at most this many words, else by
// sorting.
constexpr std::int64_t max_words_per_spike = 64;

[[noreturn]] void changed(const char* what) {
  throw InputError("DataError", std::string("the event cache ") + what +
                                    "; the file may have changed while it was in use: load the data anew");
}

std::int64_t floor_of(double x) {
  const auto truncated = static_cast<std::int64_t>(x);
  return truncated - (x < static_cast<double>(truncated));
}

// To the nearest, halves to the even one, for |x| < 2^51.
std::int64_t rounded(double x) {
  constexpr double magic = 0x1.8p52;
  return static_cast<std::int64_t>((x + magic) - magic);
}

// Uniform in -largest .. largest.
std::int64_t shift(const Draws& draws, std::int64_t largest, std::uint64_t counter = 0) {
  return draws.below(2 * largest + 1, counter) - largest;
}

// The cache with its types.
template <class Id, class Length>
struct Cache {
  const Id* ids;
  const Length* lengths;
  const std::int64_t* starts;
  std::int64_t n_ids, n_samples, n_steps, n_neurons;

  explicit Cache(const EventCache& c)
      : ids(static_cast<const Id*>(c.ids)),
        lengths(static_cast<const Length*>(c.lengths)),
        starts(c.sample_starts),
        n_ids(c.n_ids),
        n_samples(c.n_samples),
        n_steps(c.n_steps),
        n_neurons(c.n_neurons) {}

  // Calls body(step, first id, length) for the lists of steps [from, to) of a sample.
  template <class Body>
  void lists(std::int64_t sample, std::int64_t from, std::int64_t to, Body&& body) const {
    const Length* row = lengths + sample * n_steps;
    std::int64_t at = starts[sample];
    const std::int64_t end = std::min(starts[sample + 1], n_ids);
    if (at < 0) changed("has a sample that starts before its ids");
    for (std::int64_t t = 0; t < to; ++t) {
      const std::int64_t n = static_cast<std::int64_t>(row[t]);
      if (n < 0 || n > end - at) changed("has lists that are longer than their sample");
      if (t >= from) body(t, ids + at, n);
      at += n;
    }
  }
};

// ---- as they are ---------------------------------------------------------------------------------------------------

template <class Id>
Batch with_offsets(const std::vector<std::int64_t>& n_spikes) {
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
  return batch;
}

template <class Id, class Length>
Batch plain(const Cache<Id, Length>& cache, const std::vector<std::int64_t>& chosen) {
  const std::size_t n_samples = chosen.size();
  std::vector<std::int64_t> n_spikes(static_cast<std::size_t>(cache.n_steps) * n_samples);
  for (std::size_t b = 0; b < n_samples; ++b)
    cache.lists(chosen[b], 0, cache.n_steps, [&](std::int64_t t, const Id*, std::int64_t n) {
      n_spikes[static_cast<std::size_t>(t) * n_samples + b] = n;
    });
  Batch batch = with_offsets<Id>(n_spikes);
  Id* ids = reinterpret_cast<Id*>(batch.ids.data());
  for (std::size_t b = 0; b < n_samples; ++b)
    cache.lists(chosen[b], 0, cache.n_steps, [&](std::int64_t t, const Id* from, std::int64_t n) {
      // the length as it was read before: it says how much room there is
      const std::size_t list = static_cast<std::size_t>(t) * n_samples + b;
      std::copy_n(from, std::min(n, n_spikes[list]), ids + batch.offsets[list]);
    });
  return batch;
}

// ---- augmented -----------------------------------------------------------------------------------------------------

// The distinct spikes of one sample, put in order.
class Ordered {
 public:
  Ordered(std::int64_t n_steps, std::int64_t n_neurons)
      : n_steps_(n_steps), n_neurons_(n_neurons), n_words_((n_neurons + 63) / 64) {}

  void begin(std::int64_t n_candidates) {
    marks_ = n_steps_ * n_words_ <= max_words_per_spike * std::max<std::int64_t>(n_candidates, 64);
    if (marks_) words_.resize(static_cast<std::size_t>(n_steps_ * n_words_));  // zero between samples
    cells_.clear();
  }

  void add(std::int64_t step, std::int64_t neuron) {
    if (marks_)
      words_[static_cast<std::size_t>(step * n_words_ + (neuron >> 6))] |= std::uint64_t{1} << (neuron & 63);
    else
      cells_.push_back(static_cast<std::uint64_t>(step * n_neurons_ + neuron));
  }

  // Calls body(step, neuron), step by step, ascending.
  template <class Body>
  void drain(Body&& body) {
    if (marks_) {
      std::size_t word = 0;
      for (std::int64_t step = 0; step < n_steps_; ++step)
        for (std::int64_t w = 0; w < n_words_; ++w, ++word)
          for (std::uint64_t bits = std::exchange(words_[word], 0); bits; bits &= bits - 1)
            body(step, w * 64 + std::countr_zero(bits));
      return;
    }
    std::sort(cells_.begin(), cells_.end());
    cells_.erase(std::unique(cells_.begin(), cells_.end()), cells_.end());
    const auto n = static_cast<std::uint64_t>(n_neurons_);
    for (const std::uint64_t cell : cells_)
      body(static_cast<std::int64_t>(cell / n), static_cast<std::int64_t>(cell % n));
  }

 private:
  std::int64_t n_steps_, n_neurons_, n_words_;
  bool marks_ = true;
  std::vector<std::uint64_t> words_, cells_;
};

// What is drawn once for a sample, and how its spikes move.
class Moves {
 public:
  Moves(const AugmentSpec& a, std::int64_t sample, std::int64_t n_steps, std::int64_t n_neurons)
      : a_(a),
        n_steps_(n_steps),
        n_neurons_(n_neurons),
        drop_(draws(sample, drop)),
        within_(draws(sample, within_step)),
        time_jitter_(draws(sample, time_jitter)),
        channel_jitter_(draws(sample, channel_jitter)),
        keep_to_(n_steps) {
    if (a.time_crop > 0) {
      const Draws crop = draws(sample, time_crop);
      const auto largest = static_cast<std::int64_t>(a.time_crop * static_cast<double>(n_steps));
      const std::int64_t cut = crop.below(largest + 1, 0);
      keep_from_ = crop.below(cut + 1, 1);
      keep_to_ = keep_from_ + n_steps - cut;
    }
    if (a.time_stretch > 0)
      stretch_ = 1.0 - a.time_stretch + 2.0 * a.time_stretch * draws(sample, time_stretch).uniform(0);
    if (a.time_shift) d_step_ = shift(draws(sample, time_shift), a.time_shift);
    if (a.channel_shift) d_neuron_ = shift(draws(sample, channel_shift), a.channel_shift);
    if (a.spatial_shift || a.rotation || a.flip > 0) make_table(sample);
  }

  // Calls add(step, neuron) with where spike `number` of the sample, (t, n), goes, unless it is left out.
  template <class Add>
  void move(std::uint64_t number, std::int64_t t, std::int64_t n, Add&& add) const {
    if (t < keep_from_ || t >= keep_to_) return;
    if (a_.event_drop > 0 && drop_.uniform(number) < a_.event_drop) return;
    if (a_.time_stretch > 0 || a_.time_jitter > 0) {
      double time = static_cast<double>(t) + within_.uniform(number);
      if (a_.time_stretch > 0) time *= stretch_;
      if (a_.time_jitter > 0) time += a_.time_jitter * time_jitter_.normal(number, a_.quantiles);
      t = floor_of(time);
    }
    t += d_step_;
    if (n < 0 || n >= n_neurons_) changed("has ids beyond its neurons");
    if (!table_.empty()) {
      n = table_[static_cast<std::size_t>(n)];
      if (n < 0) return;
    }
    std::int64_t low = 0, high = n_neurons_;
    if (a_.channel_shift || a_.channel_jitter > 0) {
      if (a_.n_cells > 0 && a_.n_cells < n_neurons_) {
        low = n / a_.n_cells * a_.n_cells;
        high = std::min(low + a_.n_cells, n_neurons_);
      }
      n += d_neuron_;
      if (a_.channel_jitter > 0) n += rounded(a_.channel_jitter * channel_jitter_.normal(number, a_.quantiles));
    }
    if (t >= 0 && t < n_steps_ && n >= low && n < high) add(t, n);
  }

 private:
  Draws draws(std::int64_t sample, Purpose purpose) const { return Draws(a_.seed, a_.epoch, sample, purpose); }

  // Neuron after rotation, mirroring and shift of the image; -1 outside.
  void make_table(std::int64_t sample) {
    const std::int64_t width = a_.width, height = a_.height, n_pixels = width * height;
    const std::int64_t angle = a_.rotation ? draws(sample, rotation).below(2 * a_.rotation + 1, 0) : 0;
    const bool mirrored = a_.flip > 0 && draws(sample, flip).uniform(0) < a_.flip;
    const Draws shifts = draws(sample, spatial_shift);
    const std::int64_t dx = a_.spatial_shift ? shift(shifts, a_.spatial_shift, 0) : 0;
    const std::int64_t dy = a_.spatial_shift ? shift(shifts, a_.spatial_shift, 1) : 0;
    table_.resize(static_cast<std::size_t>(n_neurons_));
    for (std::int64_t pixel = 0; pixel < n_pixels; ++pixel) {
      std::int64_t to = a_.rotated ? a_.rotated[angle * n_pixels + pixel] : pixel;
      if (to >= 0) {
        const std::int64_t x = (mirrored ? width - 1 - to % width : to % width) + dx, y = to / width + dy;
        to = x >= 0 && x < width && y >= 0 && y < height ? y * width + x : -1;
      }
      for (std::int64_t plane = 0; plane < n_neurons_; plane += n_pixels)
        table_[static_cast<std::size_t>(plane + pixel)] = static_cast<std::int32_t>(to < 0 ? -1 : plane + to);
    }
  }

  const AugmentSpec& a_;
  std::int64_t n_steps_, n_neurons_;
  Draws drop_, within_, time_jitter_, channel_jitter_;
  double stretch_ = 1;
  std::int64_t d_step_ = 0, d_neuron_ = 0, keep_from_ = 0, keep_to_;
  std::vector<std::int32_t> table_;
};

template <class Id, class Length>
Batch augmented(const Cache<Id, Length>& cache, const std::vector<std::int64_t>& chosen, const AugmentSpec& a) {
  const std::size_t n_samples = chosen.size();
  std::vector<std::int64_t> n_spikes(static_cast<std::size_t>(cache.n_steps) * n_samples);
  std::vector<Id> found;  // sample by sample
  Ordered ordered(cache.n_steps, cache.n_neurons);
  for (std::size_t b = 0; b < n_samples; ++b) {
    std::int64_t partner = chosen[b], start = 0, stop = 0;  // steps [start, stop) are the partner's
    if (a.mix > 0) {
      const Draws draws(a.seed, a.epoch, chosen[b], mix);
      if (draws.uniform(0) < a.mix) {
        partner = a.partners[static_cast<std::size_t>(draws.below(static_cast<std::int64_t>(a.partners.size()), 1))];
        const std::int64_t length = draws.below(cache.n_steps + 1, 2);
        start = draws.below(cache.n_steps - length + 1, 3);
        stop = start + length;
      }
    }
    const Moves moves(a, chosen[b], cache.n_steps, cache.n_neurons);
    std::uint64_t number = 0;
    const auto take = [&](std::int64_t t, const Id* ids, std::int64_t n) {
      for (std::int64_t k = 0; k < n; ++k)
        moves.move(number++, t, static_cast<std::int64_t>(ids[k]),
                   [&](std::int64_t to, std::int64_t neuron) { ordered.add(to, neuron); });
    };
    ordered.begin(cache.starts[chosen[b] + 1] - cache.starts[chosen[b]]);
    cache.lists(chosen[b], 0, start, take);
    cache.lists(partner, start, stop, take);
    cache.lists(chosen[b], stop, cache.n_steps, take);
    ordered.drain([&](std::int64_t t, std::int64_t neuron) {
      ++n_spikes[static_cast<std::size_t>(t) * n_samples + b];
      found.push_back(static_cast<Id>(neuron));
    });
  }
  Batch batch = with_offsets<Id>(n_spikes);
  Id* ids = reinterpret_cast<Id*>(batch.ids.data());
  const Id* from = found.data();
  for (std::size_t b = 0; b < n_samples; ++b)
    for (std::size_t list = b; list < n_spikes.size(); list += n_samples) {
      std::copy_n(from, n_spikes[list], ids + batch.offsets[list]);
      from += n_spikes[list];
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
  if (augment) check_samples(augment->partners, cache.n_samples, "partners");
  return cache.wide ? of_length<std::int32_t>(cache, chosen, augment)
                    : of_length<std::uint16_t>(cache, chosen, augment);
}

}  // namespace sparsesnn
