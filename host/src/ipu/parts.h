// What a program owns: needed by the bindings that report on the emulated machine, and by nobody else.
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
