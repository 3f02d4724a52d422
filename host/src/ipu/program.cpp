// The program of a plan: the five programs of its graph, and the host's memory of its streams.
#include "program.h"

#include <cstring>
#include <poplar/Engine.hpp>
#include <popops/codelets.hpp>
#include <stdexcept>

#include "builder.h"
#include "device.h"
#include "parts.h"

namespace sparsesnn::ipu {

namespace {

// As in codelets/ipu/vertex.h: marks the clock of a step that runs again.
constexpr unsigned clock_again = 1u << 31;

// A device numbers all its tiles, so a plan with fewer tiles per IPU would put neurons on the wrong IPU.
void check_device(const poplar::Target& target, const ProgramSpec& spec) {
  if (target.getTilesPerIPU() != spec.tiles)
    throw std::invalid_argument("IPU program: the plan numbers the tiles of IPUs that have " +
                                std::to_string(spec.tiles) + ", but this device has " +
                                std::to_string(target.getTilesPerIPU()) +
                                " an IPU; make the plan again with this number as the target's tiles_per_device");
}

const char* const program_names[] = {"load", "train", "infer", "save", "lists"};

}  // namespace

std::vector<poplar::program::Program> Builder::build() {
  find_rounds();
  make_variables();
  Sequence load, train, infer, save, lists;
  make_streams(load, save, lists);
  for (Sequence* batch : {&train, &infer}) {
    stream_in("lists.0", populations_[0].kept.all(), *batch, false);
    stream_in("targets", targets_.all(), *batch, false);
    stream_in("settings", settings_, *batch);
    stream_in("seeds", new_seeds_, *batch);
  }
  Sequence forward, backward;
  forward_steps(forward);
  add_loss(forward);
  if (learns_) {
    if (spec_.regularizes()) add_regularizer(backward);
    add_readout_gradient(backward);
    backward_steps(backward);
    add_update(backward);
  }
  for (Sequence* batch : {&train, &infer}) {
    send_seeds(*batch);
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
    stream_counts(*batch);
  }
  return {load, train, infer, save, lists};
}

Program::Program(const ProgramSpec& spec, DeviceKind kind, const std::string& codelets) {
  spec.check();
  poplar::Device device = make_device(kind, spec);
  check_device(device.getTarget(), spec);
  Graph graph(graph_target(device, spec), poplar::replication_factor(spec.replicas));
  if (!codelets.empty()) graph.addCodelets(codelets);
  if (spec.replicas > 1) popops::addCodelets(graph);  // used by all-reduces
  std::map<std::string, Buffer> buffers;
  const std::vector<poplar::program::Program> programs = Builder(spec, graph, buffers).build();
  parts_ = std::make_unique<Parts>(Parts{std::move(device), poplar::Engine(graph, programs, engine_options(spec)),
                                         std::move(buffers), spec.trains()});
  for (auto& [name, buffer] : parts_->buffers) {
    auto* begin = static_cast<unsigned char*>(buffer.data());
    const std::size_t bytes = buffer.n * buffer.element_bytes() / buffer.n_copies;
    if (spec.replicas == 1) {
      if (buffer.to_device) parts_->engine.connectStream(name, begin, begin + bytes);
      if (buffer.to_host) parts_->engine.connectStream(name + ".out", begin, begin + bytes);
    }
    // An engine counts its own replicas from 0, whatever their numbers among all.
    for (unsigned r = 0; r < spec.own_replicas && spec.replicas > 1; ++r) {
      unsigned char* mine = buffer.n_copies > 1 ? begin + r * bytes : begin;
      const bool wanted = buffer.n_copies > 1 || r == 0;  // values equal everywhere are read back from one replica
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
  if (program == "train" && !parts_->trains) throw std::invalid_argument("the plan has no optimizer: it cannot train");
  for (unsigned k = 0; k < 5; ++k)
    if (program == program_names[k]) return run_in_step(parts_->engine, k);
  throw std::invalid_argument("there is no program '" + program + "'; there are load, train, infer, save, lists");
}

Buffer& Program::buffer(const std::string& name) {
  const auto found = parts_->buffers.find(name);
  if (found == parts_->buffers.end()) throw std::invalid_argument("there is no array '" + name + "'");
  return found->second;
}

std::vector<std::string> Program::names() const {
  std::vector<std::string> names;
  for (const auto& [name, buffer] : parts_->buffers) names.push_back(name);
  return names;
}

}  // namespace sparsesnn::ipu
