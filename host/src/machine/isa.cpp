#include "isa.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "host/src/cpu/kernels/kernels.h"

namespace sparsesnn {

#ifdef SPARSESNN_HAS_BASE
namespace base {
extern const Kernels kernels;
}
#endif
#ifdef SPARSESNN_HAS_AVX2
namespace avx2 {
extern const Kernels kernels;
}
#endif
#ifdef SPARSESNN_HAS_AVX512
namespace avx512 {
extern const Kernels kernels;
}
#endif

namespace {

struct Isa {
  const char* name;
  const Kernels* kernels;
  bool (*runs_here)();
};

// Plainest first. Each line tests the features that cmake/isa.cmake compiles for; the system must save the wide
// registers too, which __builtin_cpu_supports includes.
const Isa built[] = {
#ifdef SPARSESNN_HAS_BASE
    {"base", &base::kernels, [] { return true; }},
#endif
#ifdef SPARSESNN_HAS_AVX2
    {"avx2", &avx2::kernels,
     [] {
       return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
              __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("lzcnt");
     }},
#endif
#ifdef SPARSESNN_HAS_AVX512
    {"avx512", &avx512::kernels,
     [] {
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
              __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
              __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("lzcnt");
     }},
#endif
};

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

const Isa* best() {
  const Isa* found = nullptr;
  for (const Isa& isa : built)
    if (isa.runs_here()) found = &isa;
  if (!found)
    throw std::runtime_error("this build of sparsesnn has kernels for " + join(isas_built()) +
                             " only, which this machine cannot run; build it again on this machine, or with the "
                             "CMake option SPARSESNN_ISAS=base");
  return found;
}

std::atomic<const Isa*>& chosen() {
  static std::atomic<const Isa*> isa{best()};
  return isa;
}

// `asked_by` names the setting, such as "SPARSESNN_ISA".
void choose(std::string_view name, const char* asked_by) {
  for (const Isa& isa : built) {
    if (name != isa.name) continue;
    if (!isa.runs_here())
      throw std::invalid_argument(std::string(asked_by) + " is '" + std::string(name) +
                                  "', which this machine cannot run; allowed here: " + join(isas_supported()));
    chosen().store(&isa);
    return;
  }
  throw std::invalid_argument(std::string(asked_by) + " is '" + std::string(name) + "', which is not in this build (" +
                              join(isas_built()) + "); allowed here: " + join(isas_supported()));
}

}  // namespace

std::vector<std::string> isas_built() {
  std::vector<std::string> names;
  for (const Isa& isa : built) names.emplace_back(isa.name);
  return names;
}

std::vector<std::string> isas_supported() {
  std::vector<std::string> names;
  for (const Isa& isa : built)
    if (isa.runs_here()) names.emplace_back(isa.name);
  return names;
}

std::string isa_name() { return chosen().load()->name; }

void set_isa(std::string_view name) { choose(name, "isa"); }

void set_isa_from_environment() {
  chosen();  // throws if no copy runs here
  const char* name = std::getenv("SPARSESNN_ISA");
  if (name && *name) choose(name, "SPARSESNN_ISA");
}

const Kernels& chosen_kernels() { return *chosen().load()->kernels; }

}  // namespace sparsesnn
