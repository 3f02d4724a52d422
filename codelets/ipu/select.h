// Select: the candidates that a list keeps (codelets/capacity.h), on 32-bit words and without a division.
#pragma once

#include "codelets/capacity.h"

namespace sparsesnn::tile {

// z mod n for n < 2^31, by long division: a tile has no divider.
inline unsigned modulo(Hash64 z, unsigned n) {
  unsigned rest = 0;
  for (int bit = 63; bit >= 0; --bit) {
    rest = rest << 1 | static_cast<unsigned>(z >> bit & 1);
    if (rest >= n) rest -= n;
  }
  return rest;
}

// n mod 6 of a 16-bit number: the product is exact up to 2^16.
inline unsigned modulo_6(unsigned n) { return n - 6 * (n * 43691u >> 18); }

// A group of candidates whose words come in ascending order of neurons.
struct Group : KeptRanks<unsigned> {
  unsigned rank = 0;  // of the first candidate of the next word

  void limit(unsigned count, unsigned slots, Hash64 seed, unsigned step, unsigned sample) {
    const auto start = [&](unsigned n) { return modulo(rotation(seed, step, sample), n); };
    static_cast<KeptRanks&>(*this) = keep_ranks(count, slots, start);
    rank = 0;
  }

  // The kept part of the next word.
  unsigned kept(unsigned bits) {
    if (n_kept == n) return bits;
    if (n_kept == 0) return 0;
    unsigned result = 0;
    for (; bits; bits &= bits - 1, ++rank)
      if (has(rank)) result |= bits & -bits;
    return result;
  }
};

}  // namespace sparsesnn::tile
