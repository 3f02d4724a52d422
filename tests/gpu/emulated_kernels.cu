// Kernels for test_emulated.py: each breaks one rule, unless n says otherwise.
#include "codelets/gpu/device.h"

namespace sparsesnn {

struct Args {
  Global<float> x;
  Global<const float> y;
  Global<uint32> words;
  Global<int32> counter;
  Global<uint16> halves;
  int n, k;
};

inline int global_thread() { return block_index() * block_size() + thread_index(); }

// ---- right ---------------------------------------------------------------------------------------------------------

KERNEL(scale, Args, 256) {
  const int k = global_thread();
  if (k < a.n) a.x[k] = 2.0f * a.y[k];
}

// words: ballots; x: sums of a warp; halves: the lane above.
KERNEL(common_calls, Args, 256) {
  const int t = thread_index();
  const uint32 odd = ballot(t & 1), few = ballot(t % 32 < 3);
  if (t % 32 == 0) a.words[t / 32] = odd ^ few;
  float sum = static_cast<float>(t);
  for (int mask = 1; mask < 32; mask *= 2) sum += shuffle_xor(sum, mask);
  a.x[t] = sum;
  a.halves[t] = static_cast<uint16>(shuffle_of(t, (t + 1) % 32));
}

KERNEL(count, Args, 256) {
  const int before = atomic_add(a.counter, 0, 1);
  atomic_or(a.words, 0, 1u << block_index());
  a.x[before] = static_cast<float>(block_index());
}

KERNEL(columns, Args, 32) {
  float of[4];
  load_columns(of, a.y, 4 * thread_index() + a.k);
  for (float& column : of) column += 1.0f;
  store_columns(a.x, 4 * thread_index(), of);
}

KERNEL(pointers, Args, 32) {
  Global<float> row = a.x + 32;
  row += 32;
  row[thread_index()] = (a.y + a.k)[thread_index()];
  row[thread_index()] *= 2.0f;
  Global<uint32> none = nullptr;
  if (none) none[0] = 1;
}

// ---- bounds --------------------------------------------------------------------------------------------------------

KERNEL(reads, Args, 32) { a.x[thread_index()] = a.y[thread_index() + a.k]; }
KERNEL(writes, Args, 32) { a.x[thread_index() + a.k] = 1.0f; }
KERNEL(writes_shared, Args, 32) {
  Shared<float> s = shared_memory<float>(16);
  s[thread_index() + a.k] = 1.0f;
}

// ---- memory that no one has written ---------------------------------------------------------------------------------

KERNEL(writes_halves, Args, 32) {
  a.halves[2 * thread_index()] = 0;
  if (a.n) a.halves[2 * thread_index() + 1] = 0;
}
KERNEL(reads_words, Args, 32) {
  const uint32 word = a.words[thread_index()];
  a.x[thread_index()] = static_cast<float>(word);
}
// The first block to run writes its shared memory, all read theirs.
KERNEL(reads_shared, Args, 32) {
  Shared<int32> s = shared_memory<int32>(0);
  const int first = shuffle_of(thread_index() == 0 ? atomic_add(a.counter, 0, 1) : 0, 0);
  if (first == 0 || a.n) s[thread_index()] = 1;
  a.x[global_thread()] = static_cast<float>(s[thread_index()]);
}

// ---- races ---------------------------------------------------------------------------------------------------------

// Another warp wrote, read, or wrote in vain.
KERNEL(write_then_read, Args, 64) {
  Shared<float> s = shared_memory<float>(0);
  const int t = thread_index();
  s[t] = 0.0f;
  barrier();
  s[t] = 1.0f;
  if (a.n) barrier();
  a.x[t] = s[(t + 32) % 64];
}
KERNEL(read_then_write, Args, 64) {
  Shared<float> s = shared_memory<float>(0);
  const int t = thread_index();
  s[t] = 1.0f;
  barrier();
  const float other = s[t / 32];
  if (a.n) barrier();
  if (t % 32 == 0) s[t / 32] = other;
}
KERNEL(write_twice, Args, 64) {
  Shared<float> s = shared_memory<float>(0);
  s[thread_index() % 32 + a.n * (thread_index() / 32 * 32)] = 1.0f;
}
// All warps read, then one writes, whether or not it read last.
KERNEL(many_readers, Args, 128) {
  Shared<float> s = shared_memory<float>(0);
  if (thread_index() == 0) s[0] = 1.0f;
  barrier();
  const float x = s[0];
  if (a.n) barrier();
  if (thread_index() == a.k) s[0] = x + 1.0f;
}
// Lanes of a warp: n = 0 nothing, 1 a ballot, 2 a shuffle, 3 warp_barrier, 4 barrier.
KERNEL(other_lane, Args, 32) {
  Shared<int32> s = shared_memory<int32>(0);
  const int t = thread_index();
  s[t] = 0;
  barrier();
  s[t] = t;
  if (a.n == 1) ballot(true);
  if (a.n == 2) shuffle_xor(t, 1);
  if (a.n == 3) warp_barrier();
  if (a.n == 4) barrier();
  const int other = s[(t + 1) % 32];
  a.x[t] = static_cast<float>(other);
}
KERNEL(global_of_block, Args, 64) {
  const int t = thread_index();
  a.x[t] = 0.0f;
  barrier();
  a.x[t] = 1.0f;
  if (a.n) barrier();
  const float other = a.x[(t + 32) % 64];
  if (a.n) barrier();
  a.x[t] = other;
}
// A block writes what another one writes (k = 0), read (1), changed atomically (2); n: each has its own.
KERNEL(global_of_blocks, Args, 32) {
  const int own = a.n ? global_thread() : thread_index();
  if (a.k == 0) a.x[own] = 1.0f;
  if (a.k == 1) {
    const float x = a.x[own];
    barrier();
    if (block_index() == grid_size() - 1) a.x[own] = x;
  }
  if (a.k == 2) {
    if (thread_index() == 0) atomic_add(a.counter, a.n ? block_index() : 0, 1);
    barrier();
    if (a.n || block_index() == grid_size() - 1) {
      const int count = a.counter[a.n ? block_index() : 0];
      a.x[global_thread()] = static_cast<float>(count);
    }
  }
}
KERNEL(atomic_and_plain, Args, 64) {
  if (thread_index() == 0) a.counter[0] = 1;
  if (a.n) barrier();
  if (thread_index() == 32) atomic_add(a.counter, 0, 1);
}

// ---- divergence ----------------------------------------------------------------------------------------------------

// Threads from k on: n = 0 end, 1 wait at another barrier, 2 call a ballot; else they do as the others.
KERNEL(diverge, Args, 64) {
  const bool leaves = thread_index() >= a.k;
  if (leaves && a.n == 0) return;
  if (leaves && a.n == 1)
    barrier();
  else if (leaves && a.n == 2)
    ballot(true);
  else
    barrier();
}
KERNEL(diverge_in_ballot, Args, 32) {
  if (thread_index() < a.k) ballot(true);
}
KERNEL(shuffle_beyond, Args, 32) { a.x[thread_index()] = shuffle_xor(1.0f, a.k); }

}  // namespace sparsesnn
