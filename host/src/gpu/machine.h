// The machine that runs kernels. Blocks run one after another; the warps of a block take turns from barrier to barrier,
// the lanes of a warp from one ballot, shuffle or barrier to the next. These orders are random, from a seed.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "host/src/gpu/device_memory.h"
#include "host/src/gpu/emulated.h"
#include "host/src/gpu/fiber.h"

namespace sparsesnn::emulated {

constexpr int lanes = 32, max_block = 1024;

struct Launch {
  const Entry* entry;
  int grid, block, shared_bytes;
  const void* arguments;
};

class EmulatedGpu final : public Machine {
 public:
  explicit EmulatedGpu(uint64_t seed) : random_(seed), stacks_(max_block), threads_(max_block) {}

  DeviceMemory memory;

  // Runs a kernel. Returns an error message, or nothing.
  std::string run(const Launch& launch);

  // Marks bytes as written by the host; those that were copied from undefined bytes of `source` stay undefined.
  void written(Array& array, uint64_t address, uint64_t n_bytes, const Array* source = nullptr, uint64_t from = 0);

  void* reach(const Range& range, Access how, Site site) override;
  uint64 moved(const Range& range, Site site) override;
  void barrier(Site site) override { wait({Call::barrier, site}); }
  void warp_barrier(Site site) override { wait({Call::warp_barrier, site}); }
  uint32 ballot(bool condition, Site site) override;
  uint64 of_lane(uint64 value, int lane, Site site) override;

 private:
  enum class Call { ended, barrier, warp_barrier, ballot, shuffle };
  // The call that a thread waits in.
  struct Wait {
    Call call;
    Site site;

    bool operator==(const Wait& other) const {
      return call == other.call && site.line == other.site.line &&
             (site.file == other.site.file || !std::strcmp(site.file, other.site.file));
    }
  };
  struct Thread {
    Fiber fiber;
    Wait wait = {Call::ended, {"", 0}};
    uint64 value = 0;
  };

  static void begin();
  void begin_block(int number);
  void begin_phase();
  void begin_warp();
  void wait(Wait reason);
  int next_thread();
  void hand_over(const Thread* warp);
  [[noreturn]] void refuse_divergence(int one, int other);
  void check(Cell* cell, Access how, Site site, const Now& now, const Range& range, const Array* array);
  std::string race(const char* did, Record record, Scope scope) const;
  [[noreturn]] void fail(Site site, const std::string& text);
  [[noreturn]] void fail(Site site, Access how, const Range& range, const Array* array, const std::string& why);

  static EmulatedGpu* running_;

  std::mt19937_64 random_;
  Stacks stacks_;
  std::vector<Thread> threads_;
  Fiber host_;
  std::string error_;
  const Launch* launch_ = nullptr;

  // Times (shadow.h), and the blocks that began at them.
  uint64_t clock_ = 1, launch_time_ = 0, block_time_ = 0, phase_time_ = 0;
  std::vector<std::pair<uint64_t, int>> block_times_;

  std::vector<int> warps_;  // in the order of the phase
  size_t turn_ = 0;         // the place of the warp that runs
  int first_lane_ = 0, n_lanes_ = 0;
  uint64 handed_over_[lanes];  // the values of the lanes at their last ballot or shuffle
  uint32 ballot_ = 0;

  std::vector<char> shared_;
  std::vector<Cell> shared_cells_;
};

}  // namespace sparsesnn::emulated
