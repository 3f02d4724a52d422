// The graph builder. It calls nothing of Poplar that the emulated machine does not have, and nothing of PopLibs.
#include "program.h"

#include <algorithm>
#include <poplar/Engine.hpp>
#include <poplar/Graph.hpp>
#include <poplar/IPUModel.hpp>
#include <poplar/Program.hpp>
#include <set>
#include <stdexcept>
#ifdef SPARSESNN_POPLAR_SDK
#include <poplar/DeviceManager.hpp>
#endif

#include "parts.h"
#include "passes.h"

namespace sparsesnn::ipu {

using poplar::ArrayRef;
using poplar::ComputeSet;
using poplar::FLOAT;
using poplar::Graph;
using poplar::INT;
using poplar::Tensor;
using poplar::UNSIGNED_INT;
using poplar::UNSIGNED_SHORT;
using poplar::VertexRef;
using poplar::program::Copy;
using poplar::program::Execute;
using poplar::program::Repeat;
using poplar::program::Sequence;

namespace {

std::size_t even(std::size_t n) { return (n + 1) & ~std::size_t{1}; }

poplar::Device make_device(DeviceKind kind, const ProgramSpec& spec) {
#ifdef SPARSESNN_POPLAR_SDK
  if (kind == DeviceKind::ipu) {
    auto manager = poplar::DeviceManager::createDeviceManager();
    for (poplar::Device& device : manager.getDevices(poplar::TargetType::IPU, spec.devices))
      if (device.attach()) return std::move(device);
    throw std::runtime_error("no free device of " + std::to_string(spec.devices) + " IPUs");
  }
#else
  if (kind == DeviceKind::ipu) throw std::runtime_error("this build has no Poplar SDK");
#endif
  poplar::IPUModel model("ipu2");
  model.numIPUs = spec.devices;
  model.tilesPerIPU = spec.tiles;
  return model.createDevice();
}

// A tensor cut into parts, each on a tile.
class Parted {
 public:
  Parted() = default;
  Parted(Graph& graph, const poplar::Type& type, const std::vector<std::size_t>& sizes,
         const std::vector<unsigned>& tiles, const std::string& name)
      : Parted(sizes) {
    all_ = graph.addVariable(type, {bounds_.back()}, name);
    for (std::size_t k = 0; k < tiles.size(); ++k) graph.setTileMapping(part(k), tiles[k]);
  }
  // Somebody else's tensor, which lies where they put it.
  Parted(const Tensor& given, const std::vector<std::size_t>& sizes) : Parted(sizes) {
    if (given.numElements() != bounds_.back())
      throw std::invalid_argument("IPU program: a tensor of " + std::to_string(given.numElements()) +
                                  " elements was given where " + std::to_string(bounds_.back()) + " are needed");
    all_ = given;
  }
  const Tensor& all() const { return all_; }
  Tensor part(std::size_t k) const { return all_.slice(bounds_[k], bounds_[k + 1]); }

 private:
  explicit Parted(const std::vector<std::size_t>& sizes) {
    for (const std::size_t n : sizes) bounds_.push_back(bounds_.back() + n);
  }
  Tensor all_;
  std::vector<std::size_t> bounds_{0};
};

// What is built: whole training steps, or one pass as part of somebody else's graph (passes.h).
enum class Part { whole, forward, backward };

// `over_steps` in codelets/ipu/gradient.cpp: each step's potential has a gradient of its own.
constexpr unsigned decodes_nothing = 4;

class Builder {
 public:
  Builder(const ProgramSpec& spec, Graph& graph, std::map<std::string, Buffer>& buffers)
      : spec_(spec),
        graph_(graph),
        buffers_(buffers),
        populations_(spec.populations.size()),
        keeps_history_(spec.trains()),
        learns_(spec.trains()) {}

  std::vector<poplar::program::Program> build() {
    find_rounds();
    make_variables();
    Sequence load, train, infer, save, lists;
    make_streams(load, save, lists);
    for (Sequence* batch : {&train, &infer}) {
      stream_in("lists.0", populations_[0].kept.all(), *batch);
      stream_in("labels", labels_.all(), *batch);
      stream_in("settings", settings_, *batch);
    }
    Sequence forward, backward;
    forward_steps(forward);
    add_loss(forward);
    if (learns_) {
      add_readout_gradient(backward);
      backward_steps(backward);
      add_update(backward);
    }
    for (Sequence* batch : {&train, &infer}) {
      reset_counters(forward_counters_, 0, *batch);
      batch->add(forward);
    }
    if (learns_) {
      reset_counters(backward_counters_, spec_.n_steps, train);
      train.add(backward);
      stream_out("norm", norm_, train);
    }
    for (Sequence* batch : {&train, &infer}) {
      stream_out("losses", losses_.all(), *batch);
      stream_out("logits", logits_.all(), *batch);
    }
    return {load, train, infer, save, lists};
  }

  // ---- passes.h ------------------------------------------------------------------------------------------------

  ForwardOutputs forward_pass(const ForwardInputs& in, bool saves, Sequence& program) {
    part_ = Part::forward;
    keeps_history_ = saves;
    find_rounds();
    make_variables();
    narrow_lists(0, in.lists, program);
    for (std::size_t k = 0; k < joined_.size(); ++k)
      take_columns(in.weights.at(k), spec_.populations[spec_.connections[k].post], joined_[k].weights, program);
    for (std::size_t k = 1; k < populations_.size(); ++k) take_neurons(k, in.biases, program);
    Sequence steps;
    forward_steps(steps);
    reset_counters(forward_counters_, 0, program);
    program.add(steps);
    return forward_outputs(program);
  }

  BackwardOutputs backward_pass(const BackwardInputs& in, bool input_gradient, Sequence& program) {
    part_ = Part::backward;
    learns_ = true;
    input_gradient_ = input_gradient;
    find_rounds();
    for (std::size_t k = 1; k < populations_.size(); ++k)
      if (spec_.populations[k].spikes()) given_[spec_.populations[k].name + ".history"] = in.histories.at(k);
    make_variables();
    for (std::size_t k = 0; k < populations_.size(); ++k)
      if (spikes_or_input(spec_.populations[k])) narrow_lists(k, in.lists.at(k), program);
    for (std::size_t k = 0; k < joined_.size(); ++k)
      take_columns(in.weights.at(k), spec_.populations[spec_.connections[k].post], joined_[k].weights, program);
    for (std::size_t k = 1; k < populations_.size(); ++k) take_neurons(k, {}, program);
    clear_gradients(program);
    take_gradient(in.d_out, program);
    Sequence steps;
    backward_steps(steps);
    reset_counters(backward_counters_, spec_.n_steps, program);
    program.add(steps);
    return backward_outputs(program);
  }

 private:
  // Of a population: what its shards and collectors hold.
  struct Placed {
    int round = -1;                  // of its step; an input's lists are there before all rounds
    std::vector<unsigned> lags;      // steps since the lists that its collectors send were made
    std::vector<unsigned> incoming;  // connections, in the order of sums
    std::vector<unsigned> outgoing;
    std::size_t stride = 0, slots = 0, bucket_stride = 0, ring = 1;  // of lists; rows of d_current
    Parted parameters, bias, history, i_syn, masks, d_v, d_i_syn, d_current, d_bias, bias_moment1, bias_moment2;
    Parted kept, dropped, e, buckets, value, ties, d_value, square_sums;
    std::map<unsigned, Tensor> sent;                         // by lag: [B · stride]
    std::vector<Tensor> shard_counters, collector_counters;  // [6] each
  };
  struct Joined {  // a connection: [M, w] a shard of post
    Parted weights, gradients, moments1, moments2, shares;
  };

  bool spikes_or_input(const Population& p) const { return p.model != Model::li; }
  bool hears_back(const Population& p) const { return p.model != Model::input || input_gradient_; }
  std::size_t width(const Shard& s) const { return even(s.n); }
  std::size_t words(const Shard& s) const { return 2 * ((s.n + 31) / 32); }

  // ---- what runs when ----------------------------------------------------------------------------------------

  void find_rounds() {
    for (unsigned k = 0; k < spec_.connections.size(); ++k) {
      populations_[spec_.connections[k].post].incoming.push_back(k);
      populations_[spec_.connections[k].pre].outgoing.push_back(k);
    }
    for (std::size_t p = 0; p < populations_.size(); ++p) {
      Placed& placed = populations_[p];
      if (spec_.populations[p].model == Model::input) continue;
      placed.round = 0;
      for (const unsigned k : placed.incoming) {
        const Connection& c = spec_.connections[k];
        if (c.delay == 0) placed.round = std::max(placed.round, populations_[c.pre].round + 1);
        placed.ring = std::max<std::size_t>(placed.ring, c.delay + 1);
      }
      n_rounds_ = std::max(n_rounds_, placed.round + 1);
    }
    for (std::size_t p = 0; p < populations_.size(); ++p) {
      std::set<unsigned> lags;
      for (const unsigned k : populations_[p].outgoing) lags.insert(lag(spec_.connections[k]));
      if (lags.empty()) lags.insert(0);
      populations_[p].lags.assign(lags.begin(), lags.end());
    }
  }

  // A reader of an earlier or the same round reads before the sender's collectors write anew: one step has passed.
  unsigned lag(const Connection& c) const {
    return populations_[c.post].round > populations_[c.pre].round ? c.delay : c.delay - 1;
  }

  // ---- variables ---------------------------------------------------------------------------------------------

  template <class Size>
  Parted on_shards(const Population& p, const poplar::Type& type, const std::string& name, Size&& size) {
    std::vector<std::size_t> sizes;
    std::vector<unsigned> tiles;
    for (const Shard& s : p.shards) sizes.push_back(size(s)), tiles.push_back(s.tile);
    const auto given = given_.find(p.name + "." + name);
    if (given != given_.end()) return Parted(given->second, sizes);
    return Parted(graph_, type, sizes, tiles, p.name + "." + name);
  }

  Parted on_collectors(const Population& p, const poplar::Type& type, const std::string& name, std::size_t per_sample) {
    std::vector<std::size_t> sizes;
    std::vector<unsigned> tiles;
    for (const Collector& c : p.collectors) sizes.push_back(c.n * per_sample), tiles.push_back(c.tile);
    return Parted(graph_, type, sizes, tiles, p.name + "." + name);
  }

  // What a vertex needs connected but never touches.
  Tensor pad(const poplar::Type& type, unsigned tile) { return alone(type, 2, tile, "pad"); }

  Tensor alone(const poplar::Type& type, std::size_t n, unsigned tile, const std::string& name) {
    const Tensor t = graph_.addVariable(type, {n}, name);
    graph_.setTileMapping(t, tile);
    return t;
  }

  struct Counter {
    Tensor tensor;
    unsigned tile;
  };
  Tensor counter(std::vector<Counter>& counters, unsigned tile) {
    counters.push_back({alone(UNSIGNED_INT, 6, tile, "steps"), tile});
    return counters.back().tensor;
  }

  void reset_counters(const std::vector<Counter>& counters, unsigned value, Sequence& program) {
    std::vector<Tensor> from, to;
    std::map<unsigned, Tensor> constants;
    for (const Counter& c : counters) {
      if (!constants.count(c.tile)) {
        const std::vector<unsigned> values(6, value);
        constants[c.tile] = graph_.addConstant<unsigned>(UNSIGNED_INT, {6}, ArrayRef<unsigned>(values), "first_step");
        graph_.setTileMapping(constants[c.tile], c.tile);
      }
      from.push_back(constants[c.tile]);
      to.push_back(c.tensor);
    }
    program.add(Copy(concat(from), concat(to), false, "reset steps"));
  }

  void make_variables() {
    const std::size_t b = spec_.n_samples, t = spec_.n_steps;
    const bool forward = part_ != Part::backward;
    for (std::size_t k = 0; k < populations_.size(); ++k) {
      const Population& p = spec_.populations[k];
      Placed& v = populations_[k];
      if (spikes_or_input(p)) {
        v.slots = even(p.capacity);
        v.stride = 2 + v.slots;
        v.bucket_stride = 12 + even(p.capacity + 6);
        v.kept = on_collectors(p, UNSIGNED_SHORT, "kept", t * v.stride);
        for (const unsigned l : v.lags)
          if (forward || l == v.lags[0])
            v.sent[l] = on_collectors(p, UNSIGNED_SHORT, "sent" + std::to_string(l), v.stride).all();
        if (learns_) v.buckets = on_collectors(p, UNSIGNED_SHORT, "buckets", v.bucket_stride);
        if (learns_ && hears_back(p)) v.e = on_collectors(p, FLOAT, "e", v.slots);
      }
      if (p.model == Model::input) continue;
      const std::size_t rows = keeps_history_ || !forward || p.model == Model::li ? t : 2;
      const auto per_sample = [&](const Shard& s) { return b * width(s); };
      v.parameters = on_shards(p, FLOAT, "parameters", [&](const Shard& s) { return 4 * width(s); });
      if (forward || p.spikes())
        v.history = on_shards(p, FLOAT, "history", [&](const Shard& s) { return rows * b * width(s); });
      if (forward) {
        v.bias = on_shards(p, FLOAT, "bias", [&](const Shard& s) { return width(s); });
        if (p.model == Model::cuba_lif) v.i_syn = on_shards(p, FLOAT, "i_syn", per_sample);
        if (p.spikes()) {
          v.masks = on_shards(p, UNSIGNED_INT, "masks", [&](const Shard& s) { return b * words(s); });
          v.dropped = on_collectors(p, UNSIGNED_INT, "dropped", t);
        }
      }
      if (part_ == Part::whole && !p.spikes()) {
        v.value = on_shards(p, FLOAT, "value", per_sample);
        v.ties = on_shards(p, FLOAT, "ties", per_sample);
      }
      if (!learns_) continue;
      v.d_v = on_shards(p, FLOAT, "d_v", per_sample);
      if (p.model == Model::cuba_lif) v.d_i_syn = on_shards(p, FLOAT, "d_i_syn", per_sample);
      v.d_current = on_shards(p, FLOAT, "d_current", [&](const Shard& s) { return v.ring * b * width(s); });
      v.d_bias = on_shards(p, FLOAT, "d_bias", [&](const Shard& s) { return 6 * width(s); });
      if (!p.spikes())
        v.d_value = on_shards(p, FLOAT, "d_value", [&](const Shard& s) { return (forward ? 1 : t) * b * width(s); });
      if (part_ != Part::whole) continue;
      v.square_sums = on_shards(p, FLOAT, "square_sums", [](const Shard&) { return std::size_t{6}; });
      if (p.bias && spec_.momentum)
        v.bias_moment1 = on_shards(p, FLOAT, "bias_moment1", [&](const Shard& s) { return width(s); });
      if (p.bias && adam())
        v.bias_moment2 = on_shards(p, FLOAT, "bias_moment2", [&](const Shard& s) { return width(s); });
    }
    for (const Connection& c : spec_.connections) {
      const Population &pre = spec_.populations[c.pre], &post = spec_.populations[c.post];
      const std::string name = "from_" + pre.name + ".";
      const auto like_weights = [&](const Shard& s) { return pre.n * width(s); };
      Joined j;
      j.weights = on_shards(post, FLOAT, name + "weights", like_weights);
      if (learns_) {
        j.gradients = on_shards(post, FLOAT, name + "gradients", like_weights);
        if (spec_.momentum) j.moments1 = on_shards(post, FLOAT, name + "moments1", like_weights);
        if (adam()) j.moments2 = on_shards(post, FLOAT, name + "moments2", like_weights);
        if (hears_back(pre))
          j.shares = on_shards(post, FLOAT, name + "shares",
                               [&](const Shard&) { return spec_.n_samples * populations_[c.pre].slots; });
      }
      joined_.push_back(j);
    }
    if (part_ != Part::whole) return;
    const Population& output = spec_.populations.back();
    labels_ = on_collectors(output, UNSIGNED_INT, "labels", 1);
    losses_ = on_collectors(output, FLOAT, "losses", 1);
    logits_ = on_collectors(output, FLOAT, "logits", spec_.n_classes);
    d_logits_ = on_collectors(output, FLOAT, "d_logits", spec_.n_classes);
    d_values_ = on_collectors(output, FLOAT, "d_values", output.n);
    settings_ = alone(FLOAT, 10, 0, "settings");
    norm_ = alone(FLOAT, 2, 0, "norm");
  }

  bool adam() const { return spec_.optimiser == Optimiser::adam || spec_.optimiser == Optimiser::adamw; }

  // ---- streams -----------------------------------------------------------------------------------------------

  void remember(const std::string& name, const Tensor& t) {
    const poplar::Type type = t.elementType();
    const auto kind = type == FLOAT          ? Buffer::Type::float32
                      : type == UNSIGNED_INT ? Buffer::Type::uint32
                                             : Buffer::Type::uint16;
    Buffer buffer{kind, t.numElements(), false, false, {}};
    buffer.memory.resize((buffer.n * buffer.element_bytes() + 7) / 8);
    buffers_.emplace(name, std::move(buffer));
  }

  void stream_in(const std::string& name, const Tensor& t, Sequence& program) {
    if (!to_device_.count(name)) {
      remember(name, t);
      buffers_.at(name).to_device = true;
      to_device_.emplace(name, graph_.addHostToDeviceFIFO(name, t.elementType(), t.numElements()));
    }
    program.add(Copy(to_device_.at(name), t, false, name));
  }

  void stream_out(const std::string& name, const Tensor& t, Sequence& program) {
    if (!to_host_.count(name)) {
      remember(name, t);
      buffers_.at(name).to_host = true;  // one memory serves both directions
      to_host_.emplace(name, graph_.addDeviceToHostFIFO(name + ".out", t.elementType(), t.numElements()));
    }
    program.add(Copy(t, to_host_.at(name), false, name + ".out"));
  }

  void make_streams(Sequence& load, Sequence& save, Sequence& lists) {
    const auto both = [&](const std::string& name, const Tensor& t) {
      stream_in(name, t, load);
      stream_out(name, t, save);
    };
    for (std::size_t k = 0; k < joined_.size(); ++k) {
      const std::string index = "." + std::to_string(k);
      both("weights" + index, joined_[k].weights.all());
      if (!spec_.trains()) continue;
      stream_in("gradients" + index, joined_[k].gradients.all(), load);
      if (spec_.momentum) both("moments1" + index, joined_[k].moments1.all());
      if (adam()) both("moments2" + index, joined_[k].moments2.all());
    }
    for (std::size_t k = 0; k < populations_.size(); ++k) {
      const Population& p = spec_.populations[k];
      const Placed& v = populations_[k];
      const std::string index = "." + std::to_string(k);
      if (p.model == Model::input) continue;
      stream_in("parameters" + index, v.parameters.all(), load);
      both("bias" + index, v.bias.all());
      if (spec_.trains() && p.bias && spec_.momentum) both("bias_moment1" + index, v.bias_moment1.all());
      if (spec_.trains() && p.bias && adam()) both("bias_moment2" + index, v.bias_moment2.all());
      if (p.spikes()) {
        stream_out("lists" + index, v.kept.all(), lists);
        stream_out("dropped" + index, v.dropped.all(), lists);
      }
    }
  }

  // ---- vertices ----------------------------------------------------------------------------------------------

  VertexRef add(ComputeSet cs, const std::string& name, unsigned tile) {
    const VertexRef v = graph_.addVertex(cs, "sparsesnn::ipu::" + name);
    graph_.setTileMapping(v, tile);
    return v;
  }
  void connect(VertexRef v, const char* field, const Tensor& t) { graph_.connect(v[field], t); }
  void connect(VertexRef v, const char* field, const std::vector<Tensor>& t) {
    graph_.connect(v[field], ArrayRef<Tensor>(t));
  }
  void set(VertexRef v, const char* field, std::size_t value) {
    graph_.setInitialValue(v[field], static_cast<unsigned>(value));
  }
  void set(VertexRef v, const char* field, const std::vector<unsigned>& values) {
    graph_.setInitialValue(v[field], ArrayRef<unsigned>(values));
  }
  void set_float(VertexRef v, const char* field, float value) { graph_.setInitialValue(v[field], value); }

  Tensor of_samples(const Tensor& all, std::size_t first, std::size_t n) const {
    const std::size_t per_sample = all.numElements() / spec_.n_samples;
    return all.slice(first * per_sample, (first + n) * per_sample);
  }

  std::vector<unsigned> firsts(const Population& p) const {
    std::vector<unsigned> found;
    for (const Shard& s : p.shards) found.push_back(s.first);
    found.push_back(p.n);
    return found;
  }

  // ---- forward -----------------------------------------------------------------------------------------------

  void forward_steps(Sequence& pass) {
    Sequence step;
    const ComputeSet fetch = graph_.addComputeSet("forward/fetch");
    fetch_input(fetch);
    step.add(Execute(fetch));
    for (int round = 0; round < n_rounds_; ++round) {
      const std::string name = "forward/" + std::to_string(round);
      const ComputeSet run = graph_.addComputeSet(name + "/step"), compact = graph_.addComputeSet(name + "/compact");
      bool sends = false;
      for (std::size_t k = 0; k < populations_.size(); ++k) {
        if (populations_[k].round != round) continue;
        add_forward(k, run);
        if (spec_.populations[k].spikes()) sends = true, add_compact(k, compact);
      }
      step.add(Execute(run));
      if (sends) step.add(Execute(compact));
    }
    pass.add(Repeat(spec_.n_steps, step));
  }

  void fetch_input(ComputeSet cs) {
    const Population& p = spec_.populations[0];
    Placed& v = populations_[0];
    for (std::size_t k = 0; k < p.collectors.size(); ++k) {
      const Collector& c = p.collectors[k];
      const VertexRef x = add(cs, "FetchForward", c.tile);
      connect(x, "kept", v.kept.part(k));
      connect(x, "outs", sent_parts(v, c));
      connect(x, "steps", counter(forward_counters_, c.tile));
      set(x, "lags", v.lags);
      set(x, "n_outs", v.lags.size());
      set(x, "n_samples", c.n);
      set(x, "stride", v.stride);
    }
  }

  std::vector<Tensor> sent_parts(const Placed& v, const Collector& c) const {
    std::vector<Tensor> parts;
    for (const unsigned l : v.lags) parts.push_back(of_samples(v.sent.at(l), c.first, c.n));
    return parts;
  }

  void add_forward(std::size_t index, ComputeSet cs) {
    const Population& p = spec_.populations[index];
    Placed& v = populations_[index];
    for (std::size_t k = 0; k < p.shards.size(); ++k) {
      const Shard& s = p.shards[k];
      std::vector<Tensor> lists, weights;
      std::vector<unsigned> strides, delays;
      for (const unsigned i : v.incoming) {
        const Connection& c = spec_.connections[i];
        const Placed& pre = populations_[c.pre];
        lists.push_back(pre.sent.at(lag(c)));
        weights.push_back(joined_[i].weights.part(k));
        strides.push_back(static_cast<unsigned>(pre.stride));
        delays.push_back(c.delay);
      }
      const bool li = p.model == Model::li;
      const VertexRef x = add(cs, "Forward", s.tile);
      connect(x, "lists", lists);
      connect(x, "weights", weights);
      connect(x, "parameters", v.parameters.part(k));
      connect(x, "bias", v.bias.part(k));
      connect(x, "history", v.history.part(k));
      connect(x, "i_syn", p.model == Model::cuba_lif ? v.i_syn.part(k) : pad(FLOAT, s.tile));
      connect(x, "masks", li ? pad(UNSIGNED_INT, s.tile) : v.masks.part(k));
      connect(x, "steps", counter(forward_counters_, s.tile));
      set(x, "strides", strides);
      set(x, "delays", delays);
      set(x, "n_sources", lists.size());
      set(x, "n_samples", spec_.n_samples);
      set(x, "n_neurons", s.n);
      set(x, "n_rows", keeps_history_ || li ? spec_.n_steps : 2);
      set(x, "cuba", p.model == Model::cuba_lif);
      set(x, "readout", li);
      set(x, "reset", p.reset);
      set_float(x, "gain", p.gain);
    }
  }

  void add_compact(std::size_t index, ComputeSet cs) {
    const Population& p = spec_.populations[index];
    Placed& v = populations_[index];
    for (std::size_t k = 0; k < p.collectors.size(); ++k) {
      const Collector& c = p.collectors[k];
      std::vector<Tensor> masks;
      for (std::size_t s = 0; s < p.shards.size(); ++s) masks.push_back(of_samples(v.masks.part(s), c.first, c.n));
      const VertexRef x = add(cs, "Compact", c.tile);
      connect(x, "masks", masks);
      connect(x, "kept", v.kept.part(k));
      connect(x, "outs", sent_parts(v, c));
      connect(x, "dropped", v.dropped.part(k));
      connect(x, "steps", counter(forward_counters_, c.tile));
      set(x, "firsts", firsts(p));
      set(x, "lags", v.lags);
      set(x, "n_shards", p.shards.size());
      set(x, "n_outs", v.lags.size());
      set(x, "n_samples", c.n);
      set(x, "first_sample", c.first);
      set(x, "capacity", p.capacity);
      set(x, "fixed", p.fixed);
      set(x, "seed_low", p.seed & 0xffffffffu);
      set(x, "seed_high", p.seed >> 32);
    }
  }

  // ---- loss --------------------------------------------------------------------------------------------------

  void add_loss(Sequence& pass) {
    const Population& p = spec_.populations.back();
    Placed& v = populations_.back();
    const bool count = p.spikes();
    if (!count) {
      const ComputeSet decode = graph_.addComputeSet("decode");
      for (std::size_t k = 0; k < p.shards.size(); ++k) {
        const VertexRef x = add(decode, "Decode", p.shards[k].tile);
        connect(x, "history", v.history.part(k));
        connect(x, "value", v.value.part(k));
        connect(x, "ties", v.ties.part(k));
        set(x, "n_steps", spec_.n_steps);
        set(x, "n_samples", spec_.n_samples);
        set(x, "n_neurons", p.shards[k].n);
        set(x, "decoding", spec_.decoding);
      }
      pass.add(Execute(decode));
    }
    const ComputeSet loss = graph_.addComputeSet("loss");
    for (std::size_t k = 0; k < p.collectors.size(); ++k) {
      const Collector& c = p.collectors[k];
      const VertexRef x = add(loss, count ? "CountLoss" : "Loss", c.tile);
      if (count) {
        connect(x, "kept", v.kept.part(k));
        set(x, "n_steps", spec_.n_steps);
        set(x, "stride", v.stride);
      } else {
        std::vector<Tensor> values;
        std::vector<unsigned> sizes;
        for (std::size_t s = 0; s < p.shards.size(); ++s) {
          values.push_back(of_samples(v.value.part(s), c.first, c.n));
          sizes.push_back(p.shards[s].n);
        }
        connect(x, "values", values);
        set(x, "sizes", sizes);
        set(x, "n_shards", sizes.size());
      }
      connect(x, "labels", labels_.part(k));
      connect(x, "settings", settings_);
      connect(x, "logits", logits_.part(k));
      connect(x, "d_logits", d_logits_.part(k));
      connect(x, "d_values", d_values_.part(k));
      connect(x, "losses", losses_.part(k));
      set(x, "n_samples", c.n);
      set(x, "n_classes", spec_.n_classes);
      set(x, "n_per_class", p.n / spec_.n_classes);
      set_float(x, "smoothing", spec_.smoothing);
    }
    pass.add(Execute(loss));
  }

  // ---- backward ----------------------------------------------------------------------------------------------

  // Each shard's columns of the loss's gradient, once a batch.
  void add_readout_gradient(Sequence& pass) {
    const Population& output = spec_.populations.back();
    if (!output.spikes())
      take_columns(d_values_.all().reshape({spec_.n_samples, output.n}), output, populations_.back().d_value, pass);
  }

  // A tensor [rows, N] into shards' parts [rows, w]; what pads a part is left alone.
  void take_columns(const Tensor& rows, const Population& p, const Parted& parts, Sequence& program) {
    std::vector<Tensor> from, to;
    for (std::size_t k = 0; k < p.shards.size(); ++k) {
      const Shard& s = p.shards[k];
      from.push_back(rows.slice(s.first, s.first + s.n, 1).flatten());
      to.push_back(parts.part(k).reshape({rows.dim(0), width(s)}).slice(0, s.n, 1).flatten());
    }
    program.add(Copy(concat(from), concat(to), false, p.name + " columns"));
  }

  void backward_steps(Sequence& pass) {
    Sequence step;
    const ComputeSet fetch = graph_.addComputeSet("backward/fetch");
    for (std::size_t k = 0; k < populations_.size(); ++k)
      if (spikes_or_input(spec_.populations[k])) add_fetch(k, fetch);
    if (part_ != Part::whole && spec_.populations.back().spikes()) add_take_row(fetch);
    step.add(Execute(fetch));
    for (int round = n_rounds_ - 1; round >= -1; --round) {
      const std::string name = "backward/" + (round < 0 ? std::string("input") : std::to_string(round));
      const ComputeSet lists = graph_.addComputeSet(name + "/list gradient");
      if (add_list_grad(round, lists)) step.add(Execute(lists));
      if (round < 0 && !input_gradient_) break;
      const ComputeSet reduce = graph_.addComputeSet(name + "/reduce"), sum = graph_.addComputeSet(name + "/sum"),
                       state = graph_.addComputeSet(name + "/state gradient");
      bool reduces = false, sums = false;
      for (std::size_t k = 0; k < populations_.size(); ++k) {
        if (populations_[k].round != round) continue;
        if (spikes_or_input(spec_.populations[k])) {
          for (const unsigned c : populations_[k].outgoing) reduces |= add_reducers(c, reduce);
          add_sums(k, sum);
          sums = true;
        }
        if (round < 0)
          add_store_row(k, state);
        else
          add_state_grad(k, state);
      }
      if (reduces) step.add(Execute(reduce));
      if (sums) step.add(Execute(sum));
      step.add(Execute(state));
    }
    pass.add(Repeat(spec_.n_steps, step));
  }

  // What the collectors of a population send in the backward pass.
  const Tensor& sent_back(std::size_t index) const { return populations_[index].sent.begin()->second; }

  void add_fetch(std::size_t index, ComputeSet cs) {
    const Population& p = spec_.populations[index];
    Placed& v = populations_[index];
    for (std::size_t k = 0; k < p.collectors.size(); ++k) {
      const Collector& c = p.collectors[k];
      const VertexRef x = add(cs, "FetchBackward", c.tile);
      connect(x, "kept", v.kept.part(k));
      connect(x, "out", of_samples(sent_back(index), c.first, c.n));
      connect(x, "buckets", v.buckets.part(k));
      connect(x, "steps", counter(backward_counters_, c.tile));
      set(x, "n_samples", c.n);
      set(x, "stride", v.stride);
      set(x, "bucket_stride", v.bucket_stride);
    }
  }

  // On the shards of post, for all connections whose pre runs in `round`. Returns whether there are any.
  bool add_list_grad(int round, ComputeSet cs) {
    bool any = false;
    for (std::size_t index = 0; index < populations_.size(); ++index) {
      const Population& p = spec_.populations[index];
      Placed& v = populations_[index];
      std::vector<unsigned> chosen;
      for (const unsigned i : v.incoming)
        if (populations_[spec_.connections[i].pre].round == round) chosen.push_back(i);
      if (chosen.empty()) continue;
      any = true;
      for (std::size_t k = 0; k < p.shards.size(); ++k) {
        const Shard& s = p.shards[k];
        std::vector<Tensor> lists, buckets, weights, gradients, shares;
        std::vector<unsigned> strides, bucket_strides, slots, delays;
        for (const unsigned i : chosen) {
          const Connection& c = spec_.connections[i];
          const Placed& pre = populations_[c.pre];
          const bool wanted = hears_back(spec_.populations[c.pre]);
          lists.push_back(sent_back(c.pre));
          buckets.push_back(pre.buckets.all());
          weights.push_back(joined_[i].weights.part(k));
          gradients.push_back(joined_[i].gradients.part(k));
          shares.push_back(wanted ? joined_[i].shares.part(k) : pad(FLOAT, s.tile));
          strides.push_back(static_cast<unsigned>(pre.stride));
          bucket_strides.push_back(static_cast<unsigned>(pre.bucket_stride));
          slots.push_back(wanted ? static_cast<unsigned>(pre.slots) : 0);
          delays.push_back(c.delay);
        }
        const VertexRef x = add(cs, "ListGrad", s.tile);
        connect(x, "lists", lists);
        connect(x, "buckets", buckets);
        connect(x, "weights", weights);
        connect(x, "gradients", gradients);
        connect(x, "shares", shares);
        connect(x, "d_current", v.d_current.part(k));
        connect(x, "steps", counter(backward_counters_, s.tile));
        set(x, "strides", strides);
        set(x, "bucket_strides", bucket_strides);
        set(x, "slots", slots);
        set(x, "delays", delays);
        set(x, "n_sources", chosen.size());
        set(x, "n_steps", spec_.n_steps);
        set(x, "n_samples", spec_.n_samples);
        set(x, "n_neurons", s.n);
        set(x, "n_rows", v.ring);
      }
    }
    return any;
  }

  bool add_reducers(unsigned index, ComputeSet cs) {
    const Connection& c = spec_.connections[index];
    const Placed& pre = populations_[c.pre];
    for (const Reducer& r : c.reducers) {
      const VertexRef x = add(cs, "Sum", r.tile);
      std::vector<Tensor> rows;
      for (unsigned s = r.first_shard; s < r.first_shard + r.n_shards; ++s)
        rows.push_back(of_samples(joined_[index].shares.part(s), r.first_sample, r.n_samples));
      const Tensor lists = of_samples(sent_back(c.pre), r.first_sample, r.n_samples);
      const Tensor sum = alone(FLOAT, r.n_samples * pre.slots, r.tile, "reduced");
      connect(x, "rows", rows);
      connect(x, "lists", lists.reshape({r.n_samples, pre.stride}).slice(0, 2, 1).flatten());
      connect(x, "direct", pad(FLOAT, r.tile));
      connect(x, "sum", sum);
      set(x, "n_rows", rows.size());
      set(x, "n_samples", r.n_samples);
      set(x, "stride", 2);
      set(x, "n_slots", pre.slots);
      set(x, "n_direct", 0);
      reduced_[index].push_back({r, sum});
    }
    return !c.reducers.empty();
  }

  void add_sums(std::size_t index, ComputeSet cs) {
    const Population& p = spec_.populations[index];
    Placed& v = populations_[index];
    const bool last = index + 1 == populations_.size(), direct = last && part_ == Part::whole;
    for (std::size_t k = 0; k < p.collectors.size(); ++k) {
      const Collector& c = p.collectors[k];
      std::vector<Tensor> rows;
      for (const unsigned i : v.outgoing) {
        for (const auto& [reducer, sum] : reduced_[i]) {
          if (reducer.first_sample > c.first || reducer.first_sample + reducer.n_samples < c.first + c.n) {
            if (reducer.first_sample < c.first + c.n && c.first < reducer.first_sample + reducer.n_samples)
              throw std::invalid_argument("IPU program: a reducer of " + p.name +
                                          " has a part of a collector's samples");
            continue;
          }
          const std::size_t first = c.first - reducer.first_sample;
          rows.push_back(sum.slice(first * v.slots, (first + c.n) * v.slots));
        }
        if (!spec_.connections[i].reducers.empty()) continue;
        for (std::size_t s = 0; s < spec_.populations[spec_.connections[i].post].shards.size(); ++s)
          rows.push_back(of_samples(joined_[i].shares.part(s), c.first, c.n));
      }
      if (last && !direct) rows.push_back(d_row_.part(k));
      const std::size_t n_rows = rows.size();
      if (rows.empty()) rows.push_back(pad(FLOAT, c.tile));
      const VertexRef x = add(cs, "Sum", c.tile);
      connect(x, "rows", rows);
      connect(x, "lists", of_samples(sent_back(index), c.first, c.n));
      connect(x, "direct", direct ? d_values_.part(k) : pad(FLOAT, c.tile));
      connect(x, "sum", v.e.part(k));
      set(x, "n_rows", n_rows);
      set(x, "n_samples", c.n);
      set(x, "stride", v.stride);
      set(x, "n_slots", v.slots);
      set(x, "n_direct", direct ? p.n : 0);
    }
  }

  void add_state_grad(std::size_t index, ComputeSet cs) {
    const Population& p = spec_.populations[index];
    Placed& v = populations_[index];
    for (std::size_t k = 0; k < p.shards.size(); ++k) {
      const Shard& s = p.shards[k];
      const VertexRef x = add(cs, p.spikes() ? "StateGrad" : "ReadoutGrad", s.tile);
      if (p.spikes()) {
        connect(x, "list", sent_back(index));
        connect(x, "e", v.e.all());
        connect(x, "d_i_syn", p.model == Model::cuba_lif ? v.d_i_syn.part(k) : pad(FLOAT, s.tile));
        set(x, "first_neuron", s.first);
        set(x, "stride", v.stride);
        set(x, "n_slots", v.slots);
        set(x, "cuba", p.model == Model::cuba_lif);
        set(x, "reset", p.reset);
        set(x, "detach_reset", p.detach_reset);
        set(x, "surrogate", p.surrogate);
        set_float(x, "slope", p.slope);
      } else {
        const bool each_step = part_ != Part::whole;
        connect(x, "value", each_step ? pad(FLOAT, s.tile) : v.value.part(k));
        connect(x, "ties", each_step ? pad(FLOAT, s.tile) : v.ties.part(k));
        connect(x, "d_value", v.d_value.part(k));
        set(x, "decoding", each_step ? decodes_nothing : spec_.decoding);
      }
      connect(x, "history", p.spikes() || part_ == Part::whole ? v.history.part(k) : pad(FLOAT, s.tile));
      connect(x, "parameters", v.parameters.part(k));
      connect(x, "d_v", v.d_v.part(k));
      connect(x, "d_current", v.d_current.part(k));
      connect(x, "d_bias", v.d_bias.part(k));
      connect(x, "steps", counter(backward_counters_, s.tile));
      set(x, "n_steps", spec_.n_steps);
      set(x, "n_samples", spec_.n_samples);
      set(x, "n_neurons", s.n);
      set(x, "n_rows", v.ring);
      set_float(x, "gain", p.gain);
    }
  }

  // ---- the edges of a pass: the owner's tensors to ours, and back ---------------------------------------------

  // Lists INT [T, B, 2 + K] into `kept`.
  void narrow_lists(std::size_t index, const Tensor& lists, Sequence& program) {
    const Population& p = spec_.populations[index];
    const ComputeSet cs = graph_.addComputeSet(p.name + "/narrow");
    for (std::size_t k = 0; k < p.collectors.size(); ++k) {
      const Collector& c = p.collectors[k];
      const VertexRef x = add(cs, "Narrow", c.tile);
      connect(x, "lists", lists.slice(c.first, c.first + c.n, 1).flatten().reinterpret(UNSIGNED_INT));
      connect(x, "kept", populations_[index].kept.part(k));
      set(x, "n_lists", std::size_t{spec_.n_steps} * c.n);
      set(x, "capacity", p.capacity);
    }
    program.add(Execute(cs));
  }

  // β, α, θ, θ_grad, bias, and zeros where weights are padded.
  void take_neurons(std::size_t index, const std::vector<Tensor>& biases, Sequence& program) {
    const Population& p = spec_.populations[index];
    Placed& v = populations_[index];
    const bool forward = part_ == Part::forward;
    std::vector<Tensor> from, to;
    const auto fill = [&](const std::vector<float>& values, unsigned tile, const Tensor& sink) {
      from.push_back(graph_.addConstant<float>(FLOAT, {values.size()}, ArrayRef<float>(values), p.name + ".numbers"));
      graph_.setTileMapping(from.back(), tile);
      to.push_back(sink);
    };
    for (std::size_t k = 0; k < p.shards.size(); ++k) {
      const Shard& s = p.shards[k];
      const std::size_t w = width(s);
      std::vector<float> rows(4 * w, 0.0f);
      for (unsigned row = 0; row < 4; ++row)
        for (unsigned n = 0; n < s.n; ++n) rows[row * w + n] = p.parameters[row * p.n + s.first + n];
      fill(rows, s.tile, v.parameters.part(k));
      if (forward && !p.bias) fill(std::vector<float>(w, 0.0f), s.tile, v.bias.part(k));
      if (w == s.n) continue;
      if (forward && p.bias) fill({0.0f}, s.tile, v.bias.part(k).slice(s.n, w));
      for (const unsigned i : v.incoming) {
        const std::size_t m = spec_.populations[spec_.connections[i].pre].n;
        fill(std::vector<float>(m, 0.0f), s.tile,
             joined_[i].weights.part(k).reshape({m, w}).slice(s.n, w, 1).flatten());
      }
    }
    program.add(Copy(concat(from), concat(to), false, p.name + " numbers"));
    if (forward && p.bias) take_columns(biases.at(index).reshape({1, p.n}), p, v.bias, program);
  }

  ForwardOutputs forward_outputs(Sequence& program) {
    ForwardOutputs out;
    const std::size_t n = populations_.size();
    out.lists.resize(n), out.dropped.resize(n), out.histories.resize(n);
    const std::size_t t = spec_.n_steps;
    for (std::size_t index = 1; index < n; ++index) {
      const Population& p = spec_.populations[index];
      Placed& v = populations_[index];
      if (!p.spikes()) continue;
      const Parted lists = on_collectors(p, UNSIGNED_INT, "lists", t * (2 + p.capacity)),
                   values = on_collectors(p, FLOAT, "values", t * p.capacity);
      const ComputeSet cs = graph_.addComputeSet(p.name + "/widen");
      for (std::size_t k = 0; k < p.collectors.size(); ++k) {
        const VertexRef x = add(cs, "Widen", p.collectors[k].tile);
        connect(x, "kept", v.kept.part(k));
        connect(x, "lists", lists.part(k));
        connect(x, "values", values.part(k));
        set(x, "n_lists", t * p.collectors[k].n);
        set(x, "capacity", p.capacity);
      }
      program.add(Execute(cs));
      out.lists[index] = by_step(p, lists, 2 + p.capacity).reinterpret(INT);
      out.dropped[index] = by_step(p, v.dropped, 1).reinterpret(INT).reshape({t, spec_.n_samples});
      if (keeps_history_) out.histories[index] = v.history.all();
      if (index + 1 == n) out.out = by_step(p, values, p.capacity);
    }
    const Population& last = spec_.populations.back();
    if (!last.spikes())
      out.out = columns(last, populations_.back().history, t * spec_.n_samples)
                    .reshape({t, spec_.n_samples, std::size_t{last.n}});
    return out;
  }

  // Collectors' parts [T, n, size] as one tensor [T, B, size]; of parts [T, n, more], the first `size`.
  Tensor by_step(const Population& p, const Parted& parts, std::size_t size) const {
    std::vector<Tensor> found;
    for (std::size_t k = 0; k < p.collectors.size(); ++k) {
      const std::size_t rows = std::size_t{spec_.n_steps} * p.collectors[k].n;
      const Tensor part = parts.part(k);
      found.push_back(part.reshape({spec_.n_steps, p.collectors[k].n, part.numElements() / rows}).slice(0, size, 2));
    }
    return concat(found, 1);
  }

  // Shards' parts [rows, w] as one tensor [rows, N].
  Tensor columns(const Population& p, const Parted& parts, std::size_t rows) const {
    std::vector<Tensor> found;
    for (std::size_t k = 0; k < p.shards.size(); ++k)
      found.push_back(parts.part(k).reshape({rows, width(p.shards[k])}).slice(0, p.shards[k].n, 1));
    return concat(found, 1);
  }

  void clear_gradients(Sequence& program) {
    const ComputeSet cs = graph_.addComputeSet("backward/clear");
    for (std::size_t index = 1; index < populations_.size(); ++index) {
      const Population& p = spec_.populations[index];
      for (std::size_t k = 0; k < p.shards.size(); ++k) {
        std::vector<Tensor> gradients;
        std::vector<unsigned> sizes;
        for (const unsigned i : populations_[index].incoming) {
          gradients.push_back(joined_[i].gradients.part(k));
          sizes.push_back(static_cast<unsigned>(gradients.back().numElements()));
        }
        const VertexRef x = add(cs, "Clear", p.shards[k].tile);
        connect(x, "arrays", gradients);
        set(x, "sizes", sizes);
        set(x, "n_arrays", sizes.size());
      }
    }
    program.add(Execute(cs));
  }

  // The gradient of the output: of potentials [T, B, N], or of values [T, B, K], to where it is read step by step.
  void take_gradient(const Tensor& d_out, Sequence& program) {
    const Population& p = spec_.populations.back();
    const std::size_t t = spec_.n_steps;
    if (!p.spikes())
      return take_columns(d_out.reshape({t * spec_.n_samples, p.n}), p, populations_.back().d_value, program);
    const std::size_t slots = populations_.back().slots;
    d_values_ = on_collectors(p, FLOAT, "d_values", t * slots);
    d_row_ = on_collectors(p, FLOAT, "d_row", slots);
    std::vector<Tensor> from, to;
    for (std::size_t k = 0; k < p.collectors.size(); ++k) {
      const Collector& c = p.collectors[k];
      from.push_back(d_out.slice(c.first, c.first + c.n, 1).flatten());
      to.push_back(d_values_.part(k).reshape({t, c.n, slots}).slice(0, p.capacity, 2).flatten());
    }
    program.add(Copy(concat(from), concat(to), false, "gradient of the output"));
  }

  // This step's row of the gradient that take_gradient brought.
  void add_take_row(ComputeSet cs) {
    const Population& p = spec_.populations.back();
    for (std::size_t k = 0; k < p.collectors.size(); ++k) {
      const Collector& c = p.collectors[k];
      const VertexRef x = add(cs, "TakeRow", c.tile);
      connect(x, "kept", populations_.back().kept.part(k));
      connect(x, "all", d_values_.part(k));
      connect(x, "row", d_row_.part(k));
      connect(x, "steps", counter(backward_counters_, c.tile));
      set(x, "n_samples", c.n);
      set(x, "n_slots", populations_.back().slots);
    }
  }

  // ∂L/∂s at this step's slots of the input, kept for all steps.
  void add_store_row(std::size_t index, ComputeSet cs) {
    const Population& p = spec_.populations[index];
    Placed& v = populations_[index];
    d_input_ = on_collectors(p, FLOAT, "d_values", spec_.n_steps * v.slots);
    for (std::size_t k = 0; k < p.collectors.size(); ++k) {
      const Collector& c = p.collectors[k];
      const VertexRef x = add(cs, "StoreRow", c.tile);
      connect(x, "kept", v.kept.part(k));
      connect(x, "row", v.e.part(k));
      connect(x, "all", d_input_.part(k));
      connect(x, "steps", counter(backward_counters_, c.tile));
      set(x, "n_samples", c.n);
      set(x, "n_slots", v.slots);
    }
  }

  BackwardOutputs backward_outputs(Sequence& program) {
    BackwardOutputs out;
    if (input_gradient_) out.d_values = by_step(spec_.populations[0], d_input_, spec_.populations[0].capacity);
    for (std::size_t k = 0; k < joined_.size(); ++k) {
      const Connection& c = spec_.connections[k];
      out.d_weights.push_back(columns(spec_.populations[c.post], joined_[k].gradients, spec_.populations[c.pre].n));
    }
    out.d_biases.resize(populations_.size());
    const ComputeSet cs = graph_.addComputeSet("backward/bias");
    bool any = false;
    for (std::size_t index = 1; index < populations_.size(); ++index) {
      const Population& p = spec_.populations[index];
      if (!p.bias) continue;
      any = true;
      const Parted sums = on_shards(p, FLOAT, "d_bias_sum", [&](const Shard& s) { return width(s); });
      for (std::size_t k = 0; k < p.shards.size(); ++k) {
        const VertexRef x = add(cs, "SumBias", p.shards[k].tile);
        connect(x, "d_bias", populations_[index].d_bias.part(k));
        connect(x, "sum", sums.part(k));
        set(x, "n_neurons", p.shards[k].n);
      }
      out.d_biases[index] = columns(p, sums, 1).flatten();
    }
    if (any) program.add(Execute(cs));
    return out;
  }

  // ---- optimiser ---------------------------------------------------------------------------------------------

  void add_update(Sequence& pass) {
    const ComputeSet squares = graph_.addComputeSet("square sums"), norm = graph_.addComputeSet("norm"),
                     update = graph_.addComputeSet("update");
    std::vector<Tensor> sums;
    for (std::size_t index = 0; index < populations_.size(); ++index) {
      const Population& p = spec_.populations[index];
      Placed& v = populations_[index];
      if (p.model == Model::input) continue;
      sums.push_back(v.square_sums.all());
      for (std::size_t k = 0; k < p.shards.size(); ++k) {
        const Shard& s = p.shards[k];
        std::vector<Tensor> weights, gradients, moments1, moments2;
        std::vector<unsigned> sizes;
        for (const unsigned i : v.incoming) {
          weights.push_back(joined_[i].weights.part(k));
          gradients.push_back(joined_[i].gradients.part(k));
          moments1.push_back(spec_.momentum ? joined_[i].moments1.part(k) : pad(FLOAT, s.tile));
          moments2.push_back(adam() ? joined_[i].moments2.part(k) : pad(FLOAT, s.tile));
          sizes.push_back(static_cast<unsigned>(weights.back().numElements()));
        }
        const VertexRef x = add(squares, "SquareSum", s.tile), y = add(update, "Update", s.tile);
        connect(x, "sums", v.square_sums.part(k));
        connect(y, "weights", weights);
        connect(y, "moments1", moments1);
        connect(y, "moments2", moments2);
        connect(y, "bias", v.bias.part(k));
        connect(y, "bias_moment1", p.bias && spec_.momentum ? v.bias_moment1.part(k) : pad(FLOAT, s.tile));
        connect(y, "bias_moment2", p.bias && adam() ? v.bias_moment2.part(k) : pad(FLOAT, s.tile));
        connect(y, "settings", settings_);
        connect(y, "norm", norm_);
        set(y, "kind", spec_.optimiser == Optimiser::sgd ? 0 : spec_.optimiser == Optimiser::adam ? 1 : 2);
        set(y, "has_momentum", spec_.momentum);
        for (const VertexRef& z : {x, y}) {
          connect(z, "gradients", gradients);
          connect(z, "d_bias", v.d_bias.part(k));
          set(z, "sizes", sizes);
          set(z, "n_arrays", sizes.size());
          set(z, "n_neurons", s.n);
          set(z, "has_bias", p.bias);
        }
      }
    }
    const VertexRef x = add(norm, "Norm", 0);
    const Tensor all = concat(sums);
    connect(x, "sums", all);
    connect(x, "settings", settings_);
    connect(x, "norm", norm_);
    set(x, "n_sums", all.numElements());
    for (const ComputeSet& cs : {squares, norm, update}) pass.add(Execute(cs));
  }

  const ProgramSpec& spec_;
  Graph& graph_;
  std::map<std::string, Buffer>& buffers_;
  std::vector<Placed> populations_;
  std::vector<Joined> joined_;
  std::map<unsigned, std::vector<std::pair<Reducer, Tensor>>> reduced_;
  int n_rounds_ = 0;
  Part part_ = Part::whole;
  bool keeps_history_, learns_, input_gradient_ = false;
  std::map<std::string, Tensor> given_;  // variables that somebody else owns, by name
  Parted labels_, losses_, logits_, d_logits_, d_values_, d_row_, d_input_;
  Tensor settings_, norm_;
  std::vector<Counter> forward_counters_, backward_counters_;
  std::map<std::string, poplar::DataStream> to_device_, to_host_;
};

const char* const program_names[] = {"load", "train", "infer", "save", "lists"};

}  // namespace

Program::Program(const ProgramSpec& spec, DeviceKind kind, const std::string& codelets) {
  spec.check();
  poplar::Device device = make_device(kind, spec);
  Graph graph(device.getTarget());
  if (!codelets.empty()) graph.addCodelets(codelets);
  std::map<std::string, Buffer> buffers;
  const std::vector<poplar::program::Program> programs = Builder(spec, graph, buffers).build();
  parts_ = std::make_unique<Parts>(
      Parts{std::move(device), poplar::Engine(graph, programs), std::move(buffers), spec.trains()});
  for (auto& [name, buffer] : parts_->buffers) {
    auto* begin = static_cast<unsigned char*>(buffer.data());
    auto* end = begin + buffer.n * buffer.element_bytes();
    if (buffer.to_device) parts_->engine.connectStream(name, begin, end);
    if (buffer.to_host) parts_->engine.connectStream(name + ".out", begin, end);
  }
  parts_->engine.load(parts_->device);
}

Program::~Program() = default;

void Program::run(const std::string& program) {
  if (program == "train" && !parts_->trains) throw std::invalid_argument("the plan has no optimiser: it cannot train");
  for (unsigned k = 0; k < 5; ++k)
    if (program == program_names[k]) return parts_->engine.run(k);
  throw std::invalid_argument("there is no program '" + program + "'; there are load, train, infer, save, lists");
}

Buffer& Program::buffer(const std::string& name) {
  const auto found = parts_->buffers.find(name);
  if (found == parts_->buffers.end()) throw std::invalid_argument("there is no array '" + name + "'");
  return found->second;
}

// ---- passes.h ------------------------------------------------------------------------------------------------------

ForwardOutputs add_forward_pass(Graph& graph, const ProgramSpec& spec, const ForwardInputs& in, bool saves,
                                Sequence& program) {
  spec.check();
  std::map<std::string, Buffer> no_streams;
  return Builder(spec, graph, no_streams).forward_pass(in, saves, program);
}

BackwardOutputs add_backward_pass(Graph& graph, const ProgramSpec& spec, const BackwardInputs& in, bool input_gradient,
                                  Sequence& program) {
  spec.check();
  std::map<std::string, Buffer> no_streams;
  return Builder(spec, graph, no_streams).backward_pass(in, input_gradient, program);
}

Tensor add_columns(Graph& graph, std::size_t n_rows, const Population& p, const poplar::DebugContext& name) {
  const Tensor t = graph.addVariable(FLOAT, {n_rows, p.n}, name);
  for (const Shard& s : p.shards) graph.setTileMapping(t.slice(s.first, s.first + s.n, 1), s.tile);
  return t;
}

std::vector<std::string> Program::names() const {
  std::vector<std::string> names;
  for (const auto& [name, buffer] : parts_->buffers) names.push_back(name);
  return names;
}

}  // namespace sparsesnn::ipu
