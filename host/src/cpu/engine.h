// The event-sparse CPU engine: runs the passes of one layer over a whole sequence, forward and backward.
#pragma once

#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "host/src/machine/memory.h"
#include "layer.h"

namespace sparsesnn {

// Uninitialized memory on cache lines, handed to NumPy when done.
template <class T>
class Array {
 public:
  Array() = default;
  explicit Array(std::size_t n) : size_(n) {
    if (n > (static_cast<std::size_t>(-1) >> 1) / sizeof(T)) throw std::bad_alloc();
    data_.reset(static_cast<T*>(allocate(n * sizeof(T))));
  }
  // In memory that other processes of this host may read, if available.
  static Array shared(std::size_t n) {
    if (n > (static_cast<std::size_t>(-1) >> 1) / sizeof(T)) throw std::bad_alloc();
    Array a;
    a.data_.reset(static_cast<T*>(allocate_shared(n * sizeof(T))));
    a.size_ = n;
    return a;
  }
  static Array zeros(std::size_t n) {
    Array a(n);
    std::memset(static_cast<void*>(a.data()), 0, n * sizeof(T));
    return a;
  }
  static Array filled(std::size_t n, T value) {
    Array a(n);
    for (std::size_t k = 0; k < n; ++k) a[k] = value;
    return a;
  }

  T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t k) const { return data_.get()[k]; }
  explicit operator bool() const { return data_ != nullptr; }
  T* release() { return data_.release(); }

 private:
  struct Free {
    void operator()(T* p) const { sparsesnn::release(p); }
  };
  std::unique_ptr<T, Free> data_;
  std::size_t size_ = 0;
};

class SortedLists;

// A sending population, in the caller's form: weight [M, N], row-major.
struct SourceInput {
  Lists lists;
  int n_list_steps = 0;  // steps that `lists` covers
  int n_pre = 0;
  int delay = 0;
  const float* weight = nullptr;
  const SparseRows* rows = nullptr;     // of sparse synapses: `weight` has one number per synapse, ordered by receiver
  const Windows* windows = nullptr;     // of a convolution: `weight` is that of its windows (windows.h)
  const void* packed = nullptr;         // packed for the forward pass (packing.h), if done already; else null
  const SortedLists* sorted = nullptr;  // these lists, sorted: gradients of their values go into that order
  bool constant = false;                // one list for each sample, the same at all steps; the delay is 0
};

// A recurrent connection, in the caller's form.
struct LoopInput {
  const float* weight = nullptr;  // [N, N]; of a shard, a row for each neuron of the population
  int delay = 1;
  const SparseRows* rows = nullptr;  // as `SourceInput::rows`
  const void* packed = nullptr;      // as `SourceInput::packed`
  AxonalDelays axonal = {};

  int reach() const { return delay + axonal.longest; }
};

// A number for each neuron [N], or one for all.
struct PerNeuron {
  const float* data = nullptr;
  bool one_for_all = false;

  PerNeuron() = default;
  PerNeuron(const float* array) : data(array) {}
  PerNeuron(const float* array, bool one) : data(array), one_for_all(one) {}
  explicit operator bool() const { return data != nullptr; }
  float operator[](int n) const { return data[one_for_all ? 0 : n]; }
};

struct LayerRanks;

struct LayerInput {
  int n_steps = 0, n_samples = 0;
  const LayerRanks* ranks = nullptr;  // of a shard: those that own neurons of the layer (exchange.h)
  std::vector<SourceInput> sources;
  std::vector<LoopInput> loops;
  PerNeuron entries[max_entries];                   // of the shape, in its order
  std::vector<std::vector<PerNeuron>> derivatives;  // of the entries by each trained parameter; null: 0
  PerNeuron grad_threshold, bias;                   // null for a readout; null if absent
  GivenCurrents currents;
  bool gives_potentials = false;        // those of neurons that fire are an output too
  const float* state[max_states] = {};  // initial states [B, N], null: zeros
  Lists own_before;                     // own lists of the last steps before the sequence: at least as many as
  int n_before = 0;                     // the longest delay of a loop, or none
  bool by_sample = false;  // runs sample by sample even if nothing else requires it: weights are packed for that
  Lists population;        // of a shard with loops, backward: those of all neurons, as the layer made them

  // A spike's row of sparse synapses, or its windows, are read whole, so such layers run sample by sample.
  bool reads_rows() const {
    for (const SourceInput& source : sources)
      if (source.rows || source.windows) return true;
    for (const LoopInput& loop : loops)
      if (loop.rows) return true;
    return false;
  }
};

struct LayerOutput {
  Array<std::int64_t> offsets;  // [T·B + 1]
  Array<unsigned char> ids;     // uint16 or uint32 [S]
  bool wide = false;
  Array<std::int32_t> n_spikes, dropped;  // [T·B]; `dropped` only with a capacity
  Array<float> fields;                    // [n_fields][S]
  Array<std::int64_t> silenced_offsets;
  Array<std::uint32_t> silenced_ids;
  std::vector<Array<float>> state;  // [S], each [B, N], or in tiles
  bool state_in_tiles = false;
  Array<float> potentials;  // [T, B, N] of a readout, or if `LayerInput::gives_potentials`
  // Other states of a readout, and currents (ReadoutRows), if its trained parameters need them, else empty
  std::vector<Array<float>> rows;
  Array<float> currents;
};

struct LayerSaved {
  Lists lists;
  const float* fields = nullptr;
  const std::int64_t* silenced_offsets = nullptr;
  const std::uint32_t* silenced_ids = nullptr;
  const float* potentials = nullptr;
  ReadoutRows rows = {};
};

// The wanted gradients, in addition to those of the parameters that learn according to `LayerSpec`.
struct Wanted {
  std::vector<bool> weight, value;  // per source
  std::vector<bool> loops;          // per loop, of its weight
  std::vector<bool> delays;         // per loop, of its axonal delays
  bool bias = false;
  bool currents = false;  // of the given ones
  // Samples of the whole batch, if these are only some, from LayerSpec::first_sample on. Gradients of weights then come
  // as one sum a branch of the batch (group_tree.h), [K, M, N], those of neurons' parameters as one a group, [G, N]. 0:
  // these are all.
  int n_batch = 0;
};

struct LayerGradients {
  // Per source: [M, N], or one number per sparse synapse; [slots], for a shard of several ranks [K, slots], sums of its
  // blocks of tiles (tile_sums.h); in the order of the source's sorted lists, if it has any.
  std::vector<Array<float>> d_weight, d_value;
  std::vector<Array<float>> d_loops;       // per loop, as for a source
  std::vector<Array<float>> d_delays;      // per loop, of axonal delays, [N]
  Array<float> d_bias;                     // [N]
  std::vector<Array<float>> d_parameters;  // trained ones, [N] each
  Array<float> d_currents;                 // [T, B, N], or of constant ones [B, N], the sum over steps, descending
};

// Throws InputError if spec and input do not match.
void check_layer(const LayerSpec& spec, const LayerInput& input);

// Throws InputError if lists break their invariants.
void check_lists(const Lists& lists, std::int64_t n_lists, std::int64_t n_ids, int n_neurons, const char* name);

// State [B, N] from tiles [P][B][W].
Array<float> state_from_tiles(const LayerSpec& spec, const Array<float>& tiles, int n_samples);

LayerOutput layer_forward(const LayerSpec& spec, const LayerInput& input);

// d_potentials: of neurons that fire, in addition to `d_out`.
LayerGradients layer_backward(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved,
                              const OutputGrads& d_out, const Wanted& wanted, const OutputGrads& d_potentials = {});

}  // namespace sparsesnn
