// Forward steps: fetch the lists of the input, then round by round deliver, step and select on shards, compact on
// collectors; and the same steps again, if potentials are kept in part.
#include <algorithm>

#include "builder.h"
#include "codelets/ipu/records.h"

namespace sparsesnn::ipu {

void Builder::forward_steps(Sequence& pass) {
  Sequence step;
  const ComputeSet fetch = graph_.addComputeSet("forward/fetch");
  fetch_input(fetch);
  step.add(Execute(fetch));
  for (const Stage& stage : stages(false)) {
    const std::string name = "forward/" + name_of(stage);
    const ComputeSet run = graph_.addComputeSet(name + "/step"), compact = graph_.addComputeSet(name + "/compact");
    const auto n_turns = static_cast<unsigned>(stage.size());
    Vertices forwards(graph_, run, of_weights("Forward")), compacts(graph_, compact, "Compact");
    for (std::size_t k = 0; k < populations_.size(); ++k) {
      const int turn = turn_of(k, stage);
      if (turn < 0) continue;
      add_forward(k, static_cast<unsigned>(turn), forwards);
      if (spec_.populations[k].spikes()) add_compact(k, static_cast<unsigned>(turn), compacts);
    }
    const std::size_t n_clocks = forward_clocks_.size();
    add_clocks(forwards, forward_clocks_, n_turns);
    again_clocks_.insert(again_clocks_.end(), forward_clocks_.begin() + static_cast<std::ptrdiff_t>(n_clocks),
                         forward_clocks_.end());
    run_sets_.push_back(run);
    add_clocks(compacts, forward_clocks_, n_turns);
    forwards.add_to_graph();
    compacts.add_to_graph();
    Sequence turn;
    turn.add(Execute(run));
    if (!compacts.empty()) turn.add(Execute(compact));
    add_turns(n_turns, turn, step);
  }
  pass.add(Repeat(spec_.n_steps, step));
}

void Builder::add_turns(unsigned n_turns, const Sequence& turn, Sequence& step) {
  if (n_turns > 1)
    step.add(Repeat(n_turns, turn));
  else
    step.add(turn);
}

void Builder::fetch_input(ComputeSet cs) {
  Vertices vertices(graph_, cs, "FetchForward");
  add_fetch(0, 0, vertices);
  add_clocks(vertices, forward_clocks_, 0);
  vertices.add_to_graph();
}

// Collectors of a population send the lists that they kept of the step `shift` before the current one.
void Builder::add_fetch(std::size_t index, unsigned shift, Vertices& vertices) {
  const Population& p = spec_.populations[index];
  const Placed& v = populations_[index];
  for (std::size_t k = 0; k < p.collectors.size(); ++k) {
    const Collector& c = p.collectors[k];
    Vertices::OfTile& x = vertices.on(c.tile);
    x.push("collectors", FetchCollector{c.n, static_cast<unsigned>(v.stride), 0, x.size_of("outs"),
                                        static_cast<unsigned>(v.lags.size()), shift});
    x.lists["kept"].push_back(v.kept.part(k));
    add_outs(x, v, c);
    ++x.scalars["n_collectors"];
    x.scalars["every"] = part_ == Part::whole ? spec_.keep_every : 0;
  }
}

// A step run again, from lists that are kept: a population that reads lists of the same step waits for the round of
// their senders, as in the first run.
void Builder::add_again(Sequence& step) {
  const ComputeSet before = graph_.addComputeSet("again/fetch");
  Vertices fetches(graph_, before, "FetchForward");
  for (std::size_t k = 0; k < populations_.size(); ++k)
    if (spikes_or_input(spec_.populations[k])) add_fetch(k, k ? 1 : 0, fetches);
  add_clocks(fetches, again_clocks_, 0);
  fetches.add_to_graph();
  step.add(Execute(before));
  for (int r = 0; r < n_rounds_; ++r) {
    step.add(Execute(run_sets_[static_cast<std::size_t>(r)]));
    const ComputeSet after = graph_.addComputeSet("again/" + std::to_string(r) + "/fetch");
    Vertices sends(graph_, after, "FetchForward");
    for (std::size_t k = 0; k < populations_.size() && r + 1 < n_rounds_; ++k)
      if (populations_[k].round == r && spec_.populations[k].spikes()) add_fetch(k, 0, sends);
    if (sends.empty()) continue;
    add_clocks(sends, again_clocks_, 0);
    sends.add_to_graph();
    step.add(Execute(after));
  }
}

// The index of this replica's first sample among those of all replicas.
Tensor Builder::first_sample(unsigned tile) {
  if (spec_.replicas > 1) return first_sample_;
  if (!no_samples_before_.count(tile)) {
    const unsigned zero = 0;
    no_samples_before_[tile] =
        graph_.addConstant<unsigned>(UNSIGNED_INT, {1}, ArrayRef<unsigned>(&zero, 1), "first_sample");
    graph_.setTileMapping(no_samples_before_[tile], tile);
  }
  return no_samples_before_[tile];
}

// The seeds of all populations' lists [populations, 2], for a collector's tile: sent with every batch, or, inside
// another program's graph, always the same.
Tensor Builder::seeds(unsigned tile) {
  if (seeds_.count(tile)) return seeds_[tile];
  std::vector<unsigned> values;
  for (const Population& p : spec_.populations) {
    values.push_back(static_cast<unsigned>(p.seed & 0xffffffffu));
    values.push_back(static_cast<unsigned>(p.seed >> 32));
  }
  if (part_ == Part::whole) {
    seeds_[tile] = alone(UNSIGNED_INT, values.size(), tile, "seeds_here");
  } else {
    seeds_[tile] = graph_.addConstant<unsigned>(UNSIGNED_INT, {values.size()}, ArrayRef<unsigned>(values), "seeds");
    graph_.setTileMapping(seeds_[tile], tile);
  }
  return seeds_[tile];
}

// Once a batch, not once a step.
void Builder::send_seeds(Sequence& program) {
  std::vector<Tensor> from, to;
  for (const auto& [tile, here] : seeds_) {
    from.push_back(new_seeds_);
    to.push_back(here);
  }
  if (!to.empty()) program.add(Copy(concat(from), concat(to), false, "seeds"));
}

// The lists that a collector sends, by lag.
void Builder::add_outs(Vertices::OfTile& x, const Placed& v, const Collector& c) const {
  for (const unsigned l : v.lags) {
    x.lists["outs"].push_back(of_samples(v.sent.at(l), c.first, c.n));
    x.numbers["lags"].push_back(l);
  }
}

void Builder::add_forward(std::size_t index, unsigned turn, Vertices& vertices) {
  const Population& p = spec_.populations[index];
  const Placed& v = populations_[index];
  for (std::size_t k = 0; k < p.shards.size(); ++k) {
    const Shard& s = p.shards[k];
    Vertices::OfTile& x = vertices.on(s.tile);
    const ForwardShard record{turn,
                              x.size_of("lists"),
                              static_cast<unsigned>(v.incoming.size()),
                              s.n,
                              static_cast<unsigned>(history_rows(p)),
                              n_decoded(p),
                              every(p),
                              p.kept,
                              index_of(*p.shape),
                              p.n_states(),
                              p.reads_out(),
                              decoding(),
                              spec_.n_steps,
                              p.operations};
    x.push("shards", record);
    for (const unsigned i : v.incoming) {
      const Connection& c = spec_.connections[i];
      const Placed& pre = populations_[c.pre];
      x.push("sources", ForwardSource{static_cast<unsigned>(pre.stride), c.delay});
      x.lists["lists"].push_back(pre.sent.at(lag(c)));
      x.lists["weights"].push_back(read_weights(i, k));
    }
    x.lists["entries"].push_back(v.entries.part(k));
    x.lists["bias"].push_back(v.bias.part(k));
    x.lists["history"].push_back(v.history.part(k));
    x.lists["memory"].push_back(memory_rows(p) ? v.memory.part(k) : pad(FLOAT, s.tile));
    x.lists["masks"].push_back(p.reads_out() ? pad(UNSIGNED_INT, s.tile) : v.masks.part(k));
    x.scalars["n_samples"] = spec_.n_samples;
    x.scalars["every"] = part_ == Part::whole ? spec_.keep_every : 0;
    ++x.scalars["n_shards"];
  }
}

void Builder::add_compact(std::size_t index, unsigned turn, Vertices& vertices) {
  const Population& p = spec_.populations[index];
  const Placed& v = populations_[index];
  for (std::size_t k = 0; k < p.collectors.size(); ++k) {
    const Collector& c = p.collectors[k];
    Vertices::OfTile& x = vertices.on(c.tile);
    x.push("collectors", CompactCollector{turn, c.n, c.first, p.capacity, x.size_of("masks"),
                                          static_cast<unsigned>(p.shards.size()), x.size_of("outs"),
                                          static_cast<unsigned>(v.lags.size()), p.fixed, static_cast<unsigned>(index)});
    for (std::size_t s = 0; s < p.shards.size(); ++s) {
      x.lists["masks"].push_back(of_samples(v.masks.part(s), c.first, c.n));
      x.numbers["firsts"].push_back(p.shards[s].first);
    }
    x.numbers["firsts"].push_back(p.n);
    x.lists["kept"].push_back(v.kept.part(k));
    x.lists["dropped"].push_back(v.dropped.part(k));
    x.lists["counts"].push_back(v.counts.part(k));
    x.tensors["first_sample"] = first_sample(c.tile);
    x.tensors["seeds"] = seeds(c.tile);
    add_outs(x, v, c);
    ++x.scalars["n_collectors"];
  }
}

}  // namespace sparsesnn::ipu
