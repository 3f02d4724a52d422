// Once a batch, between forward and backward steps: loss and its gradient, and the activity regularizer.
#include "builder.h"
#include "codelets/ipu/records.h"

namespace sparsesnn::ipu {

void Builder::add_loss(Sequence& pass) {
  const Population& p = spec_.populations.back();
  const Placed& v = populations_.back();
  const ComputeSet loss = graph_.addComputeSet("loss");
  const bool of_means = spec_.maximum_of_means();
  Vertices vertices(graph_, loss, p.spikes() ? "CountLoss" : of_means ? "MaximumLoss" : "Loss");
  if (of_means) pass.add(Copy(potentials_of(p, v), over_time_.all(), false, "potentials of the output"));
  for (std::size_t k = 0; k < p.collectors.size(); ++k) {
    const Collector& c = p.collectors[k];
    Vertices::OfTile& x = vertices.on(c.tile);
    if (p.spikes()) {
      x.tensors["kept"] = v.kept.part(k);
      x.scalars["n_steps"] = spec_.n_steps;
      x.scalars["stride"] = static_cast<unsigned>(v.stride);
    } else if (of_means) {
      x.tensors["over_time"] = over_time_.part(k);
      x.scalars["n_steps"] = spec_.n_steps;
    } else {
      for (std::size_t s = 0; s < p.shards.size(); ++s) {
        x.lists["values"].push_back(of_samples(values_of(v, p, s), c.first, c.n));
        x.numbers["sizes"].push_back(p.shards[s].n);
      }
      x.scalars["n_shards"] = static_cast<unsigned>(p.shards.size());
    }
    x.tensors["targets"] = targets_.part(k);
    x.tensors["settings"] = settings_;
    x.tensors["logits"] = logits_.part(k);
    x.tensors["d_logits"] = d_logits_.part(k);
    if (!of_means) x.tensors["d_values"] = d_values_.part(k);
    x.tensors["losses"] = losses_.part(k);
    x.scalars["n_samples"] = c.n;
    x.scalars["n_classes"] = spec_.n_classes;
    x.scalars["n_per_class"] = p.n / spec_.n_classes;
  }
  vertices.add_to_graph();
  pass.add(Execute(loss));
}

// Once a batch: spikes of every neuron, and from them the regularizer's part of the gradient of each spike.
void Builder::add_regularizer(Sequence& pass) {
  const ComputeSet count = graph_.addComputeSet("activity"), regularize = graph_.addComputeSet("regularizer");
  Vertices counts(graph_, count, "CountSpikes"), regularizers(graph_, regularize, "Regularize");
  std::vector<Tensor> all_counts;
  for (std::size_t index = 0; index < populations_.size(); ++index) {
    const Population& p = spec_.populations[index];
    Placed& v = populations_[index];
    if (!p.spikes()) continue;
    std::vector<Tensor> counted;
    for (std::size_t k = 0; k < p.collectors.size(); ++k) {
      const Collector& c = p.collectors[k];
      Vertices::OfTile& x = counts.on(c.tile);
      counted.push_back(alone(FLOAT, even(p.n + 1), c.tile, p.name + ".spikes"));
      all_counts.push_back(counted.back());
      x.push("collectors", CountedCollector{c.n, c.first, static_cast<unsigned>(v.stride), p.n});
      x.lists["kept"].push_back(v.kept.part(k));
      x.lists["counts"].push_back(counted.back());
      x.tensors["settings"] = settings_;
      x.tensors["first_sample"] = first_sample(c.tile);
      x.scalars["n_steps"] = spec_.n_steps;
      ++x.scalars["n_collectors"];
    }
    for (const Shard& s : p.shards) {
      Vertices::OfTile& x = regularizers.on(s.tile);
      x.push("shards", RegularizedShard{x.size_of("counts"), static_cast<unsigned>(counted.size()), s.n, p.n});
      for (const Tensor& t : counted) {
        x.lists["counts"].push_back(t.slice(s.first, s.first + s.n));
        x.lists["totals"].push_back(t.slice(p.n, p.n + 1));
      }
      v.regularizer.push_back(alone(FLOAT, width(s) + 2, s.tile, p.name + ".regularizer"));
      x.lists["out"].push_back(v.regularizer.back());
      x.tensors["settings"] = settings_;
      x.tensors["first_sample"] = first_sample(s.tile);
      x.scalars["n_steps"] = spec_.n_steps;
      x.floats = {{"lower", spec_.lower},
                  {"upper", spec_.upper},
                  {"strength_lower", spec_.strength_lower},
                  {"strength_upper", spec_.strength_upper}};
      ++x.scalars["n_shards"];
    }
  }
  if (counts.empty()) return;
  counts.add_to_graph();
  regularizers.add_to_graph();
  pass.add(Execute(count));
  add_up(all_counts, "counts of replicas", pass);
  pass.add(Execute(regularize));
}

// The potentials of a readout over time, in the order of its collectors: [T, samples, N] of each.
Tensor Builder::potentials_of(const Population& p, const Placed& v) {
  std::vector<Tensor> shards, parts;
  for (std::size_t k = 0; k < p.shards.size(); ++k) {
    const std::size_t w = width(p.shards[k]), size = std::size_t{spec_.n_steps} * spec_.n_samples * w;
    const Tensor history = v.history.part(k).slice(0, size).reshape({spec_.n_steps, spec_.n_samples, w});
    shards.push_back(history.slice(0, p.shards[k].n, 2));
  }
  const Tensor all = concat(shards, 2);
  for (const Collector& c : p.collectors) parts.push_back(all.slice(c.first, c.first + c.n, 1).flatten());
  return concat(parts);
}

// The decoded values of a shard of a readout: the first half of its memory.
Tensor Builder::values_of(const Placed& v, const Population& p, std::size_t shard) const {
  return v.memory.part(shard).slice(0, spec_.n_samples * width(p.shards[shard]));
}

void Builder::add_readout_gradient(Sequence& pass) {
  const Population& output = spec_.populations.back();
  if (spec_.maximum_of_means()) {
    std::vector<Tensor> of_samples;
    for (std::size_t k = 0; k < output.collectors.size(); ++k)
      of_samples.push_back(over_time_.part(k).reshape({spec_.n_steps, output.collectors[k].n, output.n}));
    take_columns(concat(of_samples, 1).reshape({std::size_t{spec_.n_steps} * spec_.n_samples, output.n}), output,
                 populations_.back().d_value, pass);
  } else if (!output.spikes())
    take_columns(d_values_.all().reshape({spec_.n_samples, output.n}), output, populations_.back().d_value, pass);
}

// A tensor [rows, N] into shards' parts [rows, w]; the padding of a part is not written.
void Builder::take_columns(const Tensor& rows, const Population& p, const Parted& parts, Sequence& program) {
  std::vector<Tensor> from, to;
  for (std::size_t k = 0; k < p.shards.size(); ++k) {
    const Shard& s = p.shards[k];
    from.push_back(rows.slice(s.first, s.first + s.n, 1).flatten());
    to.push_back(parts.part(k).reshape({rows.dim(0), width(s)}).slice(0, s.n, 1).flatten());
  }
  program.add(Copy(concat(from), concat(to), false, p.name + " columns"));
}

}  // namespace sparsesnn::ipu
