// Memory for arrays, kept for the next step instead of returned to the system.
//
// A training step allocates the same arrays every time. Memory returned to the system would come back as fresh pages: a
// page fault for each, and, with several threads, an interrupt on every core for each release. That costs more than the
// kernels that use the arrays.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsesnn {

// Uninitialized bytes on a cache line; throws std::bad_alloc.
void* allocate(std::size_t n_bytes);

// Null is allowed. Any thread may release.
void release(void* memory) noexcept;

// Returns kept memory that is not in use to the system.
void release_kept() noexcept;

// Memory that other processes of this host can map: an unnamed file, which vanishes once all processes that map it have
// ended, in whatever way. A page is allocated when first written.
struct SharedMemory {
  int file = -1;
  char* data = nullptr;
  std::size_t n_bytes = 0;  // 0: this system has no such memory
};

// The shared memory of this process, made by the first call. A forked child has none, because it would share its
// parent's.
SharedMemory shared_memory();

// The offset of `data` in it; -1: elsewhere.
std::int64_t place_in_shared(const void* data);

// Like `allocate`, in shared memory once that has been made.
void* allocate_shared(std::size_t n_bytes);

}  // namespace sparsesnn
