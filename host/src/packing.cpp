#include "packing.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "phases.h"
#include "thread_pool.h"

namespace sparsesnn {

namespace {

std::uint16_t to_bf16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

[[noreturn]] void refuse_weight(const float* weight, int n_pre, int n, const char* name) {
  for (std::size_t k = 0; k < static_cast<std::size_t>(n_pre) * n; ++k)
    if (!std::isfinite(weight[k]))
      throw InputError("NumericError", std::string(name) + " holds " + (std::isnan(weight[k]) ? "NaN" : "infinity") +
                                           " at [" + std::to_string(k / n) + ", " + std::to_string(k % n) +
                                           "]; weights must be finite: lower the learning rate or clip gradients");
  throw InputError("NumericError",
                   std::string(name) + " changed while it was read; do not write weights during a call");
}

}  // namespace

Packed pack(const float* weight, int n_pre, const LayerSpec& spec, int width, const char* name) {
  const PhaseTimer timer(Phase::pack);
  const int n = spec.n, n_slabs = (n + width - 1) / width;
  const bool copy = spec.bf16 || width != n;
  Packed packed{weight, {}};
  if (copy) {
    packed.own = Array<unsigned char>(static_cast<std::size_t>(n_slabs) * n_pre * width * (spec.bf16 ? 2 : 4));
    packed.data = packed.own.data();
  }
  constexpr int piece = 256;  // rows
  const int n_pieces = (n_pre + piece - 1) / piece;
  std::vector<char> finite(static_cast<std::size_t>(n_slabs) * n_pieces);
  parallel_for(static_cast<int>(finite.size()), [&](int item, int) {
    const int first = item / n_pieces * width, n_columns = std::min(width, n - first);
    float zero[16] = {};  // stay 0 unless an entry is NaN or infinite
    for (int m = item % n_pieces * piece; m < std::min(n_pre, (item % n_pieces + 1) * piece); ++m) {
      const float* row = weight + static_cast<std::size_t>(m) * n + first;
      for (int k = 0; k + 16 <= n_columns; k += 16)
        for (int l = 0; l < 16; ++l) zero[l] += row[k + l] * 0.0f;
      for (int k = n_columns / 16 * 16; k < n_columns; ++k) zero[0] += row[k] * 0.0f;
      const std::size_t to = (static_cast<std::size_t>(first) * n_pre) + static_cast<std::size_t>(m) * width;
      if (spec.bf16) {
        std::uint16_t* out = reinterpret_cast<std::uint16_t*>(packed.own.data()) + to;
        for (int k = 0; k < n_columns; ++k) out[k] = to_bf16(row[k]);
        std::memset(out + n_columns, 0, sizeof(std::uint16_t) * (width - n_columns));
      } else if (copy) {
        float* out = reinterpret_cast<float*>(packed.own.data()) + to;
        std::memcpy(out, row, sizeof(float) * n_columns);
        std::memset(out + n_columns, 0, sizeof(float) * (width - n_columns));
      }
    }
    float sum = 0.0f;
    for (float x : zero) sum += x;
    finite[item] = sum == 0.0f;
  });
  if (std::find(finite.begin(), finite.end(), 0) != finite.end()) refuse_weight(weight, n_pre, n, name);
  return packed;
}

Padded::Padded(const LayerSpec& spec, const LayerInput& input) {
  const auto copy = [&](PerNeuron from, float fill, const char* name, bool finite) {
    if (!from) return Array<float>();
    Array<float> to = Array<float>::filled(spec.n_padded(), fill);
    for (int k = 0; k < spec.n; ++k) {
      if (std::isnan(from[k]) || (finite && std::isinf(from[k])))
        throw InputError("NumericError", std::string(name) + " of neuron " + std::to_string(k) + " is " +
                                             std::to_string(from[k]) + "; it must be finite");
      to[k] = from[k];
    }
    return to;
  };
  constexpr float never = std::numeric_limits<float>::infinity();
  const auto copy_decay = [&](PerNeuron from, const char* name) {
    Array<float> to = copy(from, 0.0f, name, true);
    for (std::size_t k = 0; k < to.size(); ++k) to[k] = std::clamp(to[k], 0.0f, 1.0f);
    return to;
  };
  alpha = copy_decay(input.alpha, "alpha");
  beta = copy_decay(input.beta, "beta");
  threshold = copy(input.threshold, never, "threshold", true);
  grad_threshold = copy(input.grad_threshold, never, "grad_threshold", false);
  bias = copy(input.bias, 0.0f, "bias", true);
}

}  // namespace sparsesnn
