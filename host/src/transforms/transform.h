// Transforms: lists of one population → lists, with an adjoint on the values of their entries.
//
// A chain (host/src/bindings/chain.h) runs them between its layers; engines/cpu/transforms.py says where. Adding one: a
// file in this folder, and a function there.
#pragma once

#include <memory>
#include <vector>

#include "host/src/bindings/python_arrays.h"

namespace sparsesnn {

// The result of one pass of a transform.
class Transformed {
 public:
  virtual ~Transformed() = default;
  // ∂L/∂value of each entry that was read, from that of each entry that was made.
  virtual void pull(const float* d_made, float* d_read) const = 0;
  // The same, and ∂L/∂parameter [G, M] of each group of samples, for a transform that has a parameter.
  virtual Array<float> pull_with_parameter(const float* d_made, float* d_read) const {
    pull(d_made, d_read);
    return {};
  }

  Array<std::int64_t> offsets;
  Array<unsigned char> ids;
  bool wide = false;
  Array<std::int32_t> n_spikes;
  Array<float> values;  // of each entry; null: 1 for spikes, 0 for near-spikes
  int n_steps = 0;
};

class Transform {
 public:
  Transform(int n_read, int n_made) : n_read(n_read), n_made(n_made) {}
  virtual ~Transform() = default;
  virtual const char* name() const = 0;
  // Whether each entry stays with its neuron, so that the rank that owns the neuron owns the entry, too.
  virtual bool keeps_neurons() const { return true; }
  // `setting`: from Python, of this pass. Called with the GIL. `lists` outlive the result.
  virtual std::unique_ptr<Transformed> run(const Lists& lists, int n_steps, int n_samples,
                                           nb::handle setting) const = 0;

  const int n_read, n_made;  // neurons
};

// Each file of this folder has one, by which Python gets its kind.
class Kind {
 public:
  using Register = void (*)(nb::module_&);
  explicit Kind(Register function) { all().push_back(function); }
  static std::vector<Register>& all() {
    static std::vector<Register> kinds;
    return kinds;
  }
};

}  // namespace sparsesnn
