// Random lists for the C++ tests.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "host/src/cpu/engine.h"

namespace check {

struct OwnedLists {
  std::vector<std::int64_t> offsets{0};
  std::vector<std::uint16_t> ids;
  std::vector<std::int32_t> n_spikes;

  sparsesnn::Lists view() const { return {offsets.data(), ids.data(), n_spikes.data(), false}; }
};

inline OwnedLists random_lists(std::mt19937& random, int n_lists, int n_neurons, double rate, bool near_spikes) {
  OwnedLists lists;
  std::bernoulli_distribution fires(rate);
  for (int i = 0; i < n_lists; ++i) {
    std::vector<std::uint16_t> near;
    int n_spikes = 0;
    for (int n = 0; n < n_neurons; ++n) {
      if (!fires(random)) continue;
      if (near_spikes && n % 3 == 0) {
        near.push_back(static_cast<std::uint16_t>(n));
      } else {
        lists.ids.push_back(static_cast<std::uint16_t>(n));
        ++n_spikes;
      }
    }
    lists.ids.insert(lists.ids.end(), near.begin(), near.end());
    lists.n_spikes.push_back(n_spikes);
    lists.offsets.push_back(static_cast<std::int64_t>(lists.ids.size()));
  }
  lists.ids.shrink_to_fit();  // so that a sanitizer detects reads past their end
  return lists;
}

}  // namespace check
