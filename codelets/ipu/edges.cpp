// The edges of a pass inside another program's graph (host/src/ipu/passes.h): from PopART's tensors to lists of uint16
// and back, and gradients of lists from all steps to one step and back.
//
// All run on the tile that owns the data; a worker owns whole lists, or whole words.
#include "vertex.h"

namespace sparsesnn::ipu {

// lists [n, 2 + K]: n_spikes, n_listed, ids; may be remote. kept [n, stride].
class Narrow : public poplar::MultiVertex {
 public:
  poplar::Input<Words> lists;
  poplar::Output<Ids> kept;
  unsigned n_lists, capacity;

  bool compute(unsigned worker) {
    const unsigned stride = list_ids + ((capacity + 1) & ~1u);
    for (unsigned k = worker; k < n_lists; k += workers) {
      const unsigned* from = &lists[k * (list_ids + capacity)];
      unsigned short* to = &kept[k * stride];
      const unsigned n_listed = from[1] < capacity ? from[1] : capacity;
      to[0] = static_cast<unsigned short>(from[0] < n_listed ? from[0] : n_listed);
      to[1] = static_cast<unsigned short>(n_listed);
      for (unsigned j = 0; j < stride - list_ids; ++j)
        to[list_ids + j] = static_cast<unsigned short>(j < n_listed ? from[list_ids + j] : 0);
      SPARSESNN_WORK(fetch_list, 1);
      SPARSESNN_WORK(fetch_id, stride - list_ids);
    }
    return true;
  }
};

SPARSESNN_VERTEX(Narrow, lists, kept, n_lists, capacity)

// kept [n, stride] → lists [n, 2 + K] and values [n, K]: 1 for spikes; 0 for near-spikes and after the last one.
class Widen : public poplar::MultiVertex {
 public:
  poplar::Input<Ids> kept;
  poplar::Output<Words> lists;
  poplar::Output<Array<float, 4>> values;
  unsigned n_lists, capacity;

  bool compute(unsigned worker) {
    const unsigned stride = list_ids + ((capacity + 1) & ~1u);
    for (unsigned k = worker; k < n_lists; k += workers) {
      const unsigned short* from = &kept[k * stride];
      unsigned* to = &lists[k * (list_ids + capacity)];
      to[0] = from[0], to[1] = from[1];
      for (unsigned j = 0; j < capacity; ++j) {
        to[list_ids + j] = j < from[1] ? from[list_ids + j] : 0;
        values[k * capacity + j] = j < from[0] ? 1.0f : 0.0f;
      }
      SPARSESNN_WORK(fetch_list, 1);
      SPARSESNN_WORK(fetch_id, 2 * capacity);
    }
    return true;
  }
};

SPARSESNN_VERTEX(Widen, kept, lists, values, n_lists, capacity)

// Backward in time: all [T, n, slots] → row [n, slots], at the slots that the list of this step fills.
class TakeRow : public poplar::MultiVertex {
 public:
  poplar::Input<Ids> kept;
  poplar::Input<Floats> all;
  poplar::Output<Floats> row;
  poplar::InOut<Words> clock;
  unsigned n_samples, n_slots;

  bool compute(unsigned worker) {
    const unsigned t = backwards(&clock[0], worker, 1).t, stride = list_ids + n_slots;
    for (unsigned s = worker; s < n_samples; s += workers) {
      const unsigned n = kept[(t * n_samples + s) * stride + 1];
      for (unsigned j = 0; j < n; ++j) row[s * n_slots + j] = all[(t * n_samples + s) * n_slots + j];
      SPARSESNN_WORK(reduce_row, 1);
      SPARSESNN_WORK(reduce_pair, (n + 1) / 2);
    }
    return true;
  }
};

SPARSESNN_VERTEX(TakeRow, kept, all, row, clock, n_samples, n_slots)

// Backward in time: row [n, slots] → all [T, n, slots], with 0 at slots that the list of this step leaves empty.
class StoreRow : public poplar::MultiVertex {
 public:
  poplar::Input<Ids> kept;
  poplar::Input<Floats> row;
  poplar::InOut<Floats> all;
  poplar::InOut<Words> clock;
  unsigned n_samples, n_slots;

  bool compute(unsigned worker) {
    const unsigned t = backwards(&clock[0], worker, 1).t, stride = list_ids + n_slots;
    for (unsigned s = worker; s < n_samples; s += workers) {
      const unsigned n = kept[(t * n_samples + s) * stride + 1];
      for (unsigned j = 0; j < n_slots; ++j)
        all[(t * n_samples + s) * n_slots + j] = j < n ? row[s * n_slots + j] : 0.0f;
      SPARSESNN_WORK(reduce_row, 1);
      SPARSESNN_WORK(reduce_pair, n_slots / 2);
    }
    return true;
  }
};

SPARSESNN_VERTEX(StoreRow, kept, row, all, clock, n_samples, n_slots)

// sizes[k]: elements of arrays[k], even.
class Clear : public poplar::MultiVertex {
 public:
  ListOf<poplar::Output<Floats>> arrays;
  Numbers sizes;
  unsigned n_arrays;

  bool compute(unsigned worker) {
    const Pair zero = {};
    for (unsigned a = 0; a < n_arrays; ++a) {
      Pair* x = pairs(&arrays[a][0]);
      for (unsigned k = worker; k < sizes[a] / 2; k += workers) x[k] = zero;
      SPARSESNN_WORK(norm_pair, sizes[a] / 2 / workers + 1);
    }
    return true;
  }
};

SPARSESNN_VERTEX(Clear, arrays, sizes, n_arrays)

// rows [R, 6, w]: six rows each, one from each worker of StateGrad. sums [R, w].
class SumRows : public poplar::MultiVertex {
 public:
  poplar::Input<Floats> rows;
  poplar::Output<Floats> sums;
  unsigned n_neurons, n_rows;

  bool compute(unsigned worker) {
    const unsigned width = even(n_neurons);
    for (unsigned k = worker; k < n_neurons; k += workers) {
      for (unsigned r = 0; r < n_rows; ++r) {
        float x = 0.0f;
        for (unsigned w = 0; w < workers; ++w) x += rows[(r * workers + w) * width + k];
        sums[r * width + k] = x;
      }
      SPARSESNN_WORK(reduce_row, n_rows * workers);
    }
    return true;
  }
};

SPARSESNN_VERTEX(SumRows, rows, sums, n_neurons, n_rows)

}  // namespace sparsesnn::ipu
