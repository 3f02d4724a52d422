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
    v.entries = on_shards(p, FLOAT, "entries", [&](const Shard& s) { return p.entry_rows() * width(s); });
    if (forward || reads_history(p))
      v.history = on_shards(p, FLOAT, "history", rows(history_blocks(p) * history_rows(p)));
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
    v.d_states = on_shards(p, FLOAT, "d_states", rows(p.n_states()));
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
  return 1 + static_cast<std::size_t>(__builtin_popcount(p.kept));
}

std::size_t Builder::memory_rows(const Population& p) const {
  const unsigned states = p.kept & ((1u << p.n_states()) - 1);  // without the current
  const std::size_t others = p.n_states() - 1 - static_cast<unsigned>(__builtin_popcount(states));
  return n_decoded(p) + others * (every(p) ? 1 + n_ends() : 1);
}

// Bias and trained parameters. The gradient of the bias has the first rows of d_vectors, always; those of entries
// follow.
void Builder::make_vectors(const Population& p, Placed& v) {
  const unsigned n_terms = static_cast<unsigned>(p.terms.size());
  v.d_vectors = on_shards(p, FLOAT, "d_vectors", [&](const Shard& s) { return (1 + n_terms) * n_workers * width(s); });
  if (part_ != Part::whole) return;  // the owner of the weights updates them
  const auto add = [&](const std::string& name, int parameter, bool shared, unsigned of_shard, const Parted& value) {
    const auto size = [&](const Shard& s) { return shared ? std::size_t{2} : width(s); };
    Vector x{name, parameter, shared, of_shard, parameter < 0 ? value : on_shards(p, FLOAT, name, size), {}, {}, {}};
    if (spec_.momentum) x.moment1 = on_shards(p, FLOAT, name + "_moment1", size);
    if (adam()) x.moment2 = on_shards(p, FLOAT, name + "_moment2", size);
    if (shared) x.total = alone(FLOAT, 2, p.shards[0].tile, p.name + "." + name + "_total");
    v.vectors.push_back(x);
  };
  if (p.bias) add("bias", -1, false, 0, v.bias);
  if (!p.learns()) return;
  v.parameters = on_shards(p, FLOAT, "parameters", [&](const Shard& s) { return p.parameters.size() * width(s); });
  v.d_parameters = on_shards(p, FLOAT, "d_parameters", [&](const Shard& s) { return p.n_trained() * width(s); });
  unsigned n = 0;
  for (std::size_t k = 0; k < p.parameters.size(); ++k)
    if (p.parameters[k].trained)
      add("parameter_" + p.parameters[k].name, static_cast<int>(k), p.parameters[k].shared, n++, {});
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
