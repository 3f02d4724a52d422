// Random numbers as a function of their purpose: datasets/hashing.py in C++, with the same numbers.
#pragma once

#include <cstdint>

#include "codelets/splitmix.h"

namespace sparsesnn {

// The stream of numbers for a seed and some words, such as epoch, sample and purpose.
class Draws {
 public:
  template <class... Words>
  explicit Draws(std::uint64_t seed, Words... words) : key_(finalized(seed + splitmix_step)) {
    ((key_ = finalized((key_ ^ static_cast<std::uint64_t>(words)) + splitmix_step)), ...);
  }

  std::uint64_t bits(std::uint64_t counter) const { return finalized(key_ + (counter + 1) * splitmix_step); }

  std::uint64_t key() const { return key_; }

  // In [0, 1), a multiple of 2^-53.
  double uniform(std::uint64_t counter) const {
    return static_cast<double>(static_cast<std::int64_t>(bits(counter) >> 11)) * 0x1p-53;
  }

  // One of 4,096 quantiles of the normal distribution.
  double normal(std::uint64_t counter, const double* quantiles) const { return quantiles[bits(counter) >> 52]; }

  // Uniform in 0 .. n - 1.
  std::int64_t below(std::int64_t n, std::uint64_t counter) const {
    return static_cast<std::int64_t>(uniform(counter) * static_cast<double>(n));
  }

 private:
  std::uint64_t key_;
};

}  // namespace sparsesnn
