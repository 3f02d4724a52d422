// Part of the emulated machine: runs programs.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "Program.hpp"
#include "Target.hpp"

namespace sparsesnn::emulator {
class Machine;
}

namespace poplar {

class Engine {
 public:
  // Throws poplar_error if the graph breaks a rule of the machine.
  Engine(const Graph& graph, ArrayRef<program::Program> programs, const OptionFlags& options = {});
  Engine(Engine&&) noexcept;
  ~Engine();

  void load(const Device& device);
  void connectStream(StringRef handle, void* begin, void* end);
  // `f` receives the memory that one transfer of one replica reads or fills.
  void connectStreamToCallback(StringRef handle, unsigned replica, std::function<void(void*)> f);
  void run(unsigned program);

  sparsesnn::emulator::Machine& machine() { return *machine_; }

 private:
  std::unique_ptr<sparsesnn::emulator::Machine> machine_;
  unsigned ipus_per_replica_;
};

}  // namespace poplar
