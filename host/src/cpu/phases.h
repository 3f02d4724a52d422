// Wall time by phase, summed over all calls of the process; for benchmarks.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace sparsesnn {

enum class Phase : int { pack, forward, collect, sort, step_grad, deliver_grad, sum_shares, count_ };

inline constexpr std::array<const char*, static_cast<std::size_t>(Phase::count_)> phase_names{
    "pack", "forward", "collect", "sort", "step_grad", "deliver_grad", "sum_shares"};

inline std::array<std::atomic<std::int64_t>, static_cast<std::size_t>(Phase::count_)> phase_ns{};

// Adds the time until its end to a phase; if `n_workers` work on a phase at once, each adds its part. A few per call of
// a layer, so the cost is negligible.
class PhaseTimer {
 public:
  explicit PhaseTimer(Phase phase, int n_workers = 1) : phase_(phase), n_workers_(n_workers), start_(Clock::now()) {}
  ~PhaseTimer() {
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_).count();
    phase_ns[static_cast<std::size_t>(phase_)].fetch_add(ns / n_workers_, std::memory_order_relaxed);
  }
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  Phase phase_;
  int n_workers_;
  Clock::time_point start_;
};

}  // namespace sparsesnn
