// exp_of of codelets/number.h against the exponential function in double precision. `test_number 1` takes all floats,
// in two minutes; without an argument it is one in 1009.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "codelets/number.h"
#include "codelets/surrogate.h"
#include "host/src/cpu/kernels/kernels.h"
#include "host/src/cpu/layer.h"
#include "host/src/machine/isa.h"

using namespace sparsesnn::base;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
// The largest x whose result is 0.
const double last_zero = -125.5 * std::log(2.0);

// The error of y = exp_of(x) in units of the last place of a float near e^x; `y` is neither 0 nor infinite.
double error_of(float x, float y) {
  const double wanted = std::exp(static_cast<double>(x));
  int exponent;
  std::frexp(wanted, &exponent);
  return std::fabs(y - wanted) / std::ldexp(1.0, exponent - 24);
}

void errors(std::uint64_t stride) {
  double worst = 0.0;
  float worst_at = 0.0f;
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += stride) {
    const float x = number_of(static_cast<unsigned>(bits)), y = exp_of(x);
    if (x != x) {
      CHECK(y != y);
    } else if (x < last_zero - 1e-5) {
      CHECK_EQUAL(bits_of(y), 0u);  // no -0
    } else if (std::exp(static_cast<double>(x)) >= 0x1.ffffffp127) {
      CHECK_EQUAL(y, infinity);
    } else if (x < last_zero + 1e-5 && y == 0.0f) {
      continue;  // the product with 1 / ln 2 is rounded
    } else if (const double error = error_of(x, y); !(error <= worst)) {
      worst = error;
      worst_at = x;
    }
  }
  std::printf("exp_of: error at most %.4f of the last place, at %a\n", worst, worst_at);
  CHECK(worst < 0.983);
}

// The same bits on every machine and by every compiler.
void same_bits_everywhere() {
  std::uint64_t hash = 0;
  for (int k = 0; k <= 180'000; ++k) {
    const float x = static_cast<float>(k - 90'000) / 1024.0f;
    hash = (hash ^ bits_of(exp_of(x))) * 0x9e3779b97f4a7c15;
  }
  CHECK_EQUAL(hash, 0x4a729952fa9f547full);
}

// The loops of all instruction sets that run here, against one number at a time.
void same_bits_in_loops() {
  std::vector<float> xs{0.0f, -0.0f, 1e-40f, infinity, -infinity, 3e38f, -3e38f};
  for (int k = 0; k < 4096; ++k) xs.push_back(static_cast<float>(k - 2000) / 512.0f);
  sparsesnn::LayerSpec spec;
  spec.slope = 25.0f;
  for (const std::string& isa : sparsesnn::isas_supported()) {
    sparsesnn::set_isa(isa);
    for (spec.surrogate = 0; spec.surrogate < Surrogates::size; ++spec.surrogate) {
      std::vector<float> slopes = xs;
      sparsesnn::chosen_kernels().slopes(spec, slopes.data(), 0, static_cast<std::int64_t>(slopes.size()));
      for (std::size_t k = 0; k < xs.size(); ++k)
        CHECK_EQUAL(bits_of(slopes[k]), bits_of(surrogate(spec.surrogate, spec.slope, xs[k])));
    }
  }
}

}  // namespace

int main(int n_arguments, char** arguments) {
  CHECK_EQUAL(exp_of(0.0f), 1.0f);
  CHECK_EQUAL(exp_of(-0.0f), 1.0f);
  CHECK_EQUAL(exp_of(infinity), infinity);
  CHECK_EQUAL(exp_of(-infinity), 0.0f);
  errors(n_arguments > 1 ? std::strtoull(arguments[1], nullptr, 10) : 1009);
  same_bits_everywhere();
  same_bits_in_loops();
  return check::report("test_number");
}
