// The order of execution: populations joined by delay 0 take rounds, rounds may share vertices, and every vertex keeps
// its own clock.
#include <algorithm>
#include <set>

#include "builder.h"

namespace sparsesnn::ipu {

void Builder::find_rounds() {
  for (unsigned k = 0; k < spec_.connections.size(); ++k) {
    populations_[spec_.connections[k].post].incoming.push_back(k);
    populations_[spec_.connections[k].pre].outgoing.push_back(k);
  }
  for (std::size_t p = 0; p < populations_.size(); ++p) {
    Placed& placed = populations_[p];
    if (spec_.populations[p].is_input()) continue;
    placed.round = 0;
    for (const unsigned k : placed.incoming) {
      const Connection& c = spec_.connections[k];
      if (c.delay == 0) placed.round = std::max(placed.round, populations_[c.pre].round + 1);
      placed.ring = std::max<std::size_t>(placed.ring, c.delay + 1);
    }
    n_rounds_ = std::max(n_rounds_, placed.round + 1);
  }
  for (std::size_t p = 0; p < populations_.size(); ++p) {
    std::set<unsigned> lags;
    for (const unsigned k : populations_[p].outgoing) lags.insert(lag(spec_.connections[k]));
    if (lags.empty()) lags.insert(0);
    populations_[p].lags.assign(lags.begin(), lags.end());
  }
}

// A reader of an earlier or the same round reads before the sender's collectors write again: one step has passed.
unsigned Builder::lag(const Connection& c) const {
  return populations_[c.post].round > populations_[c.pre].round ? c.delay : c.delay - 1;
}

std::vector<Builder::Stage> Builder::stages(bool backwards) const {
  std::vector<Stage> found;
  for (int r = 0; r < n_rounds_; ++r) {
    const int round = backwards ? n_rounds_ - 1 - r : r;
    if (loops() && r)
      found.back().push_back(round);
    else
      found.push_back({round});
  }
  return found;
}

// The turn of the stage in which a population runs; -1: none.
int Builder::turn_of(std::size_t population, const Stage& stage) const {
  const auto found = std::find(stage.begin(), stage.end(), populations_[population].round);
  return found == stage.end() ? -1 : static_cast<int>(found - stage.begin());
}

// Step and turn of each worker of a vertex; see `Moment` in codelets/ipu/vertex.h.
Tensor Builder::clock(std::vector<Clock>& clocks, unsigned tile) {
  clocks.push_back({alone(UNSIGNED_INT, 2 * n_workers, tile, "clock"), tile});
  return clocks.back().tensor;
}

void Builder::add_clocks(Vertices& vertices, std::vector<Clock>& clocks, unsigned n_turns) {
  for (auto& [tile, given] : vertices.tiles()) {
    given.tensors["clock"] = clock(clocks, tile);
    if (n_turns) given.scalars["n_turns"] = n_turns;
  }
}

void Builder::reset_clocks(const std::vector<Clock>& clocks, unsigned step, Sequence& program) {
  std::vector<Tensor> from, to;
  std::map<unsigned, Tensor> constants;
  std::vector<unsigned> values(2 * n_workers, 0);
  std::fill(values.begin(), values.begin() + n_workers, step);
  for (const Clock& c : clocks) {
    if (!constants.count(c.tile)) {
      constants[c.tile] =
          graph_.addConstant<unsigned>(UNSIGNED_INT, {2 * n_workers}, ArrayRef<unsigned>(values), "first_step");
      graph_.setTileMapping(constants[c.tile], c.tile);
    }
    from.push_back(constants[c.tile]);
    to.push_back(c.tensor);
  }
  program.add(Copy(concat(from), concat(to), false, "clocks"));
}

}  // namespace sparsesnn::ipu
