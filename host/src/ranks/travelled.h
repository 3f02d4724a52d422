// What ranks exchanged without Python.
#pragma once

#include <chrono>
#include <cstddef>

namespace sparsesnn {

// Since somebody last asked.
struct Travelled {
  std::size_t sent = 0, received = 0, n_messages = 0;
  double seconds = 0.0;  // most of them spent waiting
};

// Adds the seconds that it lives.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  Stopwatch(const Stopwatch&) = delete;
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  const Clock::time_point start_ = Clock::now();
};

}  // namespace sparsesnn
