// The input of the graph builder: a plan (sparsesnn/partition/plan.py) with every argument resolved to numbers.
//
// C++17 and no library, because the Poplar SDK's host compiler reads this too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "codelets/ipu/records.h"
#include "host/src/cpu/shapes.h"

namespace sparsesnn::ipu {

struct Shard {  // neurons first … first + n - 1 of a population
  unsigned tile, first, n;
};

struct Collector {  // samples first … first + n - 1 of a population's lists
  unsigned tile, first, n;
};

struct Reducer {  // adds the shares of some shards of post, for some samples
  unsigned tile, first_shard, n_shards, first_sample, n_samples;
};

// A compiled shape of neurons (codelets/neuron.h), by name, or the smallest with all entries of a model. Both throw
// std::invalid_argument if there is none.
const NeuronShape& shape_named(const std::string& name);
const NeuronShape& shape_for(const NeuronStructure& model);
// Its index in the list of codelets/neuron.h.
unsigned index_of(const NeuronShape& shape);

// A list of + - × ÷ for each neuron; operands: see FormulaShard in codelets/ipu/records.h.
struct Formula {
  std::vector<float> constants;
  std::vector<FormulaStep> steps;
  std::vector<unsigned> results;
};

// A parameter of a neuron model.
struct Parameter {
  std::string name;
  bool trained, shared;  // shared: with one value for all neurons
  float low, high;       // the range to which it is clamped when read
};

struct Population {
  std::string name;
  const NeuronShape* shape;  // null: an input
  bool fires;
  unsigned n, capacity;
  std::vector<Shard> shards;
  std::vector<Collector> collectors;
  unsigned surrogate = 0;
  bool detach_reset = true, fixed = false, bias = false;
  float slope = 10;
  std::uint64_t seed = 0;  // for the choice among candidates; only for passes.h, otherwise each batch sends its own
  unsigned kept = 0;       // see `States` in codelets/ipu/vertex.h
  unsigned operations = 0, d_operations = 0;  // see StateShard in codelets/ipu/records.h; of a step, of its adjoint
  std::vector<float> entries;                 // [rows, n]: those of the shape, then θ_grad if it fires
  // The entries that depend on trained parameters. Then, in a stand-alone program: all parameters of the model, the
  // entries computed from them, and the gradients of the trained ones from those of the entries.
  std::vector<EntryTerm> terms;
  std::vector<Parameter> parameters;
  Formula entries_of_parameters, d_parameters;
  // In a pass inside another program's graph (passes.h): the rows of each of these entries, which its owner gives.
  std::vector<std::vector<unsigned>> given_rows;

  bool is_input() const { return !shape; }
  bool spikes() const { return shape && fires; }
  bool reads_out() const { return shape && !fires; }
  unsigned n_states() const { return static_cast<unsigned>(shape->n_states); }
  unsigned n_entries() const { return static_cast<unsigned>(shape->entries.size()); }
  unsigned entry_rows() const { return n_entries() + fires; }
  bool learns() const { return !parameters.empty(); }
  unsigned n_trained() const {
    unsigned n = 0;
    for (const Parameter& p : parameters) n += p.trained;
    return n;
  }
};

struct Connection {
  unsigned pre, post, delay;
  std::vector<Reducer> reducers;
};

enum class Optimizer { none, sgd, adam, adamw };

struct ProgramSpec {
  unsigned devices, tiles;  // tiles that a device has: device d owns tiles [d·tiles, (d+1)·tiles)
  unsigned n_samples, n_steps;
  Optimizer optimizer;
  bool momentum;      // the optimizer keeps a first moment
  unsigned decoding;  // 0 max, 1 mean, 2 sum, 3 last, 4 count
  unsigned n_classes;
  // Rounds take turns in one set of vertices: slower, but fewer vertices than with a set per round.
  bool loops_rounds = false;
  // Spikes and gradients read weights rounded to halves; if they are trained, floats are kept in addition.
  bool half_weights = false;
  // Copies of the program, each with its own samples and IPUs, whose gradients are added.
  unsigned replicas = 1;
  // The replicas of this process: all of them, or under PopRun those of one instance of several. The graph is that of
  // all replicas in every process.
  unsigned first_replica = 0, own_replicas = 1;
  // Potentials are kept for the last segment of this many steps, and for the ends of the others, whose steps run again
  // for the backward pass; 0: for all steps.
  unsigned keep_every = 0;
  std::vector<Population> populations;
  std::vector<Connection> connections;
  // Bounds of activity, 0: none, and the cost of crossing them; see activity_regularizer in sparsesnn/loss.py.
  float lower = 0, upper = 0, strength_lower = 0, strength_upper = 0;

  bool regularizes() const { return lower > 0 || upper > 0; }
  // The maximum over time of a population code is that of its classes' means, which no neuron knows alone.
  bool maximum_of_means() const { return decoding == 0 && populations.back().n != n_classes; }
  bool is_part() const { return own_replicas < replicas; }
  bool trains() const { return optimizer != Optimizer::none; }
  // Throws std::invalid_argument if the numbers do not match.
  void check() const;
};

}  // namespace sparsesnn::ipu
