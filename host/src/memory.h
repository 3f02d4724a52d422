// Memory for arrays, kept for the next step instead of given back.
//
// A training step allocates the same arrays every time. Given back to the system, each would come back as fresh pages:
// a page fault a page, and, with several threads, an interrupt on every core for each release. That costs more than the
// kernels that use the arrays.
#pragma once

#include <cstddef>

namespace sparsesnn {

// Uninitialised bytes on a cache line; throws std::bad_alloc.
void* allocate(std::size_t n_bytes);

// Null is allowed. Any thread may release.
void release(void* memory) noexcept;

// Gives back what is kept and not in use.
void release_kept() noexcept;

}  // namespace sparsesnn
