// Ops with one forbidden behavior each, to check that the fake PopART notices: `faulty::Copy` outputs a copy of its
// input and a count, unless its attribute `fault` names a fault.
#include <memory>
#include <popart/op.hpp>
#include <popart/opmanager.hpp>
#include <popart/popx/opxmanager.hpp>
#include <popart/shapeinference.hpp>
#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>

namespace {

using popart::DataType;
using popart::Op;
using popart::TensorInfo;
using poplar::program::Copy;

const popart::OperatorIdentifier copy_id{"faulty", "Copy", 1}, grad_id{"faulty", "CopyGrad", 1},
    unshaped_id{"faulty", "Unshaped", 1};

class FaultyGrad : public Op {
 public:
  FaultyGrad(const std::string& fault, const TensorInfo& info, const Op::Settings& settings)
      : Op(grad_id, settings), fault(fault), info(info) {
    using popart::GradOpInType;
    inputs = {{0, 0, GradOpInType::GradOut}};
    if (fault == "gradient of a count") inputs.emplace_back(1, 1, GradOpInType::GradOut);
    if (fault == "input twice") inputs.emplace_back(0, 0, GradOpInType::In);
    if (fault == "input left out") inputs.emplace_back(2, 0, GradOpInType::In);
    outputs = {{0, 0}};
  }
  std::unique_ptr<Op> clone() const override { return std::make_unique<FaultyGrad>(*this); }
  void setup() override { outInfo(0) = fault == "gradient of another shape" ? TensorInfo(DataType::FLOAT, {1}) : info; }
  const std::vector<popart::GradInOutMapper>& gradInputInfo() const override { return inputs; }
  const std::map<int, int>& gradOutToNonGradIn() const override { return outputs; }
  float getSubgraphValue() const override { return getLowSubgraphValue(); }

  std::string fault;
  TensorInfo info;
  std::vector<popart::GradInOutMapper> inputs;
  std::map<int, int> outputs;
};

class FaultyOp : public Op {
 public:
  FaultyOp(const popart::OperatorIdentifier& id, const std::string& fault, const Op::Settings& settings)
      : Op(id, settings), fault(fault) {}
  std::unique_ptr<Op> clone() const override {
    auto other = std::make_unique<FaultyOp>(*this);
    if (fault == "clone that differs") other->fault = "another";
    return other;
  }
  void setup() override {
    outInfo(0) = fault == "shape" ? TensorInfo(DataType::FLOAT, {1}) : inInfo(0);
    if (fault != "no info") outInfo(1) = TensorInfo(DataType::FLOAT, {1});
  }
  std::vector<std::unique_ptr<Op>> getGradOps() override {
    std::vector<std::unique_ptr<Op>> ops;
    ops.push_back(std::make_unique<FaultyGrad>(fault, inInfo(0), getSettings()));
    return ops;
  }
  float getSubgraphValue() const override { return getLowSubgraphValue(); }
  void appendAttributes(popart::OpSerialiserBase& os) const override { os.appendAttribute("fault", fault); }
  void appendOutlineAttributes(popart::OpSerialiserBase& os) const override {
    if (fault != "not outlined") os.appendAttribute("fault", fault);
  }

  std::string fault;
};

class FaultyOpx : public popart::popx::Opx {
 public:
  FaultyOpx(Op* op, popart::popx::Devicex* devicex) : Opx(op, devicex) { verifyOp<FaultyOp>(op, {copy_id}); }
  void grow(poplar::program::Sequence& program) const override {
    const std::string& fault = getOp<FaultyOp>().fault;
    const poplar::Tensor in = getInTensor(0);
    const poplar::Tensor ones = graph().addConstant<float>(poplar::FLOAT, in.shape(), poplar::ArrayRef<float>({1.0f}));
    graph().setTileMapping(ones, 0);
    if (fault == "in place") program.add(Copy(ones, in));
    setOutTensor(0, copied(in, program));
    if (fault == "output twice") setOutTensor(0, in);
    if (fault != "no output") setOutTensor(1, ones.flatten().slice(0, 1));
  }

 private:
  poplar::Tensor copied(const poplar::Tensor& from, poplar::program::Sequence& program) const {
    const poplar::Tensor to = graph().addVariable(poplar::FLOAT, from.shape(), "copy");
    if (getOp<FaultyOp>().fault != "unmapped") graph().setTileMapping(to, 0);
    program.add(Copy(from, to));
    return to;
  }
};

class FaultyGradOpx : public popart::popx::Opx {
 public:
  FaultyGradOpx(Op* op, popart::popx::Devicex* devicex) : Opx(op, devicex) {}
  void grow(poplar::program::Sequence&) const override { setOutTensor(0, getInTensor(0)); }
};

std::unique_ptr<Op> make(const popart::OpCreatorInfo& info) {
  return std::make_unique<FaultyOp>(info.opid, info.attributes.getAttribute<std::string>("fault"), info.settings);
}

void infer(popart::ShapeInferenceContext& context) {
  const auto fault = context.getAttributes().getAttribute<std::string>("fault");
  context.outInfo(0) =
      fault == "shape" || fault == "inferred shape" ? TensorInfo(DataType::FLOAT, {1}) : context.inInfo(0);
  if (fault != "no info") context.outInfo(1) = TensorInfo(DataType::FLOAT, {1});
  if (fault == "inferred outputs") context.outInfo(2) = context.inInfo(0);
}

const popart::OpDefinition definition({}, {}, {{"fault", {"*"}}});
const popart::OpCreator<FaultyOp> creator({{copy_id, definition}, {unshaped_id, definition}}, make);
const popart::RegisterShapeInferenceFunction shapes(copy_id, infer);
const popart::popx::OpxCreator<FaultyOpx> opx_creator({copy_id});
const popart::popx::OpxCreator<FaultyGradOpx> grad_opx_creator({grad_id});

}  // namespace
