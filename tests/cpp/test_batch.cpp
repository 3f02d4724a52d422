// Batches from an event cache: the right lists, in order, and no wild access whatever the cache contains. Augmented
// batches are compared with the specification from Python.
#include <random>
#include <set>
#include <vector>

#include "check.h"
#include "host/src/data/batch.h"

using namespace sparsesnn;

namespace {

// A cache that owns its arrays.
template <class Id, class Length>
struct Data {
  std::vector<Id> ids;
  std::vector<Length> lengths;
  std::vector<std::int64_t> starts{0};
  int n_steps, n_neurons;

  EventCache cache() const {
    return {ids.data(),
            sizeof(Id) == 4,
            lengths.data(),
            sizeof(Length),
            starts.data(),
            nullptr,
            1,
            static_cast<std::int64_t>(ids.size()),
            static_cast<std::int64_t>(starts.size()) - 1,
            n_steps,
            n_neurons};
  }
};

template <class Id, class Length>
Data<Id, Length> random_data(int n_samples, int n_steps, int n_neurons, double activity, unsigned seed) {
  std::mt19937 random(seed);
  Data<Id, Length> data;
  data.n_steps = n_steps;
  data.n_neurons = n_neurons;
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int s = 0; s < n_samples; ++s) {
    for (int t = 0; t < n_steps; ++t) {
      Length n = 0;
      for (int i = 0; i < n_neurons; ++i)
        if (uniform(random) < activity) {
          data.ids.push_back(static_cast<Id>(i));
          ++n;
        }
      data.lengths.push_back(n);
    }
    data.starts.push_back(static_cast<std::int64_t>(data.ids.size()));
  }
  return data;
}

std::vector<double> quantiles() {
  std::vector<double> q(4096);
  for (int k = 0; k < 4096; ++k) q[k] = (k - 2047.5) / 1000;
  return q;
}

template <class Id>
std::vector<Id> list(const Batch& batch, std::size_t index) {
  const Id* ids = reinterpret_cast<const Id*>(batch.ids.data());
  return {ids + batch.offsets[index], ids + batch.offsets[index + 1]};
}

template <class Id, class Length>
void plain_batches_hold_the_lists() {
  const auto data = random_data<Id, Length>(5, 4, 70, 0.1, 1);
  const std::vector<std::int64_t> chosen{3, 0, 3, 4};
  const Batch batch = make_batch(data.cache(), chosen, nullptr);
  CHECK_EQUAL(batch.n_spikes.size(), std::size_t{16});
  for (std::size_t b = 0; b < 4; ++b) {
    std::int64_t at = data.starts[chosen[b]];
    for (std::size_t t = 0; t < 4; ++t) {
      const std::int64_t n = data.lengths[chosen[b] * 4 + t];
      CHECK_EQUAL(std::int64_t{batch.n_spikes[t * 4 + b]}, n);
      const std::vector<Id> wanted(data.ids.begin() + at, data.ids.begin() + at + n);
      CHECK(list<Id>(batch, t * 4 + b) == wanted);
      at += n;
    }
  }
}

// Every change at once, at sizes that use marking and at sizes that use sorting.
void augmented_lists_ascend(int n_steps, int n_neurons, double activity) {
  const auto data = random_data<std::uint16_t, std::uint16_t>(6, n_steps, n_neurons, activity, 2);
  const auto q = quantiles();
  AugmentSpec a;
  a.time_jitter = 1.5;
  a.time_stretch = 0.3;
  a.time_crop = 0.2;
  a.channel_jitter = 2;
  a.event_drop = 0.1;
  a.mix = 0.5;
  a.blend = 0.5;
  a.time_mask = 0.3;
  a.time_shift = 3;
  a.channel_shift = 5;
  a.channel_mask = 2;
  a.quantiles = q.data();
  a.partners = {0, 5};
  a.by_class = {5, 0, 3};
  a.spans = {0, 3, 0, 3, 0, 0, 1, 2, 3, 3, 0, 1};
  std::int64_t n_spikes = 0;
  for (a.seed = 0; a.seed < 5; ++a.seed) {
    const Batch batch = make_batch(data.cache(), {1, 1, 5, 2, 0}, &a);
    for (std::size_t k = 0; k < batch.n_spikes.size(); ++k) {
      const auto ids = list<std::uint16_t>(batch, k);
      const std::set<std::uint16_t> distinct(ids.begin(), ids.end());
      CHECK(static_cast<std::int64_t>(ids.size()) == batch.n_spikes[k]);
      CHECK(std::vector<std::uint16_t>(distinct.begin(), distinct.end()) == ids);
      CHECK(ids.empty() || ids.back() < n_neurons);
      n_spikes += batch.n_spikes[k];
    }
    for (int t = 0; t < n_steps; ++t)
      CHECK(list<std::uint16_t>(batch, t * 5) == list<std::uint16_t>(batch, t * 5 + 1));  // the same sample twice
  }
  CHECK(n_spikes > 0 || n_neurons == 1);
}

template <class F>
bool throws(F&& f) {
  try {
    f();
  } catch (const InputError&) {
    return true;
  }
  return false;
}

// The file under a cache changes after it was checked: an error or some spikes, never an access outside.
void a_changed_cache_does_no_harm() {
  const auto q = quantiles();
  AugmentSpec a;
  a.time_jitter = 1;
  a.mix = 0.5;
  a.blend = 0.3;
  a.channel_mask = 5;
  a.quantiles = q.data();
  a.partners = a.by_class = {0, 1, 2, 3};
  a.spans = {0, 4, 0, 4, 0, 4, 0, 4};
  int n_errors = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    auto data = random_data<std::uint16_t, std::int32_t>(4, 5, 33, 0.2, seed);
    std::mt19937 random(seed);
    for (int k = 0; k < 3; ++k) switch (random() % 3) {
        case 0:
          data.ids[random() % data.ids.size()] = static_cast<std::uint16_t>(random());
          break;
        case 1:
          data.lengths[random() % data.lengths.size()] = static_cast<std::int32_t>(random());
          break;
        default:
          data.starts[random() % data.starts.size()] = static_cast<std::int64_t>(random()) - 100;
      }
    for (const AugmentSpec* augment : {static_cast<const AugmentSpec*>(nullptr), static_cast<const AugmentSpec*>(&a)})
      n_errors += throws([&] { make_batch(data.cache(), {0, 1, 2, 3}, augment); });
  }
  CHECK(n_errors > 300);
}

void samples_that_do_not_exist() {
  const auto data = random_data<std::uint16_t, std::uint8_t>(3, 2, 5, 0.5, 3);
  AugmentSpec a;
  a.mix = 1;
  a.partners = {3};
  CHECK(throws([&] { make_batch(data.cache(), {3}, nullptr); }));
  CHECK(throws([&] { make_batch(data.cache(), {-1}, nullptr); }));
  CHECK(throws([&] { make_batch(data.cache(), {0}, &a); }));
  const Batch none = make_batch(data.cache(), {}, nullptr);
  CHECK(none.n_spikes.size() == 0 && none.offsets[0] == 0);
}

}  // namespace

int main() {
  plain_batches_hold_the_lists<std::uint16_t, std::uint8_t>();
  plain_batches_hold_the_lists<std::uint16_t, std::uint16_t>();
  plain_batches_hold_the_lists<std::int32_t, std::int32_t>();
  augmented_lists_ascend(23, 37, 0.1);
  augmented_lists_ascend(7, 128, 0.1);
  augmented_lists_ascend(200, 3000, 0.0001);
  augmented_lists_ascend(1, 1, 0.9);
  a_changed_cache_does_no_harm();
  samples_that_do_not_exist();
  return check::report("test_batch");
}
