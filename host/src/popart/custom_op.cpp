// PopART op sparsesnn::Stack: event-sparse layers over a whole sequence, with hand-written gradients (StackGrad). One
// population, several in a row, or any network with one input and no loop but recurrent=True; its one attribute
// describes it (description.h).
//
// inputs   lists INT32 [T, B, 2 + K]; values FLOAT [T, B, K], if the input has a gradient; of each connection a weight
//          FLOAT [M, N]; of each population that has one a bias FLOAT [N]; of each population that trains parameters
//          the entries of its neurons' arrays that depend on them FLOAT [E, N]
// outputs  out: values FLOAT [T, B, K] of the last population, or potentials FLOAT [T, B, N] of a readout; then of each
//          spiking population lists INT32 [T, B, 2 + K] and dropped INT32 [T, B]; then, if saved, their histories FLOAT
//
// The gradient op requires the gradient of `out` only: lists, counts and histories do not affect the loss. Nothing is
// written in place on an input. T steps, B samples, K capacity, M senders, N neurons.
#include <memory>
#include <popart/attributes.hpp>
#include <popart/datatype.hpp>
#include <popart/error.hpp>
#include <popart/op.hpp>
#include <popart/operatoridentifier.hpp>
#include <popart/opmanager.hpp>
#include <popart/opserialiser.hpp>
#include <popart/popx/inputcreatortype.hpp>
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>
#include <popart/shapeinference.hpp>
#include <popart/tensorinfo.hpp>
#include <poplar/DebugContext.hpp>
#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>
#include <poplar/Tensor.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "description.h"
#include "host/src/ipu/passes.h"

namespace sparsesnn::popart_op {
namespace {

using popart::GradInOutMapper;
using popart::GradOpInType;
using popart::InIndex;
using popart::Op;
using popart::OutIndex;
using popart::TensorInfo;

const popart::OperatorIdentifier stack_id{"sparsesnn", "Stack", 1}, stack_grad_id{"sparsesnn", "StackGrad", 1};
constexpr const char* attribute = "description";

// Our errors as PopART's, which PopTorch passes on to Python.
template <class F>
auto as_popart(F&& f) {
  try {
    return f();
  } catch (const std::invalid_argument& error) {
    throw popart::error("{}", std::string(error.what()));
  }
}

// ---- indices of inputs and outputs --------------------------------------------------------------------------------

class Indices {
 public:
  explicit Indices(const Description& d) : d_(d) {}

  static constexpr InIndex lists_in = 0, values_in = 1;
  InIndex weight_in(std::size_t connection) const { return first_weight() + static_cast<int>(connection); }
  InIndex bias_in(std::size_t population) const {
    return weight_in(d_.n_connections()) + count(population, [&](std::size_t p) { return d_.has_bias(p); });
  }
  InIndex entries_in(std::size_t population) const {
    return bias_in(d_.n_populations()) + count(population, [&](std::size_t p) { return d_.n_trained(p) > 0; });
  }
  int n_in() const { return entries_in(d_.n_populations()); }

  static constexpr OutIndex out = 0;
  OutIndex lists_out(std::size_t population) const { return 1 + 2 * n_spiking(population); }
  OutIndex dropped_out(std::size_t population) const { return lists_out(population) + 1; }
  OutIndex history_out(std::size_t population) const {
    return 1 + 2 * n_spiking(d_.n_populations()) + n_histories(population);
  }

  int n_out() const { return history_out(d_.saves ? d_.n_populations() : 1); }

  // of the gradient op
  static constexpr InIndex d_out_in = 0, lists_again_in = 1;
  InIndex weight_again_in(std::size_t connection) const { return 2 + static_cast<int>(connection); }
  InIndex lists_saved_in(std::size_t population) const {
    return weight_again_in(d_.n_connections()) + n_spiking(population);
  }
  InIndex history_saved_in(std::size_t population) const {
    return lists_saved_in(d_.n_populations()) + n_histories(population);
  }
  InIndex entries_again_in(std::size_t population) const {
    return history_saved_in(d_.n_populations()) + entries_in(population) - entries_in(0);
  }
  // its outputs follow the inputs that have a gradient: all but the lists
  OutIndex gradient_out(InIndex in) const { return in - 1; }

 private:
  InIndex first_weight() const { return d_.input_gradient ? 2 : 1; }
  // for the populations 1 … population - 1
  template <class F>
  int count(std::size_t population, F&& holds) const {
    int n = 0;
    for (std::size_t p = 1; p < population; ++p) n += holds(p);
    return n;
  }
  int n_spiking(std::size_t population) const {
    return count(population, [&](std::size_t p) { return d_.spikes(p); });
  }
  int n_histories(std::size_t population) const {
    return count(population, [&](std::size_t p) { return d_.has_history(p); });
  }
  const Description& d_;
};

std::string text_of(const popart::Shape& shape) {
  std::string text;
  for (const std::int64_t n : shape) text += (text.empty() ? "[" : ", ") + std::to_string(n);
  return text.empty() ? "[]" : text + "]";
}

// The infos of all outputs, in their order, if the input's lists have this shape.
std::vector<TensorInfo> output_infos(const Description& d, const popart::Shape& lists) {
  using popart::DataType;
  if (lists.size() != 3)
    throw popart::error("{}", "sparsesnn op: lists have shape " + text_of(lists) + "; give [T, B, 2 + capacity]");
  const Indices at(d);
  const std::int64_t t = lists[0], b = lists[1];
  const std::size_t last = d.n_populations() - 1;
  std::vector<TensorInfo> found(static_cast<std::size_t>(at.n_out()));
  const auto set = [&](OutIndex index, DataType type, const popart::Shape& shape) {
    found[static_cast<std::size_t>(index)] = TensorInfo(type, shape);
  };
  set(Indices::out, DataType::FLOAT, {t, b, d.spikes(last) ? d.slots(last) : d.neurons(last)});
  for (std::size_t p = 1; p <= last; ++p) {
    if (d.saves && d.has_history(p)) set(at.history_out(p), DataType::FLOAT, {d.n_history(p, t, b)});
    if (!d.spikes(p)) continue;
    set(at.lists_out(p), DataType::INT32, {t, b, 2 + d.slots(p)});
    set(at.dropped_out(p), DataType::INT32, {t, b});
  }
  return found;
}

// ---- ops -----------------------------------------------------------------------------------------------------------

// Shared by the op and its gradient.
class DescribedOp : public Op {
 public:
  DescribedOp(const popart::OperatorIdentifier& id, Description d, const Op::Settings& settings)
      : Op(id, settings), description(std::move(d)) {}

  float getSubgraphValue() const final { return getHighSubgraphValue(); }
  bool requiresRandomSeed() const final { return false; }
  void appendAttributes(popart::OpSerialiserBase& os) const final {
    Op::appendAttributes(os);
    os.appendAttribute(attribute, description.text);
  }
  void appendOutlineAttributes(popart::OpSerialiserBase& os) const final {
    Op::appendOutlineAttributes(os);
    os.appendAttribute(attribute, description.text);
  }

  const Description description;
};

class StackOp;

class StackGradOp : public DescribedOp {
 public:
  explicit StackGradOp(const StackOp& forward);

  std::unique_ptr<Op> clone() const final { return std::make_unique<StackGradOp>(*this); }
  void setup() final;
  const std::vector<GradInOutMapper>& gradInputInfo() const final { return inputs_; }
  const std::map<int, int>& gradOutToNonGradIn() const final { return outputs_; }

 private:
  std::vector<GradInOutMapper> inputs_;
  std::map<int, int> outputs_;
  std::vector<TensorInfo> gradients_;
};

class StackOp : public DescribedOp {
 public:
  using DescribedOp::DescribedOp;

  std::unique_ptr<Op> clone() const final { return std::make_unique<StackOp>(*this); }
  void setup() final;
  std::vector<std::unique_ptr<Op>> getGradOps() final {
    if (!description.saves)
      throw popart::error("sparsesnn op: description: saves is 0, so there is no gradient; give 1 to train");
    std::vector<std::unique_ptr<Op>> ops;
    ops.push_back(std::make_unique<StackGradOp>(*this));
    return ops;
  }

 private:
  void expect(const std::string& what, InIndex index, popart::DataType type, const popart::Shape& shape) const {
    const TensorInfo& info = inInfo(index);
    if (info.dataType() != type || info.shape() != shape)
      throw popart::error("{}", "sparsesnn op: " + what + " is " + info.data_type() + " " + text_of(info.shape()) +
                                    "; it must be " + TensorInfo(type, shape).data_type() + " " + text_of(shape));
  }
};

void StackOp::setup() {
  using popart::DataType;
  const Description& d = description;
  const Indices at(d);
  const popart::Shape lists = inInfo(Indices::lists_in).shape();
  const std::vector<TensorInfo> outputs = output_infos(d, lists);
  const std::int64_t t = lists[0], b = lists[1];
  if (!hasInput(at.n_in() - 1) || hasInput(at.n_in()))
    throw popart::error("{}", "sparsesnn op: the description has " + std::to_string(at.n_in()) +
                                  " inputs; connect lists, values, weights, biases and entries in this order");
  expect("lists", Indices::lists_in, DataType::INT32, {t, b, 2 + d.slots(0)});
  if (d.input_gradient) expect("values", Indices::values_in, DataType::FLOAT, {t, b, d.slots(0)});
  for (std::size_t k = 0; k < d.n_connections(); ++k)
    expect("weight " + std::to_string(k), at.weight_in(k), DataType::FLOAT,
           {d.neurons(d.network.connections[k].pre), d.neurons(d.network.connections[k].post)});
  for (std::size_t p = 1; p < d.n_populations(); ++p)
    if (d.has_bias(p))
      expect("bias of population " + std::to_string(p), at.bias_in(p), DataType::FLOAT, {d.neurons(p)});
  for (std::size_t p = 1; p < d.n_populations(); ++p)
    if (d.n_trained(p))
      expect("entries of population " + std::to_string(p), at.entries_in(p), DataType::FLOAT,
             {d.n_trained(p), d.neurons(p)});
  for (std::size_t k = 0; k < outputs.size(); ++k) outInfo(static_cast<OutIndex>(k)) = outputs[k];
}

StackGradOp::StackGradOp(const StackOp& forward)
    : DescribedOp(stack_grad_id, forward.description, forward.getSettings()) {
  const Description& d = description;
  const Indices at(d);
  inputs_ = {{Indices::d_out_in, Indices::out, GradOpInType::GradOut},
             {Indices::lists_again_in, Indices::lists_in, GradOpInType::In}};
  for (std::size_t k = 0; k < d.n_connections(); ++k)
    inputs_.emplace_back(at.weight_again_in(k), at.weight_in(k), GradOpInType::In);
  for (std::size_t p = 1; p < d.n_populations(); ++p) {
    if (d.spikes(p)) inputs_.emplace_back(at.lists_saved_in(p), at.lists_out(p), GradOpInType::Out);
    if (d.has_history(p)) inputs_.emplace_back(at.history_saved_in(p), at.history_out(p), GradOpInType::Out);
    if (d.n_trained(p)) inputs_.emplace_back(at.entries_again_in(p), at.entries_in(p), GradOpInType::In);
  }
  for (InIndex in = 1; in < at.n_in(); ++in) {
    outputs_[at.gradient_out(in)] = in;
    gradients_.push_back(forward.inInfo(in));
  }
}

void StackGradOp::setup() {
  for (std::size_t k = 0; k < gradients_.size(); ++k) outInfo(static_cast<OutIndex>(k)) = gradients_[k];
}

// ---- their lowering to a device ----------------------------------------------------------------------------------

ipu::ProgramSpec spec_for(const Description& d, const popart::Shape& lists, poplar::Graph& graph) {
  return as_popart([&] { return d.spec(lists[0], lists[1], graph.getTarget().getNumTiles()); });
}

// Poplar accepts codelets that the graph has already.
void add_codelets(poplar::Graph& graph, const Description& d) {
  if (!d.codelets.empty()) graph.addCodelets(d.codelets);
}

class StackOpx : public popart::popx::Opx {
 public:
  StackOpx(Op* op, popart::popx::Devicex* devicex) : Opx(op, devicex) {
    verifyOp<StackOp>(op, {stack_id});
    add_codelets(graph(), getOp<StackOp>().description);
  }

  // Weights, biases and entries lie with their neurons, so that the optimizer's work is local too.
  popart::popx::InputCreatorType getInputCreatorType(InIndex index) const final {
    return population_of(index) ? popart::popx::InputCreatorType::CanCreate : popart::popx::InputCreatorType::Deadend;
  }

  poplar::Tensor createInputTensor(InIndex index, const poplar::DebugNameAndId& name) const final {
    const ipu::ProgramSpec spec = spec_for(getOp<StackOp>().description, inShape(Indices::lists_in), graph());
    const std::vector<std::size_t> shape = inShapeSzt(index);
    const poplar::Tensor t =
        ipu::add_columns(graph(), shape.size() == 2 ? shape[0] : 1, spec.populations.at(population_of(index)), name);
    return t.reshape(shape);
  }

  std::set<popart::TensorId> mustExistBeforeCreate(InIndex) const final { return {}; }

  void grow(poplar::program::Sequence& program) const final {
    const Description& d = getOp<StackOp>().description;
    const Indices at(d);
    ipu::ForwardInputs in;
    in.lists = getInTensor(Indices::lists_in);
    for (std::size_t k = 0; k < d.n_connections(); ++k) in.weights.push_back(getInTensor(at.weight_in(k)));
    in.biases.resize(d.n_populations());
    in.entries.resize(d.n_populations());
    for (std::size_t p = 1; p < d.n_populations(); ++p) {
      if (d.has_bias(p)) in.biases[p] = getInTensor(at.bias_in(p));
      if (d.n_trained(p)) in.entries[p] = getInTensor(at.entries_in(p));
    }
    const ipu::ProgramSpec spec = spec_for(d, inShape(Indices::lists_in), graph());
    const ipu::ForwardOutputs out =
        as_popart([&] { return ipu::add_forward_pass(graph(), spec, in, d.saves, program); });
    setOutTensor(Indices::out, out.out);
    for (std::size_t p = 1; p < d.n_populations(); ++p) {
      if (d.saves && d.has_history(p)) setOutTensor(at.history_out(p), out.histories[p]);
      if (!d.spikes(p)) continue;
      setOutTensor(at.lists_out(p), out.lists[p]);
      setOutTensor(at.dropped_out(p), out.dropped[p]);
    }
  }

 private:
  // The population whose weight, bias or entries an input is; 0: none.
  std::size_t population_of(InIndex index) const {
    const Description& d = getOp<StackOp>().description;
    const Indices at(d);
    for (std::size_t k = 0; k < d.n_connections(); ++k)
      if (index == at.weight_in(k)) return d.network.connections[k].post;
    for (std::size_t p = 1; p < d.n_populations(); ++p)
      if ((d.has_bias(p) && index == at.bias_in(p)) || (d.n_trained(p) && index == at.entries_in(p))) return p;
    return 0;
  }
};

class StackGradOpx : public popart::popx::Opx {
 public:
  StackGradOpx(Op* op, popart::popx::Devicex* devicex) : Opx(op, devicex) {
    verifyOp<StackGradOp>(op, {stack_grad_id});
    add_codelets(graph(), getOp<StackGradOp>().description);
  }

  void grow(poplar::program::Sequence& program) const final {
    const Description& d = getOp<StackGradOp>().description;
    const Indices at(d);
    ipu::BackwardInputs in;
    in.d_out = getInTensor(Indices::d_out_in);
    for (std::size_t k = 0; k < d.n_connections(); ++k) in.weights.push_back(getInTensor(at.weight_again_in(k)));
    in.lists.resize(d.n_populations()), in.histories.resize(d.n_populations());
    in.entries.resize(d.n_populations());
    in.lists[0] = getInTensor(Indices::lists_again_in);
    for (std::size_t p = 1; p < d.n_populations(); ++p) {
      if (d.spikes(p)) in.lists[p] = getInTensor(at.lists_saved_in(p));
      if (d.has_history(p)) in.histories[p] = getInTensor(at.history_saved_in(p));
      if (d.n_trained(p)) in.entries[p] = getInTensor(at.entries_again_in(p));
    }
    const ipu::ProgramSpec spec = spec_for(d, inShape(Indices::lists_again_in), graph());
    const ipu::BackwardOutputs out =
        as_popart([&] { return ipu::add_backward_pass(graph(), spec, in, d.input_gradient, program); });
    if (d.input_gradient) setOutTensor(at.gradient_out(Indices::values_in), out.d_values);
    for (std::size_t k = 0; k < d.n_connections(); ++k)
      setOutTensor(at.gradient_out(at.weight_in(k)), out.d_weights[k]);
    for (std::size_t p = 1; p < d.n_populations(); ++p) {
      if (d.has_bias(p)) setOutTensor(at.gradient_out(at.bias_in(p)), out.d_biases[p]);
      if (d.n_trained(p)) setOutTensor(at.gradient_out(at.entries_in(p)), out.d_entries[p]);
    }
  }
};

// ---- registration --------------------------------------------------------------------------------------------------

Description describe(const popart::Attributes& given) {
  return as_popart([&] { return Description(given.getAttribute<popart::Attributes::String>(attribute)); });
}

std::unique_ptr<Op> make_op(const popart::OpCreatorInfo& info) {
  return std::make_unique<StackOp>(info.opid, describe(info.attributes), info.settings);
}

popart::OpDefinition define() {
  popart::OpDefinition::Attributes attributes;
  attributes.emplace(attribute, "*");
  return {popart::OpDefinition::Inputs(
              {{"lists", {popart::DataType::INT32}}, {"values, weights, biases, entries", {popart::DataType::FLOAT}}}),
          popart::OpDefinition::Outputs(
              {{"out, histories", {popart::DataType::FLOAT}}, {"lists, dropped", {popart::DataType::INT32}}}),
          attributes};
}

// PopART's builder calls this before there is an op, and warns of outputs whose shape it does not know.
void infer_shapes(popart::ShapeInferenceContext& context) {
  if (!context.hasInputShape(Indices::lists_in)) return;
  const std::vector<TensorInfo> outputs =
      output_infos(describe(context.getAttributes()), context.inShape(Indices::lists_in));
  for (int k = 0; k < context.getNumOutputs() && k < static_cast<int>(outputs.size()); ++k)
    context.outInfo(k) = outputs[static_cast<std::size_t>(k)];
}

const popart::OpCreator<StackOp> creator(popart::OpDefinitions({{stack_id, define()}}),
                                         popart::OpManager::OpFactoryFunc(make_op), true);
const popart::popx::OpxCreator<StackOpx> opx_creator(std::vector<popart::OperatorIdentifier>{stack_id});
const popart::popx::OpxCreator<StackGradOpx> grad_opx_creator(std::vector<popart::OperatorIdentifier>{stack_grad_id});
const popart::RegisterShapeInferenceFunction shapes(stack_id, infer_shapes);

}  // namespace
}  // namespace sparsesnn::popart_op
