// A fake of the parts of Poplar and PopDist that choose and attach a device: only for tests of host/src/ipu/device.cpp.
//
// Its devices are those of one V-IPU partition: in each graph compile domain (GCD), every single IPU, then groups of 2,
// 4, … IPUs, each with its own id. An instance of PopRun sees only its own GCD. Names and results follow PopART,
// PaddlePaddle and the references of Poplar and PopDist. Whatever they throw for, this fake throws for too.
#pragma once

#include <cstdlib>
#include <iostream>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace fake {

inline unsigned number(const char* name) {
  const char* text = std::getenv(name);
  if (!text) throw std::runtime_error(std::string(name) + " is not set");
  return static_cast<unsigned>(std::stoul(text));
}
inline unsigned n_ipus() {  // of this GCD, by POPLAR_TARGET_OPTIONS
  const char* text = std::getenv("POPLAR_TARGET_OPTIONS");
  const std::string options = text ? text : "", key = "\"instanceSize\":\"";
  const std::size_t at = options.find(key);
  if (at == std::string::npos) throw std::runtime_error("POPLAR_TARGET_OPTIONS has no instanceSize");
  return static_cast<unsigned>(std::stoul(options.substr(at + key.size())));
}
inline std::set<unsigned>& in_use() {
  static std::set<unsigned> ids;
  return ids;
}
inline bool& has_backend() {
  static bool has = false;
  return has;
}

}  // namespace fake

namespace poplar {

enum class TargetType { IPU, IPU_MODEL, CPU };

class OptionFlags {
 public:
  void set(const std::string& key, const std::string& value) { values[key] = value; }
  std::map<std::string, std::string> values;
};

class Target {
 public:
  Target(TargetType type, unsigned n, OptionFlags options) : type_(type), n_(n), options_(std::move(options)) {}
  static Target createIPUTarget(unsigned n, const std::string& arch, const OptionFlags& options = {}) {
    if (arch != "ipu2") throw std::runtime_error("arch " + arch);
    return Target(TargetType::IPU, n, options);
  }
  TargetType getTargetType() const { return type_; }
  unsigned getNumIPUs() const { return n_; }
  unsigned getTilesPerIPU() const { return 1472; }
  std::string getTargetArchString() const { return "ipu2"; }
  const OptionFlags& getTargetOptions() const { return options_; }

 private:
  TargetType type_;
  unsigned n_;
  OptionFlags options_;
};

class Device {
 public:
  Device(unsigned id, Target target) : id_(id), target_(std::move(target)) {}
  Device(Device&&) = default;
  unsigned getId() const { return id_; }
  const Target& getTarget() const { return target_; }
  bool attach() const {
    std::cout << "attach " << id_ << "\n";
    return fake::in_use().insert(id_).second;
  }

 private:
  unsigned id_;
  Target target_;
};

class DeviceManager {
 public:
  static DeviceManager createDeviceManager() { return {}; }
  std::vector<Device> getDevices(TargetType type, unsigned required) const {
    std::vector<Device> found;
    for (auto& [id, n] : all())
      if (n == required && type == TargetType::IPU) found.push_back(make(id, n));
    return found;
  }
  Device getDevice(unsigned id) const {
    const auto devices = all();
    if (!devices.count(id)) throw std::runtime_error("no device " + std::to_string(id));
    return make(id, devices.at(id));
  }
  static std::map<unsigned, unsigned> all() {  // IPUs, by id
    std::map<unsigned, unsigned> found;
    unsigned id = 0;
    for (unsigned size = 1; size <= fake::n_ipus(); size *= 2)
      for (unsigned k = 0; k < fake::n_ipus() / size; ++k) found[id++] = size;
    return found;
  }

 private:
  static Device make(unsigned id, unsigned n) {
    OptionFlags options;
    options.set("gatewayMode", "true");
    return Device(id, Target(TargetType::IPU, n, options));
  }
};

struct IPUModel {
  explicit IPUModel(const char* /*arch*/) {}
  unsigned numIPUs = 1, tilesPerIPU = 1472;
  Device createDevice() const { return Device(~0u, Target(TargetType::IPU_MODEL, numIPUs, {})); }
};

class Engine {
 public:
  void run(unsigned program) { std::cout << "run alone " << program << "\n"; }
};

}  // namespace poplar

namespace popdist {

inline bool isBackendInitialized() { return fake::has_backend(); }
inline bool& is_registered() {
  static bool is = false;
  return is;
}
inline void registerDefaultBackend() {
  if (is_registered()) throw std::runtime_error("registered twice");
  is_registered() = true;
  std::cout << "register\n";
}
inline void initializeBackend() {
  if (!is_registered() || fake::has_backend()) throw std::runtime_error("initialized twice, or not registered");
  fake::has_backend() = true;
  std::cout << "initialize\n";
}
inline void finalizeBackend() {
  if (!fake::has_backend()) throw std::runtime_error("not initialized");
  fake::has_backend() = false;
  std::cout << "finalize\n";
}
// The device of all replicas of this instance.
inline int getDeviceId(int ipus_per_replica = 0) {
  const unsigned ipus = fake::number("POPDIST_NUM_IPUS_PER_REPLICA"), own = fake::number("POPDIST_NUM_LOCAL_REPLICAS");
  if (ipus_per_replica && static_cast<unsigned>(ipus_per_replica) != ipus)
    throw std::runtime_error("PopRun has another number of IPUs a replica");
  for (auto& [id, n] : poplar::DeviceManager::all())
    if (n == own * ipus) return static_cast<int>(id);
  throw std::runtime_error("no device with this number of IPUs");
}
inline void run(poplar::Engine&, unsigned program) {
  const unsigned own = fake::number("POPDIST_NUM_LOCAL_REPLICAS"), all = fake::number("POPDIST_NUM_TOTAL_REPLICAS");
  if (own < all && !fake::has_backend()) throw std::runtime_error("several instances, but no backend");
  std::cout << "run in step " << program << "\n";
}

}  // namespace popdist
