// splitmix64 (Steele, Lea, Flood 2014): the hash of every random choice; sparsesnn/splitmix.py has the same numbers.
//
// No header of the standard library: popc compiles this for tiles. Everything is static: code that is compiled once per
// instruction set is not shared.
#pragma once

namespace sparsesnn {

using Hash64 = unsigned long long;

constexpr Hash64 splitmix_step = 0x9E3779B97F4A7C15ull;

// A bijection.
static inline Hash64 finalized(Hash64 z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

static inline Hash64 splitmix(Hash64 z) { return finalized(z + splitmix_step); }

}  // namespace sparsesnn
