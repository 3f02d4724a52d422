// Memory for arrays, kept for the next step instead of given back.
//
// A training step allocates the same arrays every time. Given back to the system, each would come back as fresh pages:
// a page fault a page, and, with several threads, an interrupt on every core for each release. That costs more than the
// kernels that use the arrays.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsesnn {

// Uninitialized bytes on a cache line; throws std::bad_alloc.
void* allocate(std::size_t n_bytes);

// Null is allowed. Any thread may release.
void release(void* memory) noexcept;

// Gives back what is kept and not in use.
void release_kept() noexcept;

// Memory that other processes of this host can map: a file without a name, of which nothing is left when those that map
// it have ended, however they ended. It has a page from when that is first written.
struct SharedMemory {
  int file = -1;
  char* data = nullptr;
  std::size_t n_bytes = 0;  // 0: this system has no such memory
};

// That of this process, which the first call makes. A child of the process has none: it would share its parent's.
SharedMemory shared_memory();

// Where in it something lies; -1: elsewhere.
std::int64_t place_in_shared(const void* data);

// As `allocate`, in shared memory once that has been made.
void* allocate_shared(std::size_t n_bytes);

}  // namespace sparsesnn
