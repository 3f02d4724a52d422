#include "machine.h"

#include <algorithm>
#include <cstring>

#include "compiled.h"
#include "host/src/machine/thread_pool.h"
#include "poplar/Engine.hpp"

namespace sparsesnn::emulator {

using poplar::Piece;
using poplar::poplar_error;

std::uint64_t& worker_bundles() {
  thread_local std::uint64_t bundles = 0;
  return bundles;
}

Options& options_of_next_engine() {
  thread_local Options options;
  return options;
}

// ---- running -------------------------------------------------------------------------------------------------------

const poplar::DataStream& Compiled::find_stream(const std::string& handle) const {
  for (const poplar::DataStream& s : graph_->streams)
    if (s.handle() == handle) return s;
  throw poplar_error("there is no stream '" + handle + "'");
}

void Compiled::connect_stream(const std::string& handle, void* begin, void* end) {
  const poplar::DataStream& s = find_stream(handle);
  const auto n = static_cast<std::size_t>(static_cast<unsigned char*>(end) - static_cast<unsigned char*>(begin));
  if (n != s.numElements() * s.elementType().bytes())
    throw poplar_error("stream '" + handle + "': given " + std::to_string(n) + " bytes; it moves " +
                       std::to_string(s.numElements()) + " of " + s.elementType().toString());
  const bool to_device = s.toDevice();
  streams_[handle] = [=](void* data) { std::memcpy(to_device ? data : begin, to_device ? begin : data, n); };
}

void Compiled::connect_callback(const std::string& handle, std::function<void(void*)> f) {
  find_stream(handle);
  streams_[handle] = std::move(f);
}

const poplar::program::Program& Compiled::program(unsigned k) const {
  if (k >= programs_.size())
    throw poplar_error("there is no program " + std::to_string(k) + "; there are " + std::to_string(programs_.size()));
  return programs_[k];
}

void Compiled::run_program(const poplar::program::Program& program) {
  using Kind = poplar::program::Node::Kind;
  const poplar::program::Node& node = *program.node();
  switch (node.kind) {
    case Kind::sequence:
      for (const auto& child : node.children) run_program(child);
      return;
    case Kind::repeat:
      for (unsigned k = 0; k < node.count; ++k) run_program(node.children[0]);
      return;
    case Kind::execute:
      return execute(steps_.at(node.compute_set.getId()));
    case Kind::copy:
      return copy(node);
    case Kind::to_device:
      return stream(node, true);
    case Kind::to_host:
      return stream(node, false);
    case Kind::sync:        // an additional barrier: every step is one already here
    case Kind::all_reduce:  // with a single replica
      return;
  }
}

namespace {

void add(StepCount& count, const Cost& cost, double compute_cycles) {
  ++count.executions;
  count.compute_cycles += compute_cycles;
  count.exchange_cycles += cost.exchange_cycles;
  count.sync_cycles += cost.sync_cycles;
  count.link_cycles += cost.link_cycles;
  count.host_cycles += cost.host_cycles;
  count.exchange_bytes += cost.exchange_bytes;
  count.link_bytes += cost.link_bytes;
  count.host_bytes += cost.host_bytes;
}

}  // namespace

void Compiled::execute(ComputeStep& step) {
  const bool check = options_.checks == Checks::always || (options_.checks == Checks::first && !step.checked);
  step.checked = true;
  if (check) {
    FaultFinder finder(*this);
    for (BoundVertex& v : step.vertices) finder.run(v);  // on copies; finds the writer of each element
  }
  std::vector<double> cycles(step.tiles.size());
  parallel_for(static_cast<int>(step.tiles.size()), [&](int k, int) {
    for (const std::size_t v : step.tiles[static_cast<std::size_t>(k)].vertices)
      cycles[static_cast<std::size_t>(k)] += run_vertex(step.vertices[v]);
  });
  if (!check && !step.marked && options_.checks == Checks::first) {
    // not checked this time: assumed to have written all its outputs
    step.marked = true;
    for (const BoundVertex& v : step.vertices)
      for (const Region& r : v.regions)
        if (r.field->direction != Direction::input)
          for (const Piece& p : r.pieces) written_[p.variable].set(p.begin, p.end);
  }
  add(step.count, step.cost, cycles.empty() ? 0 : *std::max_element(cycles.begin(), cycles.end()));
}

double Compiled::run_vertex(BoundVertex& v) {
  for (Region& r : v.regions) {
    if (r.in_place()) continue;
    unsigned char* to = r.gathered.data();
    for (const Piece& p : r.pieces) {
      const std::size_t bytes = (p.end - p.begin) * r.field->type.bytes();
      std::memcpy(to, address(p), bytes);
      to += bytes;
    }
  }
  std::uint64_t longest = 0;
  for (unsigned worker = 0; worker < v.type->n_workers; ++worker) {
    worker_bundles() = 0;
    if (!v.type->compute(v.object.data(), worker))
      throw poplar_error(graph_->name_of(v.id) + ": worker " + std::to_string(worker) + " returned false");
    longest = std::max(longest, worker_bundles());
  }
  const Parameters& p = options_.parameters;
  return p.supervisor_cycles + poplar::MultiVertex::numWorkers() * (p.worker_bundles + static_cast<double>(longest));
}

void Compiled::copy(const poplar::program::Node& node) {
  auto& [cost, count] = copies_.at(&node);
  const std::size_t size = node.source.elementType().bytes();
  std::size_t k = 0, taken = 0;
  for (const Piece& sink : node.sink.pieces())
    for (std::size_t at = sink.begin; at < sink.end;) {
      const Piece& source = node.source.pieces()[k];
      const std::size_t n = std::min(sink.end - at, source.end - source.begin - taken);
      if (options_.checks != Checks::never)
        for (std::size_t i = source.begin + taken; i < source.begin + taken + n; ++i)
          if (!written_[source.variable].get(i))
            throw poplar_error("copy '" + node.name + "': reads element " + std::to_string(i) + " of variable '" +
                               graph_->variables[source.variable].name + "' before it was written");
      std::memmove(address({sink.variable, at, at + n}),
                   address({source.variable, source.begin + taken, source.begin + taken + n}), n * size);
      at += n;
      taken += n;
      if (taken == source.end - source.begin) ++k, taken = 0;
    }
  for (const Piece& sink : node.sink.pieces()) written_[sink.variable].set(sink.begin, sink.end);
  add(count, cost, 0);
}

void Compiled::stream(const poplar::program::Node& node, bool to_device) {
  auto& [cost, count] = copies_.at(&node);
  const auto found = streams_.find(node.stream.handle());
  if (found == streams_.end()) throw poplar_error("stream '" + node.stream.handle() + "' is not connected");
  const poplar::Tensor& t = to_device ? node.sink : node.source;
  std::vector<std::uint64_t> buffer((t.numElements() * t.elementType().bytes() + 7) / 8);  // aligned
  auto* at = reinterpret_cast<unsigned char*>(buffer.data());
  if (to_device) found->second(at);
  for (const Piece& p : t.pieces()) {
    const std::size_t bytes = (p.end - p.begin) * t.elementType().bytes();
    std::memcpy(to_device ? address(p) : at, to_device ? at : address(p), bytes);
    if (to_device) written_[p.variable].set(p.begin, p.end);
    at += bytes;
  }
  if (!to_device) found->second(buffer.data());
  add(count, cost, 0);
}

std::vector<float> Compiled::read(const poplar::program::Node& node) {
  std::vector<float> values;
  for (const Piece& p : node.source.pieces()) {
    const auto* from = reinterpret_cast<const float*>(address(p));
    if (options_.checks != Checks::never)
      for (std::size_t i = p.begin; i < p.end; ++i)
        if (!written_[p.variable].get(i))
          throw poplar_error("all-reduce '" + node.name + "': reads element " + std::to_string(i) + " of variable '" +
                             graph_->variables[p.variable].name + "' before it was written");
    values.insert(values.end(), from, from + (p.end - p.begin));
  }
  return values;
}

void Compiled::write(const poplar::program::Node& node, const std::vector<float>& values) {
  const float* from = values.data();
  for (const Piece& p : node.source.pieces()) {
    std::memcpy(address(p), from, (p.end - p.begin) * sizeof(float));
    from += p.end - p.begin;
  }
  auto& [cost, count] = copies_.at(&node);
  add(count, cost, 0);
}

Report Compiled::report() const {
  Report report;
  for (const ComputeStep& step : steps_) report.steps.push_back(step.count);
  for (const auto* node : copy_order_) report.steps.push_back(copies_.at(node).second);
  report.n_vertices = graph_->vertices.size();
  report.n_compute_sets = steps_.size();
  report.tile_bytes = tile_bytes_;
  return report;
}

std::vector<PlacedVertex> Compiled::vertices() const {
  std::vector<PlacedVertex> found;
  for (const ComputeStep& step : steps_)
    for (const BoundVertex& v : step.vertices) found.push_back({step.name, v.type->name, v.tile});
  return found;
}

void Compiled::reset_counts() {
  const auto clear = [](StepCount& count) {
    StepCount empty;
    empty.name = count.name;
    count = empty;
  };
  for (ComputeStep& step : steps_) clear(step.count);
  for (auto& [node, entry] : copies_) clear(entry.second);
}

// ---- Machine, Engine -----------------------------------------------------------------------------------------------

Machine::Machine(const poplar::Graph& graph, poplar::ArrayRef<poplar::program::Program> programs,
                 const Options& options, unsigned own_replicas)
    : all_replicas_(graph.getReplicationFactor()) {
  for (unsigned r = 0; r < (own_replicas ? own_replicas : all_replicas_); ++r)
    replicas_.push_back(std::make_unique<Compiled>(graph, programs, options));
}
Machine::~Machine() = default;

void Machine::connect_stream(const std::string& handle, void* begin, void* end) {
  if (all_replicas_ > 1)
    throw poplar_error("stream '" + handle + "': one memory for " + std::to_string(all_replicas_) +
                       " replicas; connect a callback for each");
  replicas_[0]->connect_stream(handle, begin, end);
}

void Machine::connect_callback(const std::string& handle, unsigned replica, std::function<void(void*)> f) {
  if (replica >= replicas_.size())
    throw poplar_error("stream '" + handle + "': there is no replica " + std::to_string(replica));
  replicas_[replica]->connect_callback(handle, std::move(f));
}

void Machine::run(unsigned program) { run_replicas(replicas_[0]->program(program)); }

// Control flow depends on no data, so replicas stay in step if each runs every leaf, one after another.
void Machine::run_replicas(const poplar::program::Program& program) {
  using Kind = poplar::program::Node::Kind;
  const poplar::program::Node& node = *program.node();
  if (all_replicas_ == 1) return replicas_[0]->run_program(program);
  if (node.kind == Kind::sequence) {
    for (const auto& child : node.children) run_replicas(child);
  } else if (node.kind == Kind::repeat) {
    for (unsigned k = 0; k < node.count; ++k) run_replicas(node.children[0]);
  } else if (node.kind == Kind::all_reduce) {
    if (replicas_.size() < all_replicas_)
      throw poplar_error("all-reduce '" + node.name + "': " + std::to_string(replicas_.size()) + " of " +
                         std::to_string(all_replicas_) +
                         " replicas are in this process; sums over processes are not emulated");
    std::vector<float> sum = replicas_[0]->read(node);
    for (std::size_t r = 1; r < replicas_.size(); ++r) {
      const std::vector<float> other = replicas_[r]->read(node);
      for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += other[k];
    }
    for (const auto& replica : replicas_) replica->write(node, sum);
  } else {
    for (const auto& replica : replicas_) replica->run_program(program);
  }
}

Report Machine::report() const { return replicas_[0]->report(); }
std::vector<PlacedVertex> Machine::vertices() const { return replicas_[0]->vertices(); }
void Machine::reset_counts() {
  for (const auto& replica : replicas_) replica->reset_counts();
}

}  // namespace sparsesnn::emulator

namespace poplar {

namespace {

// The replicas that the options give to an engine; 0: all of them. PopART sets all three options, or none.
unsigned own_replicas(const Graph& graph, const OptionFlags& options) {
  if (options.values().empty()) return 0;
  const auto number = [&](const std::string& name) {
    const auto found = options.values().find("target." + name);
    if (found == options.values().end()) throw poplar_error("engine option target." + name + " is missing");
    return std::stoul(found->second);
  };
  const std::size_t first = number("firstRuntimeReplica"), n = number("numberRuntimeReplica");
  if (options.values().size() != 3 || options.values().count("target.syncReplicasIndependently") == 0)
    throw poplar_error("engine options: only those of replicas are emulated");
  if (!n || first + n > graph.getReplicationFactor())
    throw poplar_error("engine options: replicas " + std::to_string(first) + " on, " + std::to_string(n) + " of " +
                       std::to_string(graph.getReplicationFactor()));
  return static_cast<unsigned>(n);
}

}  // namespace

Engine::Engine(const Graph& graph, ArrayRef<program::Program> programs, const OptionFlags& options)
    : machine_(std::make_unique<sparsesnn::emulator::Machine>(
          graph, programs, sparsesnn::emulator::options_of_next_engine(), own_replicas(graph, options))),
      ipus_per_replica_(graph.getTarget().getNumIPUs()) {}
Engine::Engine(Engine&&) noexcept = default;
Engine::~Engine() = default;
void Engine::load(const Device& device) {
  const unsigned n = device.getTarget().getNumIPUs(), wanted = machine_->own_replicas() * ipus_per_replica_;
  if (n != wanted)
    throw poplar_error("a device of " + std::to_string(n) + " IPUs for replicas on " + std::to_string(wanted));
}
void Engine::connectStream(StringRef handle, void* begin, void* end) { machine_->connect_stream(handle, begin, end); }
void Engine::connectStreamToCallback(StringRef handle, unsigned replica, std::function<void(void*)> f) {
  machine_->connect_callback(handle, replica, std::move(f));
}
void Engine::run(unsigned program) { machine_->run(program); }

}  // namespace poplar
