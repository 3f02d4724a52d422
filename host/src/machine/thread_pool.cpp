#include "thread_pool.h"

#include <pthread.h>
#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "openmp.h"

namespace sparsesnn {
namespace {

using Clock = std::chrono::steady_clock;

// A cache line, so that threads do not write to the same one.
constexpr int line = 64;

// How long a thread spins on a word before sleeping: longer than Python takes between two passes of a training step,
// because waking up costs both threads tens of microseconds. Spinning longer would take a processor from other
// programs.
constexpr std::chrono::microseconds longest_look{200};

// -1 outside a parallel_for, else the worker index of this thread.
thread_local int this_worker = -1;

// Makes the calling thread a worker for as long as this lives.
struct AsWorker {
  explicit AsWorker(int worker) { this_worker = worker; }
  ~AsWorker() { this_worker = -1; }
  AsWorker(const AsWorker&) = delete;
  AsWorker& operator=(const AsWorker&) = delete;
};

// The function that look_meanwhile set for this thread.
thread_local bool (*this_look)() = nullptr;

// Unlocks the mutex meanwhile: look() may wait for Python's GIL, whose holder may be about to fork, which waits for the
// mutex.
void look_now(std::unique_lock<std::mutex>& calling) {
  thread_local Clock::time_point next;
  if (!this_look || Clock::now() < next) return;
  const bool held = calling.owns_lock();
  if (held) calling.unlock();
  if (!this_look()) this_look = nullptr;
  next = Clock::now() + std::chrono::milliseconds(1);
  if (held) calling.lock();
}

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns once `word` no longer holds `value`.
template <class T>
void wait_while(const std::atomic<T>& word, T value) {
  const Clock::time_point end = Clock::now() + longest_look;
  do {
    for (int k = 0; k < 32; ++k) {  // reading the clock takes as long as a pause or two
      if (word.load(std::memory_order_acquire) != value) return;
      pause();
    }
  } while (Clock::now() < end);
  word.wait(value, std::memory_order_acquire);
}

// The threads, and the one job they share.
//
// Each thread has a run of the job's items. The job's number and the run's next item are stored in one word, a claim,
// and an item is taken by a compare-exchange on it: by its thread, or by a thread that has finished its own run. The
// job's description changes only after every item has ended and all claims are `closed`, so a thread whose exchange
// succeeds has read the description of just that job. A thread that wakes up late takes nothing, and no thread waits
// for it.
class Team {
 public:
  explicit Team(int n_threads) : n_threads_(n_threads), claims_(new Claim[n_threads]) {
    threads_.reserve(n_threads - 1);
    try {
      for (int worker = 1; worker < n_threads; ++worker) threads_.emplace_back([this, worker] { serve(worker); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~Team() { stop(); }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // The caller works as worker 0.
  void run(int n_items, detail::Body body, void* context) {
    const std::uint32_t job = job_.load(std::memory_order_relaxed) + 1;
    const std::uint64_t number = static_cast<std::uint64_t>(job) << 32;
    for (int run = 0; run < n_threads_; ++run) claims_[run].word.store(number | closed, std::memory_order_relaxed);
    // Released, so that a thread that reads a new value here sees the old claims closed.
    n_items_.store(n_items, std::memory_order_release);
    body_.store(body, std::memory_order_release);
    context_.store(context, std::memory_order_release);
    n_left_.store(n_items, std::memory_order_relaxed);
    failed_.store(false, std::memory_order_relaxed);
    for (int run = 0; run < n_threads_; ++run)
      claims_[run].word.store(number + run_begin(run, n_items), std::memory_order_release);
    job_.store(job, std::memory_order_release);
    wake(std::min<std::size_t>(n_items - 1, threads_.size()));

    {
      const AsWorker caller(0);
      work(0);
    }
    for (int left; (left = n_left_.load(std::memory_order_acquire)) != 0;) wait_while(n_left_, left);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  static constexpr std::uint64_t closed = 0xffffffffu;  // as an item: more than any job has

  void wake(std::size_t n) {
    if (n == threads_.size()) return job_.notify_all();
    for (; n > 0; --n) job_.notify_one();
  }

  void serve(int worker) {
    const AsWorker self(worker);
    std::uint32_t seen = 0;
    for (;;) {
      wait_while(job_, seen);
      seen = job_.load(std::memory_order_acquire);
      if (stopping_.load(std::memory_order_acquire)) return;
      work(worker);
    }
  }

  // The first of a run's items; its end is where the next run begins.
  std::uint32_t run_begin(int run, int n_items) const {
    return static_cast<std::uint32_t>(static_cast<std::int64_t>(n_items) * run / n_threads_);
  }

  // Takes and runs items of the current job until none is left, first those of its own run.
  void work(int worker) {
    int n_done = 0;
    for (int k = 0; k < n_threads_; ++k) n_done += work_on((worker + k) % n_threads_, worker);
    if (n_done) finish(n_done);
  }

  // The same for one run; returns the number of items run.
  int work_on(int run, int worker) {
    std::atomic<std::uint64_t>& word = claims_[run].word;
    int n_done = 0;
    std::uint64_t claim = word.load(std::memory_order_acquire);
    for (;;) {
      const auto item = static_cast<std::uint32_t>(claim);
      const int n_items = n_items_.load(std::memory_order_acquire);
      const detail::Body body = body_.load(std::memory_order_acquire);
      void* const context = context_.load(std::memory_order_acquire);
      if (item >= run_begin(run + 1, n_items)) return n_done;
      // On failure `claim` is the current value: of the same job while n_done > 0, which cannot end before those items
      // are counted.
      if (!word.compare_exchange_weak(claim, claim + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      if (!failed_.load(std::memory_order_relaxed)) {
        try {
          body(context, static_cast<int>(item), worker);
        } catch (...) {
          if (!failed_.exchange(true, std::memory_order_relaxed)) error_ = std::current_exception();
        }
      }
      ++n_done;
      ++claim;
    }
  }

  void finish(int n_done) {
    if (n_left_.fetch_sub(n_done, std::memory_order_acq_rel) == n_done) n_left_.notify_one();
  }

  void stop() {
    stopping_.store(true, std::memory_order_release);
    job_.fetch_add(1, std::memory_order_release);
    job_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  struct alignas(line) Claim {
    std::atomic<std::uint64_t> word{0};  // job number · 2³² + next item
  };

  const int n_threads_;
  const std::unique_ptr<Claim[]> claims_;
  alignas(line) std::atomic<std::int32_t> n_left_{0};  // items that have not ended
  alignas(line) std::atomic<std::uint32_t> job_{0};    // number of the last job; sleeping threads wait for it to change
  std::atomic<std::int32_t> n_items_{0};
  std::atomic<detail::Body> body_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<bool> failed_{false};
  std::atomic<bool> stopping_{false};
  std::exception_ptr error_;  // written by the thread that set failed_, read once n_left_ is 0
  std::vector<std::thread> threads_;
};

int processors() {
#ifdef __linux__
  for (int n = CPU_SETSIZE; n <= 1 << 20; n *= 2) {
    cpu_set_t* set = CPU_ALLOC(n);
    if (!set) break;
    const bool known = sched_getaffinity(0, CPU_ALLOC_SIZE(n), set) == 0;
    const int count = known ? CPU_COUNT_S(CPU_ALLOC_SIZE(n), set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
#endif
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

struct Pool {
  std::mutex calling;  // held while a job runs or the team changes
  Team* team = nullptr;
  std::atomic<int> n_threads{std::min(processors(), max_threads)};
};

void before_fork();
void after_fork_in_parent();
void after_fork_in_child();

// Never destroyed: at the process's exit other threads may still be inside a call.
Pool& pool() {
  static Pool* const one = [] {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    return new Pool;
  }();
  return *one;
}

// A fork copies memory but no threads. With the mutex held no job is in progress, so the child only has to drop the
// team, whose threads it does not have; its next call starts a new one.
void before_fork() {
  if (this_worker < 0) pool().calling.lock();
}
void after_fork_in_parent() {
  if (this_worker < 0) pool().calling.unlock();
}
void after_fork_in_child() {
  if (this_worker >= 0) return;
  pool().team = nullptr;  // not deleted: that would join threads that do not exist
  pool().calling.unlock();
}

int checked_count(long long n, const std::string& asked) {
  if (n < 1 || n > max_threads)
    throw std::invalid_argument(asked + "; give a whole number from 1 to " + std::to_string(max_threads));
  return static_cast<int>(n);
}

}  // namespace

int num_threads() { return pool().n_threads.load(); }

void set_num_threads(int n) {
  checked_count(n, "number of threads is " + std::to_string(n));
  if (this_worker >= 0) throw std::logic_error("set_num_threads was called inside a parallel_for; call it outside");
  Pool& p = pool();
  const std::lock_guard lock(p.calling);
  if (n == p.n_threads.load()) return;
  delete p.team;
  p.team = nullptr;
  p.n_threads.store(n);
}

void set_num_threads_from_environment() {
  const char* text = std::getenv("SPARSESNN_THREADS");
  if (!text || !*text) return;
  const char* const end = text + std::strlen(text);
  long long n = 0;
  const auto [stop, error] = std::from_chars(text, end, n);
  if (error != std::errc() || stop != end) n = 0;  // not a number: out of range either way
  set_num_threads(checked_count(n, std::string("SPARSESNN_THREADS is '") + text + "'"));
}

void look_meanwhile(bool (*look)()) { this_look = look; }

void detail::parallel_for(int n_items, Body body, void* context) {
  if (n_items <= 0) return;
  if (this_worker >= 0) {
    for (int item = 0; item < n_items; ++item) body(context, item, this_worker);
    return;
  }
  Pool& p = pool();
  std::unique_lock lock(p.calling);
  const int n_threads = p.n_threads.load();
  if (n_threads == 1 || n_items == 1) {
    const AsWorker caller(0);
    const bool looks = this_look;  // read once: a thread-local variable takes a call
    for (int item = 0; item < n_items; ++item) {
      body(context, item, 0);
      if (looks) look_now(lock);
    }
    return;
  }
  if (!p.team) p.team = new Team(n_threads);
  rest_openmp_threads();
  p.team->run(n_items, body, context);
  lock.unlock();
  look_now(lock);
}

}  // namespace sparsesnn
