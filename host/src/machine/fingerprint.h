// A 64-bit number that shows whether memory has changed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsesnn {

// The fingerprint of n bytes. A change of one 8-byte word always changes it; another change goes unnoticed with a
// chance of about 2^-64. It is not a defense against an attacker who searches for bytes of equal fingerprint. It does
// not depend on threads.
std::uint64_t fingerprint(const void* data, std::size_t n_bytes);

}  // namespace sparsesnn
