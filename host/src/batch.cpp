#include "batch.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "kernels.h"
#include "random.h"
#include "random_kernels.h"

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

// As in datasets/binning.py.
constexpr std::int64_t max_value = 1 << 24;

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
  const void* values;
  int value_bytes;
  std::int64_t n_ids, n_samples, n_steps, n_neurons;

  explicit Cache(const EventCache& c)
      : ids(static_cast<const Id*>(c.ids)),
        lengths(static_cast<const Length*>(c.lengths)),
        starts(c.sample_starts),
        values(c.values),
        value_bytes(c.value_bytes),
        n_ids(c.n_ids),
        n_samples(c.n_samples),
        n_steps(c.n_steps),
        n_neurons(c.n_neurons) {}

  std::int64_t begin(std::int64_t sample) const {
    if (starts[sample] < 0 || starts[sample] > n_ids) changed("has a sample that starts outside its ids");
    return starts[sample];
  }
  std::int64_t end(std::int64_t sample) const { return std::clamp(starts[sample + 1], begin(sample), n_ids); }

  // Events that a spike counts.
  std::int64_t value(std::int64_t place) const {
    const std::int64_t value = value_bytes == 1   ? static_cast<const std::uint8_t*>(values)[place]
                               : value_bytes == 2 ? static_cast<const std::uint16_t*>(values)[place]
                                                  : static_cast<const std::int32_t*>(values)[place];
    if (value < 1 || value > max_value) changed("has values that are no counts");
    return value;
  }

  // Calls body(step, place of the first id, length) for all lists of a sample.
  template <class Body>
  void lists(std::int64_t sample, Body&& body) const {
    const Length* row = lengths + sample * n_steps;
    std::int64_t at = begin(sample);
    const std::int64_t last = end(sample);
    for (std::int64_t t = 0; t < n_steps; ++t) {
      const auto n = static_cast<std::int64_t>(row[t]);
      if (n < 0 || n > last - at) changed("has lists that are longer than their sample");
      body(t, at, n);
      at += n;
    }
  }
};

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

// ---- as they are ---------------------------------------------------------------------------------------------------

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
      // the length as it was read before: it says how much room there is
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
// One sample at a time and one change at a time, in short loops over arrays that stay in the core's first cache. Lists
// are short and where spikes go is random, so a branch for each list or spike would be guessed wrong as often as not,
// and that would cost more than the arithmetic: the loops have none.

// The spikes of one sample in the order of the cache, each as often as it counts; a spike's place is its number.
struct Spikes {
  std::vector<std::int32_t> step, neuron;  // -1: left out
  std::size_t n = 0;

  // Makes room.
  void begin(std::int64_t most) {
    n = 0;
    if (const std::size_t size = static_cast<std::size_t>(most) + slack; step.size() < size) {
      step.resize(size);
      neuron.resize(size);
    }
  }

  // Adds what a sample has in steps [from, to).
  template <class Id, class Length>
  void add(const Cache<Id, Length>& cache, std::int64_t sample, std::int64_t from, std::int64_t to) {
    if (from < to && cache.values) return add_events(cache, sample, from, to);
    std::int64_t first = 0;
    std::size_t count = 0;
    if (from < to)
      cache.lists(sample, [&](std::int64_t t, std::int64_t at, std::int64_t length) {
        if (t < from || t >= to) return;
        if (t == from) first = at;
        // always `slack` of them: what is too much is written over by the next list
        std::int32_t* place = step.data() + n + count;
        std::fill_n(place, slack, static_cast<std::int32_t>(t));
        count += static_cast<std::size_t>(length);
        if (length > static_cast<std::int64_t>(slack))
          std::fill(place + slack, step.data() + n + count, static_cast<std::int32_t>(t));
      });
    const Id* ids = cache.ids + first;
    std::uint32_t highest = 0;
    for (std::size_t k = 0; k < count; ++k) {
      neuron[n + k] = static_cast<std::int32_t>(ids[k]);
      highest = std::max(highest, static_cast<std::uint32_t>(neuron[n + k]));
    }
    if (count && highest >= static_cast<std::uint32_t>(cache.n_neurons)) changed("has ids beyond its neurons");
    n += count;
  }

 private:
  template <class Id, class Length>
  void add_events(const Cache<Id, Length>& cache, std::int64_t sample, std::int64_t from, std::int64_t to) {
    cache.lists(sample, [&](std::int64_t t, std::int64_t at, std::int64_t length) {
      if (t < from || t >= to) return;
      for (std::int64_t k = at; k < at + length; ++k) {
        const auto count = static_cast<std::size_t>(cache.value(k));
        const auto id = static_cast<std::int32_t>(cache.ids[k]);
        if (id < 0 || id >= cache.n_neurons) changed("has ids beyond its neurons");
        if (step.size() < n + count) {
          step.resize(std::max(2 * step.size(), n + count));
          neuron.resize(step.size());
        }
        std::fill_n(step.data() + n, count, static_cast<std::int32_t>(t));
        std::fill_n(neuron.data() + n, count, id);
        n += count;
      }
    });
  }

  static constexpr std::size_t slack = 16;
};

// Moves the spikes of one sample after the other.
class Mover {
 public:
  Mover(const AugmentSpec& a, std::int64_t n_steps, std::int64_t n_neurons)
      : a_(a), random_(*chosen_kernels().random), n_steps_(n_steps), n_neurons_(n_neurons) {}

  // Spikes that stay in order need no sorting, and none of them meet.
  bool keeps_order() const {
    return !(a_.time_stretch > 0 || a_.time_jitter > 0 || a_.channel_jitter > 0 || a_.flip > 0 || a_.rotation);
  }

  void move(std::int64_t sample, Spikes& spikes) {
    sample_ = sample;
    n_ = spikes.n;
    step_ = spikes.step.data();
    neuron_ = spikes.neuron.data();
    if (a_.time_crop > 0) crop();
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
        // to column from + sign · x, for the x that this leaves inside
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

// std::popcount is a call where the instruction may be missing.
int n_bits(std::uint64_t x) {
  x -= x >> 1 & 0x5555555555555555u;
  x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
  return static_cast<int>(((x + (x >> 4)) & 0x0F0F0F0F0F0F0F0Fu) * 0x0101010101010101u >> 56);
}

// Puts the distinct spikes of a sample in order: step by step, ascending.
template <class Id>
class Sorter {
 public:
  Sorter(std::int64_t n_steps, std::int64_t n_neurons)
      : n_steps_(n_steps), n_neurons_(n_neurons), n_words_((n_neurons + 63) / 64) {}

  // Writes the ids to `out`, which has room for all spikes and `slack` more, and the number of each step t to
  // n_spikes[t · stride]; to `values`, unless null, how many spikes each id stands for. Returns how many ids there are.
  std::size_t sort(const Spikes& spikes, Id* out, float* values, std::int64_t* n_spikes, std::size_t stride) {
    const std::int64_t n_words = n_steps_ * n_words_ * (values ? 64 : 1);  // a tally takes more memory than a mark
    return n_words <= max_words_per_spike * (static_cast<std::int64_t>(spikes.n) + 64)
               ? by_marks(spikes, out, values, n_spikes, stride)
               : by_cells(spikes, out, values, n_spikes, stride);
  }

  // The same for spikes that are in order already.
  std::size_t keep(const Spikes& spikes, Id* out, std::int64_t* n_spikes, std::size_t stride) {
    counts_.assign(static_cast<std::size_t>(n_steps_) + 1, 0);  // the last one takes what is left out
    std::size_t n = 0;
    for (std::size_t k = 0; k < spikes.n; ++k) {
      const std::int32_t step = spikes.step[k], neuron = spikes.neuron[k];
      const bool stays = (step | neuron) >= 0;
      out[n] = static_cast<Id>(neuron);
      n += stays;
      ++counts_[static_cast<std::size_t>(stays ? step : n_steps_)];
    }
    for (std::size_t t = 0; t < static_cast<std::size_t>(n_steps_); ++t) n_spikes[t * stride] = counts_[t];
    return n;
  }

  static constexpr std::size_t slack = 8;

 private:
  std::size_t by_marks(const Spikes& spikes, Id* out, float* values, std::int64_t* n_spikes, std::size_t stride) {
    const auto n_words = static_cast<std::size_t>(n_steps_ * n_words_);
    words_.resize(n_words + 1);  // all zero; the last one takes what is left out
    for (std::size_t k = 0; k < spikes.n; ++k) {
      const std::int32_t step = spikes.step[k], neuron = spikes.neuron[k];
      const auto word = static_cast<std::size_t>(step * n_words_ + (neuron >> 6));
      words_[(step | neuron) >= 0 ? word : n_words] |= std::uint64_t{1} << (neuron & 63);
    }
    words_[n_words] = 0;
    if (values) tally(spikes);
    Id* const begin = out;
    std::uint64_t* word = words_.data();
    for (std::int64_t t = 0; t < n_steps_; ++t) {
      const Id* const first = out;
      for (std::int64_t w = 0; w < n_words_; ++w, ++word) {
        std::uint64_t bits = std::exchange(*word, 0);
        if (!bits) continue;
        // always `slack` of them: what is too much is written over by the next word
        const int n = n_bits(bits);
        for (int k = 0; k < static_cast<int>(slack); ++k, bits &= bits - 1)
          out[k] = static_cast<Id>(w * 64 + __builtin_ctzll(bits | std::uint64_t{1} << 63));
        for (int k = static_cast<int>(slack); k < n; ++k, bits &= bits - 1)
          out[k] = static_cast<Id>(w * 64 + __builtin_ctzll(bits));
        out += n;
      }
      n_spikes[static_cast<std::size_t>(t) * stride] = out - first;
      if (values)
        for (const Id* id = first; id < out; ++id)
          values[id - begin] =
              static_cast<float>(std::exchange(tallies_[static_cast<std::size_t>(t * n_neurons_ + *id)], 0));
    }
    return static_cast<std::size_t>(out - begin);
  }

  // Counts the spikes of every cell; the last cell takes what is left out.
  void tally(const Spikes& spikes) {
    const auto n_cells = static_cast<std::size_t>(n_steps_ * n_neurons_);
    tallies_.resize(n_cells + 1);  // all zero
    for (std::size_t k = 0; k < spikes.n; ++k) {
      const auto cell = static_cast<std::size_t>(spikes.step[k] * n_neurons_ + spikes.neuron[k]);
      ++tallies_[(spikes.step[k] | spikes.neuron[k]) >= 0 ? cell : n_cells];
    }
    tallies_[n_cells] = 0;
  }

  std::size_t by_cells(const Spikes& spikes, Id* out, float* values, std::int64_t* n_spikes, std::size_t stride) {
    cells_.clear();
    for (std::size_t k = 0; k < spikes.n; ++k)
      if ((spikes.step[k] | spikes.neuron[k]) >= 0) cells_.push_back(spikes.step[k] * n_neurons_ + spikes.neuron[k]);
    std::sort(cells_.begin(), cells_.end());
    std::size_t n = 0;
    for (std::size_t first = 0, next; first < cells_.size(); first = next, ++n) {
      for (next = first + 1; next < cells_.size() && cells_[next] == cells_[first];) ++next;
      out[n] = static_cast<Id>(cells_[first] % n_neurons_);
      if (values) values[n] = static_cast<float>(next - first);
      ++n_spikes[static_cast<std::size_t>(cells_[first] / n_neurons_) * stride];
    }
    return n;
  }

  std::int64_t n_steps_, n_neurons_, n_words_;
  std::vector<std::uint64_t> words_;
  std::vector<std::int64_t> cells_;
  std::vector<std::int32_t> counts_, tallies_;
};

template <class Id, class Length>
Batch augmented(const Cache<Id, Length>& cache, const std::vector<std::int64_t>& chosen, const AugmentSpec& a) {
  const std::size_t n_samples = chosen.size();
  std::vector<std::int64_t> n_spikes(static_cast<std::size_t>(cache.n_steps) * n_samples);
  std::vector<Id> found;            // sample by sample
  std::vector<float> found_values;  // of a cache with values
  std::size_t n_found = 0;
  Spikes spikes;
  Mover mover(a, cache.n_steps, cache.n_neurons);
  Sorter<Id> sorter(cache.n_steps, cache.n_neurons);
  for (std::size_t b = 0; b < n_samples; ++b) {
    const std::int64_t own = chosen[b];
    std::int64_t partner = own, start = 0, stop = 0;  // steps [start, stop) are the partner's
    if (a.mix > 0) {
      const Draws draws(a.seed, a.epoch, own, mix);
      if (draws.uniform(0) < a.mix) {
        partner = a.partners[static_cast<std::size_t>(draws.below(static_cast<std::int64_t>(a.partners.size()), 1))];
        const std::int64_t length = draws.below(cache.n_steps + 1, 2);
        start = draws.below(cache.n_steps - length + 1, 3);
        stop = start + length;
      }
    }
    spikes.begin(cache.end(own) - cache.begin(own) + cache.end(partner) - cache.begin(partner));
    spikes.add(cache, own, 0, start);
    spikes.add(cache, partner, start, stop);
    spikes.add(cache, own, stop, cache.n_steps);
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
  if (augment) check_samples(augment->partners, cache.n_samples, "partners");
  return cache.wide ? of_length<std::int32_t>(cache, chosen, augment)
                    : of_length<std::uint16_t>(cache, chosen, augment);
}

}  // namespace sparsesnn
