// Once a batch, after the backward steps: gradients of replicas are added, then norm and optimizer.
#include <algorithm>
#include <gcl/Collectives.hpp>
#include <iterator>
#include <limits>

#include "builder.h"
#include "codelets/ipu/records.h"

namespace sparsesnn::ipu {

namespace {
// tiles of an IPU whose sums of squares one worker adds; MAX_DIRECT_SUMS in sparsesnn/partition
constexpr std::size_t max_direct_sums = 16;
}  // namespace

void Builder::add_update(Sequence& pass) {
  run_formulas("parameter gradients", true, pass);
  add_up_replicas(pass);
  add_totals(pass);
  const ComputeSet squares = graph_.addComputeSet("square sums"), update = graph_.addComputeSet("update");
  Vertices square_sums(graph_, squares, "SquareSum"), updates(graph_, update, "Update");
  for (std::size_t index = 0; index < populations_.size(); ++index) {
    const Population& p = spec_.populations[index];
    for (std::size_t k = 0; k < p.shards.size(); ++k) {
      Vertices::OfTile &x = square_sums.on(p.shards[k].tile), &y = updates.on(p.shards[k].tile);
      for (const unsigned i : populations_[index].incoming) {
        const Joined& j = joined_[i];
        const unsigned tile = p.shards[k].tile;
        y.lists["weights"].push_back(j.weights.part(k));
        y.lists["rounded"].push_back(spec_.half_weights ? j.rounded.part(k) : pad(HALF, tile));
        y.lists["moments1"].push_back(spec_.momentum ? j.moments1.part(k) : pad(FLOAT, tile));
        y.lists["moments2"].push_back(adam() ? j.moments2.part(k) : pad(FLOAT, tile));
        for (Vertices::OfTile* z : {&x, &y}) {
          z->lists["gradients"].push_back(j.gradients.part(k));
          z->numbers["sizes"].push_back(static_cast<unsigned>(j.weights.part(k).numElements()));
          ++z->scalars["n_arrays"];
        }
      }
      for (const Vector& vector : populations_[index].vectors) add_vector(p, index, k, vector, x, y);
    }
  }
  std::vector<std::vector<Tensor>> sums(spec_.devices);
  for (auto& [tile, x] : square_sums.tiles()) {
    const Tensor sum = alone(FLOAT, n_workers, tile, "square_sums");
    x.tensors["sums"] = sum;
    sums[tile / spec_.tiles].push_back(sum);
    fill_vectors(x, tile, {"values", "d_vectors"});
  }
  for (auto& [tile, y] : updates.tiles()) {
    y.tensors["settings"] = settings_;
    y.tensors["norm"] = norm_;
    y.scalars["kind"] = spec_.optimizer == Optimizer::sgd ? 0 : spec_.optimizer == Optimizer::adam ? 1 : 2;
    y.scalars["has_momentum"] = spec_.momentum;
    y.scalars["rounds"] = spec_.half_weights;
    fill_vectors(y, tile, {"values", "d_vectors", "value_moments1", "value_moments2", "used"});
  }
  square_sums.add_to_graph();
  updates.add_to_graph();
  pass.add(Execute(squares));
  add_norm(sums, pass);
  pass.add(Execute(update));
  run_formulas("entries", false, pass);
}

// Evaluates a formula of every population with trained parameters: their gradients from those of entries (backwards),
// or the entries from the parameters.
void Builder::run_formulas(const char* name, bool backwards, Sequence& pass) {
  const ComputeSet cs = graph_.addComputeSet(name);
  Vertices vertices(graph_, cs, "Formulas");
  for (std::size_t index = 0; index < populations_.size(); ++index) {
    const Population& p = spec_.populations[index];
    const Placed& v = populations_[index];
    if (!p.learns()) continue;
    for (std::size_t k = 0; k < p.shards.size(); ++k)
      if (backwards)
        add_formula(p, k, p.d_parameters, true, v.d_parameters.part(k), v, vertices);
      else
        add_formula(p, k, p.entries_of_parameters, false,
                    v.entries.part(k).slice(0, p.n_entries() * width(p.shards[k])), v, vertices);
  }
  if (vertices.empty()) return;
  for (auto& [tile, x] : vertices.tiles()) {
    x.scalars["n_scratch"] = even(std::max(x.scalars["n_scratch"], 1u));
    x.tensors["scratch"] = alone(FLOAT, n_workers * x.scalars["n_scratch"], tile, "scratch");
    for (const char* field : {"steps", "constants", "operands"})
      if (x.numbers[field].empty()) x.numbers[field].push_back(0);
  }
  vertices.add_to_graph();
  pass.add(Execute(cs));
}

void Builder::add_formula(const Population& p, std::size_t shard, const Formula& formula, bool reads_sums,
                          const Tensor& out, const Placed& v, Vertices& vertices) {
  const Shard& s = p.shards[shard];
  Vertices::OfTile& x = vertices.on(s.tile);
  const auto n_steps = static_cast<unsigned>(formula.steps.size());
  x.push("shards",
         FormulaShard{
             s.n, static_cast<unsigned>(x.numbers["constants"].size()), static_cast<unsigned>(formula.constants.size()),
             static_cast<unsigned>(p.parameters.size()), reads_sums ? static_cast<unsigned>(p.terms.size()) : 0,
             static_cast<unsigned>(x.numbers["steps"].size() / (sizeof(FormulaStep) / sizeof(unsigned))), n_steps,
             static_cast<unsigned>(x.numbers["operands"].size()), static_cast<unsigned>(formula.results.size())});
  for (const float constant : formula.constants) x.push("constants", constant);
  for (const FormulaStep& step : formula.steps) x.push("steps", step);
  for (const unsigned result : formula.results) x.push("operands", result);
  const std::size_t rows = n_workers * width(s);
  x.lists["parameters"].push_back(v.parameters.part(shard));
  x.lists["sums"].push_back(reads_sums ? v.d_vectors.part(shard).slice(rows, (1 + p.terms.size()) * rows)
                                       : pad(FLOAT, s.tile));
  x.lists["results"].push_back(out);
  x.scalars["n_scratch"] = std::max(x.scalars["n_scratch"], n_steps);
  ++x.scalars["n_shards"];
}

// Six rows of a bias, one of a parameter; or the sum over a population.
Tensor Builder::gradient_of(const Placed& v, const Vector& vector, const Population& p, std::size_t shard) const {
  const std::size_t w = width(p.shards[shard]);
  if (vector.parameter < 0) return v.d_vectors.part(shard).slice(0, n_workers * w);
  return v.d_parameters.part(shard).slice(vector.of_shard * w, (vector.of_shard + 1) * w);
}

// A tile without vectors still has the fields connected.
void Builder::fill_vectors(Vertices::OfTile& x, unsigned tile, const std::vector<const char*>& fields) {
  x.scalars["n_vectors"] = static_cast<unsigned>(x.numbers["vectors"].size() / (sizeof(TrainedVector) / 4));
  if (x.scalars["n_vectors"]) return;
  x.numbers["vectors"].push_back(0);
  for (const char* field : fields) x.lists[field].push_back(pad(FLOAT, tile));
}

void Builder::add_vector(const Population& p, std::size_t index, std::size_t k, const Vector& vector,
                         Vertices::OfTile& x, Vertices::OfTile& y) {
  const Shard& s = p.shards[k];
  const Placed& v = populations_[index];
  const bool is_bias = vector.parameter < 0;
  const auto row = static_cast<std::size_t>(is_bias ? 0 : vector.parameter);
  const unsigned n = vector.shared ? 1 : s.n;
  const float infinite = std::numeric_limits<float>::infinity();
  const TrainedVector record{n,
                             is_bias ? n_workers : 1,
                             vector.shared,
                             !vector.shared || k == 0,
                             is_bias ? 0 : s.n,
                             is_bias ? -infinite : p.parameters[row].low,
                             is_bias ? infinite : p.parameters[row].high};
  const Tensor d = vector.shared ? vector.total : gradient_of(v, vector, p, k);
  for (Vertices::OfTile* z : {&x, &y}) {
    z->push("vectors", record);
    z->lists["values"].push_back(vector.value.part(k));
    z->lists["d_vectors"].push_back(d);
  }
  y.lists["value_moments1"].push_back(spec_.momentum ? vector.moment1.part(k) : pad(FLOAT, s.tile));
  y.lists["value_moments2"].push_back(adam() ? vector.moment2.part(k) : pad(FLOAT, s.tile));
  y.lists["used"].push_back(is_bias ? pad(FLOAT, s.tile)
                                    : v.parameters.part(k).slice(row * width(s), row * width(s) + s.n));
}

// Adds the gradients of all replicas; each replica then makes the same update.
void Builder::add_up_replicas(Sequence& pass) {
  std::vector<Tensor> gradients;
  for (const Joined& j : joined_) gradients.push_back(j.gradients.all());
  for (std::size_t index = 0; index < populations_.size(); ++index) {
    const Population& p = spec_.populations[index];
    const Placed& v = populations_[index];
    for (std::size_t k = 0; k < p.shards.size(); ++k)
      if (p.bias) gradients.push_back(v.d_vectors.part(k).slice(0, n_workers * width(p.shards[k])));
    if (p.learns()) gradients.push_back(v.d_parameters.all());
  }
  add_up(gradients, "gradients of replicas", pass);
}

// Replaces each replica's tensors by their sums over replicas.
void Builder::add_up(const std::vector<Tensor>& tensors, const char* name, Sequence& pass) {
  if (spec_.replicas == 1) return;
  Tensor all = concat(tensors);
  gcl::allReduceInPlaceCrossReplica(graph_, all, gcl::CollectiveOperator::ADD, pass,
                                    gcl::CommGroup(gcl::CommGroupType::ALL, 0), {name}, {});
}

// Gradients of values that a whole population shares.
void Builder::add_totals(Sequence& pass) {
  const ComputeSet totals = graph_.addComputeSet("totals");
  bool any = false;
  for (std::size_t index = 0; index < populations_.size(); ++index) {
    const Population& p = spec_.populations[index];
    const Placed& v = populations_[index];
    for (const Vector& vector : v.vectors) {
      if (!vector.shared) continue;
      any = true;
      Vertices one(graph_, totals, "Total");
      Vertices::OfTile& x = one.on(p.shards[0].tile);
      for (std::size_t k = 0; k < p.shards.size(); ++k) {
        x.lists["rows"].push_back(gradient_of(v, vector, p, k));
        x.numbers["sizes"].push_back(p.shards[k].n);
      }
      x.tensors["total"] = vector.total;
      x.scalars["n_shards"] = static_cast<unsigned>(p.shards.size());
      one.add_to_graph();
    }
  }
  if (any) pass.add(Execute(totals));
}

// Sums of squares: of the tiles of each IPU, if there are many; then of all.
void Builder::add_norm(const std::vector<std::vector<Tensor>>& sums, Sequence& pass) {
  const ComputeSet devices = graph_.addComputeSet("device norms"), norm = graph_.addComputeSet("norm");
  Vertices device_norms(graph_, devices, "DeviceNorm"), norms(graph_, norm, "Norm");
  std::vector<Tensor> all;
  for (unsigned d = 0; d < spec_.devices; ++d) {
    if (sums[d].size() <= max_direct_sums) {
      all.insert(all.end(), sums[d].begin(), sums[d].end());
      continue;
    }
    const unsigned tile = d * spec_.tiles;
    Vertices::OfTile& x = device_norms.on(tile);
    all.push_back(alone(FLOAT, n_workers, tile, "device_norm"));
    x.tensors["parts"] = concat(sums[d]);
    x.tensors["sums"] = all.back();
    x.scalars["n_parts"] = static_cast<unsigned>(x.tensors["parts"].numElements());
  }
  Vertices::OfTile& x = norms.on(0);
  x.tensors["sums"] = concat(all);
  x.tensors["settings"] = settings_;
  x.tensors["norm"] = norm_;
  x.scalars["n_sums"] = static_cast<unsigned>(x.tensors["sums"].numElements());
  device_norms.add_to_graph();
  norms.add_to_graph();
  if (!device_norms.empty()) pass.add(Execute(devices));
  pass.add(Execute(norm));
}

}  // namespace sparsesnn::ipu
