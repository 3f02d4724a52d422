#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "check.h"
#include "host/src/cpu/kernels/kernels.h"
#include "host/src/machine/isa.h"

int main() {
  const std::vector<std::string> built = sparsesnn::isas_built(), supported = sparsesnn::isas_supported();
  CHECK(!supported.empty() && built.front() == "base" && supported.front() == "base");
  CHECK(sparsesnn::isa_name() == supported.back());
  for (const std::string& name : supported) {
    CHECK(std::find(built.begin(), built.end(), name) != built.end());
    sparsesnn::set_isa(name);
    CHECK(sparsesnn::isa_name() == name);
    CHECK(sparsesnn::chosen_kernels().name == name);
  }
  CHECK_THROWS(sparsesnn::set_isa("mmx"), "isa is 'mmx', which is not in this build (base");
  CHECK(sparsesnn::isa_name() == supported.back());

  setenv("SPARSESNN_ISA", "base", 1);
  sparsesnn::set_isa_from_environment();
  CHECK(sparsesnn::isa_name() == "base");
  setenv("SPARSESNN_ISA", "sse9", 1);
  CHECK_THROWS(sparsesnn::set_isa_from_environment(), "SPARSESNN_ISA is 'sse9'");
  setenv("SPARSESNN_ISA", "", 1);
  sparsesnn::set_isa_from_environment();
  CHECK(sparsesnn::isa_name() == "base");
  return check::report("isa");
}
