// Fake PopART, for tests: makes one registered op, and its gradient op, on the emulated machine, and runs them.
//
// It stands for PopART's work around a custom op, and refuses everything that PopART refuses, or silently gets wrong:
// attributes of another type, outputs that `setup` or `grow` left out or shaped differently, gradients of outputs that
// do not affect the loss, attributes that are not serialized, inputs that are overwritten. A C interface, for ctypes.
#include <algorithm>
#include <cstring>
#include <iomanip>
#include <memory>
#include <popart/op.hpp>
#include <popart/opmanager.hpp>
#include <popart/popx/opxmanager.hpp>
#include <popart/shapeinference.hpp>
#include <poplar/Engine.hpp>
#include <poplar/Graph.hpp>
#include <poplar/IPUModel.hpp>
#include <poplar/Program.hpp>
#include <sstream>

#include "host/src/emulator/machine.h"
#include "host/src/machine/thread_pool.h"
#include "host/src/popart/description.h"

namespace {

using popart::DataType;
using popart::error;
using popart::GradOpInType;
using popart::Op;
using popart::TensorInfo;
using popart::popx::Devicex;
using popart::popx::InputCreatorType;
using popart::popx::Opx;
using poplar::program::Copy;
using poplar::program::Sequence;

poplar::Type type_of(const TensorInfo& info) {
  return info.dataType() == DataType::FLOAT ? poplar::FLOAT : poplar::INT;
}

std::string text_of(const TensorInfo& info) {
  std::string text = info.data_type() + "[";
  for (const std::int64_t n : info.shape()) text += (text.back() == '[' ? "" : ", ") + std::to_string(n);
  return text + "]";
}

// PopART's default layout of tensors: evenly over all tiles.
poplar::Tensor add_linear(poplar::Graph& graph, const TensorInfo& info, const std::string& name) {
  const poplar::Tensor t = graph.addVariable(type_of(info), info.shape_szt(), name);
  const std::size_t n = t.numElements(), n_tiles = graph.getTarget().getNumTiles(), share = (n + n_tiles - 1) / n_tiles;
  for (std::size_t first = 0; first < n; first += share)
    graph.setTileMapping(t.flatten().slice(first, std::min(n, first + share)), static_cast<unsigned>(first / share));
  return t;
}

// A tensor's streams, to and from the device.
struct Stream {
  TensorInfo info;
  std::vector<unsigned char> to_device, from_device;
  std::size_t bytes() const { return static_cast<std::size_t>(info.nelms()) * 4; }
};

class Session {
 public:
  Session(const popart::OperatorIdentifier& id, const popart::Attributes& attributes,
          const std::vector<TensorInfo>& inputs, std::size_t n_outputs, unsigned n_tiles, bool trains)
      : device_(make_device(n_tiles)), graph_(device_.getTarget()) {
    const auto entry = popart::OpManager::entries().find(id);
    if (entry == popart::OpManager::entries().end()) throw error("no op {} is registered", id);
    for (const std::string& name : attributes.getNames())
      if (!entry->second.definition.attributes.count(name)) throw error("{} does not define attribute {}", id, name);
    const popart::Op::Settings settings{"op"};
    const std::unique_ptr<Op> made = entry->second.make({id, settings, attributes});
    made->connect(inputs, n_outputs);
    made->setup();
    check_inferred(*made, attributes, inputs, n_outputs);
    check_serialized(*made, attributes);
    op_ = made->clone();  // PopART clones ops whenever it moves them
    check_clone(*made, *op_);
    for (std::size_t k = 0; k < n_outputs; ++k)
      if (op_->outInfo(static_cast<int>(k)).dataType() == DataType::UNDEFINED)
        throw error("{}: setup left out the info of output {}", id, k);

    Sequence forward, backward;
    grow_forward(forward);
    if (trains) grow_backward(backward);
    engine_ = std::make_unique<poplar::Engine>(graph_, std::vector<poplar::program::Program>{forward, backward});
    for (auto& [name, stream] : streams_) {
      stream.to_device.resize(stream.bytes());
      stream.from_device.resize(stream.bytes());
    }
    for (auto& [name, stream] : streams_) {
      if (used_.count(name + ".in"))
        engine_->connectStream(name + ".in", stream.to_device.data(), stream.to_device.data() + stream.bytes());
      if (used_.count(name + ".out"))
        engine_->connectStream(name + ".out", stream.from_device.data(), stream.from_device.data() + stream.bytes());
    }
    engine_->load(device_);
  }

  void forward(const void* const* inputs, void* const* outputs) {
    for (std::size_t k = 0; k < op_->n_inputs(); ++k) fill("input", k, inputs[k]);
    engine_->run(0);
    check_untouched("forward");
    for (std::size_t k = 0; k < op_->n_outputs(); ++k) take("output", k, outputs[k]);
  }

  // d_outputs: null if the loss does not depend on an output. d_inputs: null if not wanted.
  void backward(const void* const* d_outputs, void* const* d_inputs) {
    if (!grad_op_) throw error("{} was made without a gradient", op_->opid);
    for (const auto& m : grad_op_->gradInputInfo()) {
      if (m.type != GradOpInType::GradOut) continue;
      if (!d_outputs[m.iNonGrad])
        throw error("{} wants the gradient of output {}, which is not on the path to the loss", grad_op_->opid,
                    m.iNonGrad);
      fill("d_output", static_cast<std::size_t>(m.iNonGrad), d_outputs[m.iNonGrad]);
    }
    engine_->run(1);
    check_untouched("backward");
    for (const auto& [out, in] : grad_op_->gradOutToNonGradIn())
      if (d_inputs[in]) take("d_input", static_cast<std::size_t>(in), d_inputs[in]);
  }

  bool has_gradient(int input) const {
    if (!grad_op_) return false;
    for (const auto& [out, in] : grad_op_->gradOutToNonGradIn())
      if (in == input) return true;
    return false;
  }
  const TensorInfo& out_info(int k) const { return static_cast<const Op&>(*op_).outInfo(k); }
  std::size_t tile_bytes() const {
    std::size_t most = 0;
    for (const std::size_t bytes : engine_->machine().report().tile_bytes) most = std::max(most, bytes);
    return most;
  }

 private:
  static poplar::Device make_device(unsigned n_tiles) {
    poplar::IPUModel model("ipu2");
    model.tilesPerIPU = n_tiles;
    return model.createDevice();
  }

  static void check_serialized(const Op& op, const popart::Attributes& attributes) {
    popart::OpSerialiserBase cache, outline;
    op.appendAttributes(cache);
    op.appendOutlineAttributes(outline);
    for (const std::string& name : attributes.getNames())
      if (!cache.texts().count(name) || !outline.texts().count(name))
        throw error("{} does not append attribute {}: two ops that differ in it would share code", op.opid, name);
  }
  // Checks that shape inference, before the op exists, gives the infos of `setup`.
  static void check_inferred(const Op& op, const popart::Attributes& attributes, const std::vector<TensorInfo>& inputs,
                             std::size_t n_outputs) {
    const auto found = popart::ShapeInferenceFunctions::entries().find(op.opid);
    if (found == popart::ShapeInferenceFunctions::entries().end())
      throw error("{} has no shape inference function: PopART warns, and knows no shapes after it", op.opid);
    std::map<int, TensorInfo> known;
    for (std::size_t k = 0; k < inputs.size(); ++k) known[static_cast<int>(k)] = inputs[k];
    popart::ShapeInferenceContext context(known, attributes, static_cast<int>(n_outputs));
    found->second(context);
    for (int k = 0; k < static_cast<int>(n_outputs); ++k)
      if (context.outInfo(k) != op.outInfo(k))
        throw error("{}: output {} is {} by setup, but {} by shape inference", op.opid, k, text_of(op.outInfo(k)),
                    text_of(context.outInfo(k)));
    if (context.getOutputInfos().size() != n_outputs)
      throw error("{}: shape inference gives {} outputs; it has {}", op.opid, context.getOutputInfos().size(),
                  n_outputs);
  }
  static void check_clone(const Op& a, const Op& b) {
    popart::OpSerialiserBase of_a, of_b;
    a.appendAttributes(of_a);
    b.appendAttributes(of_b);
    if (!(a.opid == b.opid) || of_a.texts() != of_b.texts()) throw error("{}: its clone differs", a.opid);
  }

  static std::unique_ptr<Opx> make_opx(Op* op, Devicex* devicex) {
    const auto found = popart::popx::OpxManager::entries().find(op->opid);
    if (found == popart::popx::OpxManager::entries().end()) throw error("{} has no Opx", op->opid);
    return found->second(op, devicex);
  }

  void grow_forward(Sequence& program) {
    devicex_ = std::make_unique<Devicex>(graph_);
    const std::unique_ptr<Opx> opx = make_opx(op_.get(), devicex_.get());
    for (int k = 0; k < static_cast<int>(op_->n_inputs()); ++k) {
      const TensorInfo& info = static_cast<const Op&>(*op_).inInfo(k);
      poplar::Tensor t;
      if (opx->getInputCreatorType(k) == InputCreatorType::CanCreate) {
        opx->mustExistBeforeCreate(k);
        t = opx->createInputTensor(k, poplar::DebugNameAndId("input"));
        check_shape(t, info, "created input", k);
      } else {
        t = add_linear(graph_, info, "input" + std::to_string(k));
      }
      inputs_.push_back(t);
      devicex_->in[k] = t;
      stream_in("input", k, info, t, program);
    }
    grow(*opx, *op_, program);
    for (int k = 0; k < static_cast<int>(op_->n_outputs()); ++k) {
      outputs_.push_back(devicex_->out.at(k));
      stream_out("output", k, out_info(k), outputs_.back(), program);
    }
    for (std::size_t k = 0; k < inputs_.size(); ++k)
      stream_out("input", static_cast<int>(k), op_->inInfo(static_cast<int>(k)), inputs_[k], program);
  }

  void grow_backward(Sequence& program) {
    const std::vector<std::unique_ptr<Op>> grad_ops = op_->getGradOps();
    if (grad_ops.size() != 1) throw error("{} has {} gradient ops; this fake supports one", op_->opid, grad_ops.size());
    const Op& made = *grad_ops[0];
    std::map<int, TensorInfo> infos;
    for (const auto& m : made.gradInputInfo())
      if (!infos.emplace(m.iGrad, m.type == GradOpInType::In ? op_->inInfo(m.iNonGrad) : out_info(m.iNonGrad)).second)
        throw error("{}: gradInputInfo names input {} twice", made.opid, m.iGrad);
    std::vector<TensorInfo> inputs;
    for (const auto& [k, info] : infos) {
      if (k != static_cast<int>(inputs.size()))
        throw error("{}: gradInputInfo leaves out input {}", made.opid, inputs.size());
      inputs.push_back(info);
    }
    grad_op_ = made.clone();
    grad_op_->connect(inputs, made.gradOutToNonGradIn().size());
    grad_op_->setup();
    check_clone(made, *grad_op_);
    for (const auto& [out, in] : grad_op_->gradOutToNonGradIn())
      if (static_cast<const Op&>(*grad_op_).outInfo(out) != op_->inInfo(in))
        throw error("{}: output {} is {}, but input {} whose gradient it is is {}", grad_op_->opid, out,
                    text_of(static_cast<const Op&>(*grad_op_).outInfo(out)), in, text_of(op_->inInfo(in)));

    devicex_ = std::make_unique<Devicex>(graph_);
    for (const auto& m : grad_op_->gradInputInfo()) {
      if (m.type == GradOpInType::GradOut) {
        const poplar::Tensor t = add_linear(graph_, out_info(m.iNonGrad), "d_output");
        stream_in("d_output", m.iNonGrad, out_info(m.iNonGrad), t, program);
        devicex_->in[m.iGrad] = t;
      } else {
        devicex_->in[m.iGrad] =
            (m.type == GradOpInType::In ? inputs_ : outputs_).at(static_cast<std::size_t>(m.iNonGrad));
      }
    }
    const std::unique_ptr<Opx> opx = make_opx(grad_op_.get(), devicex_.get());
    grow(*opx, *grad_op_, program);
    for (const auto& [out, in] : grad_op_->gradOutToNonGradIn())
      stream_out("d_input", in, op_->inInfo(in), devicex_->out.at(out), program);
    for (std::size_t k = 0; k < inputs_.size(); ++k)
      program.add(Copy(inputs_[k], to_host("input" + std::to_string(k)), false, "input"));
  }

  void grow(const Opx& opx, const Op& op, Sequence& program) {
    opx.grow(program);
    for (int k = 0; k < static_cast<int>(op.n_outputs()); ++k) {
      const auto found = devicex_->out.find(k);
      if (found == devicex_->out.end()) throw error("{}: grow sets no output {}", op.opid, k);
      check_shape(found->second, op.outInfo(k), "output", k);
    }
  }

  static void check_shape(const poplar::Tensor& t, const TensorInfo& info, const char* what, int k) {
    if (t.shape() != info.shape_szt() || t.elementType() != type_of(info))
      throw error("{} {} is a tensor of {} elements of {}; its info says {}", what, k, t.numElements(),
                  t.elementType().toString(), text_of(info));
  }

  void stream_in(const std::string& kind, int k, const TensorInfo& info, const poplar::Tensor& t, Sequence& program) {
    const std::string name = kind + std::to_string(k);
    streams_[name].info = info;
    used_.insert(name + ".in");
    program.add(Copy(graph_.addHostToDeviceFIFO(name + ".in", t.elementType(), t.numElements()), t, false, name));
  }
  void stream_out(const std::string& kind, int k, const TensorInfo& info, const poplar::Tensor& t, Sequence& program) {
    const std::string name = kind + std::to_string(k);
    streams_[name].info = info;
    used_.insert(name + ".out");
    out_.emplace(name, graph_.addDeviceToHostFIFO(name + ".out", t.elementType(), t.numElements()));
    program.add(Copy(t, out_.at(name), false, name));
  }
  const poplar::DataStream& to_host(const std::string& name) const { return out_.at(name); }

  void fill(const std::string& kind, std::size_t k, const void* data) {
    Stream& s = streams_.at(kind + std::to_string(k));
    std::memcpy(s.to_device.data(), data, s.bytes());
  }
  void take(const std::string& kind, std::size_t k, void* data) {
    const Stream& s = streams_.at(kind + std::to_string(k));
    std::memcpy(data, s.from_device.data(), s.bytes());
  }
  void check_untouched(const std::string& pass) const {
    for (std::size_t k = 0; k < op_->n_inputs(); ++k) {
      const Stream& s = streams_.at("input" + std::to_string(k));
      if (s.to_device != s.from_device) throw error("{}: its {} pass overwrites input {}", op_->opid, pass, k);
    }
  }

  poplar::Device device_;
  poplar::Graph graph_;
  std::unique_ptr<Op> op_, grad_op_;
  std::unique_ptr<Devicex> devicex_;
  std::vector<poplar::Tensor> inputs_, outputs_;
  std::map<std::string, Stream> streams_;
  std::map<std::string, poplar::DataStream> out_;
  std::set<std::string> used_;
  std::unique_ptr<poplar::Engine> engine_;
};

std::string& last_error() {
  thread_local std::string text;
  return text;
}

template <class F>
auto guarded(F&& f) -> decltype(f()) {
  try {
    last_error().clear();
    return f();
  } catch (const std::exception& e) {
    last_error() = e.what();
    if (last_error().empty()) last_error() = "an error without a message";
    return {};
  }
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text.empty() ? "-" : text;
}

// The description as the op parsed it, in the format of description.h.
std::string written(const sparsesnn::popart_op::Description& d) {
  std::ostringstream s;
  s << std::setprecision(9) << "pass " << d.saves << " " << d.input_gradient << "\ncodelets " << d.codelets;
  std::ostringstream places;
  for (std::size_t k = 0; k < d.network.populations.size(); ++k) {
    const auto& p = d.network.populations[k];
    if (p.is_input()) {
      s << "\ninput " << p.n << " " << p.capacity;
    } else {
      const auto& model = d.structures[k];
      s << "\npopulation " << model.n_states << " " << model.fires << " " << model.in_order << " "
        << joined(model.entries) << " " << joined(model.ones) << " " << joined(d.trained[k]) << " " << p.kept << " "
        << p.n << " " << p.capacity << " " << p.seed << " " << p.surrogate << " " << p.slope << " " << p.detach_reset
        << " " << p.fixed << " " << p.bias;
      const auto write = [&](const std::string& name) {
        const auto& all = p.shape->entries;
        const auto row = static_cast<std::size_t>(std::find(all.begin(), all.end(), name) - all.begin());
        const bool is_one = std::find(p.shape->ones.begin(), p.shape->ones.end(), name) != p.shape->ones.end();
        for (std::size_t n = 0; n < p.n; ++n) s << " " << (is_one ? 1.0f : p.entries[row * p.n + n]);
      };
      for (const std::string& name : model.entries)
        if (std::find(d.trained[k].begin(), d.trained[k].end(), name) == d.trained[k].end()) write(name);
      if (p.fires) write("");
    }
    for (const auto& x : p.shards) places << "\nshard " << k << " " << x.tile << " " << x.first << " " << x.n;
    for (const auto& x : p.collectors) places << "\ncollector " << k << " " << x.tile << " " << x.first << " " << x.n;
  }
  for (std::size_t k = 0; k < d.network.connections.size(); ++k) {
    const auto& c = d.network.connections[k];
    s << "\nconnection " << c.pre << " " << c.post << " " << c.delay;
    for (const auto& x : c.reducers)
      places << "\nreducer " << k << " " << x.tile << " " << x.first_shard << " " << x.n_shards << " " << x.first_sample
             << " " << x.n_samples;
  }
  return s.str() + places.str();
}

}  // namespace

extern "C" {

const char* fake_popart_error() { return last_error().c_str(); }
const char* fake_popart_read(const char* description) {
  static std::string text;
  text = written(sparsesnn::popart_op::Description(description));
  return text.c_str();
}
void fake_popart_threads(int n) { sparsesnn::set_num_threads(n); }

popart::Attributes* fake_popart_attributes() { return new popart::Attributes; }
void fake_popart_put_int(popart::Attributes* a, const char* key, std::int64_t value) { a->put(key, value); }
void fake_popart_put_float(popart::Attributes* a, const char* key, float value) { a->put(key, value); }
void fake_popart_put_string(popart::Attributes* a, const char* key, const char* value) {
  a->put(key, std::string(value));
}
void fake_popart_put_ints(popart::Attributes* a, const char* key, const std::int64_t* values, std::size_t n) {
  a->put(key, popart::Attributes::Ints(values, values + n));
}
void fake_popart_put_floats(popart::Attributes* a, const char* key, const float* values, std::size_t n) {
  a->put(key, popart::Attributes::Floats(values, values + n));
}

// dims: those of all inputs, one after the other. Takes ownership of the attributes. Null: see fake_popart_error.
Session* fake_popart_op(const char* domain, const char* type, int version, popart::Attributes* attributes, int n_inputs,
                        const int* is_float, const int* ranks, const std::int64_t* dims, int n_outputs, int n_tiles,
                        int trains, const char* checks) {
  const std::unique_ptr<popart::Attributes> owned(attributes);
  return guarded([&] {
    std::vector<TensorInfo> inputs;
    for (int k = 0; k < n_inputs; dims += ranks[k], ++k)
      inputs.emplace_back(is_float[k] ? DataType::FLOAT : DataType::INT32, popart::Shape(dims, dims + ranks[k]));
    auto& options = sparsesnn::emulator::options_of_next_engine();
    using sparsesnn::emulator::Checks;
    options.checks = !std::strcmp(checks, "always")  ? Checks::always
                     : !std::strcmp(checks, "first") ? Checks::first
                                                     : Checks::never;
    return new Session({domain, type, version}, *owned, inputs, static_cast<std::size_t>(n_outputs),
                       static_cast<unsigned>(n_tiles), trains != 0);
  });
}
void fake_popart_delete(Session* s) { delete s; }
int fake_popart_out_rank(Session* s, int k) { return s->out_info(k).rank(); }
int fake_popart_out_is_float(Session* s, int k) { return s->out_info(k).dataType() == DataType::FLOAT; }
std::int64_t fake_popart_out_dim(Session* s, int k, int dim) {
  return s->out_info(k).shape().at(static_cast<std::size_t>(dim));
}
int fake_popart_has_gradient(Session* s, int input) { return s->has_gradient(input); }
std::size_t fake_popart_tile_bytes(Session* s) { return s->tile_bytes(); }
int fake_popart_forward(Session* s, const void* const* inputs, void* const* outputs) {
  return guarded([&] { return s->forward(inputs, outputs), 1; });
}
int fake_popart_backward(Session* s, const void* const* d_outputs, void* const* d_inputs) {
  return guarded([&] { return s->backward(d_outputs, d_inputs), 1; });
}

}  // extern "C"
