// A build without the plain kernels, as ./dev demo makes, on a machine that runs none of its copies.
#include <cstdlib>

#include "check.h"
#include "host/src/cpu/kernels/kernels.h"
#include "host/src/machine/isa.h"

#undef SPARSESNN_HAS_BASE
#undef SPARSESNN_HAS_AVX2
#undef SPARSESNN_HAS_AVX512
#define SPARSESNN_HAS_AVX512
#define __builtin_cpu_supports(feature) false
#include "host/src/machine/isa.cpp"

namespace sparsesnn::avx512 {
const Kernels kernels{};
}

int main() {
  CHECK(sparsesnn::isas_supported().empty());
  CHECK_THROWS(sparsesnn::set_isa_from_environment(), "kernels for avx512 only, which this machine cannot run");
  CHECK_THROWS(sparsesnn::isa_name(), "build it again on this machine");
  setenv("SPARSESNN_ISA", "avx512", 1);
  CHECK_THROWS(sparsesnn::set_isa_from_environment(), "which this machine cannot run");
  return check::report("isa absent");
}
