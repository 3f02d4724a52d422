// Which candidates a list keeps if it has fewer slots than candidates: one rule for every engine.
//
//   r = hash(seed, step, sample) mod n        of n candidates, those of rank r, r + 1, ... (mod n) are kept
//
// Every candidate is kept equally often, and no id is favored. The seed differs by population and training step
// (sparsesnn/rotation.py). popc compiles this for tiles.
#pragma once

#include "splitmix.h"

namespace sparsesnn {

static inline Hash64 rotation(Hash64 seed, Hash64 step, Hash64 sample) {
  return splitmix(splitmix(splitmix(seed) ^ step) ^ sample);
}

// The ranks that are kept: [start, end) and [0, wrapped).
template <class Int>
struct KeptRanks {
  Int n = 0, n_kept = 0, start = 0;

  Int end() const { return start + n_kept < n ? start + n_kept : n; }
  Int wrapped() const { return start + n_kept > n ? start + n_kept - n : 0; }
  bool has(Int rank) const { return (rank >= start && rank < end()) || rank < wrapped(); }

  // Counts the first `rank` candidates that are kept.
  Int before(Int rank) const {
    const Int late = rank > start ? (rank < end() ? rank : end()) - start : 0;
    return late + (rank < wrapped() ? rank : wrapped());
  }
};

// For n candidates and `slots` slots; modulo(n) is the hash mod n, computed only if some candidates are left out.
template <class Int, class Modulo>
static inline KeptRanks<Int> keep_ranks(Int n, Int slots, Modulo&& modulo) {
  const Int n_kept = n < slots ? n : slots;
  return {n, n_kept, n_kept > 0 && n_kept < n ? modulo(n) : 0};
}

}  // namespace sparsesnn
