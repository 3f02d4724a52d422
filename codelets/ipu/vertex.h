// What all vertices share: field types, the layout of lists, and two macros that exist for the emulated machine alone.
//
// Letters: T steps, B samples of the batch, K capacity, M senders, n neurons of the shard, w = n rounded up to a pair.
// Samples are dealt to the six workers of a tile round and round; no two workers write into one 4-byte word.
#pragma once

#include <poplar/Vertex.hpp>

#ifdef __POPC__
#define SPARSESNN_VERTEX(...)
#define SPARSESNN_WORK(name, count)
#else
#include "host/src/emulator/codelet.h"
#endif

#ifdef __IPU__
#include <ipu_vector_math>
#endif

#include "codelets/tile_neuron.h"
#include "codelets/tile_select.h"

namespace sparsesnn::tile {

#ifdef __IPU__
inline float exp_of(float x) { return ::ipu::exp(x); }
inline float sqrt_of(float x) { return ::ipu::sqrt(x); }
inline float log_of(float x) { return ::ipu::log(x); }
#else
inline float exp_of(float x) { return __builtin_expf(x); }
inline float sqrt_of(float x) { return __builtin_sqrtf(x); }
inline float log_of(float x) { return __builtin_logf(x); }
#endif

}  // namespace sparsesnn::tile

namespace sparsesnn::ipu {

inline constexpr auto one_pointer = poplar::VectorLayout::ONE_PTR;
inline constexpr unsigned workers = 6;

template <class T, unsigned align>
using Array = poplar::Vector<T, one_pointer, align>;
using Floats = Array<float, 8>;
using Words = Array<unsigned, 4>;
using Ids = Array<unsigned short, 4>;
template <class Field>
using ListOf = poplar::Vector<Field, one_pointer>;
using Numbers = poplar::Vector<unsigned, one_pointer>;  // vertex state

// Two floats, which a tile loads, adds and stores at once; the same source on every machine.
typedef float Pair __attribute__((vector_size(8), may_alias));

inline Pair* pairs(float* x) { return reinterpret_cast<Pair*>(x); }
inline const Pair* pairs(const float* x) { return reinterpret_cast<const Pair*>(x); }

// A list on the device: n_spikes, n_listed, then ids; spikes first, then near-spikes, each ascending.
inline constexpr unsigned list_ids = 2;
// Its spikes once more, by id modulo 6, so that each worker finds the rows of the weight gradient that it owns: where
// each bucket begins, how many it holds, then ids. Buckets begin at even places: no word belongs to two.
inline constexpr unsigned bucket_counts = workers, bucket_ids = 2 * workers;

}  // namespace sparsesnn::ipu
