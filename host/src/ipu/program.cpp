// The graph builder. It calls nothing of Poplar that the emulated machine does not have, and nothing of PopLibs.
#include "program.h"

#include <algorithm>
#include <cstring>
#include <gcl/Collectives.hpp>
#include <iterator>
#include <poplar/Engine.hpp>
#include <poplar/Graph.hpp>
#include <poplar/IPUModel.hpp>
#include <poplar/Program.hpp>
#include <popops/codelets.hpp>
#include <set>
#include <stdexcept>
#ifdef SPARSESNN_POPLAR_SDK
#include <poplar/DeviceManager.hpp>
#endif

#include "codelets/ipu/records.h"
#include "parts.h"
#include "passes.h"

namespace sparsesnn::ipu {

using poplar::ArrayRef;
using poplar::ComputeSet;
using poplar::FLOAT;
using poplar::Graph;
using poplar::HALF;
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
    for (poplar::Device& device : manager.getDevices(poplar::TargetType::IPU, spec.devices * spec.replicas))
      if (device.attach()) return std::move(device);
    throw std::runtime_error("no free device of " + std::to_string(spec.devices * spec.replicas) + " IPUs");
  }
#else
  if (kind == DeviceKind::ipu) throw std::runtime_error("this build has no Poplar SDK");
#endif
  poplar::IPUModel model("ipu2");
  model.numIPUs = spec.devices * spec.replicas;
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
// As in codelets/ipu/vertex.h: marks the clock of a step that runs again.
constexpr unsigned clock_again = 1u << 31;

// Vertices of one class in one compute set: one a tile, whatever the tile has to do there.
class Vertices {
 public:
  // What the vertex of one tile is given: regions and numbers by field.
  struct OfTile {
    std::map<std::string, std::vector<Tensor>> lists;
    std::map<std::string, Tensor> tensors;
    std::map<std::string, std::vector<unsigned>> numbers;
    std::map<std::string, unsigned> scalars;
    std::map<std::string, float> floats;

    unsigned size_of(const std::string& field) const {
      const auto found = lists.find(field);
      return found == lists.end() ? 0 : static_cast<unsigned>(found->second.size());
    }
    template <class Record>
    void push(const std::string& field, const Record& record) {
      static_assert(sizeof(Record) % sizeof(unsigned) == 0, "records are made of 4-byte members");
      unsigned words[sizeof(Record) / sizeof(unsigned)];
      std::memcpy(words, &record, sizeof(record));
      numbers[field].insert(numbers[field].end(), std::begin(words), std::end(words));
    }
  };

  Vertices(Graph& graph, ComputeSet cs, std::string name) : graph_(graph), cs_(cs), name_(std::move(name)) {}
  bool empty() const { return tiles_.empty(); }
  OfTile& on(unsigned tile) { return tiles_[tile]; }
  std::map<unsigned, OfTile>& tiles() { return tiles_; }

  void add_to_graph() {
    for (const auto& [tile, given] : tiles_) {
      const VertexRef v = graph_.addVertex(cs_, "sparsesnn::ipu::" + name_);
      graph_.setTileMapping(v, tile);
      for (const auto& [field, regions] : given.lists) graph_.connect(v[field], ArrayRef<Tensor>(regions));
      for (const auto& [field, t] : given.tensors) graph_.connect(v[field], t);
      for (const auto& [field, values] : given.numbers) graph_.setInitialValue(v[field], ArrayRef<unsigned>(values));
      for (const auto& [field, value] : given.scalars) graph_.setInitialValue(v[field], value);
      for (const auto& [field, value] : given.floats) graph_.setInitialValue(v[field], value);
    }
  }

 private:
  Graph& graph_;
  ComputeSet cs_;
  std::string name_;
  std::map<unsigned, OfTile> tiles_;
};

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
      stream_in("lists.0", populations_[0].kept.all(), *batch, false);
      stream_in("targets", targets_.all(), *batch, false);
      stream_in("settings", settings_, *batch);
    }
    Sequence forward, backward;
    forward_steps(forward);
    add_loss(forward);
    if (learns_) {
      if (spec_.regularises()) add_regulariser(backward);
      add_readout_gradient(backward);
      backward_steps(backward);
      add_update(backward);
    }
    for (Sequence* batch : {&train, &infer}) {
      reset_clocks(forward_clocks_, 0, *batch);
      batch->add(forward);
    }
    if (learns_) {
      reset_clocks(backward_clocks_, spec_.n_steps, train);
      if (spec_.keep_every) reset_clocks(again_clocks_, clock_again | (n_ends() - 1) * spec_.keep_every, train);
      train.add(backward);
      stream_out("norm", norm_, train);
    }
    for (Sequence* batch : {&train, &infer}) {
      stream_out("losses", losses_.all(), *batch, false);
      stream_out("logits", logits_.all(), *batch, false);
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
    reset_clocks(forward_clocks_, 0, program);
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
    reset_clocks(backward_clocks_, spec_.n_steps, program);
    program.add(steps);
    return backward_outputs(program);
  }

 private:
  // One value a neuron, or a population, that is trained: bias, β, α or θ.
  struct Vector {
    const char* name;
    unsigned row;       // of `parameters`; 4: the bias, which is no part of them
    bool shared;        // by the population: every shard has a copy [2]
    unsigned of_shard;  // which vector of d_vectors
    Parted value, moment1, moment2;
    Tensor total;  // where shared: the sum of its gradient [2]
  };
  // Of a population: what its shards and collectors hold.
  struct Placed {
    int round = -1;                  // of its step; an input's lists are there before all rounds
    std::vector<unsigned> lags;      // steps since the lists that its collectors send were made
    std::vector<unsigned> incoming;  // connections, in the order of sums
    std::vector<unsigned> outgoing;
    std::size_t stride = 0, slots = 0, bucket_stride = 0, ring = 1;  // of lists; rows of d_current
    Parted parameters, bias, history, memory, masks, d_v, d_i_syn, d_current, d_vectors;
    Parted kept, dropped, e, buckets, d_value;
    std::map<unsigned, Tensor> sent;  // by lag: [B · stride]
    std::vector<Vector> vectors;
    std::vector<Tensor> regulariser;  // of each shard, where activity is regularised
  };
  struct Joined {  // a connection: [M, w] a shard of post
    Parted weights, rounded, gradients, moments1, moments2, shares;
  };
  // Rounds that share their vertices, in the order in which they run.
  using Stage = std::vector<int>;

  bool spikes_or_input(const Population& p) const { return p.model != Model::li; }
  // Whether gradients of its lists are wanted.
  bool hears_back(const Population& p) const { return p.model != Model::input || input_gradient_; }
  std::size_t width(const Shard& s) const { return even(s.n); }
  // Of both masks of a sample; see `Masks` in codelets/ipu/vertex.h.
  std::size_t words(const Shard& s) const { return s.n <= 16 ? 1 : 2 * ((s.n + 31) / 32); }
  bool learns(const Population& p, unsigned what) const { return spec_.trains() && (p.learns & what); }
  bool loops() const { return spec_.loops_rounds && part_ == Part::whole && n_rounds_ > 1; }

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

  std::vector<Stage> stages(bool backwards) const {
    std::vector<Stage> found;
    for (int r = 0; r < n_rounds_; ++r) {
      const int round = backwards ? n_rounds_ - 1 - r : r;
      if (loops() && r)
        found.back().push_back(round);
      else
        found.push_back({round});
    }
    return found;
  }
  std::string name_of(const Stage& stage) const { return loops() ? "rounds" : std::to_string(stage.front()); }
  // In which turn of the stage a population runs; -1: in none.
  int turn_of(std::size_t population, const Stage& stage) const {
    const auto found = std::find(stage.begin(), stage.end(), populations_[population].round);
    return found == stage.end() ? -1 : static_cast<int>(found - stage.begin());
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

  struct Clock {
    Tensor tensor;
    unsigned tile;
  };
  // Step and turn of each worker of a vertex; see `Moment` in codelets/ipu/vertex.h.
  Tensor clock(std::vector<Clock>& clocks, unsigned tile) {
    clocks.push_back({alone(UNSIGNED_INT, 12, tile, "clock"), tile});
    return clocks.back().tensor;
  }
  void add_clocks(Vertices& vertices, std::vector<Clock>& clocks, unsigned n_turns) {
    for (auto& [tile, given] : vertices.tiles()) {
      given.tensors["clock"] = clock(clocks, tile);
      if (n_turns) given.scalars["n_turns"] = n_turns;
    }
  }

  void reset_clocks(const std::vector<Clock>& clocks, unsigned step, Sequence& program) {
    std::vector<Tensor> from, to;
    std::map<unsigned, Tensor> constants;
    std::vector<unsigned> values(12, 0);
    std::fill(values.begin(), values.begin() + 6, step);
    for (const Clock& c : clocks) {
      if (!constants.count(c.tile)) {
        constants[c.tile] = graph_.addConstant<unsigned>(UNSIGNED_INT, {12}, ArrayRef<unsigned>(values), "first_step");
        graph_.setTileMapping(constants[c.tile], c.tile);
      }
      from.push_back(constants[c.tile]);
      to.push_back(c.tensor);
    }
    program.add(Copy(concat(from), concat(to), false, "clocks"));
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
      const auto per_sample = [&](const Shard& s) { return b * width(s); };
      v.parameters = on_shards(p, FLOAT, "parameters", [&](const Shard& s) { return 4 * width(s); });
      if (forward || p.spikes())
        v.history = on_shards(p, FLOAT, "history", [&](const Shard& s) { return history_rows(p) * b * width(s); });
      if (forward) {
        v.bias = on_shards(p, FLOAT, "bias", [&](const Shard& s) { return width(s); });
        if (p.model == Model::cuba_lif) {
          const std::size_t kept = learns(p, learns_alpha) ? history_rows(p) : every(p) ? 1 + n_ends() : 1;
          v.memory = on_shards(p, FLOAT, "i_syn", [&](const Shard& s) { return kept * b * width(s); });
        } else if (p.model == Model::li && !spec_.maximum_of_means()) {
          v.memory = on_shards(p, FLOAT, "value", [&](const Shard& s) { return 2 * b * width(s); });
        }
        if (p.spikes()) {
          v.masks = on_shards(p, UNSIGNED_INT, "masks", [&](const Shard& s) { return b * words(s); });
          v.dropped = on_collectors(p, UNSIGNED_INT, "dropped", t);
        }
      }
      if (!learns_) continue;
      v.d_v = on_shards(p, FLOAT, "d_v", per_sample);
      if (p.model == Model::cuba_lif) v.d_i_syn = on_shards(p, FLOAT, "d_i_syn", per_sample);
      v.d_current = on_shards(p, FLOAT, "d_current", [&](const Shard& s) { return v.ring * b * width(s); });
      if (!p.spikes())
        v.d_value = on_shards(p, FLOAT, "d_value", [&](const Shard& s) { return d_value_rows() * b * width(s); });
      make_vectors(p, v);
    }
    for (const Connection& c : spec_.connections) {
      const Population &pre = spec_.populations[c.pre], &post = spec_.populations[c.post];
      const std::string name = "from_" + pre.name + ".";
      const auto like_weights = [&](const Shard& s) { return pre.n * width(s); };
      Joined j;
      if (has_floats()) j.weights = on_shards(post, FLOAT, name + "weights", like_weights);
      if (spec_.half_weights) j.rounded = on_shards(post, HALF, name + "rounded", like_weights);
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
    targets_ = on_collectors(output, FLOAT, "targets", spec_.n_classes);
    losses_ = on_collectors(output, FLOAT, "losses", 1);
    logits_ = on_collectors(output, FLOAT, "logits", spec_.n_classes);
    d_logits_ = on_collectors(output, FLOAT, "d_logits", spec_.n_classes);
    if (spec_.maximum_of_means())
      over_time_ = on_collectors(output, FLOAT, "over_time", t * output.n);
    else
      d_values_ = on_collectors(output, FLOAT, "d_values", output.n);
    settings_ = alone(FLOAT, 12, 0, "settings");
    if (spec_.replicas > 1) first_sample_ = alone(UNSIGNED_INT, 1, 0, "first_sample");
    norm_ = alone(FLOAT, 2, 0, "norm");
  }

  // Potentials that are kept: of all steps, or of two.
  std::size_t history_rows(const Population& p) const {
    const bool read_later = keeps_history_ || part_ == Part::backward || (p.model == Model::li && !decodes());
    return !read_later ? 2 : every(p) ? every(p) + n_ends() : spec_.n_steps;
  }

  // Of a population whose steps run again for the backward pass: steps of a segment; else 0. A readout keeps all steps.
  unsigned every(const Population& p) const { return p.spikes() && part_ == Part::whole ? spec_.keep_every : 0; }
  // Segments whose end is kept: all but the last.
  unsigned n_ends() const { return (spec_.n_steps - 1) / spec_.keep_every; }

  // Whether shards of a readout decode its potentials as they go; else all steps have a gradient of their own.
  bool decodes() const { return part_ == Part::whole && !spec_.maximum_of_means(); }
  std::size_t d_value_rows() const { return decodes() ? 1 : spec_.n_steps; }

  // Bias, β, α and θ where they train; rows of their gradients stand in this order, those of the bias always.
  void make_vectors(const Population& p, Placed& v) {
    const struct {
      const char* name;
      unsigned row, bit;
    } candidates[] = {
        {"bias", 4, 0}, {"beta", 0, learns_beta}, {"alpha", 1, learns_alpha}, {"threshold", 2, learns_threshold}};
    unsigned n = 0;
    for (const auto& c : candidates) {
      const bool is_bias = c.row == 4;
      if (!is_bias && !learns(p, c.bit)) continue;
      const unsigned of_shard = n++;
      if (is_bias && !p.bias) continue;
      const bool shared = !is_bias && (p.shared & c.bit);
      const auto size = [&](const Shard& s) { return shared ? std::size_t{2} : width(s); };
      const std::string name = c.name;
      if (part_ != Part::whole) continue;  // whoever owns the weights updates them
      Vector x{c.name, c.row, shared, of_shard, is_bias ? v.bias : on_shards(p, FLOAT, name, size), {}, {}, {}};
      if (spec_.momentum) x.moment1 = on_shards(p, FLOAT, name + "_moment1", size);
      if (adam()) x.moment2 = on_shards(p, FLOAT, name + "_moment2", size);
      if (shared) x.total = alone(FLOAT, 2, p.shards[0].tile, p.name + "." + name + "_total");
      v.vectors.push_back(x);
    }
    v.d_vectors = on_shards(p, FLOAT, "d_vectors", [&](const Shard& s) { return n * 6 * width(s); });
  }

  bool has_floats() const { return learns_ || !spec_.half_weights; }
  // Weights as spikes and gradients read them.
  Tensor read_weights(unsigned connection, std::size_t shard) const {
    const Joined& j = joined_[connection];
    return (spec_.half_weights ? j.rounded : j.weights).part(shard);
  }
  std::string of_weights(const std::string& vertex) const {
    return vertex + (spec_.half_weights ? "<half>" : "<float>");
  }

  bool adam() const { return spec_.optimiser == Optimiser::adam || spec_.optimiser == Optimiser::adamw; }

  // ---- streams -----------------------------------------------------------------------------------------------

  // `shared`: one memory for all replicas; else one for each.
  void remember(const std::string& name, const Tensor& t, bool shared) {
    const poplar::Type type = t.elementType();
    const auto kind = type == FLOAT          ? Buffer::Type::float32
                      : type == HALF         ? Buffer::Type::float16
                      : type == UNSIGNED_INT ? Buffer::Type::uint32
                                             : Buffer::Type::uint16;
    const unsigned n_copies = shared ? 1 : spec_.replicas;
    Buffer buffer{kind, n_copies * t.numElements(), n_copies, false, false, {}};
    buffer.memory.resize((buffer.n * buffer.element_bytes() + 7) / 8);
    buffers_.emplace(name, std::move(buffer));
  }

  void stream_in(const std::string& name, const Tensor& t, Sequence& program, bool shared = true) {
    if (!to_device_.count(name)) {
      if (!buffers_.count(name)) remember(name, t, shared);
      buffers_.at(name).to_device = true;
      to_device_.emplace(name, graph_.addHostToDeviceFIFO(name, t.elementType(), t.numElements()));
    }
    program.add(Copy(to_device_.at(name), t, false, name));
  }

  void stream_out(const std::string& name, const Tensor& t, Sequence& program, bool shared = true) {
    if (!to_host_.count(name)) {
      if (!buffers_.count(name)) remember(name, t, shared);
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
    if (spec_.replicas > 1) stream_in("first_sample", first_sample_, load, false);
    for (std::size_t k = 0; k < joined_.size(); ++k) {
      const std::string index = "." + std::to_string(k);
      if (has_floats()) both("weights" + index, joined_[k].weights.all());
      if (spec_.half_weights) stream_in("rounded" + index, joined_[k].rounded.all(), load);
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
      stream_in("bias" + index, v.bias.all(), load);
      for (const Vector& x : v.vectors) {
        const std::string name = x.name;
        if (x.row == 4)
          stream_out(name + index, x.value.all(), save);
        else
          both(name + index, x.value.all());
        if (spec_.momentum) both(name + "_moment1" + index, x.moment1.all());
        if (adam()) both(name + "_moment2" + index, x.moment2.all());
      }
      if (p.spikes()) {
        stream_out("lists" + index, v.kept.all(), lists, false);
        stream_out("dropped" + index, v.dropped.all(), lists, false);
      }
    }
  }

  // ---- vertices ----------------------------------------------------------------------------------------------

  // A vertex of its own, of which a tile may have several.
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

  Tensor of_samples(const Tensor& all, std::size_t first, std::size_t n) const {
    const std::size_t per_sample = all.numElements() / spec_.n_samples;
    return all.slice(first * per_sample, (first + n) * per_sample);
  }

  // ---- forward -----------------------------------------------------------------------------------------------

  void forward_steps(Sequence& pass) {
    Sequence step;
    const ComputeSet fetch = graph_.addComputeSet("forward/fetch");
    fetch_input(fetch);
    step.add(Execute(fetch));
    for (const Stage& stage : stages(false)) {
      const std::string name = "forward/" + name_of(stage);
      const ComputeSet run = graph_.addComputeSet(name + "/step"), compact = graph_.addComputeSet(name + "/compact");
      const auto n_turns = static_cast<unsigned>(stage.size());
      Vertices forwards(graph_, run, of_weights("Forward")), compacts(graph_, compact, "Compact");
      for (std::size_t k = 0; k < populations_.size(); ++k) {
        const int turn = turn_of(k, stage);
        if (turn < 0) continue;
        add_forward(k, static_cast<unsigned>(turn), forwards);
        if (spec_.populations[k].spikes()) add_compact(k, static_cast<unsigned>(turn), compacts);
      }
      const std::size_t n_clocks = forward_clocks_.size();
      add_clocks(forwards, forward_clocks_, n_turns);
      again_clocks_.insert(again_clocks_.end(), forward_clocks_.begin() + static_cast<std::ptrdiff_t>(n_clocks),
                           forward_clocks_.end());
      run_sets_.push_back(run);
      add_clocks(compacts, forward_clocks_, n_turns);
      forwards.add_to_graph();
      compacts.add_to_graph();
      Sequence turn;
      turn.add(Execute(run));
      if (!compacts.empty()) turn.add(Execute(compact));
      add_turns(n_turns, turn, step);
    }
    pass.add(Repeat(spec_.n_steps, step));
  }

  static void add_turns(unsigned n_turns, const Sequence& turn, Sequence& step) {
    if (n_turns > 1)
      step.add(Repeat(n_turns, turn));
    else
      step.add(turn);
  }

  void fetch_input(ComputeSet cs) {
    Vertices vertices(graph_, cs, "FetchForward");
    add_fetch(0, 0, vertices);
    add_clocks(vertices, forward_clocks_, 0);
    vertices.add_to_graph();
  }

  // Collectors of a population send what they kept of the step `shift` before the one at hand.
  void add_fetch(std::size_t index, unsigned shift, Vertices& vertices) {
    const Population& p = spec_.populations[index];
    const Placed& v = populations_[index];
    for (std::size_t k = 0; k < p.collectors.size(); ++k) {
      const Collector& c = p.collectors[k];
      Vertices::OfTile& x = vertices.on(c.tile);
      x.push("collectors", FetchCollector{c.n, static_cast<unsigned>(v.stride), 0, x.size_of("outs"),
                                          static_cast<unsigned>(v.lags.size()), shift});
      x.lists["kept"].push_back(v.kept.part(k));
      add_outs(x, v, c);
      ++x.scalars["n_collectors"];
      x.scalars["every"] = part_ == Part::whole ? spec_.keep_every : 0;
    }
  }

  // A step once more, from lists that are kept: who reads within the step what others sent in it waits for the round of
  // these, as in the first run.
  void add_again(Sequence& step) {
    const ComputeSet before = graph_.addComputeSet("again/fetch");
    Vertices fetches(graph_, before, "FetchForward");
    for (std::size_t k = 0; k < populations_.size(); ++k)
      if (spikes_or_input(spec_.populations[k])) add_fetch(k, k ? 1 : 0, fetches);
    add_clocks(fetches, again_clocks_, 0);
    fetches.add_to_graph();
    step.add(Execute(before));
    for (int r = 0; r < n_rounds_; ++r) {
      step.add(Execute(run_sets_[static_cast<std::size_t>(r)]));
      const ComputeSet after = graph_.addComputeSet("again/" + std::to_string(r) + "/fetch");
      Vertices sends(graph_, after, "FetchForward");
      for (std::size_t k = 0; k < populations_.size() && r + 1 < n_rounds_; ++k)
        if (populations_[k].round == r && spec_.populations[k].spikes()) add_fetch(k, 0, sends);
      if (sends.empty()) continue;
      add_clocks(sends, again_clocks_, 0);
      sends.add_to_graph();
      step.add(Execute(after));
    }
  }

  // Of this replica's samples, the first one's number among those of all replicas.
  Tensor first_sample(unsigned tile) {
    if (spec_.replicas > 1) return first_sample_;
    if (!no_samples_before_.count(tile)) {
      const unsigned zero = 0;
      no_samples_before_[tile] =
          graph_.addConstant<unsigned>(UNSIGNED_INT, {1}, ArrayRef<unsigned>(&zero, 1), "first_sample");
      graph_.setTileMapping(no_samples_before_[tile], tile);
    }
    return no_samples_before_[tile];
  }

  // What a collector sends, by lag.
  void add_outs(Vertices::OfTile& x, const Placed& v, const Collector& c) const {
    for (const unsigned l : v.lags) {
      x.lists["outs"].push_back(of_samples(v.sent.at(l), c.first, c.n));
      x.numbers["lags"].push_back(l);
    }
  }

  void add_forward(std::size_t index, unsigned turn, Vertices& vertices) {
    const Population& p = spec_.populations[index];
    const Placed& v = populations_[index];
    const bool li = p.model == Model::li, cuba = p.model == Model::cuba_lif;
    for (std::size_t k = 0; k < p.shards.size(); ++k) {
      const Shard& s = p.shards[k];
      Vertices::OfTile& x = vertices.on(s.tile);
      x.push("shards", ForwardShard{turn, x.size_of("lists"), static_cast<unsigned>(v.incoming.size()), s.n,
                                    static_cast<unsigned>(history_rows(p)), every(p),
                                    !cuba                     ? 0u
                                    : learns(p, learns_alpha) ? 2u
                                                              : 1u,
                                    li, p.reset, decoding(), spec_.n_steps, p.gain});
      for (const unsigned i : v.incoming) {
        const Connection& c = spec_.connections[i];
        const Placed& pre = populations_[c.pre];
        x.push("sources", ForwardSource{static_cast<unsigned>(pre.stride), c.delay});
        x.lists["lists"].push_back(pre.sent.at(lag(c)));
        x.lists["weights"].push_back(read_weights(i, k));
      }
      x.lists["parameters"].push_back(v.parameters.part(k));
      x.lists["bias"].push_back(v.bias.part(k));
      x.lists["history"].push_back(v.history.part(k));
      x.lists["memory"].push_back(cuba || (li && !spec_.maximum_of_means()) ? v.memory.part(k) : pad(FLOAT, s.tile));
      x.lists["masks"].push_back(li ? pad(UNSIGNED_INT, s.tile) : v.masks.part(k));
      x.scalars["n_samples"] = spec_.n_samples;
      x.scalars["every"] = part_ == Part::whole ? spec_.keep_every : 0;
      ++x.scalars["n_shards"];
    }
  }

  unsigned decoding() const { return decodes() ? spec_.decoding : decodes_nothing; }

  void add_compact(std::size_t index, unsigned turn, Vertices& vertices) {
    const Population& p = spec_.populations[index];
    const Placed& v = populations_[index];
    for (std::size_t k = 0; k < p.collectors.size(); ++k) {
      const Collector& c = p.collectors[k];
      Vertices::OfTile& x = vertices.on(c.tile);
      x.push(
          "collectors",
          CompactCollector{turn, c.n, c.first, p.capacity, x.size_of("masks"), static_cast<unsigned>(p.shards.size()),
                           x.size_of("outs"), static_cast<unsigned>(v.lags.size()), p.fixed,
                           static_cast<unsigned>(p.seed & 0xffffffffu), static_cast<unsigned>(p.seed >> 32)});
      for (std::size_t s = 0; s < p.shards.size(); ++s) {
        x.lists["masks"].push_back(of_samples(v.masks.part(s), c.first, c.n));
        x.numbers["firsts"].push_back(p.shards[s].first);
      }
      x.numbers["firsts"].push_back(p.n);
      x.lists["kept"].push_back(v.kept.part(k));
      x.lists["dropped"].push_back(v.dropped.part(k));
      x.tensors["first_sample"] = first_sample(c.tile);
      add_outs(x, v, c);
      ++x.scalars["n_collectors"];
    }
  }

  // ---- loss --------------------------------------------------------------------------------------------------

  void add_loss(Sequence& pass) {
    const Population& p = spec_.populations.back();
    const Placed& v = populations_.back();
    const ComputeSet loss = graph_.addComputeSet("loss");
    const bool of_means = spec_.maximum_of_means();
    Vertices vertices(graph_, loss, p.spikes() ? "CountLoss" : of_means ? "MaximumLoss" : "Loss");
    if (of_means) pass.add(Copy(potentials_of(p, v), over_time_.all(), false, "potentials of the output"));
    for (std::size_t k = 0; k < p.collectors.size(); ++k) {
      const Collector& c = p.collectors[k];
      Vertices::OfTile& x = vertices.on(c.tile);
      if (p.spikes()) {
        x.tensors["kept"] = v.kept.part(k);
        x.scalars["n_steps"] = spec_.n_steps;
        x.scalars["stride"] = static_cast<unsigned>(v.stride);
      } else if (of_means) {
        x.tensors["over_time"] = over_time_.part(k);
        x.scalars["n_steps"] = spec_.n_steps;
      } else {
        for (std::size_t s = 0; s < p.shards.size(); ++s) {
          x.lists["values"].push_back(of_samples(values_of(v, p, s), c.first, c.n));
          x.numbers["sizes"].push_back(p.shards[s].n);
        }
        x.scalars["n_shards"] = static_cast<unsigned>(p.shards.size());
      }
      x.tensors["targets"] = targets_.part(k);
      x.tensors["settings"] = settings_;
      x.tensors["logits"] = logits_.part(k);
      x.tensors["d_logits"] = d_logits_.part(k);
      if (!of_means) x.tensors["d_values"] = d_values_.part(k);
      x.tensors["losses"] = losses_.part(k);
      x.scalars["n_samples"] = c.n;
      x.scalars["n_classes"] = spec_.n_classes;
      x.scalars["n_per_class"] = p.n / spec_.n_classes;
    }
    vertices.add_to_graph();
    pass.add(Execute(loss));
  }

  // Once a batch: spikes of every neuron, and from them what the regulariser adds to the gradient of each spike.
  void add_regulariser(Sequence& pass) {
    const ComputeSet count = graph_.addComputeSet("activity"), regularise = graph_.addComputeSet("regulariser");
    Vertices counts(graph_, count, "CountSpikes"), regularisers(graph_, regularise, "Regularise");
    std::vector<Tensor> all_counts;
    for (std::size_t index = 0; index < populations_.size(); ++index) {
      const Population& p = spec_.populations[index];
      Placed& v = populations_[index];
      if (!p.spikes()) continue;
      std::vector<Tensor> counted;
      for (std::size_t k = 0; k < p.collectors.size(); ++k) {
        const Collector& c = p.collectors[k];
        Vertices::OfTile& x = counts.on(c.tile);
        counted.push_back(alone(FLOAT, even(p.n + 1), c.tile, p.name + ".spikes"));
        all_counts.push_back(counted.back());
        x.push("collectors", CountedCollector{c.n, c.first, static_cast<unsigned>(v.stride), p.n});
        x.lists["kept"].push_back(v.kept.part(k));
        x.lists["counts"].push_back(counted.back());
        x.tensors["settings"] = settings_;
        x.tensors["first_sample"] = first_sample(c.tile);
        x.scalars["n_steps"] = spec_.n_steps;
        ++x.scalars["n_collectors"];
      }
      for (const Shard& s : p.shards) {
        Vertices::OfTile& x = regularisers.on(s.tile);
        x.push("shards", RegularisedShard{x.size_of("counts"), static_cast<unsigned>(counted.size()), s.n, p.n});
        for (const Tensor& t : counted) {
          x.lists["counts"].push_back(t.slice(s.first, s.first + s.n));
          x.lists["totals"].push_back(t.slice(p.n, p.n + 1));
        }
        v.regulariser.push_back(alone(FLOAT, width(s) + 2, s.tile, p.name + ".regulariser"));
        x.lists["out"].push_back(v.regulariser.back());
        x.tensors["settings"] = settings_;
        x.tensors["first_sample"] = first_sample(s.tile);
        x.scalars["n_steps"] = spec_.n_steps;
        x.floats = {{"lower", spec_.lower},
                    {"upper", spec_.upper},
                    {"strength_lower", spec_.strength_lower},
                    {"strength_upper", spec_.strength_upper}};
        ++x.scalars["n_shards"];
      }
    }
    if (counts.empty()) return;
    counts.add_to_graph();
    regularisers.add_to_graph();
    pass.add(Execute(count));
    add_up(all_counts, "counts of replicas", pass);
    pass.add(Execute(regularise));
  }

  // The potentials of a readout over time, in the order of its collectors: [T, samples, N] of each.
  Tensor potentials_of(const Population& p, const Placed& v) {
    std::vector<Tensor> shards, parts;
    for (std::size_t k = 0; k < p.shards.size(); ++k) {
      const Tensor history = v.history.part(k).reshape({spec_.n_steps, spec_.n_samples, width(p.shards[k])});
      shards.push_back(history.slice(0, p.shards[k].n, 2));
    }
    const Tensor all = concat(shards, 2);
    for (const Collector& c : p.collectors) parts.push_back(all.slice(c.first, c.first + c.n, 1).flatten());
    return concat(parts);
  }

  // What a shard of a readout decoded: the first half of its memory.
  Tensor values_of(const Placed& v, const Population& p, std::size_t shard) const {
    return v.memory.part(shard).slice(0, spec_.n_samples * width(p.shards[shard]));
  }

  // ---- backward ----------------------------------------------------------------------------------------------

  void add_readout_gradient(Sequence& pass) {
    const Population& output = spec_.populations.back();
    if (spec_.maximum_of_means()) {
      std::vector<Tensor> of_samples;
      for (std::size_t k = 0; k < output.collectors.size(); ++k)
        of_samples.push_back(over_time_.part(k).reshape({spec_.n_steps, output.collectors[k].n, output.n}));
      take_columns(concat(of_samples, 1).reshape({std::size_t{spec_.n_steps} * spec_.n_samples, output.n}), output,
                   populations_.back().d_value, pass);
    } else if (!output.spikes())
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
    fetch_back(fetch);
    if (part_ != Part::whole && spec_.populations.back().spikes()) add_take_row(fetch);
    step.add(Execute(fetch));
    const std::vector<Stage> found = stages(true);
    for (const Stage& stage : found) add_backward_stage(stage, step);
    if (!loops()) add_input_stage(step);
    if (!spec_.keep_every || part_ != Part::whole) {
      pass.add(Repeat(spec_.n_steps, step));
      return;
    }
    Sequence again, segment;
    add_again(again);
    segment.add(Repeat(spec_.keep_every, again));
    segment.add(Repeat(spec_.keep_every, step));
    pass.add(Repeat(spec_.n_steps - n_ends() * spec_.keep_every, step));  // the last segment is still there
    pass.add(Repeat(n_ends(), segment));
  }

  // List gradients of what the populations of a stage sent, their sums, and with them state gradients.
  void add_backward_stage(const Stage& stage, Sequence& step) {
    const std::string name = "backward/" + name_of(stage);
    const auto n_turns = static_cast<unsigned>(stage.size());
    const ComputeSet lists = graph_.addComputeSet(name + "/list gradient"),
                     state = graph_.addComputeSet(name + "/state gradient");
    Vertices list_grads(graph_, lists, of_weights("ListGrad")), states(graph_, state, "StateGrad");
    for (unsigned turn = 0; turn < n_turns; ++turn) add_list_grad(stage[turn], turn, list_grads);
    if (loops()) add_list_grad(-1, n_turns, list_grads);  // the input's lists have one more turn
    for (std::size_t k = 0; k < populations_.size(); ++k)
      if (turn_of(k, stage) >= 0) add_state_grad(k, static_cast<unsigned>(turn_of(k, stage)), states);
    add_clocks(list_grads, backward_clocks_, n_turns + loops());
    add_clocks(states, backward_clocks_, n_turns);
    Sequence turn;
    if (!list_grads.empty()) turn.add(Execute(lists));
    add_stage_sums(stage, turn);
    turn.add(Execute(state));
    list_grads.add_to_graph();
    states.add_to_graph();
    add_turns(n_turns, turn, step);
    if (loops()) step.add(Execute(lists));
  }

  void add_stage_sums(const Stage& stage, Sequence& turn) {
    const std::string name = "backward/" + (stage.front() < 0 ? std::string("input") : name_of(stage));
    const ComputeSet reduce = graph_.addComputeSet(name + "/reduce"), sum = graph_.addComputeSet(name + "/sum");
    Vertices reduces(graph_, reduce, "Sum"), sums(graph_, sum, "Sum");
    for (std::size_t k = 0; k < populations_.size(); ++k) {
      if (turn_of(k, stage) < 0 || !spikes_or_input(spec_.populations[k])) continue;
      const auto turn_of_k = static_cast<unsigned>(turn_of(k, stage));
      for (const unsigned c : populations_[k].outgoing) add_reducers(c, turn_of_k, reduces);
      add_sums(k, turn_of_k, sums);
    }
    for (const auto& [vertices, cs] : {std::make_pair(&reduces, reduce), std::make_pair(&sums, sum)}) {
      if (vertices->empty()) continue;
      add_clocks(*vertices, backward_clocks_, static_cast<unsigned>(stage.size()));
      vertices->add_to_graph();
      turn.add(Execute(cs));
    }
  }

  // At the end of a step: weight gradients of what the input sent, and if somebody wants it the gradient of its lists.
  void add_input_stage(Sequence& step) {
    const ComputeSet lists = graph_.addComputeSet("backward/input/list gradient");
    Vertices list_grads(graph_, lists, of_weights("ListGrad"));
    add_list_grad(-1, 0, list_grads);
    add_clocks(list_grads, backward_clocks_, 1);
    list_grads.add_to_graph();
    if (!list_grads.empty()) step.add(Execute(lists));
    if (!input_gradient_) return;
    add_stage_sums({-1}, step);
    const ComputeSet store = graph_.addComputeSet("backward/input/store");
    add_store_row(0, store);
    step.add(Execute(store));
  }

  // What the collectors of a population send in the backward pass.
  const Tensor& sent_back(std::size_t index) const { return populations_[index].sent.begin()->second; }

  void fetch_back(ComputeSet cs) {
    Vertices vertices(graph_, cs, "FetchBackward");
    for (std::size_t index = 0; index < populations_.size(); ++index) {
      const Population& p = spec_.populations[index];
      const Placed& v = populations_[index];
      if (!spikes_or_input(p)) continue;
      for (std::size_t k = 0; k < p.collectors.size(); ++k) {
        const Collector& c = p.collectors[k];
        Vertices::OfTile& x = vertices.on(c.tile);
        x.push("collectors",
               FetchCollector{c.n, static_cast<unsigned>(v.stride), static_cast<unsigned>(v.bucket_stride), 0, 1, 0});
        x.lists["kept"].push_back(v.kept.part(k));
        x.lists["outs"].push_back(of_samples(sent_back(index), c.first, c.n));
        x.lists["buckets"].push_back(v.buckets.part(k));
        ++x.scalars["n_collectors"];
      }
    }
    add_clocks(vertices, backward_clocks_, 0);
    vertices.add_to_graph();
  }

  // On the shards of post, for all connections whose pre runs in `round`.
  void add_list_grad(int round, unsigned turn, Vertices& vertices) {
    for (std::size_t index = 0; index < populations_.size(); ++index) {
      const Population& p = spec_.populations[index];
      const Placed& v = populations_[index];
      for (std::size_t k = 0; k < p.shards.size(); ++k) {
        const Shard& s = p.shards[k];
        for (const unsigned i : v.incoming) {
          const Connection& c = spec_.connections[i];
          const Placed& pre = populations_[c.pre];
          if (pre.round != round) continue;
          const bool wanted = hears_back(spec_.populations[c.pre]);
          Vertices::OfTile& x = vertices.on(s.tile);
          x.push("sources",
                 ListGradSource{turn, static_cast<unsigned>(pre.stride), static_cast<unsigned>(pre.bucket_stride),
                                wanted ? static_cast<unsigned>(pre.slots) : 0, c.delay, s.n,
                                static_cast<unsigned>(v.ring), x.size_of("d_current")});
          x.lists["d_current"].push_back(v.d_current.part(k));
          x.lists["lists"].push_back(sent_back(c.pre));
          x.lists["buckets"].push_back(pre.buckets.all());
          x.lists["weights"].push_back(read_weights(i, k));
          x.lists["gradients"].push_back(joined_[i].gradients.part(k));
          x.lists["shares"].push_back(wanted ? joined_[i].shares.part(k) : pad(FLOAT, s.tile));
          x.scalars["n_steps"] = spec_.n_steps;
          x.scalars["n_samples"] = spec_.n_samples;
          ++x.scalars["n_sources"];
        }
      }
    }
  }

  void add_reducers(unsigned index, unsigned turn, Vertices& vertices) {
    const Connection& c = spec_.connections[index];
    const Placed& pre = populations_[c.pre];
    for (const Reducer& r : c.reducers) {
      Vertices::OfTile& x = vertices.on(r.tile);
      x.push("groups",
             SumGroup{turn, x.size_of("rows"), r.n_shards, r.n_samples, 2, static_cast<unsigned>(pre.slots), 0});
      for (unsigned s = r.first_shard; s < r.first_shard + r.n_shards; ++s)
        x.lists["rows"].push_back(of_samples(joined_[index].shares.part(s), r.first_sample, r.n_samples));
      const Tensor lists = of_samples(sent_back(c.pre), r.first_sample, r.n_samples);
      const Tensor sum = alone(FLOAT, r.n_samples * pre.slots, r.tile, "reduced");
      x.lists["lists"].push_back(lists.reshape({r.n_samples, pre.stride}).slice(0, 2, 1).flatten());
      x.lists["direct"].push_back(pad(FLOAT, r.tile));
      x.lists["sums"].push_back(sum);
      ++x.scalars["n_groups"];
      reduced_[index].push_back({r, sum});
    }
  }

  void add_sums(std::size_t index, unsigned turn, Vertices& vertices) {
    const Population& p = spec_.populations[index];
    const Placed& v = populations_[index];
    const bool last = index + 1 == populations_.size(), direct = last && part_ == Part::whole;
    for (std::size_t k = 0; k < p.collectors.size(); ++k) {
      const Collector& c = p.collectors[k];
      Vertices::OfTile& x = vertices.on(c.tile);
      const unsigned first_row = x.size_of("rows");
      std::vector<Tensor>& rows = x.lists["rows"];
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
      const auto n_rows = static_cast<unsigned>(rows.size()) - first_row;
      if (rows.empty()) rows.push_back(pad(FLOAT, c.tile));
      x.push("groups", SumGroup{turn, first_row, n_rows, c.n, static_cast<unsigned>(v.stride),
                                static_cast<unsigned>(v.slots), direct ? p.n : 0});
      x.lists["lists"].push_back(of_samples(sent_back(index), c.first, c.n));
      x.lists["direct"].push_back(direct ? d_values_.part(k) : pad(FLOAT, c.tile));
      x.lists["sums"].push_back(v.e.part(k));
      ++x.scalars["n_groups"];
    }
  }

  void add_state_grad(std::size_t index, unsigned turn, Vertices& vertices) {
    const Population& p = spec_.populations[index];
    const Placed& v = populations_[index];
    const bool cuba = p.model == Model::cuba_lif, li = p.model == Model::li;
    for (std::size_t k = 0; k < p.shards.size(); ++k) {
      const Shard& s = p.shards[k];
      Vertices::OfTile& x = vertices.on(s.tile);
      x.push("shards", StateShard{turn, s.n, s.first, static_cast<unsigned>(v.stride), static_cast<unsigned>(v.slots),
                                  static_cast<unsigned>(v.ring), cuba, li, p.reset, p.detach_reset, p.surrogate,
                                  spec_.trains() ? p.learns : 0, every(p),
                                  part_ == Part::whole && !li && spec_.regularises(), decoding(), p.slope, p.gain});
      x.lists["lists"].push_back(li ? pad(UNSIGNED_SHORT, s.tile) : sent_back(index));
      x.lists["e"].push_back(li ? pad(FLOAT, s.tile) : v.e.all());
      const bool decoded = li && decodes();
      x.lists["history"].push_back(!li || part_ == Part::whole ? v.history.part(k) : pad(FLOAT, s.tile));
      x.lists["parameters"].push_back(v.parameters.part(k));
      x.lists["memory"].push_back(decoded || learns(p, learns_alpha) ? v.memory.part(k) : pad(FLOAT, s.tile));
      x.lists["d_values"].push_back(li ? v.d_value.part(k) : pad(FLOAT, s.tile));
      x.lists["regulariser"].push_back(v.regulariser.empty() ? pad(FLOAT, s.tile) : v.regulariser[k]);
      x.lists["d_v"].push_back(v.d_v.part(k));
      x.lists["d_i_syn"].push_back(cuba ? v.d_i_syn.part(k) : pad(FLOAT, s.tile));
      x.lists["d_current"].push_back(v.d_current.part(k));
      x.lists["d_vectors"].push_back(v.d_vectors.part(k));
      x.scalars["n_steps"] = spec_.n_steps;
      x.scalars["n_samples"] = spec_.n_samples;
      ++x.scalars["n_shards"];
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
      connect(x, "clock", clock(backward_clocks_, c.tile));
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
      connect(x, "clock", clock(backward_clocks_, c.tile));
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
        connect(x, "d_bias", populations_[index].d_vectors.part(k).slice(0, 6 * width(p.shards[k])));
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
    add_up_replicas(pass);
    add_totals(pass);
    const ComputeSet squares = graph_.addComputeSet("square sums"), update = graph_.addComputeSet("update");
    Vertices square_sums(graph_, squares, "SquareSum"), updates(graph_, update, "Update");
    for (std::size_t index = 0; index < populations_.size(); ++index) {
      const Population& p = spec_.populations[index];
      for (std::size_t k = 0; k < p.shards.size(); ++k) {
        Vertices::OfTile &x = square_sums.on(p.shards[k].tile), &y = updates.on(p.shards[k].tile);
        for (const unsigned i : populations_[index].incoming) {
          const Joined& j = joined_[i];
          const unsigned tile = p.shards[k].tile;
          y.lists["weights"].push_back(j.weights.part(k));
          y.lists["rounded"].push_back(spec_.half_weights ? j.rounded.part(k) : pad(HALF, tile));
          y.lists["moments1"].push_back(spec_.momentum ? j.moments1.part(k) : pad(FLOAT, tile));
          y.lists["moments2"].push_back(adam() ? j.moments2.part(k) : pad(FLOAT, tile));
          for (Vertices::OfTile* z : {&x, &y}) {
            z->lists["gradients"].push_back(j.gradients.part(k));
            z->numbers["sizes"].push_back(static_cast<unsigned>(j.weights.part(k).numElements()));
            ++z->scalars["n_arrays"];
          }
        }
        for (const Vector& vector : populations_[index].vectors) add_vector(p, index, k, vector, x, y);
      }
    }
    std::vector<std::vector<Tensor>> sums(spec_.devices);
    for (auto& [tile, x] : square_sums.tiles()) {
      const Tensor sum = alone(FLOAT, 6, tile, "square_sums");
      x.tensors["sums"] = sum;
      sums[tile / spec_.tiles].push_back(sum);
      fill_vectors(x, tile, {"values", "d_vectors"});
    }
    for (auto& [tile, y] : updates.tiles()) {
      y.tensors["settings"] = settings_;
      y.tensors["norm"] = norm_;
      y.scalars["kind"] = spec_.optimiser == Optimiser::sgd ? 0 : spec_.optimiser == Optimiser::adam ? 1 : 2;
      y.scalars["has_momentum"] = spec_.momentum;
      y.scalars["rounds"] = spec_.half_weights;
      fill_vectors(y, tile, {"values", "d_vectors", "value_moments1", "value_moments2", "used"});
    }
    square_sums.add_to_graph();
    updates.add_to_graph();
    pass.add(Execute(squares));
    add_norm(sums, pass);
    pass.add(Execute(update));
  }

  // A tile without vectors still has the fields connected.
  void fill_vectors(Vertices::OfTile& x, unsigned tile, const std::vector<const char*>& fields) {
    x.scalars["n_vectors"] = static_cast<unsigned>(x.numbers["vectors"].size() / (sizeof(TrainedVector) / 4));
    if (x.scalars["n_vectors"]) return;
    x.numbers["vectors"].push_back(0);
    for (const char* field : fields) x.lists[field].push_back(pad(FLOAT, tile));
  }

  void add_vector(const Population& p, std::size_t index, std::size_t k, const Vector& vector, Vertices::OfTile& x,
                  Vertices::OfTile& y) {
    const Shard& s = p.shards[k];
    const Placed& v = populations_[index];
    const bool is_bias = vector.row == 4;
    const unsigned n = vector.shared ? 1 : s.n;
    const TrainedVector record{n, vector.shared, !vector.shared || k == 0, vector.row < 2, is_bias ? 0 : s.n};
    const std::size_t rows = 6 * width(s);
    const Tensor d =
        vector.shared ? vector.total : v.d_vectors.part(k).slice(vector.of_shard * rows, (vector.of_shard + 1) * rows);
    for (Vertices::OfTile* z : {&x, &y}) {
      z->push("vectors", record);
      z->lists["values"].push_back(vector.value.part(k));
      z->lists["d_vectors"].push_back(d);
    }
    y.lists["value_moments1"].push_back(spec_.momentum ? vector.moment1.part(k) : pad(FLOAT, s.tile));
    y.lists["value_moments2"].push_back(adam() ? vector.moment2.part(k) : pad(FLOAT, s.tile));
    y.lists["used"].push_back(is_bias ? pad(FLOAT, s.tile)
                                      : v.parameters.part(k).slice(vector.row * width(s), vector.row * width(s) + s.n));
  }

  // Gradients of all replicas: each then updates its weights alike.
  void add_up_replicas(Sequence& pass) {
    std::vector<Tensor> gradients;
    for (const Joined& j : joined_) gradients.push_back(j.gradients.all());
    for (const Placed& v : populations_)
      if (!v.vectors.empty()) gradients.push_back(v.d_vectors.all());
    add_up(gradients, "gradients of replicas", pass);
  }

  // Sums over replicas take the place of what each of them has.
  void add_up(const std::vector<Tensor>& tensors, const char* name, Sequence& pass) {
    if (spec_.replicas == 1) return;
    Tensor all = concat(tensors);
    gcl::allReduceInPlaceCrossReplica(graph_, all, gcl::CollectiveOperator::ADD, pass,
                                      gcl::CommGroup(gcl::CommGroupType::CONSECUTIVE, spec_.replicas, 1), {name}, {});
  }

  // Gradients of values that a whole population shares.
  void add_totals(Sequence& pass) {
    const ComputeSet totals = graph_.addComputeSet("totals");
    bool any = false;
    for (std::size_t index = 0; index < populations_.size(); ++index) {
      const Population& p = spec_.populations[index];
      const Placed& v = populations_[index];
      for (const Vector& vector : v.vectors) {
        if (!vector.shared) continue;
        any = true;
        Vertices one(graph_, totals, "Total");
        Vertices::OfTile& x = one.on(p.shards[0].tile);
        for (std::size_t k = 0; k < p.shards.size(); ++k) {
          const std::size_t rows = 6 * width(p.shards[k]);
          x.lists["rows"].push_back(v.d_vectors.part(k).slice(vector.of_shard * rows, (vector.of_shard + 1) * rows));
          x.numbers["sizes"].push_back(p.shards[k].n);
        }
        x.tensors["total"] = vector.total;
        x.scalars["n_shards"] = static_cast<unsigned>(p.shards.size());
        one.add_to_graph();
      }
    }
    if (any) pass.add(Execute(totals));
  }

  // Sums of squares: of the tiles of each IPU, where they are many; then of all.
  void add_norm(const std::vector<std::vector<Tensor>>& sums, Sequence& pass) {
    const ComputeSet devices = graph_.addComputeSet("device norms"), norm = graph_.addComputeSet("norm");
    Vertices device_norms(graph_, devices, "DeviceNorm"), norms(graph_, norm, "Norm");
    std::vector<Tensor> all;
    for (unsigned d = 0; d < spec_.devices; ++d) {
      if (sums[d].size() <= max_direct_sums) {
        all.insert(all.end(), sums[d].begin(), sums[d].end());
        continue;
      }
      const unsigned tile = d * spec_.tiles;
      Vertices::OfTile& x = device_norms.on(tile);
      all.push_back(alone(FLOAT, 6, tile, "device_norm"));
      x.tensors["parts"] = concat(sums[d]);
      x.tensors["sums"] = all.back();
      x.scalars["n_parts"] = static_cast<unsigned>(x.tensors["parts"].numElements());
    }
    Vertices::OfTile& x = norms.on(0);
    x.tensors["sums"] = concat(all);
    x.tensors["settings"] = settings_;
    x.tensors["norm"] = norm_;
    x.scalars["n_sums"] = static_cast<unsigned>(x.tensors["sums"].numElements());
    device_norms.add_to_graph();
    norms.add_to_graph();
    if (!device_norms.empty()) pass.add(Execute(devices));
    pass.add(Execute(norm));
  }

  static constexpr std::size_t max_direct_sums = 16;  // tiles of an IPU whose sums of squares one worker adds

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
  Parted targets_, losses_, logits_, d_logits_, d_values_, over_time_, d_row_, d_input_;
  Tensor settings_, norm_, first_sample_;
  std::map<unsigned, Tensor> no_samples_before_;  // by tile
  std::vector<Clock> forward_clocks_, backward_clocks_, again_clocks_;
  std::vector<ComputeSet> run_sets_;  // of each stage: its step
  std::map<std::string, poplar::DataStream> to_device_, to_host_;
};

const char* const program_names[] = {"load", "train", "infer", "save", "lists"};

}  // namespace

Program::Program(const ProgramSpec& spec, DeviceKind kind, const std::string& codelets) {
  spec.check();
  poplar::Device device = make_device(kind, spec);
  Graph graph(device.getTarget(), poplar::replication_factor(spec.replicas));
  if (!codelets.empty()) graph.addCodelets(codelets);
  if (spec.replicas > 1) popops::addCodelets(graph);  // which all-reduces are made of
  std::map<std::string, Buffer> buffers;
  const std::vector<poplar::program::Program> programs = Builder(spec, graph, buffers).build();
  parts_ = std::make_unique<Parts>(
      Parts{std::move(device), poplar::Engine(graph, programs), std::move(buffers), spec.trains()});
  for (auto& [name, buffer] : parts_->buffers) {
    auto* begin = static_cast<unsigned char*>(buffer.data());
    const std::size_t bytes = buffer.n * buffer.element_bytes() / buffer.n_copies;
    if (spec.replicas == 1) {
      if (buffer.to_device) parts_->engine.connectStream(name, begin, begin + bytes);
      if (buffer.to_host) parts_->engine.connectStream(name + ".out", begin, begin + bytes);
    }
    for (unsigned r = 0; r < spec.replicas && spec.replicas > 1; ++r) {
      unsigned char* mine = buffer.n_copies > 1 ? begin + r * bytes : begin;
      const bool wanted = buffer.n_copies > 1 || r == 0;  // what is equal everywhere is read back from one
      if (buffer.to_device)
        parts_->engine.connectStreamToCallback(name, r, [=](void* to) { std::memcpy(to, mine, bytes); });
      if (buffer.to_host)
        parts_->engine.connectStreamToCallback(name + ".out", r, [=](void* from) {
          if (wanted) std::memcpy(mine, from, bytes);
        });
    }
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
