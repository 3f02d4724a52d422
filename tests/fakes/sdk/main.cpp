// Prints the results of device.cpp for the instance that the environment describes: `main DEVICES REPLICAS FIRST OWN`.
#include <iostream>
#include <string>

#include "host/src/ipu/device.h"

int main(int n, char** arguments) {
  using namespace sparsesnn::ipu;
  if (n != 5) return 2;
  ProgramSpec spec{};
  spec.devices = static_cast<unsigned>(std::stoul(arguments[1]));
  spec.replicas = static_cast<unsigned>(std::stoul(arguments[2]));
  spec.first_replica = static_cast<unsigned>(std::stoul(arguments[3]));
  spec.own_replicas = static_cast<unsigned>(std::stoul(arguments[4]));
  try {
    const poplar::Device device = make_device(DeviceKind::ipu_of_poprun, spec);
    const poplar::Target target = graph_target(device, spec);
    std::cout << "device " << device.getTarget().getNumIPUs() << "\ngraph " << target.getNumIPUs() << "\n";
    for (auto& [key, value] : target.getTargetOptions().values) std::cout << "target " << key << "=" << value << "\n";
    for (auto& [key, value] : engine_options(spec).values) std::cout << "engine " << key << "=" << value << "\n";
    poplar::Engine engine;
    run_in_step(engine, 1);
    end_processes();
  } catch (const std::exception& error) {
    std::cout << "error " << error.what() << "\n";
    return 1;
  }
}
