#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "build_config.h"
#include "host/src/machine/choices.h"
#include "host/src/machine/isa.h"
#include "host/src/machine/thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {
namespace {

nb::dict build_info() {
  nb::dict info;
  info["version"] = SPARSESNN_VERSION;
  info["compiler"] = SPARSESNN_COMPILER;
  info["flags"] = SPARSESNN_FLAGS;
  info["isa_built"] = isas_built();
  info["isa_supported"] = isas_supported();
  info["isa"] = isa_name();
  info["threads"] = num_threads();
  return info;
}

}  // namespace

void register_build(nb::module_& m) {
  // An exception here becomes the ImportError of the module.
  set_isa_from_environment();
  set_num_threads_from_environment();

  m.attr("version") = SPARSESNN_VERSION;
  m.def("build_info", &build_info, "The build and the choices in use; see sparsesnn.build_info.");
  m.def("set_isa", &set_isa, "name"_a, "Chooses the instruction set; ValueError if this machine cannot run it.");
  m.def("num_threads", &num_threads, "Number of threads that share the engine's work.");
  // Waits for passes that run in other threads, which need the GIL to continue.
  m.def("set_num_threads", &set_num_threads, "n"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Sets the number of threads, 1 to 1024; ValueError otherwise.");
  m.def("set_choice", &set_choice, "name"_a, "value"_a,
        "For tests: sets a limit of choices.h, between passes, and returns its old value; ValueError if it is\n"
        "unknown or out of range.");
}

}  // namespace sparsesnn
