// The choice among candidates that do not fit a list: the rule of select.h on 32-bit words, without a division.
//
// Of a group of n candidates those of rank (r, r + 1, ...) mod n are kept, r = hash(seed, step, sample) mod n.
// No header of the standard library: popc compiles this for tiles.
#pragma once

namespace sparsesnn::tile {

using Word64 = unsigned long long;

inline Word64 mix(Word64 z) {  // splitmix64 (Steele et al. 2014)
  z += 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

inline Word64 rotation(Word64 seed, unsigned step, unsigned sample) { return mix(mix(mix(seed) ^ step) ^ sample); }

// z mod n for n < 2^31, by long division: a tile has no divider.
inline unsigned modulo(Word64 z, unsigned n) {
  unsigned rest = 0;
  for (int bit = 63; bit >= 0; --bit) {
    rest = rest << 1 | static_cast<unsigned>(z >> bit & 1);
    if (rest >= n) rest -= n;
  }
  return rest;
}

// n mod 6 of a 16-bit number: the product is exact up to 2^16.
inline unsigned modulo_6(unsigned n) { return n - 6 * (n * 43691u >> 18); }

// A group of candidates of which `n_keep` stay; words are given in ascending order of neurons.
struct Group {
  unsigned n = 0, n_keep = 0, start = 0, rank = 0;

  // At most `slots` of `count` candidates stay. Returns how many.
  unsigned limit(unsigned count, unsigned slots, Word64 seed, unsigned step, unsigned sample) {
    n = count;
    n_keep = count < slots ? count : slots;
    start = n_keep && n_keep < n ? modulo(rotation(seed, step, sample), n) : 0;
    rank = 0;
    return n_keep;
  }

  // How many of the first `r` candidates stay.
  unsigned kept_before(unsigned r) const {
    if (n_keep == n) return r;
    const unsigned end = start + n_keep, first = end < n ? end : n, wrapped = end > n ? end - n : 0;
    const unsigned late = r > start ? (r < first ? r : first) - start : 0;
    return late + (r < wrapped ? r : wrapped);
  }

  // The part of the next word that stays.
  unsigned kept(unsigned bits) {
    if (n_keep == n) return bits;
    if (n_keep == 0) return 0;
    unsigned result = 0;
    for (; bits; bits &= bits - 1, ++rank) {
      const unsigned turned = rank >= start ? rank - start : rank + n - start;
      if (turned < n_keep) result |= bits & -bits;
    }
    return result;
  }
};

}  // namespace sparsesnn::tile
