#include "spec.h"

#include <algorithm>
#include <stdexcept>

#include "codelets/ipu/records.h"
#include "codelets/neuron/models.h"

namespace sparsesnn::ipu {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument("IPU program: " + what); }

template <class Range>
void check_covers(const std::vector<Range>& ranges, unsigned total, unsigned n_tiles, const std::string& what) {
  unsigned end = 0;
  for (const Range& r : ranges) {
    if (r.first != end || r.n == 0) refuse(what + " leave a gap or overlap at " + std::to_string(end));
    if (r.tile >= n_tiles) refuse(what + ": tile " + std::to_string(r.tile) + "; there are " + std::to_string(n_tiles));
    end += r.n;
  }
  if (end != total) refuse(what + " cover " + std::to_string(end) + " of " + std::to_string(total));
}

}  // namespace

const NeuronModel& find_model(const std::string& name) {
  static const std::vector<NeuronModel> models = [] {
    std::vector<NeuronModel> found;
    base::Models::each([&](int place, auto model) {
      using M = decltype(model);
      found.push_back({M::name, static_cast<unsigned>(place), M::n_states, M::n_parameters, M::n_constants,
                       M::parameter_names, M::threshold >= 0, static_cast<unsigned>(M::threshold)});
    });
    return found;
  }();
  std::string names;
  for (const NeuronModel& m : models) {
    if (name == m.name) return m;
    names += (names.empty() ? "" : ", ") + std::string(m.name);
  }
  refuse("there is no neuron model '" + name + "'; there are " + names);
}

void ProgramSpec::check() const {
  const unsigned n_tiles = devices * tiles;
  if (!n_tiles || !n_samples || !n_steps || !n_classes || !replicas)
    refuse("tiles, samples, steps, classes and replicas are at least 1");
  if (!own_replicas || replicas % own_replicas || first_replica % own_replicas || first_replica >= replicas)
    refuse("replicas " + std::to_string(first_replica) + " on, " + std::to_string(own_replicas) + " of " +
           std::to_string(replicas) + ": every process must have the same number, in order");
  if (populations.empty() || !populations[0].is_input()) refuse("the first population must be the input");
  for (const Population& p : populations) {
    if (!p.is_input()) {
      check_covers(p.shards, p.n, n_tiles, p.name + ": shards");
      const std::size_t rows = p.parameter_rows(), n_parameters = p.model->n_parameters;
      if (p.parameters.size() != rows * p.n) refuse(p.name + ": parameters must be [" + std::to_string(rows) + ", n]");
      if (p.constants.size() != p.model->n_constants || p.constants.size() > max_constants)
        refuse(p.name + ": has " + std::to_string(p.constants.size()) + " constants");
      if (p.learns && (p.lows.size() != n_parameters || p.highs.size() != n_parameters))
        refuse(p.name + ": each parameter needs a range");
    }
    if (p.reads_out() && (p.model->n_states > 1 || p.kept)) refuse(p.name + ": a readout has one state");
    check_covers(p.collectors, n_samples, n_tiles, p.name + ": collectors");
    if (p.reads_out()) continue;
    if (p.n > 65536) refuse(p.name + " has " + std::to_string(p.n) + " neurons; ids are 16 bits: at most 65536");
    const unsigned most = std::min(p.n, 65522u);  // the buckets of a list store their starts in 16 bits
    if (!p.capacity || p.capacity > most)
      refuse(p.name + ": capacity is " + std::to_string(p.capacity) + "; allowed: 1 to " + std::to_string(most));
  }
  for (const Connection& c : connections) {
    if (c.pre >= populations.size() || c.post >= populations.size() || c.pre > c.post)
      refuse("a connection joins populations that do not exist, or points backward");
    if (populations[c.pre].reads_out() || populations[c.post].is_input())
      refuse("a connection leaves a readout or enters an input");
    if (c.pre == c.post && c.delay != 1) refuse("a recurrent connection has delay 1");
    for (const Reducer& r : c.reducers)
      if (r.tile >= n_tiles || r.first_shard + r.n_shards > populations[c.post].shards.size() ||
          r.first_sample + r.n_samples > n_samples || !r.n_shards || !r.n_samples)
        refuse("a reducer of " + populations[c.pre].name + "->" + populations[c.post].name + " is out of range");
  }
  if (keep_every && (keep_every < 2 || keep_every >= n_steps || loops_rounds || !trains()))
    refuse("potentials are kept of every " + std::to_string(keep_every) + " steps; allowed: 2 to " +
           std::to_string(n_steps - 1) + ", if parameters are trained and rounds have their own vertices");
  const Population& output = populations.back();
  if (output.n % n_classes) refuse(output.name + " does not have a whole number of neurons per class");
  if ((decoding == 4) != output.spikes()) refuse("'count' decodes spikes, the others a readout");
}

}  // namespace sparsesnn::ipu
