#include "bandwidth.h"

#include <atomic>
#include <chrono>
#include <vector>

#include "host/src/cpu/engine.h"
#include "host/src/cpu/kernels/kernels.h"
#include "thread_pool.h"

namespace sparsesnn {

double measure_bandwidth(std::size_t n_bytes, bool update, double seconds) {
  using Clock = std::chrono::steady_clock;
  const Kernels& kernels = chosen_kernels();
  const int n_threads = num_threads();
  const std::size_t n = (n_bytes / sizeof(float) / 128 + 1) * 128;
  std::vector<double> rates(n_threads);
  std::atomic<float> sink{0.0f};  // so that no sum is left out as unused
  std::atomic<int> n_ready{0};
  parallel_for(n_threads, [&](int item, int) {
    const Array<float> data = Array<float>::zeros(n);
    // All begin together, so that they share what they share. One thread may run all items, so nobody waits for ever.
    ++n_ready;
    const auto patience = Clock::now() + std::chrono::milliseconds(2);
    while (n_ready.load() < n_threads && Clock::now() < patience) continue;
    const auto start = Clock::now();
    double elapsed = 0.0;
    std::size_t n_rounds = 0;
    for (std::size_t rounds = 1; elapsed < seconds; rounds *= 2) {
      for (std::size_t k = 0; k < rounds; ++k) {
        if (update)
          kernels.update_memory(data.data(), n);
        else
          sink.store(kernels.read_memory(data.data(), n), std::memory_order_relaxed);
      }
      n_rounds += rounds;
      elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    }
    rates[item] = static_cast<double>(n_rounds * n * sizeof(float)) * (update ? 2 : 1) / elapsed;
  });
  double sum = 0.0;
  for (const double rate : rates) sum += rate;
  return sum;
}

}  // namespace sparsesnn
