// A 64-bit number that tells whether memory still holds what it held.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsesnn {

// The fingerprint of n bytes. A change of one 8-byte word always changes it, another change misses by a chance of about
// 2^-64; it is no defense against somebody who looks for bytes of equal fingerprint. It does not depend on threads.
std::uint64_t fingerprint(const void* data, std::size_t n_bytes);

}  // namespace sparsesnn
