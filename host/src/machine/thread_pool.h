// One persistent pool of threads for the whole process.
#pragma once

#include <memory>
#include <type_traits>

namespace sparsesnn {

inline constexpr int max_threads = 1024;

// The number of threads that share the work of a parallel_for, including the caller. Initially the number of processors
// this process may run on.
int num_threads();

// Throws std::invalid_argument unless 1 <= n <= max_threads, std::logic_error inside a parallel_for.
void set_num_threads(int n);

// Applies the environment variable SPARSESNN_THREADS, if it is set and not empty; throws std::invalid_argument.
void set_num_threads_from_environment();

// From now on the calling thread calls look(), once in a millisecond at most, after its calls of parallel_for, and
// between their items if no other thread works on them. This ends when look() returns false; nullptr ends it, too. An
// exception of look() is thrown by parallel_for.
void look_meanwhile(bool (*look)());

namespace detail {
using Body = void (*)(void* context, int item, int worker);
void parallel_for(int n_items, Body body, void* context);
}  // namespace detail

// Runs body(item, worker) once for each item in [0, n_items) and returns when all have ended.
//
// Each thread has a run of neighboring items, and helps the others when it has finished: so a thread accesses the same
// data in every call over the same items, and works far from the others, because neighbors would write to each other's
// cache lines and the hardware would prefetch them. A result must not depend on `worker` or on the order of items;
// `worker` is in [0, num_threads()) and no two bodies run at once with the same one (the caller is 0). A parallel_for
// inside a body runs its items one by one on that thread, with that thread's `worker`. Calls from several threads run
// one after the other: a caller must not hold a lock that a body takes, so Python's GIL is released before.
//
// The first exception that a body throws is thrown here; items that had not begun by then are skipped.
template <class F>
void parallel_for(int n_items, F&& body) {
  using Function = std::remove_reference_t<F>;
  detail::parallel_for(
      n_items, [](void* context, int item, int worker) { (*static_cast<Function*>(context))(item, worker); },
      const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

}  // namespace sparsesnn
