#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"
#include "host/src/machine/thread_pool.h"

using sparsesnn::num_threads;
using sparsesnn::parallel_for;
using sparsesnn::set_num_threads;

namespace {

void runs_every_item_once() {
  for (const int n_threads : {1, 2, 3, 7}) {
    set_num_threads(n_threads);
    CHECK_EQUAL(num_threads(), n_threads);
    for (const int n_items : {0, 1, 2, 3, 13, 1000}) {
      std::vector<int> runs(n_items, 0);  // plain ints: a second writer is a race that ThreadSanitizer reports
      parallel_for(n_items, [&](int item, int worker) {
        runs[item] += 1;
        if (worker < 0 || worker >= n_threads) runs[item] += 100;
      });
      for (const int n : runs) CHECK_EQUAL(n, 1);
    }
  }
}

// No two bodies run at once with the same worker: each may write its own row without a lock.
void workers_are_exclusive() {
  set_num_threads(4);
  std::vector<long> sums(4, 0);
  const int n_items = 5000;
  for (int round = 0; round < 20; ++round) parallel_for(n_items, [&](int item, int worker) { sums[worker] += item; });
  CHECK_EQUAL(std::accumulate(sums.begin(), sums.end(), 0l), 20l * n_items * (n_items - 1) / 2);
}

// Jobs of different lengths in quick succession: a thread that wakes up late must not take an item of a job that ended.
void short_jobs_in_a_row() {
  set_num_threads(3);
  long total = 0, wanted = 0;
  for (int round = 0; round < 20000; ++round) {
    const int n_items = 1 + round % 5;
    int parts[5] = {0, 0, 0, 0, 0};
    parallel_for(n_items, [&parts, round](int item, int) { parts[item] += round; });
    for (const int part : parts) total += part;
    wanted += static_cast<long>(n_items) * round;
  }
  CHECK_EQUAL(total, wanted);
}

// Sleeping threads wake up: with one long item each, the work is shared.
void wakes_sleeping_threads() {
  set_num_threads(3);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::atomic<int> n_arrived{0};
  // Every item waits for all three, which ends only if three threads run them.
  parallel_for(3, [&](int, int) {
    n_arrived.fetch_add(1);
    while (n_arrived.load() < 3) std::this_thread::yield();
  });
  CHECK_EQUAL(n_arrived.load(), 3);
}

void idle_threads_cost_nothing() {
  set_num_threads(4);
  parallel_for(8, [](int, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const double seconds = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  CHECK(seconds < 0.05);
}

void first_exception_reaches_the_caller() {
  for (const int n_threads : {1, 3}) {
    set_num_threads(n_threads);
    std::atomic<int> n_ran{0};
    // Enough items that the other threads cannot run them all in the time slice that the failing one may lose.
    const int n_items = 20000000;
    const auto run = [&] {
      parallel_for(n_items, [&](int item, int) {
        n_ran.fetch_add(1);
        if (item == 5) throw std::runtime_error("item 5 failed");
      });
    };
    CHECK_THROWS(run(), "item 5 failed");
    CHECK(n_ran.load() < n_items);
    // The pool is usable afterwards, and the exception does not come back.
    std::atomic<int> n_after{0};
    parallel_for(50, [&](int, int) { n_after.fetch_add(1); });
    CHECK_EQUAL(n_after.load(), 50);
  }
  set_num_threads(3);
  CHECK_THROWS(parallel_for(64, [](int, int) { throw std::runtime_error("all failed"); }), "all failed");
}

void nested_calls_run_on_the_same_worker() {
  set_num_threads(3);
  std::vector<int> runs(6 * 5, 0);
  std::atomic<int> n_other{0};
  parallel_for(6, [&](int outer, int worker) {
    parallel_for(5, [&](int inner, int inner_worker) {
      runs[outer * 5 + inner] += 1;
      if (inner_worker != worker) n_other.fetch_add(1);
    });
  });
  for (const int n : runs) CHECK_EQUAL(n, 1);
  CHECK_EQUAL(n_other.load(), 0);
  CHECK_THROWS(parallel_for(4, [](int, int) { set_num_threads(2); }), "inside a parallel_for");
  CHECK_EQUAL(num_threads(), 3);
}

void callers_take_turns() {
  set_num_threads(2);
  long sum = 0;  // plain: both callers write it, one job after the other
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller)
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        long parts[4] = {0, 0, 0, 0};
        parallel_for(4, [&](int item, int worker) {
          parts[item] = item + 1;
          if (worker == 0 && item == 0) sum += 0;  // worker 0 is exclusive over all callers
        });
        parallel_for(1, [&](int, int) { sum += parts[0] + parts[1] + parts[2] + parts[3]; });
      }
    });
  // Another thread changes the team meanwhile.
  for (int round = 0; round < 30; ++round) set_num_threads(1 + round % 3);
  for (std::thread& caller : callers) caller.join();
  CHECK_EQUAL(sum, 3l * 200 * 10);
}

// Until look() returns false; other threads may work meanwhile, such as one that forks with the GIL that look() waits
// for.
void looks_meanwhile() {
  static int n_looks;
  const auto work = [](int n_jobs) {
    for (int job = 0; job < n_jobs; ++job)
      parallel_for(5, [](int, int) { std::this_thread::sleep_for(std::chrono::microseconds(100)); });
  };
  for (const int n_threads : {1, 3}) {
    set_num_threads(n_threads);
    n_looks = 0;
    sparsesnn::look_meanwhile([] {
      std::thread([] { parallel_for(2, [](int, int) {}); }).join();
      return ++n_looks < 3;
    });
    std::thread([&] { work(20); }).join();
    CHECK_EQUAL(n_looks, 0);  // set for another thread
    work(100);
    CHECK_EQUAL(n_looks, 3);
    sparsesnn::look_meanwhile([]() -> bool { throw std::runtime_error("a rank failed"); });
    CHECK_THROWS(work(100), "a rank failed");
    sparsesnn::look_meanwhile(nullptr);
    work(20);
  }
}

// Each thread begins with the first item of its own run; no first item ends before all have begun.
void threads_begin_far_apart() {
  for (const int n_threads : {2, 3, 7})
    for (const int n_items : {n_threads, 4 * n_threads, 4 * n_threads + 1, 100}) {
      set_num_threads(n_threads);
      std::atomic<int> n_begun{0};
      std::vector<int> first(n_threads, -1), seen(n_items, 0);
      parallel_for(n_items, [&](int item, int worker) {
        seen[item] += 1;
        if (first[worker] >= 0) return;
        first[worker] = item;
        n_begun.fetch_add(1);
        while (n_begun.load() < n_threads) std::this_thread::yield();
      });
      for (const int times : seen) CHECK_EQUAL(times, 1);
      for (int worker = 0; worker < n_threads; ++worker) CHECK_EQUAL(first[worker], n_items * worker / n_threads);
    }
}

void refuses_wrong_counts() {
  CHECK_THROWS(set_num_threads(0), "number of threads is 0; give a whole number from 1 to 1024");
  CHECK_THROWS(set_num_threads(-3), "is -3");
  CHECK_THROWS(set_num_threads(1 << 20), "1 to 1024");
}

void reads_the_environment() {
  const auto with = [](const char* text) {
    setenv("SPARSESNN_THREADS", text, 1);
    sparsesnn::set_num_threads_from_environment();
  };
  with("3");
  CHECK_EQUAL(num_threads(), 3);
  with("");
  CHECK_EQUAL(num_threads(), 3);
  for (const char* wrong : {"0", "-1", "two", "2.5", "3 ", "99999999999999999999"})
    CHECK_THROWS(with(wrong), std::string("SPARSESNN_THREADS is '") + wrong + "'; give a whole number from 1 to 1024");
  unsetenv("SPARSESNN_THREADS");
}

}  // namespace

int main() {
  CHECK(num_threads() >= 1);
  runs_every_item_once();
  workers_are_exclusive();
  short_jobs_in_a_row();
  wakes_sleeping_threads();
  idle_threads_cost_nothing();
  first_exception_reaches_the_caller();
  nested_calls_run_on_the_same_worker();
  callers_take_turns();
  looks_meanwhile();
  threads_begin_far_apart();
  refuses_wrong_counts();
  reads_the_environment();
  set_num_threads(1);  // joins the threads, so that the sanitizers see none left
  return check::report("thread_pool");
}
