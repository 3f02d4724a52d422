// What the caches and the memory of this machine give, measured; for benchmarks.
#pragma once

#include <cstddef>

namespace sparsesnn {

// Bytes per second of all threads together, each going over `n_bytes` of its own again and again for `seconds`: reading
// them, or reading, adding to and writing them, which counts the bytes twice.
double measure_bandwidth(std::size_t n_bytes, bool update, double seconds);

}  // namespace sparsesnn
