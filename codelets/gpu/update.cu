// The optimizer, on packed weights; padding is 0 and stays 0.
#include "codelets/gpu/layout.h"

namespace sparsesnn::SPARSESNN_ISA {

struct SquaresArgs {
  Global<const float> x;   // [M][tiles][16][columns]
  Global<double> squares;  // [neurons]: Σ over rows of x², ascending
  int32 n_pre, n_tiles, columns;
};

// A thread for each neuron.
KERNEL(column_squares, SquaresArgs, 64) {
  const int n = block_index() * block_size() + thread_index(), width = a.columns * n_lanes;
  if (n >= a.n_tiles * width) return;
  const int tile = n / width, k = n % width / n_lanes, lane = n % n_lanes;
  double sum = 0.0;
  for (int m = 0; m < a.n_pre; ++m) {
    const double x = a.x[((static_cast<int64>(m) * a.n_tiles + tile) * n_lanes + lane) * a.columns + k];
    sum = sum + x * x;
  }
  a.squares[n] = sum;
}

struct AdamArgs {
  Global<float> w, m, s;
  Global<const float> d, numbers;  // numbers: those of `AdamStep` of codelets/cpu/records.h, and the factor of clipping
  int32 n, decoupled, clips;
};

// The formula and its order are those of codelets/cpu/adam.h.
KERNEL(adam, AdamArgs, 256) {
  const int k = block_index() * block_size() + thread_index();
  if (k >= a.n) return;
  const float lr = a.numbers[0], one_minus_beta1 = a.numbers[1], beta2 = a.numbers[2], one_minus_beta2 = a.numbers[3];
  const float eps = a.numbers[4], weight_decay = a.numbers[5], step_size = a.numbers[6];
  float w = a.w[k], m = a.m[k], s = a.s[k], d = a.d[k];
  if (a.clips) d = d * a.numbers[7];
  if (a.decoupled)
    w = w - lr * weight_decay * w;
  else if (weight_decay != 0.0f)
    d = d + weight_decay * w;
  m = m + one_minus_beta1 * (d - m);
  s = beta2 * s + one_minus_beta2 * d * d;
  a.w[k] = w - step_size * m / (sqrt_of(s) + eps);
  a.m[k] = m;
  a.s[k] = s;
}

struct SgdArgs {
  Global<float> w, m;              // m: null without momentum
  Global<const float> d, numbers;  // numbers: learning rate, momentum, weight decay, and the factor of clipping
  int32 n, clips;
};

// The formula and its order are those of sparsesnn/engines/sgd.py.
KERNEL(sgd, SgdArgs, 256) {
  const int k = block_index() * block_size() + thread_index();
  if (k >= a.n) return;
  const float lr = a.numbers[0], momentum = a.numbers[1], weight_decay = a.numbers[2], w = a.w[k];
  float d = a.d[k];
  if (a.clips) d = d * a.numbers[3];
  if (weight_decay != 0.0f) d = d + weight_decay * w;
  if (a.m) {
    d = momentum * a.m[k] + d;
    a.m[k] = d;
  }
  a.w[k] = w - lr * d;
}

struct RoundArgs {
  Global<const float> w;
  Global<uint16> rounded;
  int32 n;
};

// Weights as bfloat16, the nearest ones, of two equally near ones the even one. NaN stays NaN.
KERNEL(round_weights, RoundArgs, 256) {
  const int k = block_index() * block_size() + thread_index();
  if (k >= a.n) return;
  const float w = a.w[k];
  const uint32 bits = bits_of(w);
  a.rounded[k] = static_cast<uint16>(w != w ? 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

struct AverageArgs {
  Global<float> average;
  Global<const float> w, numbers;  // numbers: decay, 1 - decay
  int32 n;
};

// average ← decay·average + (1 - decay)·w, each product rounded.
KERNEL(average, AverageArgs, 256) {
  const int k = block_index() * block_size() + thread_index();
  if (k >= a.n) return;
  a.average[k] = a.average[k] * a.numbers[0] + a.w[k] * a.numbers[1];
}

}  // namespace sparsesnn::SPARSESNN_ISA
