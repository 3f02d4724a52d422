// Part of the emulated machine: targets and devices.
#pragma once

#include <string>

#include "Types.hpp"

namespace poplar {

enum class TargetType { IPU, IPU_MODEL, CPU };

class Target {
 public:
  Target(unsigned n_ipus, unsigned tiles_per_ipu) : n_ipus_(n_ipus), tiles_per_ipu_(tiles_per_ipu) {}
  unsigned getNumIPUs() const { return n_ipus_; }
  unsigned getTilesPerIPU() const { return tiles_per_ipu_; }
  unsigned getNumTiles() const { return n_ipus_ * tiles_per_ipu_; }
  unsigned getNumWorkerContexts() const { return 6; }
  unsigned getAtomicStoreGranularity() const { return 4; }
  TargetType getTargetType() const { return TargetType::IPU_MODEL; }

 private:
  unsigned n_ipus_, tiles_per_ipu_;
};

class Device {
 public:
  explicit Device(Target target) : target_(target) {}
  const Target& getTarget() const { return target_; }
  bool attach() const { return true; }
  void detach() const {}

 private:
  Target target_;
};

// The device that the SDK emulates on the host, and that we emulate here.
struct IPUModel {
  explicit IPUModel(const char* /*architecture*/ = "ipu2") {}
  unsigned numIPUs = 1;
  unsigned tilesPerIPU = 1472;
  Device createDevice() const { return Device(Target(numIPUs, tilesPerIPU)); }
};

}  // namespace poplar
