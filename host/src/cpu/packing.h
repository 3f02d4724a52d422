// Parameters of a layer in the form that the passes read.
#pragma once

#include "engine.h"

namespace sparsesnn {

// A weight [M, N] as the passes read it: slabs of `width` columns one after another, [slabs][M][width], float or Bf16.
struct Packed {
  const void* data = nullptr;
  Array<unsigned char> own;
};

// Also detects NaN and infinity. A float weight that already is one slab is not copied.
Packed pack(const float* weight, int n_pre, const LayerSpec& spec, int width, const char* name);

// The same from `packed`, the result of `pack_rows`, if that is not null.
Packed pack_unless(const void* packed, const float* weight, int n_pre, const LayerSpec& spec, int width,
                   const char* name);

// Bytes of a packed weight, of any width; writes rows begin..end-1 to their places in each slab of `out`.
std::size_t packed_bytes(int n_pre, const LayerSpec& spec);
void pack_rows(const float* weight, int n_pre, const LayerSpec& spec, int width, int begin, int end, void* out,
               const char* name);

// The weights of a layer that runs tile by tile, as its forward pass reads them. If there are enough tiles for all
// threads, a worker packs the columns of a tile when it starts it: they are read once from the original weights, and
// are then in the L2 cache of the core that delivers from them. Otherwise, or if `pack_rows` has packed them, they are
// packed in advance.
class TileColumns {
 public:
  // `before`: all of them are packed now.
  TileColumns(const LayerSpec& spec, const LayerInput& input, bool before);

  // The sources, with the columns [M, W] of a tile in place of their weights; valid until the worker's next call.
  const Source* of(int tile, int worker);

  // Whether workers pack columns, so that one worker should run all of a tile.
  bool by_worker = false;

 private:
  struct alignas(128) Worker {
    int tile = -1;
    std::vector<Source> sources;
    Array<unsigned char> columns;  // of the sources one after another
  };

  void pack_tile(int tile, Worker& worker) const;
  std::size_t row_bytes() const;

  const LayerSpec& spec_;
  const LayerInput& input_;
  std::vector<Packed> packed_;  // per source; null if a worker packs it
  std::vector<Array<unsigned char>> last_ids_;
  std::vector<Worker> workers_;
};

// x as the passes read it from a weight rounded to bfloat16.
float rounded_to_bf16(float x);

// Columns of a slab: those of all tiles if samples run separately, because spikes then decide the order in which rows
// are read.
inline int slab_width(const LayerSpec& spec, bool by_sample) {
  return by_sample || spec.needs_step_order() ? spec.n_padded() : spec.tile_width;
}

// Numbers per neuron, padded so that a padded neuron never fires.
class Padded {
 public:
  Padded(const LayerSpec& spec, const LayerInput& input);

  const NeuronArrays& pointers() const { return pointers_; }
  // The thresholds of all neurons, padded ones left out.
  bool any_threshold_below_zero() const;

 private:
  const LayerSpec& spec_;
  // [arrays][P·W], each a cache line further in its page than the one before: a step reads all of them, and arrays at
  // equal places of their pages would evict one another from L1.
  Array<float> numbers_;
  std::vector<std::vector<const float*>> derivatives_;  // [trained][entries]
  NeuronArrays pointers_;
};

// The inputs that every backward pass needs; nothing else is set.
BackwardPass backward_pass(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved,
                           const Padded& neuron, const std::vector<Loop>& loops);

}  // namespace sparsesnn
