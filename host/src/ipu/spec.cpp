#include "spec.h"

#include <algorithm>
#include <stdexcept>

#include "host/src/cpu/shape_table.h"

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

const std::vector<NeuronShape>& shapes() {
  static const std::vector<NeuronShape> all = describe_shapes();
  return all;
}

void check_formula(const Formula& f, std::size_t n_inputs, std::size_t n_results, const std::string& what) {
  std::size_t n_known = f.constants.size() + n_inputs;
  bool fits = f.results.size() == n_results;
  for (const FormulaStep& step : f.steps) {
    fits = fits && step.operation <= op_divide && step.a < n_known && step.b < n_known;
    ++n_known;
  }
  for (const unsigned result : f.results) fits = fits && result < n_known;
  if (!fits) refuse(what + " reads a value that does not exist");
}

void check_neurons(const Population& p) {
  if (p.n_states() > ipu::max_states) refuse(p.name + ": has " + std::to_string(p.n_states()) + " states");
  if (p.entries.size() != std::size_t{p.entry_rows()} * p.n)
    refuse(p.name + ": entries must be [" + std::to_string(p.entry_rows()) + ", n]");
  for (const EntryTerm& term : p.terms)
    if (term.row > by_threshold || term.value >= n_values)
      refuse(p.name + ": an entry reads a value that does not exist");
  for (const std::vector<unsigned>& rows : p.given_rows)
    for (const unsigned row : rows)
      if (row >= p.n_entries()) refuse(p.name + ": an entry that is given does not exist");
  if (!p.learns()) return;
  check_formula(p.entries_of_parameters, p.parameters.size(), p.n_entries(), p.name + ": the formula of its entries");
  check_formula(p.d_parameters, p.parameters.size() + p.terms.size(), p.n_trained(),
                p.name + ": the formula of its gradients");
}

}  // namespace

const NeuronShape& shape_named(const std::string& name) {
  std::string names;
  for (const NeuronShape& shape : shapes()) {
    if (name == shape.name) return shape;
    names += (names.empty() ? "" : ", ") + std::string(shape.name);
  }
  refuse("there is no shape of neurons '" + name + "'; there are " + names);
}

const NeuronShape& shape_for(const NeuronStructure& model) {
  for (const NeuronShape& shape : shapes())
    if (covers(shape, model)) return shape;
  refuse("no shape of neurons has " + std::to_string(model.n_states) + " states and these entries");
}

unsigned index_of(const NeuronShape& shape) { return static_cast<unsigned>(&shape - shapes().data()); }

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
      check_neurons(p);
    }
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
