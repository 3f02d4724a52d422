// One pass inside another program's graph (passes.h): from its owner's tensors to ours, the steps, and back.
#include "builder.h"

namespace sparsesnn::ipu {

ForwardOutputs Builder::forward_pass(const ForwardInputs& in, bool saves, Sequence& program) {
  part_ = Part::forward;
  keeps_history_ = saves;
  find_rounds();
  make_variables();
  narrow_lists(0, in.lists, program);
  for (std::size_t k = 0; k < joined_.size(); ++k)
    take_columns(in.weights.at(k), spec_.populations[spec_.connections[k].post], joined_[k].weights, program);
  for (std::size_t k = 1; k < populations_.size(); ++k) take_neurons(k, in.biases, in.entries, program);
  Sequence steps;
  forward_steps(steps);
  reset_clocks(forward_clocks_, 0, program);
  program.add(steps);
  return forward_outputs(program);
}

BackwardOutputs Builder::backward_pass(const BackwardInputs& in, bool input_gradient, Sequence& program) {
  part_ = Part::backward;
  learns_ = true;
  input_gradient_ = input_gradient;
  find_rounds();
  for (std::size_t k = 1; k < populations_.size(); ++k)
    if (reads_history(spec_.populations[k])) given_[spec_.populations[k].name + ".history"] = in.histories.at(k);
  make_variables();
  for (std::size_t k = 0; k < populations_.size(); ++k)
    if (spikes_or_input(spec_.populations[k])) narrow_lists(k, in.lists.at(k), program);
  for (std::size_t k = 0; k < joined_.size(); ++k)
    take_columns(in.weights.at(k), spec_.populations[spec_.connections[k].post], joined_[k].weights, program);
  for (std::size_t k = 1; k < populations_.size(); ++k) take_neurons(k, {}, in.entries, program);
  clear_gradients(program);
  take_gradient(in.d_out, program);
  Sequence steps;
  backward_steps(steps);
  reset_clocks(backward_clocks_, spec_.n_steps, program);
  program.add(steps);
  return backward_outputs(program);
}

// Lists INT [T, B, 2 + K] into `kept`.
void Builder::narrow_lists(std::size_t index, const Tensor& lists, Sequence& program) {
  const Population& p = spec_.populations[index];
  const ComputeSet cs = graph_.addComputeSet(p.name + "/narrow");
  for (std::size_t k = 0; k < p.collectors.size(); ++k) {
    const Collector& c = p.collectors[k];
    const VertexRef x = add(cs, "Narrow", c.tile);
    connect(x, "lists", lists.slice(c.first, c.first + c.n, 1).flatten().reinterpret(UNSIGNED_INT));
    connect(x, "kept", populations_[index].kept.part(k));
    set(x, "n_lists", std::size_t{spec_.n_steps} * c.n);
    set(x, "capacity", p.capacity);
  }
  program.add(Execute(cs));
}

// Entries, bias, and zeros for padded weights.
void Builder::take_neurons(std::size_t index, const std::vector<Tensor>& biases, const std::vector<Tensor>& entries,
                           Sequence& program) {
  const Population& p = spec_.populations[index];
  Placed& v = populations_[index];
  const bool forward = part_ == Part::forward;
  std::vector<Tensor> from, to;
  const auto fill = [&](const std::vector<float>& values, unsigned tile, const Tensor& sink) {
    from.push_back(graph_.addConstant<float>(FLOAT, {values.size()}, ArrayRef<float>(values), p.name + ".numbers"));
    graph_.setTileMapping(from.back(), tile);
    to.push_back(sink);
  };
  for (std::size_t k = 0; k < p.shards.size(); ++k) {
    const Shard& s = p.shards[k];
    const std::size_t w = width(s);
    std::vector<float> rows(p.entry_rows() * w, 0.0f);
    for (unsigned row = 0; row < p.entry_rows(); ++row)
      for (unsigned n = 0; n < s.n; ++n) rows[row * w + n] = p.entries[row * p.n + s.first + n];
    fill(rows, s.tile, v.entries.part(k));
    if (forward && !p.bias) fill(std::vector<float>(w, 0.0f), s.tile, v.bias.part(k));
    if (w == s.n) continue;
    if (forward && p.bias) fill({0.0f}, s.tile, v.bias.part(k).slice(s.n, w));
    for (const unsigned i : v.incoming) {
      const std::size_t m = spec_.populations[spec_.connections[i].pre].n;
      fill(std::vector<float>(m, 0.0f), s.tile, joined_[i].weights.part(k).reshape({m, w}).slice(s.n, w, 1).flatten());
    }
  }
  program.add(Copy(concat(from), concat(to), false, p.name + " numbers"));
  from.clear(), to.clear();
  for (std::size_t k = 0; k < p.shards.size(); ++k) {
    const Shard& s = p.shards[k];
    for (std::size_t given = 0; given < p.given_rows.size(); ++given)
      for (const std::size_t row : p.given_rows[given]) {
        from.push_back(entries.at(index).slice(given, given + 1).slice(s.first, s.first + s.n, 1).flatten());
        to.push_back(v.entries.part(k).slice(row * width(s), row * width(s) + s.n));
      }
  }
  if (!to.empty()) program.add(Copy(concat(from), concat(to), false, p.name + " entries"));
  if (forward && p.bias) take_columns(biases.at(index).reshape({1, p.n}), p, v.bias, program);
}

ForwardOutputs Builder::forward_outputs(Sequence& program) {
  ForwardOutputs out;
  const std::size_t n = populations_.size();
  out.lists.resize(n), out.dropped.resize(n), out.histories.resize(n);
  const std::size_t t = spec_.n_steps;
  for (std::size_t index = 1; index < n; ++index) {
    const Population& p = spec_.populations[index];
    Placed& v = populations_[index];
    if (keeps_history_ && reads_history(p)) out.histories[index] = v.history.all();
    if (!p.spikes()) continue;
    const Parted lists = on_collectors(p, UNSIGNED_INT, "lists", t * (2 + p.capacity)),
                 values = on_collectors(p, FLOAT, "values", t * p.capacity);
    const ComputeSet cs = graph_.addComputeSet(p.name + "/widen");
    for (std::size_t k = 0; k < p.collectors.size(); ++k) {
      const VertexRef x = add(cs, "Widen", p.collectors[k].tile);
      connect(x, "kept", v.kept.part(k));
      connect(x, "lists", lists.part(k));
      connect(x, "values", values.part(k));
      set(x, "n_lists", t * p.collectors[k].n);
      set(x, "capacity", p.capacity);
    }
    program.add(Execute(cs));
    out.lists[index] = by_step(p, lists, 2 + p.capacity).reinterpret(INT);
    out.dropped[index] = by_step(p, v.dropped, 1).reinterpret(INT).reshape({t, spec_.n_samples});
    if (index + 1 == n) out.out = by_step(p, values, p.capacity);
  }
  const Population& last = spec_.populations.back();
  if (!last.spikes())  // the first block of its history: its potentials
    out.out = columns(last, populations_.back().history, history_blocks(last) * t * spec_.n_samples)
                  .slice(0, t * spec_.n_samples)
                  .reshape({t, spec_.n_samples, std::size_t{last.n}});
  return out;
}

// Collectors' parts [T, n, size] as one tensor [T, B, size]; of parts [T, n, more], the first `size`.
Tensor Builder::by_step(const Population& p, const Parted& parts, std::size_t size) const {
  std::vector<Tensor> found;
  for (std::size_t k = 0; k < p.collectors.size(); ++k) {
    const std::size_t rows = std::size_t{spec_.n_steps} * p.collectors[k].n;
    const Tensor part = parts.part(k);
    found.push_back(part.reshape({spec_.n_steps, p.collectors[k].n, part.numElements() / rows}).slice(0, size, 2));
  }
  return concat(found, 1);
}

// Shards' parts [rows, w] as one tensor [rows, N].
Tensor Builder::columns(const Population& p, const Parted& parts, std::size_t rows) const {
  std::vector<Tensor> found;
  for (std::size_t k = 0; k < p.shards.size(); ++k)
    found.push_back(parts.part(k).reshape({rows, width(p.shards[k])}).slice(0, p.shards[k].n, 1));
  return concat(found, 1);
}

void Builder::clear_gradients(Sequence& program) {
  const ComputeSet cs = graph_.addComputeSet("backward/clear");
  for (std::size_t index = 1; index < populations_.size(); ++index) {
    const Population& p = spec_.populations[index];
    for (std::size_t k = 0; k < p.shards.size(); ++k) {
      std::vector<Tensor> gradients;
      std::vector<unsigned> sizes;
      for (const unsigned i : populations_[index].incoming) {
        gradients.push_back(joined_[i].gradients.part(k));
        sizes.push_back(static_cast<unsigned>(gradients.back().numElements()));
      }
      const VertexRef x = add(cs, "Clear", p.shards[k].tile);
      connect(x, "arrays", gradients);
      set(x, "sizes", sizes);
      set(x, "n_arrays", sizes.size());
    }
  }
  program.add(Execute(cs));
}

// The gradient of the output: of potentials [T, B, N], or of values [T, B, K], to the tiles that read it step by step.
void Builder::take_gradient(const Tensor& d_out, Sequence& program) {
  const Population& p = spec_.populations.back();
  const std::size_t t = spec_.n_steps;
  if (!p.spikes())
    return take_columns(d_out.reshape({t * spec_.n_samples, p.n}), p, populations_.back().d_value, program);
  const std::size_t slots = populations_.back().slots;
  d_values_ = on_collectors(p, FLOAT, "d_values", t * slots);
  d_row_ = on_collectors(p, FLOAT, "d_row", slots);
  std::vector<Tensor> from, to;
  for (std::size_t k = 0; k < p.collectors.size(); ++k) {
    const Collector& c = p.collectors[k];
    from.push_back(d_out.slice(c.first, c.first + c.n, 1).flatten());
    to.push_back(d_values_.part(k).reshape({t, c.n, slots}).slice(0, p.capacity, 2).flatten());
  }
  program.add(Copy(concat(from), concat(to), false, "gradient of the output"));
}

// This step's row of the gradient copied by take_gradient.
void Builder::add_take_row(ComputeSet cs) {
  const Population& p = spec_.populations.back();
  for (std::size_t k = 0; k < p.collectors.size(); ++k) {
    const Collector& c = p.collectors[k];
    const VertexRef x = add(cs, "TakeRow", c.tile);
    connect(x, "kept", populations_.back().kept.part(k));
    connect(x, "all", d_values_.part(k));
    connect(x, "row", d_row_.part(k));
    connect(x, "clock", clock(backward_clocks_, c.tile));
    set(x, "n_samples", c.n);
    set(x, "n_slots", populations_.back().slots);
  }
}

// ∂L/∂s at this step's slots of the input, kept for all steps.
void Builder::add_store_row(std::size_t index, ComputeSet cs) {
  const Population& p = spec_.populations[index];
  Placed& v = populations_[index];
  d_input_ = on_collectors(p, FLOAT, "d_values", spec_.n_steps * v.slots);
  for (std::size_t k = 0; k < p.collectors.size(); ++k) {
    const Collector& c = p.collectors[k];
    const VertexRef x = add(cs, "StoreRow", c.tile);
    connect(x, "kept", v.kept.part(k));
    connect(x, "row", v.e.part(k));
    connect(x, "all", d_input_.part(k));
    connect(x, "clock", clock(backward_clocks_, c.tile));
    set(x, "n_samples", c.n);
    set(x, "n_slots", v.slots);
  }
}

BackwardOutputs Builder::backward_outputs(Sequence& program) {
  BackwardOutputs out;
  if (input_gradient_) out.d_values = by_step(spec_.populations[0], d_input_, spec_.populations[0].capacity);
  for (std::size_t k = 0; k < joined_.size(); ++k) {
    const Connection& c = spec_.connections[k];
    out.d_weights.push_back(columns(spec_.populations[c.post], joined_[k].gradients, spec_.populations[c.pre].n));
  }
  out.d_biases.resize(populations_.size());
  out.d_entries.resize(populations_.size());
  const ComputeSet cs = graph_.addComputeSet("backward/neurons");
  bool any = false;
  for (std::size_t index = 1; index < populations_.size(); ++index) {
    const Population& p = spec_.populations[index];
    if (!p.bias && p.terms.empty()) continue;
    any = true;
    const std::size_t n_rows = 1 + p.terms.size();
    const Parted sums = on_shards(p, FLOAT, "d_neurons", [&](const Shard& s) { return n_rows * width(s); });
    for (std::size_t k = 0; k < p.shards.size(); ++k) {
      const VertexRef x = add(cs, "SumRows", p.shards[k].tile);
      connect(x, "rows", populations_[index].d_vectors.part(k));
      connect(x, "sums", sums.part(k));
      set(x, "n_neurons", p.shards[k].n);
      set(x, "n_rows", n_rows);
    }
    const Tensor found = columns(p, sums, n_rows);
    if (p.bias) out.d_biases[index] = found.slice(0, 1).flatten();
    if (!p.terms.empty()) out.d_entries[index] = found.slice(1, n_rows);
  }
  if (any) program.add(Execute(cs));
  return out;
}

ForwardOutputs add_forward_pass(Graph& graph, const ProgramSpec& spec, const ForwardInputs& in, bool saves,
                                Sequence& program) {
  spec.check();
  std::map<std::string, Buffer> no_streams;
  return Builder(spec, graph, no_streams).forward_pass(in, saves, program);
}

BackwardOutputs add_backward_pass(Graph& graph, const ProgramSpec& spec, const BackwardInputs& in, bool input_gradient,
                                  Sequence& program) {
  spec.check();
  std::map<std::string, Buffer> no_streams;
  return Builder(spec, graph, no_streams).backward_pass(in, input_gradient, program);
}

Tensor add_columns(Graph& graph, std::size_t n_rows, const Population& p, const poplar::DebugContext& name) {
  const Tensor t = graph.addVariable(FLOAT, {n_rows, p.n}, name);
  for (const Shard& s : p.shards) graph.setTileMapping(t.slice(s.first, s.first + s.n, 1), s.tile);
  return t;
}

}  // namespace sparsesnn::ipu
