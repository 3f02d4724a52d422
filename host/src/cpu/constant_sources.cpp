#include "constant_sources.h"

#include <utility>

namespace sparsesnn {
namespace {

// A readout without memory, z ← 0·z + 1·i, whose potentials after one step are the sums of its sources and the bias.
struct Adder {
  LayerSpec spec;
  LayerInput input;

  Adder(const LayerSpec& of, const LayerInput& all) : spec(of) {
    static constexpr float zero = 0.0f, one = 1.0f;
    spec.shape = &find_shape("readout");
    spec.fires = false;
    spec.n_trained = spec.capacity = 0;
    spec.fixed = false;
    input.n_steps = 1;
    input.n_samples = all.n_samples;
    for (std::size_t k = 0; k < spec.shape->entries.size(); ++k)
      input.entries[k] = {spec.shape->entries[k] == "B0" ? &one : &zero, true};
    input.bias = all.bias;
    input.by_sample = all.by_sample || !all.loops.empty() || of.needs_step_order() || all.reads_rows();
    for (const SourceInput& source : all.sources)
      if (source.constant) {
        input.sources.push_back(source);
        input.sources.back().constant = false;
      }
  }
};

// The layer without its constant sources and its bias.
LayerInput others(const LayerInput& all, const float* currents, std::size_t n) {
  if (all.currents)
    throw InputError("ShapeError", "layer: currents are given next to constant lists; allowed: one of them");
  LayerInput input = all;
  input.sources.clear();
  for (const SourceInput& source : all.sources)
    if (!source.constant) input.sources.push_back(source);
  input.bias = {};
  input.currents = {currents, n, true};
  return input;
}

// The wishes for sources that are constant, or for those that are not.
void split(const LayerInput& all, bool constant, const std::vector<bool>& wishes, std::vector<bool>& found) {
  found.clear();
  for (std::size_t k = 0; k < wishes.size(); ++k)
    if (all.sources[k].constant == constant) found.push_back(wishes[k]);
}

}  // namespace

LayerOutput forward_constant_sources(const LayerSpec& spec, const LayerInput& input) {
  const Adder adder(spec, input);
  const LayerOutput sums = layer_forward(adder.spec, adder.input);
  return layer_forward(spec, others(input, sums.potentials.data(), static_cast<std::size_t>(spec.n)));
}

LayerGradients backward_constant_sources(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved,
                                         const OutputGrads& d_out, const Wanted& wanted,
                                         const OutputGrads& d_potentials) {
  const Adder adder(spec, input);
  Wanted rest = wanted, of_adder;
  split(input, false, wanted.weight, rest.weight);
  split(input, false, wanted.value, rest.value);
  split(input, true, wanted.weight, of_adder.weight);
  split(input, true, wanted.value, of_adder.value);
  of_adder.bias = std::exchange(rest.bias, false);
  of_adder.n_batch = wanted.n_batch;
  rest.currents = true;
  LayerGradients found =
      layer_backward(spec, others(input, nullptr, static_cast<std::size_t>(spec.n)), saved, d_out, rest, d_potentials);
  LayerGradients sums = layer_backward(adder.spec, adder.input, {}, {found.d_currents.data(), 0}, of_adder);
  found.d_bias = std::move(sums.d_bias);
  found.d_currents = {};
  LayerGradients parts[] = {std::move(found), std::move(sums)};
  LayerGradients& all = parts[0];
  std::vector<Array<float>> d_weight, d_value;
  std::size_t next[] = {0, 0};
  for (const SourceInput& source : input.sources) {
    LayerGradients& from = parts[source.constant];
    const std::size_t k = next[source.constant]++;
    d_weight.push_back(std::move(from.d_weight[k]));
    d_value.push_back(std::move(from.d_value[k]));
  }
  all.d_weight = std::move(d_weight);
  all.d_value = std::move(d_value);
  return std::move(all);
}

}  // namespace sparsesnn
