// Fake PopART, for tests: an Opx grows an op into a Poplar graph.
#pragma once

#include <algorithm>
#include <poplar/DebugContext.hpp>
#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>
#include <set>

#include "../op.hpp"
#include "devicex.hpp"
#include "inputcreatortype.hpp"

namespace popart {
namespace popx {

class Opx {
 public:
  Opx(Op* op, Devicex* devicex) : op_p(op), dv_p(devicex) {}
  virtual ~Opx() = default;

  virtual void grow(poplar::program::Sequence&) const { throw error("{} does not grow", op_p->opid); }
  virtual InputCreatorType getInputCreatorType(InIndex) const { return InputCreatorType::Deadend; }
  virtual poplar::Tensor createInputTensor(InIndex, const poplar::DebugNameAndId&) const {
    throw error("{} creates no input", op_p->opid);
  }
  virtual std::set<TensorId> mustExistBeforeCreate(InIndex) const { throw error("{} creates no input", op_p->opid); }

  poplar::Graph& graph() const { return dv_p->graph; }
  const poplar::Tensor& getInTensor(InIndex index) const {
    const auto found = dv_p->in.find(index);
    if (found == dv_p->in.end()) throw error("{}: input {} does not exist yet", op_p->opid, index);
    return found->second;
  }
  void setOutTensor(OutIndex index, const poplar::Tensor& tensor) const {
    if (!op_p->hasOutput(index)) throw error("{} has no output {}", op_p->opid, index);
    if (!dv_p->out.emplace(index, tensor).second) throw error("{}: output {} is set twice", op_p->opid, index);
  }
  const TensorInfo& inInfo(InIndex index) const { return op_p->inInfo(index); }
  const Shape& inShape(InIndex index) const { return inInfo(index).shape(); }
  const std::vector<std::size_t> inShapeSzt(InIndex index) const { return inInfo(index).shape_szt(); }
  const TensorInfo& outInfo(OutIndex index) const { return static_cast<const Op*>(op_p)->outInfo(index); }

  template <class OP>
  OP& getOp() const {
    OP* op = dynamic_cast<OP*>(op_p);
    if (!op) throw error("{} is an op of another class", op_p->opid);
    return *op;
  }
  template <class OP>
  void verifyOp(Op* op, std::vector<OperatorIdentifier> ids) {
    if (std::find(ids.begin(), ids.end(), op->opid) == ids.end()) throw error("cannot make an Opx from {}", op->opid);
  }

  Op* op_p;

 protected:
  Devicex* dv_p;
};

}  // namespace popx
}  // namespace popart
