// The input of the graph builder: a plan (sparsesnn/partition/plan.py) with every argument resolved to numbers.
//
// C++17 and no library, because the Poplar SDK's host compiler reads this too.
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

struct Reducer {  // adds the shares of some shards of post, for some samples
  unsigned tile, first_shard, n_shards, first_sample, n_samples;
};

// A neuron model, as codelets/neuron/models.h lists it.
struct NeuronModel {
  const char* name;
  unsigned place, n_states, n_parameters, n_constants;
  const char* const* parameter_names;
  bool fires;
  unsigned threshold;  // its index among the parameters, if it fires
};

// By name. Throws std::invalid_argument for an unknown name.
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
  std::uint64_t seed = 0;  // for the choice among candidates; only for passes.h, otherwise each batch sends its own
  unsigned learns = 0, shared = 0;            // a bit for each parameter: trained, trained with one value for all
  unsigned kept = 0;                          // see `States` in codelets/ipu/vertex.h
  unsigned operations = 0, d_operations = 0;  // see StateShard in codelets/ipu/records.h; of a step, of its adjoint
  std::vector<float> lows, highs;             // the range to which each parameter is clamped when read
  std::vector<float> parameters;              // [rows, n]: the model's, then θ_grad if it fires

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
