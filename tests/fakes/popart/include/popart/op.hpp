// Fake PopART, for tests: an op knows the infos of its inputs and outputs; its `setup` is the inference of shapes.
#pragma once

#include <memory>
#include <set>
#include <sstream>

#include "error.hpp"
#include "operatoridentifier.hpp"
#include "opserialiser.hpp"
#include "tensorinfo.hpp"

namespace popart {

enum class GradOpInType { In, Out, GradOut };

class GradInOutMapper {
 public:
  GradInOutMapper(InIndex grad, int non_grad, GradOpInType type) : iGrad(grad), iNonGrad(non_grad), type(type) {}
  InIndex iGrad;
  int iNonGrad;
  GradOpInType type;
};

class Op {
 public:
  struct Settings {
    std::string name;
  };

  Op(const OperatorIdentifier& id, const Settings& settings) : opid(id), settings(settings) {}
  virtual ~Op() = default;

  virtual std::unique_ptr<Op> clone() const = 0;
  virtual void setup() { throw error("no setup for {}", opid); }
  virtual std::vector<std::unique_ptr<Op>> getGradOps() { return {}; }
  virtual const std::vector<GradInOutMapper>& gradInputInfo() const { throw error("{} is no gradient op", opid); }
  virtual const std::map<int, int>& gradOutToNonGradIn() const { throw error("{} is no gradient op", opid); }
  virtual std::set<InIndex> optionalInputs() const { return {}; }
  virtual float getSubgraphValue() const = 0;
  virtual bool requiresRandomSeed() const { return false; }
  virtual void appendAttributes(OpSerialiserBase&) const {}
  virtual void appendOutlineAttributes(OpSerialiserBase&) const {}

  void append(std::stringstream&) const {}  // a name that hides others in derived classes

  bool hasInput(InIndex index) const { return inputs_.count(index) != 0; }
  bool hasOutput(OutIndex index) const { return outputs_.count(index) != 0; }
  const TensorInfo& inInfo(InIndex index) const {
    if (!hasInput(index)) throw error("{} has no input {}", opid, index);
    return inputs_.at(index);
  }
  const TensorInfo& outInfo(OutIndex index) const { return const_cast<Op*>(this)->outInfo(index); }
  TensorInfo& outInfo(OutIndex index) {
    if (!hasOutput(index)) throw error("{} has no output {}", opid, index);
    return outputs_.at(index);
  }
  const Settings& getSettings() const { return settings; }
  float getHighSubgraphValue() const { return 1000.0f; }
  float getLowSubgraphValue() const { return 0.1f; }

  OperatorIdentifier opid;
  Settings settings;

  // only in the fake
  void connect(const std::vector<TensorInfo>& inputs, std::size_t n_outputs) {
    for (std::size_t k = 0; k < inputs.size(); ++k) inputs_[static_cast<int>(k)] = inputs[k];
    for (std::size_t k = 0; k < n_outputs; ++k) outputs_[static_cast<int>(k)] = TensorInfo();
  }
  std::size_t n_inputs() const { return inputs_.size(); }
  std::size_t n_outputs() const { return outputs_.size(); }

 private:
  std::map<int, TensorInfo> inputs_, outputs_;
};

}  // namespace popart
