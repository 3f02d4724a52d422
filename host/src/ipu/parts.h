// The parts of a program: used only by the bindings that report on the emulated machine.
#pragma once

#include <poplar/Engine.hpp>
#include <poplar/Target.hpp>

#include "program.h"

namespace sparsesnn::ipu {

struct Program::Parts {
  poplar::Device device;
  poplar::Engine engine;
  std::map<std::string, Buffer> buffers;
  bool trains;
};

}  // namespace sparsesnn::ipu
