// The OpenMP runtimes that other libraries brought into the process.
#pragma once

namespace sparsesnn {

// Lets the idle threads of the caller's OpenMP pools go; where there are none, this costs nothing.
//
// PyTorch's threads look for work for some milliseconds after each operation, on the very cores that the next pass of
// the engine is to run on. They are started again, in microseconds, when PyTorch has work for several. Does nothing
// inside an OpenMP region, and in a process that came from fork alone: it has the pools, but not their threads.
// Runtimes older than OpenMP 5.0 cannot let threads go; PyTorch's wheels up to 2.6 bring such a one.
void rest_openmp_threads() noexcept;

}  // namespace sparsesnn
