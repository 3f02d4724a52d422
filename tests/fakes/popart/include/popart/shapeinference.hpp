// Fake PopART, for tests: the queries of PopART's builder before an op exists. If no function is registered, the real
// one only warns, and knows no shapes after the op; the fake throws.
#pragma once

#include <functional>
#include <map>
#include <utility>

#include "attributes.hpp"
#include "operatoridentifier.hpp"
#include "tensorinfo.hpp"

namespace popart {

class ShapeInferenceContext {
 public:
  ShapeInferenceContext(std::map<int, TensorInfo> inputs, const Attributes& attributes, int n_outputs)
      : inputs_(std::move(inputs)), attributes_(attributes), n_outputs_(n_outputs) {}
  const TensorInfo& inInfo(int index) const { return inputs_.at(index); }
  const Shape& inShape(int index) const { return inputs_.at(index).shape(); }
  TensorInfo& outInfo(int index) { return outputs_[index]; }
  const std::map<int, TensorInfo>& getOutputInfos() const { return outputs_; }
  const Attributes& getAttributes() const { return attributes_; }
  int getNumInputs() const { return static_cast<int>(inputs_.size()); }
  int getNumOutputs() const { return n_outputs_; }
  bool hasInputShape(std::size_t n) const { return n < inputs_.size() && !inShape(static_cast<int>(n)).empty(); }

 private:
  std::map<int, TensorInfo> inputs_, outputs_;
  Attributes attributes_;
  int n_outputs_;
};

using ShapeInferenceFunction = std::function<void(ShapeInferenceContext&)>;

class ShapeInferenceFunctions {
 public:
  static std::map<OperatorIdentifier, ShapeInferenceFunction, OperatorIdentifierLess>& entries() {
    static std::map<OperatorIdentifier, ShapeInferenceFunction, OperatorIdentifierLess> all;
    return all;
  }
};

class RegisterShapeInferenceFunction {
 public:
  RegisterShapeInferenceFunction(const OperatorIdentifier& id, ShapeInferenceFunction function) {
    if (!ShapeInferenceFunctions::entries().emplace(id, std::move(function)).second)
      throw error("A shape inference function has already been registered for {}", id);
  }
};

}  // namespace popart
