// The shapes of neurons, in double precision: derivatives of a step against differences, and the adjoint of a sequence
// against its traces (backward against forward differentiation), for every shape and every entry.
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "codelets/neuron.h"
#include "host/src/cpu/shape_table.h"
#include "host/src/cpu/shapes.h"

using namespace sparsesnn::base;

namespace {

bool near(double a, double b, double by = 1e-12) { return std::fabs(a - b) <= by * (1 + std::fabs(a) + std::fabs(b)); }

const std::vector<std::string>& names_of(int shape) { return sparsesnn::neuron_shapes()[shape].entries; }

int place(const std::vector<std::string>& names, const std::string& name) {
  for (std::size_t k = 0; k < names.size(); ++k)
    if (names[k] == name) return static_cast<int>(k);
  return -1;
}

// The entries differentiated by one of them. r and f also change u = r + f; u itself changes r.
std::vector<double> direction(const std::vector<std::string>& names, int k) {
  std::vector<double> by(names.size());
  by[k] = 1;
  const std::string row = names[k].substr(1);
  const int r = place(names, "r" + row), u = place(names, "u" + row);
  if (names[k][0] == 'u' && r >= 0) by[r] = 1;
  if ((names[k][0] == 'r' || names[k][0] == 'f') && u >= 0) by[u] = 1;
  return by;
}

// A sequence of steps: states before each, and the gradients from the reader of the spikes.
template <class M>
struct Sequence {
  static constexpr int n_steps = 6;
  std::vector<double> p;
  double i[n_steps], e[n_steps], sigma[n_steps];
  bool fires, listed[n_steps];
  double z[n_steps + 1][M::n_states] = {};

  Fired<double> fired(int t) const {
    if constexpr (M::may_fire)
      if (fires) return Fired<double>::of(z[t][0], p[M::threshold]);
    return {false};
  }

  Sequence(int shape, bool neurons_fire, bool in_order, bool other_states_reset, unsigned seed) : fires(neurons_fire) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> uniform(0.1, 0.9);
    const std::vector<std::string>& names = names_of(shape);
    for (const std::string& name : names)
      p.push_back(name == "order"                                           ? in_order
                  : name[0] == 'R' && name[2] != '0' && !other_states_reset ? 0
                  : name[0] == 'A' && name[1] == name[2]                    ? uniform(random)
                  : name == "threshold"                                     ? 0.5 * uniform(random)
                                                                            : 0.6 * uniform(random) - 0.2);
    for (std::size_t k = 0; k < names.size(); ++k)
      if (names[k][0] == 'f')
        p[place(names, "u" + names[k].substr(1))] = p[place(names, "r" + names[k].substr(1))] + p[k];
    for (int t = 0; t < n_steps; ++t) {
      i[t] = 4 * uniform(random) - 1;
      e[t] = uniform(random) - 0.5;
      sigma[t] = uniform(random);
      listed[t] = random() % 4 != 0;
    }
    for (int s = 0; s < M::n_states; ++s) z[0][s] = uniform(random);
    for (int t = 0; t < n_steps; ++t) {
      for (int s = 0; s < M::n_states; ++s) z[t + 1][s] = z[t][s];
      M::step(z[t + 1], p.data(), fired(t), i[t]);
    }
  }
};

// A step is linear in each entry, so that differences have no error but rounding.
template <class M>
void step_by_differences(const Sequence<M>& q, const std::vector<double>& by) {
  for (int t = 0; t < q.n_steps; ++t) {
    double trace[M::n_states] = {};
    M::template step_trace<false>(trace, q.z[t], q.z[t + 1], q.p.data(), by.data(), q.fired(t), 0.0, false, q.i[t]);
    double ends[2][M::n_states];
    for (const int side : {0, 1}) {
      std::vector<double> p = q.p;
      for (std::size_t k = 0; k < p.size(); ++k) p[k] += (side ? 1e-4 : -1e-4) * by[k];
      for (int s = 0; s < M::n_states; ++s) ends[side][s] = q.z[t][s];
      M::step(ends[side], p.data(), q.fired(t), q.i[t]);
    }
    for (int s = 0; s < M::n_states; ++s) CHECK(near(trace[s], (ends[1][s] - ends[0][s]) / 2e-4, 1e-7));
  }
}

// ∂L/∂p of L = Σ_t e[t]·s[t] (for a readout, of z[t][0]): a spike's derivative is σ'·∂(x - θ) where it is listed.
template <class M>
double forwards(const Sequence<M>& q, const std::vector<double>& by, bool attached) {
  double trace[M::n_states] = {}, total = 0, d_spike = 0;  // before the first step: a state is given, not derived
  for (int t = 0; t < q.n_steps; ++t) {
    M::template step_trace<true>(trace, q.z[t], q.z[t + 1], q.p.data(), by.data(), q.fired(t), d_spike, attached,
                                 q.i[t]);
    if (q.fires) d_spike = q.listed[t] ? q.sigma[t] * (trace[0] - by[M::threshold]) : 0.0;
    total += q.e[t] * (q.fires ? d_spike : trace[0]);
  }
  return total;
}

// The same, backward, as in the engines.
template <class M>
double backwards(const Sequence<M>& q, const std::vector<double>& by, bool attached) {
  double d[M::n_states] = {}, total = 0;
  for (int t = q.n_steps - 1; t >= 0; --t) {
    if (!q.fires) {
      M::adjoint(d, q.p.data(), q.e[t]);
    } else {
      At<double> at{q.fired(t + 1), 0, 0, M::reads_spikes ? q.z[t + 1][0] : NAN, 1.0};
      if (q.listed[t]) at.sigma = q.sigma[t], at.q = q.sigma[t] * q.e[t];
      double unlisted[M::n_states], added[M::n_states];
      for (int s = 0; s < M::n_states; ++s) unlisted[s] = added[s] = d[s];
      M::adjoint(unlisted, q.p.data());
      if constexpr (M::adds_q) M::adjoint(added, q.p.data(), at.q);
      const double by_spike =
          attached ? M::template pull<true, true>(d, q.p.data(), at) : M::template pull<true, false>(d, q.p.data(), at);
      for (int s = 0; s < M::n_states; ++s) {
        if (M::adds_q && !attached) CHECK(near(added[s], d[s]));
        if (!q.listed[t] && !(M::reads_spikes && at.s.is)) CHECK(near(unlisted[s], d[s]));
      }
      if constexpr (M::may_fire) total -= by_spike * by[M::threshold];
    }
    total += M::by_parameter(d, q.z[t], q.z[t + 1], q.p.data(), by.data(), q.fired(t), q.i[t]);
  }
  return total;
}

template <class M>
void derivatives_of(int shape) {
  const std::vector<std::string>& names = names_of(shape);
  int n_fired = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const bool fires = M::may_fire && (!M::may_read_out || seed % 4), attached = seed % 2;
    const Sequence<M> q(shape, fires, seed % 3, !attached, seed);
    for (int t = 1; t <= q.n_steps; ++t) n_fired += q.fired(t).is;
    for (std::size_t k = 0; k < names.size(); ++k) {
      if (names[k] == "order" || (names[k] == "threshold" && !fires)) continue;
      const std::vector<double> by = direction(names, static_cast<int>(k));
      step_by_differences(q, by);
      CHECK(near(forwards(q, by, attached), backwards(q, by, attached)));
    }
  }
  CHECK(n_fired > 20 || !M::may_fire);
}

void derivatives() {
  Shapes::each([](int k, auto shape) { derivatives_of<decltype(shape)>(k); });
}

// ∂L/∂i of a step is the gradient of its states through B.
void currents() {
  Shapes::each([](int k, auto shape) {
    using M = decltype(shape);
    const sparsesnn::NeuronShape& described = sparsesnn::neuron_shapes()[k];
    double d[M::n_states], p[M::n_entries], want = 0;
    for (int s = 0; s < M::n_states; ++s) d[s] = 0.3 + s;
    for (int q = 0; q < M::n_entries; ++q) p[q] = 0.7 - 0.1 * q;
    for (int r = 0; r < M::n_states; ++r) {
      const int at = place(described.entries, "B" + std::to_string(r));
      if (at >= 0) want += p[at] * d[r];
      if (place(described.ones, "B" + std::to_string(r)) >= 0) want += d[r];
    }
    CHECK(near(M::d_current(d, p), want));
  });
}

void lookup() {
  CHECK(find<Shapes>("nothing") == -1);
  CHECK(find<Shapes>("") == -1);
  Shapes::each([](int k, auto shape) {
    CHECK(find<Shapes>(shape.name) == k);
    CHECK(static_cast<int>(names_of(k).size()) == shape.n_entries);
    CHECK(!shape.may_fire || names_of(k)[shape.threshold] == "threshold");
  });
  const auto found = [](int n, bool fires, bool in_order, std::vector<std::string> entries,
                        std::vector<std::string> ones) {
    for (const sparsesnn::NeuronShape& shape : sparsesnn::neuron_shapes())
      if (sparsesnn::covers(shape, {n, fires, in_order, entries, ones})) return std::string(shape.name);
    return std::string();
  };
  CHECK(found(1, true, false, {"A00", "u0", "B0"}, {}) == "subtract");
  CHECK(found(1, true, false, {"A00", "R00", "B0"}, {"B0"}) == "zero");
  CHECK(found(1, true, false, {"A00", "R00", "B0", "c0"}, {}) == "any 1");
  CHECK(found(1, false, false, {"A00", "B0"}, {}) == "readout");
  CHECK(found(1, false, false, {"A00", "B0", "c0"}, {}) == "any 1");
  CHECK(found(2, true, true, {"A00", "A01", "A11", "u0", "B1"}, {"B1"}) == "current.subtract");
  CHECK(found(2, true, true, {"A00", "A01", "A11", "u0", "B1"}, {}) == "any 2");
  CHECK(found(2, true, false, {"A00", "A01", "A11", "u0", "B1"}, {"B1"}) == "any 2");
  CHECK(found(3, false, true, {"A00", "B2"}, {}) == "any 3");
  CHECK(found(5, true, false, {"A00"}, {}).empty());
}

}  // namespace

int main() {
  derivatives();
  currents();
  lookup();
  return check::report("neuron");
}
