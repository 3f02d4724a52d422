#include "dense_neurons.h"

#include "host/src/cpu/kernels/kernels.h"
#include "host/src/machine/thread_pool.h"

namespace sparsesnn {

namespace {

const DensePasses<float>& passes(const DenseKernels& k, float) { return k.f32; }
const DensePasses<double>& passes(const DenseKernels& k, double) { return k.f64; }

// Calls body(sample, n0, n1) for blocks that cover all neurons of all samples.
template <class F, class Body>
void for_blocks(const DensePopulation<F>& p, Body&& body) {
  constexpr int block = 512;
  // Below this many updates, waking a thread costs more than it saves: a step of a recurrent layer.
  constexpr double worth_sharing = 131072;
  const double n_updates = static_cast<double>(p.n_steps) * p.n_samples * p.n;
  if (n_updates < worth_sharing) {
    for (int sample = 0; sample < p.n_samples; ++sample) body(sample, 0, p.n);
    return;
  }
  const int n_blocks = (p.n - 1) / block + 1;
  parallel_for(p.n_samples, [&](int sample, int) {
    for (int k = 0; k < n_blocks; ++k) body(sample, k * block, k + 1 < n_blocks ? (k + 1) * block : p.n);
  });
}

}  // namespace

template <class F>
void dense_forward(const DensePopulation<F>& p, const DenseForward<F>& a) {
  const DensePasses<F>& pass = passes(*chosen_kernels().dense, F{});
  for_blocks(p, [&](int sample, int n0, int n1) { pass.forward(p, a, sample, n0, n1); });
}

template <class F>
void dense_backward(const DensePopulation<F>& p, const DenseBackward<F>& a) {
  const DensePasses<F>& pass = passes(*chosen_kernels().dense, F{});
  for_blocks(p, [&](int sample, int n0, int n1) { pass.backward(p, a, sample, n0, n1); });
}

template void dense_forward(const DensePopulation<float>&, const DenseForward<float>&);
template void dense_forward(const DensePopulation<double>&, const DenseForward<double>&);
template void dense_backward(const DensePopulation<float>&, const DenseBackward<float>&);
template void dense_backward(const DensePopulation<double>&, const DenseBackward<double>&);

}  // namespace sparsesnn
