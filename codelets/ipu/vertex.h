// Shared by all vertices: field types, the layout of lists, and two macros for the emulated machine alone.
//
// Letters: T steps, B samples of the batch, K capacity, M senders, n neurons of the shard, w = n rounded up to a pair.
// Samples are dealt to the six workers of a tile in turn; no two workers write into one 4-byte word.
#pragma once

// A spike is a comparison, so no multiply-add may be contracted. popc is a clang; whether it accepts -ffp-contract=off
// is not documented, and the pragma has the same effect on all code below. The emulated machine is compiled with the
// option.
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

#include <poplar/HalfFloat.hpp>
#include <poplar/Vertex.hpp>

#ifdef __POPC__
#define SPARSESNN_VERTEX(...)
#define SPARSESNN_VERTEX_OF(V, T, ...) template class V<T>;
#define SPARSESNN_WORK(name, count)
#else
#include "host/src/emulator/codelet.h"
#endif

#define SPARSESNN_INLINE  // a tile has little memory for stacks
#include "codelets/neuron.h"
#include "codelets/surrogate.h"
#include "records.h"
#include "select.h"

namespace sparsesnn::ipu {

using base::Fired;
using base::Shapes;

inline constexpr auto one_pointer = poplar::VectorLayout::ONE_PTR;
inline constexpr unsigned workers = poplar::MultiVertex::numWorkers();
static_assert(workers == n_workers, "lists, clocks and gradients are laid out for six workers a tile");

template <class T, unsigned align>
using Array = poplar::Vector<T, one_pointer, align>;
using Floats = Array<float, 8>;
using Halves = Array<half, 4>;
using Words = Array<unsigned, 4>;
using Ids = Array<unsigned short, 4>;
template <class Field>
using ListOf = poplar::Vector<Field, one_pointer>;
using Numbers = poplar::Vector<unsigned, one_pointer>;  // vertex state

// Two floats, which a tile loads, adds and stores at once; the same source on every machine.
typedef float Pair __attribute__((vector_size(8), may_alias));

// The k-th pair of a row of weights: floats, or halves that are widened when read.
inline Pair weight_pair(const float* row, unsigned k) { return reinterpret_cast<const Pair*>(row)[k]; }
inline Pair weight_pair(const half* row, unsigned k) {
  return Pair{static_cast<float>(row[2 * k]), static_cast<float>(row[2 * k + 1])};
}

inline Pair* pairs(float* x) { return reinterpret_cast<Pair*>(x); }
inline const Pair* pairs(const float* x) { return reinterpret_cast<const Pair*>(x); }

// A list on the device: n_spikes, n_listed, then ids; spikes first, then near-spikes, each ascending.
inline constexpr unsigned list_ids = 2;
// Its spikes a second time, by id modulo 6, so that each worker finds the rows of the weight gradient that it owns: the
// start of each bucket, its count, then ids. Buckets begin at even places: no word belongs to two.
inline constexpr unsigned bucket_counts = workers, bucket_ids = 2 * workers;

// The bit masks of a shard and a sample: fired neurons and near-spikes. Up to 16 neurons have both in one word, fired
// in its lower half; more have words of 32 neurons, first all words of fired neurons, then all of near-spikes.
inline constexpr unsigned packed_neurons = 16;
inline unsigned mask_words(unsigned n_neurons) { return n_neurons <= packed_neurons ? 1 : (n_neurons + 31) / 32 * 2; }
struct Masks {
  const unsigned* words;
  unsigned n_neurons;

  bool packed() const { return n_neurons <= packed_neurons; }
  unsigned n_words() const { return (n_neurons + 31) / 32; }  // in each mask
  unsigned fired(unsigned k) const { return packed() ? words[0] & 0xffffu : words[k]; }
  unsigned near(unsigned k) const { return packed() ? words[0] >> packed_neurons : words[n_words() + k]; }
};

inline unsigned even(unsigned n) { return (n + 1) & ~1u; }
inline unsigned count_bits(unsigned x) { return static_cast<unsigned>(__builtin_popcount(x)); }

// The k-th record of an item; see records.h.
template <class Record>
const Record& record(const Numbers& numbers, unsigned k) {
  return reinterpret_cast<const Record*>(&numbers[0])[k];
}

// How potentials become logits; the numbers are those of `_DECODINGS` in sparsesnn/ipu/spec.py.
// `over_steps` decodes nothing: the owner of the loss reads the potentials of all steps (host/src/ipu/passes.h).
enum Decoding : unsigned { over_max, over_mean, over_sum, over_last, over_steps };

// Settings that the host sends with each batch.
enum Setting : unsigned {
  setting_lr,
  setting_weight_decay,
  setting_momentum,
  setting_one_minus_beta1,  // from the host's doubles: 1 - 0.999f has a relative error of 5e-5
  setting_beta2,
  setting_one_minus_beta2,
  setting_eps,
  setting_correction1,       // 1 - beta1^step
  setting_correction2_root,  // √(1 - beta2^step)
  setting_clip,              // highest norm; 0: none
  setting_scale,             // 1 / samples of the batch
  setting_samples,           // of the batch; the rest are absent
  n_settings
};

// The place of a step among segments of `every` steps: a tile has no divider, and there are few segments.
struct Place {
  unsigned segment, step;
};
inline Place place_of(unsigned t, unsigned every) {
  Place p{0, t};
  for (; p.step >= every; p.step -= every) ++p.segment;
  return p;
}
// The row of step t, and of the one before it (t > 0), in an array that keeps steps. `every`: 0: all steps are kept.
// Else only the last segment that ran has all its steps, in rows 0 to every - 1; of each segment before it the last
// step is kept, in the rows after those.
struct Rows {
  unsigned now, before;
};
inline Rows rows_of(unsigned t, unsigned every) {
  if (!every) return {t, t - 1};
  const Place p = place_of(t, every);
  return {p.step, p.step ? p.step - 1 : every + p.segment - 1};
}

// The layout of a shard's states. history [blocks, rows, B, w]: x, the first state; then each further state of which
// all steps are kept, and the current if it is kept: those that gradients of trained parameters read. `kept` has a bit
// for each state, and one above them for the current. memory [states, ends, B, w]: the last step of every other state,
// and, if there are segments, its value at the end of each.
struct States {
  unsigned kept, n_rows;
  unsigned row;  // floats of a step: B·w

  bool keeps(unsigned state) const { return state == 0 || (kept >> state & 1); }
  // The start of the block of a state, or of the current, in the history; in the memory.
  unsigned in_history(unsigned state) const {
    return (state ? 1 + count_bits(kept & ((1u << state) - 1)) : 0) * n_rows * row;
  }
  unsigned in_memory(unsigned state, unsigned n_ends) const {
    return (state - 1 - count_bits(kept & ((1u << state) - 1))) * (1 + n_ends) * row;
  }
};

// d_current [D + 1, B, w]: ∂L/∂i of the last steps, D the longest delay. The row of step t is t mod (D + 1): a tile has
// no divider, and there are few rows.
inline unsigned ring_row(unsigned t, unsigned n_rows) {
  unsigned row = t;
  if (n_rows == 1) return 0;
  if (n_rows == 2) return t & 1;
  while (row >= n_rows) row -= n_rows;
  return row;
}

// Step and turn, of which every worker keeps its own: clock [2, 6]. Forward, t counts from 0; backward, down from T.
// While steps run again for the backward pass, t counts up within a segment, then continues with the segment before it.
inline constexpr unsigned clock_again = 1u << 31;
struct Moment {
  unsigned t, turn;
  bool again = false;
};
inline Moment forwards(unsigned* clock, unsigned worker, unsigned n_turns, unsigned every = 0) {
  const unsigned again = clock[worker] & clock_again, t = clock[worker] & ~clock_again;
  const Moment now{t, clock[workers + worker], again != 0};
  const bool last = now.turn + 1 == n_turns;
  unsigned next = t + (last ? 1 : 0);
  if (again && last) {
    const Place p = place_of(t, every);
    if (p.step + 1 == every) next = t - p.step - every;  // any value after the first segment, where it is unused
  }
  clock[worker] = (next & ~clock_again) | again;
  clock[workers + worker] = last ? 0 : now.turn + 1;
  return now;
}
inline Moment backwards(unsigned* clock, unsigned worker, unsigned n_turns) {
  const Moment now{clock[worker] - 1, clock[workers + worker]};
  const bool last = now.turn + 1 == n_turns;
  clock[worker] = now.t + (last ? 0 : 1);
  clock[workers + worker] = last ? 0 : now.turn + 1;
  return now;
}

}  // namespace sparsesnn::ipu
