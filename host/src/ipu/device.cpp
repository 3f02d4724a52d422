// The device of a program: free IPUs, those that PopDist chooses, or a model of IPUs.
#include "device.h"

#include <poplar/IPUModel.hpp>
#include <stdexcept>
#include <string>
#ifdef SPARSESNN_POPLAR_SDK
#include <popdist/backend.hpp>
#include <popdist/context.hpp>
#include <poplar/DeviceManager.hpp>
#if __has_include(<popdist/popdist_poplar.hpp>)
#include <popdist/popdist_poplar.hpp>  // has getDeviceId in some versions
#endif
#endif

namespace sparsesnn::ipu {

namespace {

#ifdef SPARSESNN_POPLAR_SDK
// Called once in a process that is one of several: engines then run in step.
void join_processes() {
  if (popdist::isBackendInitialized()) return;
  popdist::registerDefaultBackend();
  popdist::initializeBackend();
}

poplar::Device device_of_poprun(const ProgramSpec& spec) {
  if (spec.is_part()) join_processes();
  const auto id = static_cast<unsigned>(popdist::getDeviceId(spec.devices));
  poplar::Device device = poplar::DeviceManager::createDeviceManager().getDevice(id);
  const unsigned n = device.getTarget().getNumIPUs(), wanted = spec.devices * spec.own_replicas;
  if (n != wanted)
    throw std::runtime_error("PopDist chose device " + std::to_string(id) + " with " + std::to_string(n) +
                             " IPUs, but this process has " + std::to_string(spec.own_replicas) + " replicas on " +
                             std::to_string(wanted));
  if (!device.attach()) throw std::runtime_error("device " + std::to_string(id) + ", which PopDist chose, is in use");
  return device;
}
#endif

}  // namespace

poplar::Device make_device(DeviceKind kind, const ProgramSpec& spec) {
  const unsigned n_ipus = spec.devices * spec.own_replicas;
#ifdef SPARSESNN_POPLAR_SDK
  if (kind == DeviceKind::ipu_of_poprun) return device_of_poprun(spec);
  if (kind == DeviceKind::ipu) {
    auto manager = poplar::DeviceManager::createDeviceManager();
    for (poplar::Device& device : manager.getDevices(poplar::TargetType::IPU, n_ipus))
      if (device.attach()) return std::move(device);
    throw std::runtime_error("no free device of " + std::to_string(n_ipus) + " IPUs");
  }
#else
  if (kind != DeviceKind::ipu_model) throw std::runtime_error("this build has no Poplar SDK");
#endif
  poplar::IPUModel model("ipu2");
  model.numIPUs = n_ipus;
  return model.createDevice();
}

poplar::Target graph_target(const poplar::Device& device, const ProgramSpec& spec) {
  const poplar::Target& own = device.getTarget();
  if (!spec.is_part()) return own;
  const unsigned n_ipus = spec.devices * spec.replicas;
#ifdef SPARSESNN_POPLAR_SDK
  return poplar::Target::createIPUTarget(n_ipus, own.getTargetArchString(), own.getTargetOptions());
#else
  return poplar::Target(n_ipus, own.getTilesPerIPU());
#endif
}

poplar::OptionFlags engine_options(const ProgramSpec& spec) {
  poplar::OptionFlags options;
  if (!spec.is_part()) return options;
  options.set("target.syncReplicasIndependently", "true");
  options.set("target.firstRuntimeReplica", std::to_string(spec.first_replica));
  options.set("target.numberRuntimeReplica", std::to_string(spec.own_replicas));
  return options;
}

void run_in_step(poplar::Engine& engine, unsigned program) {
#ifdef SPARSESNN_POPLAR_SDK
  popdist::run(engine, program);  // for one process the same as the engine's own run
#else
  engine.run(program);
#endif
}

void end_processes() {
#ifdef SPARSESNN_POPLAR_SDK
  if (popdist::isBackendInitialized()) popdist::finalizeBackend();
#endif
}

}  // namespace sparsesnn::ipu
