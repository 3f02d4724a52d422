// Deliver through windows of weights, forward and backward: from maps to maps (host/src/maps/windows.h).
//
//   current[k] += value·weight[k]              forward, for a spike and one run of a row, k = 0 .. n-1
//   e          += Σ_k weight[k]·d_current[k]   backward, for a listed neuron and the same run
//   d_weight[k] += value·d_current[k]          for a spike
//
// A run is a sender's contiguous contribution to one row of the receiver's maps: adjacent taps, with channels last. It
// is processed 16 numbers at a time, the last of them padded with +0, so that bits do not depend on the vector width;
// all arrays have 16 numbers more than the rows they hold. The sum over a run has 16 lanes (simd.h), k ascending.
//
// No aliasing. One sample runs on one thread. Cost for n numbers: forward 2 loads and a store, backward 3 and a store.
#pragma once

#include "simd.h"

namespace sparsesnn::SPARSESNN_ISA {

// x in the first n lanes, +0 in the others; n may be 0 or negative, or exceed the number of lanes.
inline Vector first_lanes(Vector x, int n) {
  typedef std::int32_t Lanes __attribute__((vector_size(SPARSESNN_VECTOR_BYTES)));
  Lanes lane, bits;
  for (int l = 0; l < vector_width; ++l) lane[l] = l;
  std::memcpy(&bits, &x, sizeof(bits));
  bits &= lane < (Lanes{} + n);
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// Calls body(k, n_left) for each vector of a run; n_left: the numbers of the run from k to its end.
template <class Body>
inline void each_vector(int n, Body&& body) {
  for (int k = 0; k < n; k += dot_lanes)
    for (int v = 0; v < dot_vectors; ++v) body(k + v * vector_width, n - k - v * vector_width, v);
}

inline void deliver_run(float* current, const float* weight, int n) {
  const int whole = n & ~(dot_lanes - 1);
  for (int k = 0; k < whole; k += vector_width) store(current + k, load(current + k) + load(weight + k));
  if (whole < n)
    each_vector(n - whole, [&](int k, int left, int) {
      store(current + whole + k, load(current + whole + k) + first_lanes(load(weight + whole + k), left));
    });
}

inline void deliver_run(float* current, const float* weight, int n, float value) {
  const Vector by = broadcast(value);
  each_vector(n, [&](int k, int left, int) {
    store(current + k, load(current + k) + first_lanes(by * load(weight + k), left));
  });
}

// The lanes of a share, folded to one vector.
inline Vector lanes_of_run(const float* weight, const float* d_current, int n) {
  Vector lanes[dot_vectors] = {};
  const int whole = n & ~(dot_lanes - 1);
  for (int k = 0; k < whole; k += dot_lanes)
    for (int v = 0; v < dot_vectors; ++v)
      lanes[v] += load(weight + k + v * vector_width) * load(d_current + k + v * vector_width);
  if (whole < n)
    each_vector(n - whole, [&](int k, int left, int v) {
      lanes[v] += first_lanes(load(weight + whole + k) * load(d_current + whole + k), left);
    });
  return fold_lanes(lanes);
}

inline float share_of_run(const float* weight, const float* d_current, int n) {
  return sum_lanes(lanes_of_run(weight, d_current, n));
}

// Both halves of the backward pass, for a spike of value 1; returns the same as lanes_of_run.
inline Vector share_and_deliver_run(const float* weight, float* d_weight, const float* d_current, int n) {
  Vector lanes[dot_vectors] = {};
  const int whole = n & ~(dot_lanes - 1);
  for (int k = 0; k < whole; k += dot_lanes)
    for (int v = 0; v < dot_vectors; ++v) {
      const int at = k + v * vector_width;
      const Vector d = load(d_current + at);
      lanes[v] += load(weight + at) * d;
      store(d_weight + at, load(d_weight + at) + d);
    }
  if (whole < n)
    each_vector(n - whole, [&](int k, int left, int v) {
      const Vector d = load(d_current + whole + k);
      lanes[v] += first_lanes(load(weight + whole + k) * d, left);
      store(d_weight + whole + k, load(d_weight + whole + k) + first_lanes(d, left));
    });
  return fold_lanes(lanes);
}

}  // namespace sparsesnn::SPARSESNN_ISA
