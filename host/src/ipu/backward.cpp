// Backward steps: fetch all lists, then round by round, last first: list gradients on the shards of post, sums on
// reducers and collectors, state gradients on shards; at the end the weight gradients of the input.
#include <algorithm>
#include <stdexcept>

#include "builder.h"
#include "codelets/ipu/records.h"

namespace sparsesnn::ipu {

void Builder::backward_steps(Sequence& pass) {
  Sequence step;
  const ComputeSet fetch = graph_.addComputeSet("backward/fetch");
  fetch_back(fetch);
  if (part_ != Part::whole && spec_.populations.back().spikes()) add_take_row(fetch);
  step.add(Execute(fetch));
  const std::vector<Stage> found = stages(true);
  for (const Stage& stage : found) add_backward_stage(stage, step);
  if (!loops()) add_input_stage(step);
  if (!spec_.keep_every || part_ != Part::whole) {
    pass.add(Repeat(spec_.n_steps, step));
    return;
  }
  Sequence again, segment;
  add_again(again);
  segment.add(Repeat(spec_.keep_every, again));
  segment.add(Repeat(spec_.keep_every, step));
  pass.add(
      Repeat(spec_.n_steps - n_ends() * spec_.keep_every, step));  // the states of the last segment are still stored
  pass.add(Repeat(n_ends(), segment));
}

// List gradients of the lists sent by the populations of a stage, their sums, and with them state gradients.
void Builder::add_backward_stage(const Stage& stage, Sequence& step) {
  const std::string name = "backward/" + name_of(stage);
  const auto n_turns = static_cast<unsigned>(stage.size());
  const ComputeSet lists = graph_.addComputeSet(name + "/list gradient"),
                   state = graph_.addComputeSet(name + "/state gradient");
  Vertices list_grads(graph_, lists, of_weights("ListGrad")), states(graph_, state, "StateGrad");
  for (unsigned turn = 0; turn < n_turns; ++turn) add_list_grad(stage[turn], turn, list_grads);
  if (loops()) add_list_grad(-1, n_turns, list_grads);  // the input's lists have one more turn
  for (std::size_t k = 0; k < populations_.size(); ++k)
    if (turn_of(k, stage) >= 0) add_state_grad(k, static_cast<unsigned>(turn_of(k, stage)), states);
  add_clocks(list_grads, backward_clocks_, n_turns + loops());
  add_clocks(states, backward_clocks_, n_turns);
  Sequence turn;
  if (!list_grads.empty()) turn.add(Execute(lists));
  add_stage_sums(stage, turn);
  turn.add(Execute(state));
  list_grads.add_to_graph();
  for (auto& [tile, x] : states.tiles())
    if (x.numbers["terms"].empty()) x.push("terms", EntryTerm{});
  states.add_to_graph();
  add_turns(n_turns, turn, step);
  if (loops()) step.add(Execute(lists));
}

void Builder::add_stage_sums(const Stage& stage, Sequence& turn) {
  const std::string name = "backward/" + (stage.front() < 0 ? std::string("input") : name_of(stage));
  const ComputeSet reduce = graph_.addComputeSet(name + "/reduce"), sum = graph_.addComputeSet(name + "/sum");
  Vertices reduces(graph_, reduce, "Sum"), sums(graph_, sum, "Sum");
  for (std::size_t k = 0; k < populations_.size(); ++k) {
    if (turn_of(k, stage) < 0 || !spikes_or_input(spec_.populations[k])) continue;
    const auto turn_of_k = static_cast<unsigned>(turn_of(k, stage));
    for (const unsigned c : populations_[k].outgoing) add_reducers(c, turn_of_k, reduces);
    add_sums(k, turn_of_k, sums);
  }
  for (const auto& [vertices, cs] : {std::make_pair(&reduces, reduce), std::make_pair(&sums, sum)}) {
    if (vertices->empty()) continue;
    add_clocks(*vertices, backward_clocks_, static_cast<unsigned>(stage.size()));
    vertices->add_to_graph();
    turn.add(Execute(cs));
  }
}

// At the end of a step: weight gradients for the lists of the input, and, if requested, the gradient of these lists.
void Builder::add_input_stage(Sequence& step) {
  const ComputeSet lists = graph_.addComputeSet("backward/input/list gradient");
  Vertices list_grads(graph_, lists, of_weights("ListGrad"));
  add_list_grad(-1, 0, list_grads);
  add_clocks(list_grads, backward_clocks_, 1);
  list_grads.add_to_graph();
  if (!list_grads.empty()) step.add(Execute(lists));
  if (!input_gradient_) return;
  add_stage_sums({-1}, step);
  const ComputeSet store = graph_.addComputeSet("backward/input/store");
  add_store_row(0, store);
  step.add(Execute(store));
}

void Builder::fetch_back(ComputeSet cs) {
  Vertices vertices(graph_, cs, "FetchBackward");
  for (std::size_t index = 0; index < populations_.size(); ++index) {
    const Population& p = spec_.populations[index];
    const Placed& v = populations_[index];
    if (!spikes_or_input(p)) continue;
    for (std::size_t k = 0; k < p.collectors.size(); ++k) {
      const Collector& c = p.collectors[k];
      Vertices::OfTile& x = vertices.on(c.tile);
      x.push("collectors",
             FetchCollector{c.n, static_cast<unsigned>(v.stride), static_cast<unsigned>(v.bucket_stride), 0, 1, 0});
      x.lists["kept"].push_back(v.kept.part(k));
      x.lists["outs"].push_back(of_samples(sent_back(index), c.first, c.n));
      x.lists["buckets"].push_back(v.buckets.part(k));
      ++x.scalars["n_collectors"];
    }
  }
  add_clocks(vertices, backward_clocks_, 0);
  vertices.add_to_graph();
}

// List gradients on the shards of post, for all connections whose pre runs in `round`.
void Builder::add_list_grad(int round, unsigned turn, Vertices& vertices) {
  for (std::size_t index = 0; index < populations_.size(); ++index) {
    const Population& p = spec_.populations[index];
    const Placed& v = populations_[index];
    for (std::size_t k = 0; k < p.shards.size(); ++k) {
      const Shard& s = p.shards[k];
      for (const unsigned i : v.incoming) {
        const Connection& c = spec_.connections[i];
        const Placed& pre = populations_[c.pre];
        if (pre.round != round) continue;
        const bool wanted = hears_back(spec_.populations[c.pre]);
        Vertices::OfTile& x = vertices.on(s.tile);
        x.push("sources",
               ListGradSource{turn, static_cast<unsigned>(pre.stride), static_cast<unsigned>(pre.bucket_stride),
                              wanted ? static_cast<unsigned>(pre.slots) : 0, c.delay, s.n,
                              static_cast<unsigned>(v.ring), x.size_of("d_current")});
        x.lists["d_current"].push_back(v.d_current.part(k));
        x.lists["lists"].push_back(sent_back(c.pre));
        x.lists["buckets"].push_back(pre.buckets.all());
        x.lists["weights"].push_back(read_weights(i, k));
        x.lists["gradients"].push_back(joined_[i].gradients.part(k));
        x.lists["shares"].push_back(wanted ? joined_[i].shares.part(k) : pad(FLOAT, s.tile));
        x.scalars["n_steps"] = spec_.n_steps;
        x.scalars["n_samples"] = spec_.n_samples;
        ++x.scalars["n_sources"];
      }
    }
  }
}

void Builder::add_reducers(unsigned index, unsigned turn, Vertices& vertices) {
  const Connection& c = spec_.connections[index];
  const Placed& pre = populations_[c.pre];
  for (const Reducer& r : c.reducers) {
    Vertices::OfTile& x = vertices.on(r.tile);
    x.push("groups",
           SumGroup{turn, x.size_of("rows"), r.n_shards, r.n_samples, 2, static_cast<unsigned>(pre.slots), 0});
    for (unsigned s = r.first_shard; s < r.first_shard + r.n_shards; ++s)
      x.lists["rows"].push_back(of_samples(joined_[index].shares.part(s), r.first_sample, r.n_samples));
    const Tensor lists = of_samples(sent_back(c.pre), r.first_sample, r.n_samples);
    const Tensor sum = alone(FLOAT, r.n_samples * pre.slots, r.tile, "reduced");
    x.lists["lists"].push_back(lists.reshape({r.n_samples, pre.stride}).slice(0, 2, 1).flatten());
    x.lists["direct"].push_back(pad(FLOAT, r.tile));
    x.lists["sums"].push_back(sum);
    ++x.scalars["n_groups"];
    reduced_[index].push_back({r, sum});
  }
}

void Builder::add_sums(std::size_t index, unsigned turn, Vertices& vertices) {
  const Population& p = spec_.populations[index];
  const Placed& v = populations_[index];
  const bool last = index + 1 == populations_.size(), direct = last && part_ == Part::whole;
  for (std::size_t k = 0; k < p.collectors.size(); ++k) {
    const Collector& c = p.collectors[k];
    Vertices::OfTile& x = vertices.on(c.tile);
    const unsigned first_row = x.size_of("rows");
    std::vector<Tensor>& rows = x.lists["rows"];
    for (const unsigned i : v.outgoing) {
      for (const auto& [reducer, sum] : reduced_[i]) {
        if (reducer.first_sample > c.first || reducer.first_sample + reducer.n_samples < c.first + c.n) {
          if (reducer.first_sample < c.first + c.n && c.first < reducer.first_sample + reducer.n_samples)
            throw std::invalid_argument("IPU program: a reducer of " + p.name + " has a part of a collector's samples");
          continue;
        }
        const std::size_t first = c.first - reducer.first_sample;
        rows.push_back(sum.slice(first * v.slots, (first + c.n) * v.slots));
      }
      if (!spec_.connections[i].reducers.empty()) continue;
      for (std::size_t s = 0; s < spec_.populations[spec_.connections[i].post].shards.size(); ++s)
        rows.push_back(of_samples(joined_[i].shares.part(s), c.first, c.n));
    }
    if (last && !direct) rows.push_back(d_row_.part(k));
    const auto n_rows = static_cast<unsigned>(rows.size()) - first_row;
    if (rows.empty()) rows.push_back(pad(FLOAT, c.tile));
    x.push("groups", SumGroup{turn, first_row, n_rows, c.n, static_cast<unsigned>(v.stride),
                              static_cast<unsigned>(v.slots), direct ? p.n : 0});
    x.lists["lists"].push_back(of_samples(sent_back(index), c.first, c.n));
    x.lists["direct"].push_back(direct ? d_values_.part(k) : pad(FLOAT, c.tile));
    x.lists["sums"].push_back(v.e.part(k));
    ++x.scalars["n_groups"];
  }
}

void Builder::add_state_grad(std::size_t index, unsigned turn, Vertices& vertices) {
  const Population& p = spec_.populations[index];
  const Placed& v = populations_[index];
  const bool reads_out = p.reads_out();
  for (std::size_t k = 0; k < p.shards.size(); ++k) {
    const Shard& s = p.shards[k];
    Vertices::OfTile& x = vertices.on(s.tile);
    const StateShard record{turn,
                            s.n,
                            s.first,
                            static_cast<unsigned>(v.stride),
                            static_cast<unsigned>(v.slots),
                            static_cast<unsigned>(v.ring),
                            static_cast<unsigned>(history_rows(p)),
                            index_of(*p.shape),
                            p.n_states(),
                            reads_out,
                            p.detach_reset,
                            p.surrogate,
                            static_cast<unsigned>(x.numbers["terms"].size() / (sizeof(EntryTerm) / sizeof(unsigned))),
                            static_cast<unsigned>(p.terms.size()),
                            every(p),
                            p.kept,
                            part_ == Part::whole && !reads_out && spec_.regularizes(),
                            decoding(),
                            p.d_operations,
                            p.slope};
    x.push("shards", record);
    for (unsigned term = 0; term < record.n_terms; ++term) x.push("terms", p.terms[term]);
    x.lists["lists"].push_back(reads_out ? pad(UNSIGNED_SHORT, s.tile) : sent_back(index));
    x.lists["e"].push_back(reads_out ? pad(FLOAT, s.tile) : v.e.all());
    const bool decoded = reads_out && decodes();
    x.lists["history"].push_back(reads_history(p) || part_ == Part::whole ? v.history.part(k) : pad(FLOAT, s.tile));
    x.lists["entries"].push_back(v.entries.part(k));
    x.lists["memory"].push_back(decoded ? v.memory.part(k) : pad(FLOAT, s.tile));
    x.lists["d_values"].push_back(reads_out ? v.d_value.part(k) : pad(FLOAT, s.tile));
    x.lists["regularizer"].push_back(v.regularizer.empty() ? pad(FLOAT, s.tile) : v.regularizer[k]);
    x.lists["d_states"].push_back(v.d_states.part(k));
    x.lists["d_current"].push_back(v.d_current.part(k));
    x.lists["d_vectors"].push_back(v.d_vectors.part(k));
    x.scalars["n_steps"] = spec_.n_steps;
    x.scalars["n_samples"] = spec_.n_samples;
    ++x.scalars["n_shards"];
  }
}

}  // namespace sparsesnn::ipu
