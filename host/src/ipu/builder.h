// The graph builder: one class, one file per phase; `program.h` lists the files. Functions are explained at their
// definitions.
//
// It calls only those functions of Poplar that the emulated machine has, and of PopLibs and GCL only those that sum
// over replicas.
#pragma once

#include <map>
#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>
#include <string>
#include <utility>
#include <vector>

#include "codelets/ipu/records.h"
#include "parted.h"
#include "passes.h"
#include "program.h"
#include "vertices.h"

namespace sparsesnn::ipu {

using poplar::ArrayRef;
using poplar::ComputeSet;
using poplar::FLOAT;
using poplar::Graph;
using poplar::HALF;
using poplar::INT;
using poplar::Tensor;
using poplar::UNSIGNED_INT;
using poplar::UNSIGNED_SHORT;
using poplar::VertexRef;
using poplar::program::Copy;
using poplar::program::Execute;
using poplar::program::Repeat;
using poplar::program::Sequence;

// The graph to build: whole training steps, or one pass inside another program's graph (passes.h).
enum class Part { whole, forward, backward };

// `over_steps` in codelets/ipu/vertex.h: each step's potential has its own gradient.
constexpr unsigned decodes_nothing = 4;

class Builder {
 public:
  Builder(const ProgramSpec& spec, Graph& graph, std::map<std::string, Buffer>& buffers)
      : spec_(spec),
        graph_(graph),
        buffers_(buffers),
        populations_(spec.populations.size()),
        keeps_history_(spec.trains()),
        learns_(spec.trains()) {
    const unsigned workers = graph.getTarget().getNumWorkerContexts();
    if (workers != n_workers)
      throw std::invalid_argument("IPU program: a tile of this device has " + std::to_string(workers) +
                                  " workers; the program is made for " + std::to_string(n_workers));
  }

  // program.cpp
  std::vector<poplar::program::Program> build();

  // passes.cpp
  ForwardOutputs forward_pass(const ForwardInputs& in, bool saves, Sequence& program);
  BackwardOutputs backward_pass(const BackwardInputs& in, bool input_gradient, Sequence& program);

 private:
  // One trained value a neuron, or a population: a bias, or a parameter of the model.
  struct Vector {
    std::string name;
    int parameter;      // its place among the model's; -1: the bias
    bool shared;        // by the population: every shard has a copy [2]
    unsigned of_shard;  // which row of d_parameters
    Parted value, moment1, moment2;
    Tensor total;  // if shared: the sum of its gradient [2]
  };
  // The tensors of a population: those of its shards and collectors.
  struct Placed {
    int round = -1;                  // of its step; an input's lists exist before all rounds
    std::vector<unsigned> lags;      // age in steps of the lists that its collectors send
    std::vector<unsigned> incoming;  // connections, in the order of sums
    std::vector<unsigned> outgoing;
    std::size_t stride = 0, slots = 0, bucket_stride = 0, ring = 1;  // of lists; rows of d_current
    Parted entries, bias, history, memory, masks, d_states, d_current, d_vectors;
    Parted parameters, d_parameters;  // if some are trained
    Parted kept, dropped, counts, e, buckets, d_value;
    std::map<unsigned, Tensor> sent;  // by lag: [B · stride]
    std::vector<Vector> vectors;
    std::vector<Tensor> regularizer;  // of each shard, if activity is regularized
  };
  struct Joined {  // a connection: [M, w] a shard of post
    Parted weights, rounded, gradients, moments1, moments2, shares;
  };
  // Rounds that share their vertices, in the order in which they run.
  using Stage = std::vector<int>;
  // Step and turn of each worker of a vertex; see `Moment` in codelets/ipu/vertex.h.
  struct Clock {
    Tensor tensor;
    unsigned tile;
  };

  // ---- queries

  bool spikes_or_input(const Population& p) const { return !p.reads_out(); }
  // Whether gradients of its lists are wanted.
  bool hears_back(const Population& p) const { return !p.is_input() || input_gradient_; }
  std::size_t width(const Shard& s) const { return even(s.n); }
  // The words of both masks of a sample; see `Masks` in codelets/ipu/vertex.h.
  std::size_t words(const Shard& s) const { return s.n <= 16 ? 1 : 2 * ((s.n + 31) / 32); }
  // Whether the gradients of its neurons read states of all steps.
  bool reads_history(const Population& p) const { return p.spikes() || !p.terms.empty(); }
  // Rows of `States` in codelets/ipu/vertex.h, of B·w floats each.
  std::size_t history_blocks(const Population& p) const;
  std::size_t memory_rows(const Population& p) const;
  // The rows in front of the states: those of a readout's values.
  unsigned n_decoded(const Population& p) const { return p.reads_out() && !spec_.maximum_of_means() ? 2 : 0; }
  bool loops() const { return spec_.loops_rounds && part_ == Part::whole && n_rounds_ > 1; }
  // For a population whose steps run again for the backward pass: steps of a segment; else 0. A readout keeps all
  // steps.
  unsigned every(const Population& p) const { return p.spikes() && part_ == Part::whole ? spec_.keep_every : 0; }
  // The number of segments whose end is kept: all but the last.
  unsigned n_ends() const { return (spec_.n_steps - 1) / spec_.keep_every; }
  // Whether shards of a readout decode its potentials step by step; else all steps have their own gradient.
  bool decodes() const { return part_ == Part::whole && !spec_.maximum_of_means(); }
  std::size_t d_value_rows() const { return decodes() ? 1 : spec_.n_steps; }
  unsigned decoding() const { return decodes() ? spec_.decoding : decodes_nothing; }
  bool has_floats() const { return learns_ || !spec_.half_weights; }
  bool adam() const { return spec_.optimizer == Optimizer::adam || spec_.optimizer == Optimizer::adamw; }

  // ---- rounds.cpp: the order of execution

  void find_rounds();
  unsigned lag(const Connection& c) const;
  std::vector<Stage> stages(bool backwards) const;
  std::string name_of(const Stage& stage) const { return loops() ? "rounds" : std::to_string(stage.front()); }
  int turn_of(std::size_t population, const Stage& stage) const;
  Tensor clock(std::vector<Clock>& clocks, unsigned tile);
  void add_clocks(Vertices& vertices, std::vector<Clock>& clocks, unsigned n_turns);
  void reset_clocks(const std::vector<Clock>& clocks, unsigned step, Sequence& program);

  // ---- variables.cpp

  template <class Size>
  Parted on_shards(const Population& p, const poplar::Type& type, const std::string& name, Size&& size) {
    std::vector<std::size_t> sizes;
    std::vector<unsigned> tiles;
    for (const Shard& s : p.shards) sizes.push_back(size(s)), tiles.push_back(s.tile);
    const auto given = given_.find(p.name + "." + name);
    if (given != given_.end()) return Parted(given->second, sizes);
    return Parted(graph_, type, sizes, tiles, p.name + "." + name);
  }
  Parted on_collectors(const Population& p, const poplar::Type& type, const std::string& name, std::size_t per_sample);
  Tensor alone(const poplar::Type& type, std::size_t n, unsigned tile, const std::string& name);
  // A tensor for a field that a vertex must have connected but never reads or writes.
  Tensor pad(const poplar::Type& type, unsigned tile) { return alone(type, 2, tile, "pad"); }
  void make_variables();
  std::size_t history_rows(const Population& p) const;
  void make_vectors(const Population& p, Placed& v);
  Tensor read_weights(unsigned connection, std::size_t shard) const;
  std::string of_weights(const std::string& vertex) const;
  Tensor of_samples(const Tensor& all, std::size_t first, std::size_t n) const;

  // ---- streams.cpp

  void remember(const std::string& name, const Tensor& t, bool shared);
  void stream_in(const std::string& name, const Tensor& t, Sequence& program, bool shared = true);
  void stream_out(const std::string& name, const Tensor& t, Sequence& program, bool shared = true);
  void make_streams(Sequence& load, Sequence& save, Sequence& lists);
  void stream_counts(Sequence& batch);

  // ---- forward.cpp

  void forward_steps(Sequence& pass);
  static void add_turns(unsigned n_turns, const Sequence& turn, Sequence& step);
  void fetch_input(ComputeSet cs);
  void add_fetch(std::size_t index, unsigned shift, Vertices& vertices);
  void add_again(Sequence& step);
  Tensor first_sample(unsigned tile);
  Tensor seeds(unsigned tile);
  void send_seeds(Sequence& program);
  void add_outs(Vertices::OfTile& x, const Placed& v, const Collector& c) const;
  void add_forward(std::size_t index, unsigned turn, Vertices& vertices);
  void add_compact(std::size_t index, unsigned turn, Vertices& vertices);

  // ---- loss.cpp: once a batch, between forward and backward steps

  void add_loss(Sequence& pass);
  void add_regularizer(Sequence& pass);
  Tensor potentials_of(const Population& p, const Placed& v);
  Tensor values_of(const Placed& v, const Population& p, std::size_t shard) const;
  void add_readout_gradient(Sequence& pass);
  void take_columns(const Tensor& rows, const Population& p, const Parted& parts, Sequence& program);

  // ---- backward.cpp

  void backward_steps(Sequence& pass);
  void add_backward_stage(const Stage& stage, Sequence& step);
  void add_stage_sums(const Stage& stage, Sequence& turn);
  void add_input_stage(Sequence& step);
  // The lists that the collectors of a population send in the backward pass.
  const Tensor& sent_back(std::size_t index) const { return populations_[index].sent.begin()->second; }
  void fetch_back(ComputeSet cs);
  void add_list_grad(int round, unsigned turn, Vertices& vertices);
  void add_reducers(unsigned index, unsigned turn, Vertices& vertices);
  void add_sums(std::size_t index, unsigned turn, Vertices& vertices);
  void add_state_grad(std::size_t index, unsigned turn, Vertices& vertices);

  // ---- passes.cpp: the edges of a pass, from its owner's tensors to ours and back

  void narrow_lists(std::size_t index, const Tensor& lists, Sequence& program);
  void take_neurons(std::size_t index, const std::vector<Tensor>& biases, const std::vector<Tensor>& entries,
                    Sequence& program);
  ForwardOutputs forward_outputs(Sequence& program);
  Tensor by_step(const Population& p, const Parted& parts, std::size_t size) const;
  Tensor columns(const Population& p, const Parted& parts, std::size_t rows) const;
  void clear_gradients(Sequence& program);
  void take_gradient(const Tensor& d_out, Sequence& program);
  void add_take_row(ComputeSet cs);
  void add_store_row(std::size_t index, ComputeSet cs);
  BackwardOutputs backward_outputs(Sequence& program);

  // ---- update.cpp: once a batch, after the backward steps

  void add_update(Sequence& pass);
  void fill_vectors(Vertices::OfTile& x, unsigned tile, const std::vector<const char*>& fields);
  void add_formula(const Population& p, std::size_t shard, const Formula& formula, bool reads_sums, const Tensor& out,
                   const Placed& v, Vertices& vertices);
  void run_formulas(const char* name, bool backwards, Sequence& pass);
  Tensor gradient_of(const Placed& v, const Vector& vector, const Population& p, std::size_t shard) const;
  void add_vector(const Population& p, std::size_t index, std::size_t k, const Vector& vector, Vertices::OfTile& x,
                  Vertices::OfTile& y);
  void add_up_replicas(Sequence& pass);
  void add_up(const std::vector<Tensor>& tensors, const char* name, Sequence& pass);
  void add_totals(Sequence& pass);
  void add_norm(const std::vector<std::vector<Tensor>>& sums, Sequence& pass);

  // ---- single vertices, of which a tile may have several

  VertexRef add(ComputeSet cs, const std::string& name, unsigned tile) {
    const VertexRef v = graph_.addVertex(cs, "sparsesnn::ipu::" + name);
    graph_.setTileMapping(v, tile);
    return v;
  }
  void connect(VertexRef v, const char* field, const Tensor& t) { graph_.connect(v[field], t); }
  void connect(VertexRef v, const char* field, const std::vector<Tensor>& t) {
    graph_.connect(v[field], ArrayRef<Tensor>(t));
  }
  void set(VertexRef v, const char* field, std::size_t value) {
    graph_.setInitialValue(v[field], static_cast<unsigned>(value));
  }
  void set(VertexRef v, const char* field, const std::vector<unsigned>& values) {
    graph_.setInitialValue(v[field], ArrayRef<unsigned>(values));
  }

  const ProgramSpec& spec_;
  Graph& graph_;
  std::map<std::string, Buffer>& buffers_;
  std::vector<Placed> populations_;
  std::vector<Joined> joined_;
  std::map<unsigned, std::vector<std::pair<Reducer, Tensor>>> reduced_;
  int n_rounds_ = 0;
  Part part_ = Part::whole;
  bool keeps_history_, learns_, input_gradient_ = false;
  std::map<std::string, Tensor> given_;  // variables with another owner, by name
  Parted targets_, losses_, logits_, d_logits_, d_values_, over_time_, d_row_, d_input_;
  Tensor settings_, new_seeds_, norm_, first_sample_;
  std::map<unsigned, Tensor> no_samples_before_, seeds_;  // by tile
  std::vector<Clock> forward_clocks_, backward_clocks_, again_clocks_;
  std::vector<ComputeSet> run_sets_;  // of each stage: its step
  std::map<std::string, poplar::DataStream> to_device_, to_host_;
};

}  // namespace sparsesnn::ipu
