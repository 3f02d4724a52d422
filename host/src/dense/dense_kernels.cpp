// The dense passes over a block of neurons of one sample, compiled once per instruction set.
//
// Plain loops over neurons, which the compiler vectorizes: every neuron does the same, nothing is gathered.
// Cost a neuron and step: forward about 8 flops on 2 to 4 values of memory, backward about 20 on 4 to 6.
#include <type_traits>

#include "codelets/neuron.h"
#include "codelets/surrogate.h"
#include "dense_neurons.h"

// Declares that no iteration of the loop reads another's output, which the compiler cannot know of our pointers.
#if defined(__clang__)
#define SPARSESNN_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define SPARSESNN_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace sparsesnn::SPARSESNN_ISA {
namespace {

// Neurons a block at most, so that the rows in work stay in L1.
constexpr int max_block = 1024;

template <class F>
inline std::size_t row(const DensePopulation<F>& p, int t, int sample) {
  return (static_cast<std::size_t>(t) * p.n_samples + sample) * p.n;
}

// out[k] = σ'(x[k] - θ[k]) if the neuron is listed (x > θ_grad, or it fired), else 0.
template <class F>
void listed_surrogate(const DensePopulation<F>& p, const F* x, const F* theta, const F* theta_grad, F* out, int n) {
  const F slope = p.slope;
  Surrogates::with(p.surrogate, [&](auto surrogate) {
    SPARSESNN_INDEPENDENT
    for (int k = 0; k < n; ++k) {
      const F y = surrogate.derivative(slope, x[k] - theta[k]);
      out[k] = (x[k] > theta_grad[k]) | (x[k] > theta[k]) ? y : F(0);
    }
  });
}

// The entries of the neurons from some neuron on.
template <class M, class F>
struct Entries {
  const F* of[M::n_entries];

  Entries(const F* const* entries, int first) {
    for (int q = 0; q < M::n_entries; ++q) of[q] = entries[q] + first;
  }
  void load(F* p, int k) const {
    for (int q = 0; q < M::n_entries; ++q) p[q] = of[q][k];
  }
};

// An array per state, from some neuron on.
template <class M, class T>
struct Rows {
  T* of[M::n_states];

  Rows() = default;
  Rows(T* const* arrays, std::size_t at) {
    for (int s = 0; s < M::n_states; ++s) of[s] = arrays[s] ? arrays[s] + at : nullptr;
  }
};

// Which neurons fired; none of a readout or before the first step of a sequence (`silent`).
template <class M, bool silent, class F>
inline Fired<F> fired_before(F x, const F* p) {
  if constexpr (silent || !M::may_fire)
    return {false};
  else
    return Fired<F>::of(x, p[M::threshold]);
}

template <class M, bool silent, class F>
inline void step_row(const Entries<M, F>& entries, const F* current, const Rows<M, const F>& before,
                     const Rows<M, F>& after, int n) {
  SPARSESNN_INDEPENDENT
  for (int k = 0; k < n; ++k) {
    F z[M::n_states], p[M::n_entries];
    for (int s = 0; s < M::n_states; ++s) z[s] = before.of[s][k];
    entries.load(p, k);
    M::step(z, p, fired_before<M, silent>(z[0], p), current[k]);
    for (int s = 0; s < M::n_states; ++s) after.of[s][k] = z[s];
  }
}

template <class M, class F>
void forward_block(const DensePopulation<F>& p, const DenseForward<F>& a, int sample, int n0, int n1) {
  const int n = n1 - n0;
  const Entries<M, F> entries(p.entries, n0);
  const std::size_t here = row(p, 0, sample) + n0;
  const bool keeps = a.rows[0] != nullptr;
  const auto copy = [n](const F* from, F* to) {
    for (int k = 0; k < n; ++k) to[k] = from[k];
  };
  const Rows<M, F> end(a.state, here);
  Rows<M, const F> state;
  for (int s = 0; s < M::n_states; ++s) {
    if (keeps) copy(end.of[s], a.rows[s] + here);
    state.of[s] = end.of[s];
  }
  // The state moves from row to row if rows are kept, else it is updated in place.
  for (int t = 0; t < p.n_steps; ++t) {
    const std::size_t at = row(p, t, sample) + n0;
    const Rows<M, F> next = keeps ? Rows<M, F>(a.rows, row(p, t + 1, sample) + n0) : end;
    if (!p.fires || (p.fresh && t == 0))
      step_row<M, true>(entries, a.current + at, state, next, n);
    else
      step_row<M, false>(entries, a.current + at, state, next, n);
    const F* x = next.of[0];
    if (!p.fires) {
      if (a.out) copy(x, a.out + at);
    } else if constexpr (M::may_fire) {
      const F* theta = entries.of[M::threshold];
      if (a.out) {
        F* out = a.out + at;
        SPARSESNN_INDEPENDENT
        for (int k = 0; k < n; ++k) out[k] = x[k] > theta[k] ? F(1) : F(0);
      }
      if (a.fired) {
        bool* fired = a.fired + at;
        SPARSESNN_INDEPENDENT
        for (int k = 0; k < n; ++k) fired[k] = x[k] > theta[k];
      }
    }
    for (int s = 0; s < M::n_states; ++s) state.of[s] = next.of[s];
  }
  for (int s = 0; s < M::n_states; ++s)
    if (state.of[s] != end.of[s]) copy(state.of[s], end.of[s]);
}

// ∂L/∂p of a parameter by one step, added to `sum`; by: the entries differentiated by it; by_spike: the part through
// σ'.
template <class M, bool silent, class F>
inline void add_by_parameter(const Entries<M, F>& entries, const Entries<M, F>& by, const Rows<M, F>& d,
                             const Rows<M, const F>& before, const Rows<M, const F>& after, const F* current,
                             const F* by_spike, bool fires, F* sum, int n) {
  SPARSESNN_INDEPENDENT
  for (int k = 0; k < n; ++k) {
    F z[M::n_states], now[M::n_states], p[M::n_entries], d_p[M::n_entries], d_k[M::n_states];
    for (int s = 0; s < M::n_states; ++s) z[s] = before.of[s][k], now[s] = after.of[s][k], d_k[s] = d.of[s][k];
    entries.load(p, k);
    by.load(d_p, k);
    sum[k] += M::by_parameter(d_k, z, now, p, d_p, fired_before<M, silent>(z[0], p), current[k]);
  }
  if constexpr (M::may_fire) {
    if (!fires) return;
    SPARSESNN_INDEPENDENT
    for (int k = 0; k < n; ++k) sum[k] -= by_spike[k] * by.of[M::threshold][k];
  }
}

template <class M, class F>
void backward_block(const DensePopulation<F>& p, const DenseBackward<F>& a, int sample, int n0, int n1) {
  alignas(64) F sigma[max_block], by_spike[max_block];
  const int n = n1 - n0;
  const Entries<M, F> entries(p.entries, n0);
  const std::size_t here = row(p, 0, sample) + n0;
  const Rows<M, F> d(a.d_state, here);
  const F through = p.detach_reset ? F(0) : F(1);
  F* const d_bias = a.d_bias ? a.d_bias + here : nullptr;
  for (int t = p.n_steps - 1; t >= 0; --t) {
    const std::size_t at = row(p, t, sample) + n0;
    const Rows<M, const F> before(a.rows, at);
    const F* d_out = a.d_out + at;
    F* d_current = a.d_current + at;
    const auto each = [&](auto&& adjoint) {
      SPARSESNN_INDEPENDENT
      for (int k = 0; k < n; ++k) {
        F d_k[M::n_states], p_k[M::n_entries];
        for (int s = 0; s < M::n_states; ++s) d_k[s] = d.of[s][k];
        entries.load(p_k, k);
        adjoint(k, d_k, p_k);
        for (int s = 0; s < M::n_states; ++s) d.of[s][k] = d_k[s];
        d_current[k] = M::d_current(d_k, p_k);
      }
    };
    if constexpr (M::may_read_out)
      if (!p.fires) each([&](int k, F* d_k, const F* p_k) { M::adjoint(d_k, p_k, d_out[k]); });
    if constexpr (M::may_fire)
      if (p.fires) {
        const F* theta = entries.of[M::threshold];
        const F* x = a.rows[0] + row(p, t + 1, sample) + n0;
        listed_surrogate(p, x, theta, p.grad_threshold + n0, sigma, n);
        each([&](int k, F* d_k, const F* p_k) {
          const At<F> at_k{Fired<F>::of(x[k], theta[k]), sigma[k], sigma[k] * d_out[k], x[k], through};
          by_spike[k] = M::template pull<true, true>(d_k, p_k, at_k);
        });
      }
    if (d_bias) SPARSESNN_INDEPENDENT
    for (int k = 0; k < n; ++k) d_bias[k] += d_current[k];
    const F* current = a.current ? a.current + at : nullptr;
    for (int q = 0; q < p.n_learnt; ++q) {
      const Entries<M, F> by(p.derivatives[q], n0);
      const Rows<M, const F> after(a.rows, row(p, t + 1, sample) + n0);
      F* const to = a.d_parameters[q] + here;
      if (!p.fires || (p.fresh && t == 0))
        add_by_parameter<M, true>(entries, by, d, before, after, current, by_spike, p.fires, to, n);
      else
        add_by_parameter<M, false>(entries, by, d, before, after, current, by_spike, p.fires, to, n);
    }
  }
}

template <class F>
void forward(const DensePopulation<F>& p, const DenseForward<F>& a, int sample, int n0, int n1) {
  Shapes::with(shape_index(*p.shape), [&](auto shape) { forward_block<decltype(shape)>(p, a, sample, n0, n1); });
}

template <class F>
void backward(const DensePopulation<F>& p, const DenseBackward<F>& a, int sample, int n0, int n1) {
  for (int first = n0; first < n1; first += max_block)
    Shapes::with(shape_index(*p.shape), [&](auto shape) {
      backward_block<decltype(shape)>(p, a, sample, first, first + max_block < n1 ? first + max_block : n1);
    });
}

}  // namespace

extern const DenseKernels dense_kernels;
const DenseKernels dense_kernels{{forward<float>, backward<float>}, {forward<double>, backward<double>}};

}  // namespace sparsesnn::SPARSESNN_ISA
