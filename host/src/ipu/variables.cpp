// The variables on the tiles: those of shards, collectors and connections, and the number of steps kept.
#include <algorithm>

#include "builder.h"
#include "codelets/ipu/records.h"

namespace sparsesnn::ipu {

Parted Builder::on_collectors(const Population& p, const poplar::Type& type, const std::string& name,
                              std::size_t per_sample) {
  std::vector<std::size_t> sizes;
  std::vector<unsigned> tiles;
  for (const Collector& c : p.collectors) sizes.push_back(c.n * per_sample), tiles.push_back(c.tile);
  return Parted(graph_, type, sizes, tiles, p.name + "." + name);
}

Tensor Builder::alone(const poplar::Type& type, std::size_t n, unsigned tile, const std::string& name) {
  const Tensor t = graph_.addVariable(type, {n}, name);
  graph_.setTileMapping(t, tile);
  return t;
}

void Builder::make_variables() {
  const std::size_t b = spec_.n_samples, t = spec_.n_steps;
  const bool forward = part_ != Part::backward;
  for (std::size_t k = 0; k < populations_.size(); ++k) {
    const Population& p = spec_.populations[k];
    Placed& v = populations_[k];
    if (spikes_or_input(p)) {
      v.slots = even(p.capacity);
      v.stride = 2 + v.slots;
      v.bucket_stride = 2 * n_workers + even(p.capacity + n_workers);
      v.kept = on_collectors(p, UNSIGNED_SHORT, "kept", t * v.stride);
      for (const unsigned l : v.lags)
        if (forward || l == v.lags[0])
          v.sent[l] = on_collectors(p, UNSIGNED_SHORT, "sent" + std::to_string(l), v.stride).all();
      if (learns_) v.buckets = on_collectors(p, UNSIGNED_SHORT, "buckets", v.bucket_stride);
      if (learns_ && hears_back(p)) v.e = on_collectors(p, FLOAT, "e", v.slots);
    }
    if (p.is_input()) continue;
    const auto rows = [&](std::size_t n) { return [=](const Shard& s) { return n * b * width(s); }; };
    v.parameters = on_shards(p, FLOAT, "parameters", [&](const Shard& s) { return p.parameter_rows() * width(s); });
    if (forward || p.spikes()) v.history = on_shards(p, FLOAT, "history", rows(history_blocks(p) * history_rows(p)));
    if (forward) {
      v.bias = on_shards(p, FLOAT, "bias", [&](const Shard& s) { return width(s); });
      if (memory_rows(p)) v.memory = on_shards(p, FLOAT, "memory", rows(memory_rows(p)));
      if (p.spikes()) {
        v.masks = on_shards(p, UNSIGNED_INT, "masks", [&](const Shard& s) { return b * words(s); });
        v.dropped = on_collectors(p, UNSIGNED_INT, "dropped", t);
        v.counts = on_collectors(p, UNSIGNED_INT, "counts", 2);
      }
    }
    if (!learns_) continue;
    v.d_states = on_shards(p, FLOAT, "d_states", rows(p.model->n_states));
    v.d_current = on_shards(p, FLOAT, "d_current", rows(v.ring));
    if (p.reads_out()) v.d_value = on_shards(p, FLOAT, "d_value", rows(d_value_rows()));
    make_vectors(p, v);
  }
  for (const Connection& c : spec_.connections) {
    const Population &pre = spec_.populations[c.pre], &post = spec_.populations[c.post];
    const std::string name = "from_" + pre.name + ".";
    const auto like_weights = [&](const Shard& s) { return pre.n * width(s); };
    Joined j;
    if (has_floats()) j.weights = on_shards(post, FLOAT, name + "weights", like_weights);
    if (spec_.half_weights) j.rounded = on_shards(post, HALF, name + "rounded", like_weights);
    if (learns_) {
      j.gradients = on_shards(post, FLOAT, name + "gradients", like_weights);
      if (spec_.momentum) j.moments1 = on_shards(post, FLOAT, name + "moments1", like_weights);
      if (adam()) j.moments2 = on_shards(post, FLOAT, name + "moments2", like_weights);
      if (hears_back(pre))
        j.shares = on_shards(post, FLOAT, name + "shares",
                             [&](const Shard&) { return spec_.n_samples * populations_[c.pre].slots; });
    }
    joined_.push_back(j);
  }
  if (part_ != Part::whole) return;
  const Population& output = spec_.populations.back();
  targets_ = on_collectors(output, FLOAT, "targets", spec_.n_classes);
  losses_ = on_collectors(output, FLOAT, "losses", 1);
  logits_ = on_collectors(output, FLOAT, "logits", spec_.n_classes);
  d_logits_ = on_collectors(output, FLOAT, "d_logits", spec_.n_classes);
  if (spec_.maximum_of_means())
    over_time_ = on_collectors(output, FLOAT, "over_time", t * output.n);
  else
    d_values_ = on_collectors(output, FLOAT, "d_values", output.n);
  settings_ = alone(FLOAT, 12, 0, "settings");
  new_seeds_ = alone(UNSIGNED_INT, 2 * spec_.populations.size(), 0, "seeds");
  if (spec_.replicas > 1) first_sample_ = alone(UNSIGNED_INT, 1, 0, "first_sample");
  norm_ = alone(FLOAT, 2, 0, "norm");
}

// The number of steps whose potentials are kept: all, or two.
std::size_t Builder::history_rows(const Population& p) const {
  const bool read_later = keeps_history_ || part_ == Part::backward || (p.reads_out() && !decodes());
  return !read_later ? 2 : every(p) ? every(p) + n_ends() : spec_.n_steps;
}

std::size_t Builder::history_blocks(const Population& p) const {
  return 1 + static_cast<std::size_t>(__builtin_popcount(kept(p)));
}

std::size_t Builder::memory_rows(const Population& p) const {
  if (p.reads_out()) return spec_.maximum_of_means() ? 0 : 2;
  const unsigned states = kept(p) & ((1u << p.model->n_states) - 1);  // without the current
  const std::size_t others = p.model->n_states - 1 - static_cast<unsigned>(__builtin_popcount(states));
  return others * (every(p) ? 1 + n_ends() : 1);
}

// Bias and trained parameters; rows of their gradients are in this order, always including those of the bias.
void Builder::make_vectors(const Population& p, Placed& v) {
  unsigned n = 0;
  for (int k = -1; k < static_cast<int>(p.model->n_parameters); ++k) {
    const bool is_bias = k < 0, shared = !is_bias && (p.shared >> k & 1);
    if (!is_bias && !(spec_.trains() && (p.learns >> k & 1))) continue;
    const unsigned of_shard = n++;
    if (is_bias && !p.bias) continue;
    const auto size = [&](const Shard& s) { return shared ? std::size_t{2} : width(s); };
    const char* const named = is_bias ? "bias" : p.model->parameter_names[k];
    const std::string name = named;
    if (part_ != Part::whole) continue;  // the owner of the weights updates them
    Vector x{named, k, shared, of_shard, is_bias ? v.bias : on_shards(p, FLOAT, name, size), {}, {}, {}};
    if (spec_.momentum) x.moment1 = on_shards(p, FLOAT, name + "_moment1", size);
    if (adam()) x.moment2 = on_shards(p, FLOAT, name + "_moment2", size);
    if (shared) x.total = alone(FLOAT, 2, p.shards[0].tile, p.name + "." + name + "_total");
    v.vectors.push_back(x);
  }
  v.d_vectors = on_shards(p, FLOAT, "d_vectors", [&](const Shard& s) { return n * n_workers * width(s); });
}

// Weights in the form that spikes and gradients read.
Tensor Builder::read_weights(unsigned connection, std::size_t shard) const {
  const Joined& j = joined_[connection];
  return (spec_.half_weights ? j.rounded : j.weights).part(shard);
}

std::string Builder::of_weights(const std::string& vertex) const {
  return vertex + (spec_.half_weights ? "<half>" : "<float>");
}

Tensor Builder::of_samples(const Tensor& all, std::size_t first, std::size_t n) const {
  const std::size_t per_sample = all.numElements() / spec_.n_samples;
  return all.slice(first * per_sample, (first + n) * per_sample);
}

}  // namespace sparsesnn::ipu
