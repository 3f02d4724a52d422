// The OpenMP runtimes that other libraries loaded into the process.
#pragma once

namespace sparsesnn {

// Releases the idle threads of the caller's OpenMP pools; without pools this costs nothing.
//
// PyTorch's threads spin for some milliseconds after each operation, on the very cores that the engine's next pass
// needs. They are started again, in microseconds, when PyTorch has work for several threads. Does nothing inside an
// OpenMP region, nor in a forked process without exec: it has the pools, but not their threads. Runtimes older than
// OpenMP 5.0 cannot release threads; PyTorch's wheels up to 2.6 bring such a one.
void rest_openmp_threads() noexcept;

}  // namespace sparsesnn
