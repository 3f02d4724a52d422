// Parameters of a layer in the form that the passes read.
#pragma once

#include "engine.h"

namespace sparsesnn {

// A weight [M, N] as the passes read it: slabs of `width` columns one after another, [slabs][M][width], float or Bf16.
struct Packed {
  const void* data = nullptr;
  Array<unsigned char> own;
};

// Also the place where NaN and infinity are found. A float weight that is one slab already is not copied.
Packed pack(const float* weight, int n_pre, const LayerSpec& spec, int width, const char* name);

// The same out of `packed`, where that is not null: what `pack_rows` has made.
Packed pack_unless(const void* packed, const float* weight, int n_pre, const LayerSpec& spec, int width,
                   const char* name);

// Bytes of a packed weight, of any width; writes rows begin..end-1 to their places in each slab of `out`.
std::size_t packed_bytes(int n_pre, const LayerSpec& spec);
void pack_rows(const float* weight, int n_pre, const LayerSpec& spec, int width, int begin, int end, void* out,
               const char* name);

// As the passes read a weight that is rounded to bfloat16.
float rounded_to_bf16(float x);

// Columns of a slab: of all tiles where samples run by themselves, their rows being read in an order that spikes
// decide.
inline int slab_width(const LayerSpec& spec, bool by_sample) {
  return by_sample || spec.needs_step_order() ? spec.n_padded() : spec.tile_width;
}

// Numbers per neuron, padded so that a padded neuron never fires.
struct Padded {
  std::vector<Array<float>> parameters;  // of the model, in its order
  Array<float> grad_threshold, bias;

  Padded(const LayerSpec& spec, const LayerInput& input);

  NeuronParameters pointers() const {
    NeuronParameters p;
    for (std::size_t k = 0; k < parameters.size(); ++k) p.parameters[k] = parameters[k].data();
    p.grad_threshold = grad_threshold.data();
    p.bias = bias.data();
    return p;
  }
};

}  // namespace sparsesnn
