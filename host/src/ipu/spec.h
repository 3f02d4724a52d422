// What the graph builder is told: a plan (sparsesnn/partition/plan.py) with every argument resolved to numbers.
//
// C++17 and no library: the Poplar SDK's host compiler reads this too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sparsesnn::ipu {

struct Shard {  // neurons first … first + n - 1 of a population
  unsigned tile, first, n;
};

struct Collector {  // samples first … first + n - 1 of a population's lists
  unsigned tile, first, n;
};

struct Reducer {  // adds shares of shards of post, for some samples
  unsigned tile, first_shard, n_shards, first_sample, n_samples;
};

// A neuron model, as codelets/neuron/models.h lists it.
struct NeuronModel {
  const char* name;
  unsigned place, n_states, n_parameters, n_constants;
  const char* const* parameter_names;
  bool fires;
  unsigned threshold;  // its place among the parameters, where it fires
};

// By name. Throws std::invalid_argument for a name that is not in the list.
const NeuronModel& find_model(const std::string& name);

struct Population {
  std::string name;
  const NeuronModel* model;  // null: an input
  unsigned n, capacity;
  std::vector<Shard> shards;
  std::vector<Collector> collectors;
  unsigned surrogate = 0;
  bool detach_reset = true, fixed = false, bias = false;
  float slope = 10;
  std::vector<float> constants;
  std::uint64_t seed = 0;           // of the choice among candidates; of passes.h, else a batch brings its own
  unsigned learns = 0, shared = 0;  // a bit for each parameter: what trains, with one value for all
  unsigned kept = 0;                // see `States` in codelets/ipu/vertex.h
  unsigned operations = 0, d_operations = 0;  // see StateShard in codelets/ipu/records.h; of a step, of its adjoint
  std::vector<float> lows, highs;             // the range that each parameter is read in
  std::vector<float> parameters;              // [rows, n]: the model's, then θ_grad where it fires

  bool is_input() const { return !model; }
  bool spikes() const { return model && model->fires; }
  bool reads_out() const { return model && !model->fires; }
  unsigned parameter_rows() const { return model->n_parameters + model->fires; }
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
  // Rounds take turns in one set of vertices: slower, but fewer vertices than a set a round.
  bool loops_rounds = false;
  // Spikes and gradients read weights rounded to halves; where they train, floats are kept beside them.
  bool half_weights = false;
  // Copies of the program, each with samples and IPUs of its own, whose gradients are added.
  unsigned replicas = 1;
  // Those that this process drives: all of them, or under PopRun those of one instance of several. The graph is one of
  // all replicas in every process.
  unsigned first_replica = 0, own_replicas = 1;
  // Potentials are kept of segments of so many steps, and of the ends of others, whose steps run again for the backward
  // pass; 0: of all steps.
  unsigned keep_every = 0;
  std::vector<Population> populations;
  std::vector<Connection> connections;
  // Bounds of activity, 0: none, and how much crossing them costs; see activity_regularizer in sparsesnn/loss.py.
  float lower = 0, upper = 0, strength_lower = 0, strength_upper = 0;

  bool regularizes() const { return lower > 0 || upper > 0; }
  // The maximum over time of a population code is that of its classes' means: no neuron can tell it by itself.
  bool maximum_of_means() const { return decoding == 0 && populations.back().n != n_classes; }
  bool is_part() const { return own_replicas < replicas; }
  bool trains() const { return optimizer != Optimizer::none; }
  // Throws std::invalid_argument where the numbers do not fit together.
  void check() const;
};

}  // namespace sparsesnn::ipu
