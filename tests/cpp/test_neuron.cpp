// The neuron models: the adjoint of a step and its gradients by parameters against dual numbers, in double precision,
// for every model in the list, and for one whose step is not linear.
#include <cmath>
#include <random>

#include "check.h"
#include "codelets/dual.h"
#include "codelets/neuron/models.h"

using namespace sparsesnn::base;

namespace {

using D = Dual<double>;

bool near(double a, double b) { return std::fabs(a - b) <= 1e-12 * (1 + std::fabs(a) + std::fabs(b)); }

// Not linear: v ← r + k·r² + i with r = v·(1 - s). Its adjoint is right if all neurons are listed, with their x.
struct Bent {
  static constexpr int n_states = 1, n_parameters = 2, n_constants = 1;
  static constexpr Index<0> v{}, bend{};
  static constexpr Index<1> threshold{};
  static constexpr bool adds_q = false, reads_x = true, lists_all = true;

  template <class Z, class P, class C, class R, class S, class I>
  static void step(Z* z, const P& p, const C*, R reset_by, S, const I& i) {
    const Z r = z[v] - where(reset_by, z[v]);
    z[v] = r + p[bend] * (r * r) + i;
  }

  template <class F>
  static void adjoint(F*, const F*, const F*) {}

  template <class F>
  static F adjoint(F* d, const F* p, const F*, const At<F>& at) {
    const F r = at.x - where(at.s, at.x), by_r = d[v] + d[v] * (p[bend] * (r + r));
    const F by_spike = at.q - at.sigma * (at.through * (at.x * by_r));
    d[v] = by_r - where(at.s, by_r) + by_spike;
    return by_spike;
  }

  template <class F>
  static F d_current(const F* d, const F*, const F*) {
    return d[v];
  }

  template <class F>
  static F by_parameter(int k, const F* d, const F* z, const F*, const F*, Fired<F> s, F) {
    const F r = z[v] - where(s, z[v]);
    return k == bend ? d[v] * (r * r) : F(0);
  }
};

template <class M>
constexpr bool lists_all = requires { M::lists_all; };

// A sequence of steps: states before each, and the gradients from the reader of the spikes.
template <class M>
struct Sequence {
  static constexpr int n_steps = 6;
  double p[M::n_parameters], c[M::n_constants], i[n_steps], e[n_steps], sigma[n_steps];
  bool listed[n_steps];
  double z[n_steps + 1][M::n_states] = {};

  Fired<double> fired(int t) const {
    if constexpr (M::threshold < 0)
      return {false};
    else
      return Fired<double>::of(z[t][0], p[M::threshold]);
  }

  explicit Sequence(unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> uniform(0.1, 0.9);
    for (double& x : p) x = uniform(random);
    for (double& x : c) x = uniform(random);
    for (int t = 0; t < n_steps; ++t) {
      i[t] = 4 * uniform(random) - 1;
      e[t] = uniform(random) - 0.5;
      sigma[t] = uniform(random);
      listed[t] = random() % 4 != 0;
    }
    for (int s = 0; s < M::n_states; ++s) z[0][s] = uniform(random) + 0.2;
    for (int t = 0; t < n_steps; ++t) {
      for (int s = 0; s < M::n_states; ++s) z[t + 1][s] = z[t][s];
      M::step(z[t + 1], p, c, fired(t), fired(t), i[t]);
    }
  }
};

// ∂L/∂p of L = Σ_t e[t]·s[t] (for a readout, of z[t][0]) by dual numbers: a spike's derivative is σ'·∂(x - θ) where it
// is listed. `by`: a parameter, or n_parameters + t: the current of step t.
template <class M, int by>
double derivative(const Sequence<M>& q, bool detached) {
  D z[M::n_states];
  for (int s = 0; s < M::n_states; ++s) z[s] = {q.z[0][s], 0};
  double total = 0, d_spike = 0;  // before the first step: a state is given, not derived
  const Learnt<double, by> p{q.p};
  for (int t = 0; t < q.n_steps; ++t) {
    const Fired<double> fired = q.fired(t);
    const Fired<D> spike{fired, d_spike};
    const D i{q.i[t], by == M::n_parameters + t ? 1.0 : 0.0};
    if (detached)
      M::step(z, p, q.c, fired, spike, i);
    else
      M::step(z, p, q.c, spike, spike, i);
    if (M::threshold < 0) {
      total += q.e[t] * z[0].dx;
      continue;
    }
    d_spike = q.listed[t] ? q.sigma[t] * (z[0].dx - (by == M::threshold ? 1.0 : 0.0)) : 0.0;
    total += q.e[t] * d_spike;
  }
  return total;
}

template <class M>
struct Found {
  double parameters[M::n_parameters] = {}, currents[Sequence<M>::n_steps] = {};
};

// The same, backward, as in the engines.
template <class M>
Found<M> backwards(const Sequence<M>& q, bool detached) {
  Found<M> found;
  double d[M::n_states] = {};
  for (int t = q.n_steps - 1; t >= 0; --t) {
    double by_spike = 0;
    if constexpr (M::threshold < 0) {
      M::adjoint(d, q.p, q.c, q.e[t]);
    } else {
      At<double> at{q.fired(t + 1), 0, 0, M::reads_x ? q.z[t + 1][0] : NAN, detached ? 0.0 : 1.0};
      if (q.listed[t]) at.sigma = q.sigma[t], at.q = q.sigma[t] * q.e[t];
      double unlisted[M::n_states], added[M::n_states];
      for (int s = 0; s < M::n_states; ++s) unlisted[s] = added[s] = d[s];
      M::adjoint(unlisted, q.p, q.c);
      if constexpr (M::adds_q) M::adjoint(added, q.p, q.c, at.q);
      by_spike = M::adjoint(d, q.p, q.c, at);
      for (int s = 0; s < M::n_states; ++s) {
        if (M::adds_q && detached) CHECK(near(added[s], d[s]));
        if (!lists_all<M> && !q.listed[t] && !(M::reads_x && at.s.is)) CHECK(near(unlisted[s], d[s]));
      }
      found.parameters[M::threshold] -= by_spike;
    }
    found.currents[t] = M::d_current(d, q.p, q.c);
    for (int k = 0; k < M::n_parameters; ++k)
      found.parameters[k] += M::by_parameter(k, d, q.z[t], q.p, q.c, q.fired(t), q.i[t]);
  }
  return found;
}

template <class M, int... k>
void compare(const Sequence<M>& q, bool detached, std::integer_sequence<int, k...>) {
  const Found<M> found = backwards(q, detached);
  const double want[] = {derivative<M, k>(q, detached)...};
  for (int j = 0; j < M::n_parameters; ++j) CHECK(near(found.parameters[j], want[j]));
  for (int t = 0; t < q.n_steps; ++t) CHECK(near(found.currents[t], want[M::n_parameters + t]));
}

template <class M>
void adjoints_of() {
  int n_fired = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const Sequence<M> q(seed);
    for (int t = 1; t <= q.n_steps; ++t) n_fired += q.fired(t).is;
    for (const bool detached : {true, false})
      compare(q, detached, std::make_integer_sequence<int, M::n_parameters + Sequence<M>::n_steps>());
  }
  CHECK(n_fired > 20 || M::threshold < 0);
}

void adjoints() {
  Models::each([](int, auto model) { adjoints_of<decltype(model)>(); });
  adjoints_of<Bent>();
}

void lookup() {
  CHECK(find<Models>("nothing") == -1);
  CHECK(find<Models>("") == -1);
  Models::each([](int k, auto model) { CHECK(find<Models>(model.name) == k); });
}

}  // namespace

int main() {
  adjoints();
  lookup();
  return check::report("neuron");
}
