// A child of fork has no threads; its first call starts its own.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "check.h"
#include "host/src/machine/thread_pool.h"

namespace {

int count_items(int n_items) {
  std::atomic<int> n{0};
  sparsesnn::parallel_for(n_items, [&](int, int) { n.fetch_add(1); });
  return n.load();
}

int exit_status_of_child() {
  const pid_t child = fork();
  if (child == 0) {
    alarm(300);  // a child that hangs fails the test instead of stopping it
    // Each of the three bodies waits for the others: the child really has three threads.
    std::atomic<int> n_arrived{0};
    sparsesnn::parallel_for(3, [&](int, int) {
      n_arrived.fetch_add(1);
      while (n_arrived.load() < 3) std::this_thread::yield();
    });
    _exit(count_items(100) == 100 && sparsesnn::num_threads() == 3 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

}  // namespace

int main() {
  sparsesnn::set_num_threads(3);
  CHECK_EQUAL(count_items(100), 100);
  CHECK_EQUAL(exit_status_of_child(), 0);
  CHECK_EQUAL(count_items(100), 100);

  // Forked while another thread is inside a call.
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop.load()) count_items(50);
  });
  for (int round = 0; round < 20; ++round) CHECK_EQUAL(exit_status_of_child(), 0);
  stop.store(true);
  busy.join();
  sparsesnn::set_num_threads(1);
  return check::report("thread_pool_fork");
}
