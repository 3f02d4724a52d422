// Streams between host and device: weights, moments and parameters; lists of the input, targets, results of a batch.
#include "builder.h"

namespace sparsesnn::ipu {

// `shared`: one memory for all replicas of this process; else one for each.
void Builder::remember(const std::string& name, const Tensor& t, bool shared) {
  const poplar::Type type = t.elementType();
  const auto kind = type == FLOAT          ? Buffer::Type::float32
                    : type == HALF         ? Buffer::Type::float16
                    : type == UNSIGNED_INT ? Buffer::Type::uint32
                                           : Buffer::Type::uint16;
  const unsigned n_copies = shared ? 1 : spec_.own_replicas;
  Buffer buffer{kind, n_copies * t.numElements(), n_copies, false, false, {}};
  buffer.memory.resize((buffer.n * buffer.element_bytes() + 7) / 8);
  buffers_.emplace(name, std::move(buffer));
}

void Builder::stream_in(const std::string& name, const Tensor& t, Sequence& program, bool shared) {
  if (!to_device_.count(name)) {
    if (!buffers_.count(name)) remember(name, t, shared);
    buffers_.at(name).to_device = true;
    to_device_.emplace(name, graph_.addHostToDeviceFIFO(name, t.elementType(), t.numElements()));
  }
  program.add(Copy(to_device_.at(name), t, false, name));
}

void Builder::stream_out(const std::string& name, const Tensor& t, Sequence& program, bool shared) {
  if (!to_host_.count(name)) {
    if (!buffers_.count(name)) remember(name, t, shared);
    buffers_.at(name).to_host = true;  // one memory serves both directions
    to_host_.emplace(name, graph_.addDeviceToHostFIFO(name + ".out", t.elementType(), t.numElements()));
  }
  program.add(Copy(t, to_host_.at(name), false, name + ".out"));
}

void Builder::make_streams(Sequence& load, Sequence& save, Sequence& lists) {
  const auto both = [&](const std::string& name, const Tensor& t) {
    stream_in(name, t, load);
    stream_out(name, t, save);
  };
  if (spec_.replicas > 1) stream_in("first_sample", first_sample_, load, false);
  for (std::size_t k = 0; k < joined_.size(); ++k) {
    const std::string index = "." + std::to_string(k);
    if (has_floats()) both("weights" + index, joined_[k].weights.all());
    if (spec_.half_weights) stream_in("rounded" + index, joined_[k].rounded.all(), load);
    if (!spec_.trains()) continue;
    stream_in("gradients" + index, joined_[k].gradients.all(), load);
    if (spec_.momentum) both("moments1" + index, joined_[k].moments1.all());
    if (adam()) both("moments2" + index, joined_[k].moments2.all());
  }
  for (std::size_t k = 0; k < populations_.size(); ++k) {
    const Population& p = spec_.populations[k];
    const Placed& v = populations_[k];
    const std::string index = "." + std::to_string(k);
    if (p.is_input()) continue;
    stream_in("entries" + index, v.entries.all(), load);
    if (p.learns()) stream_in("parameters" + index, v.parameters.all(), load);
    stream_in("bias" + index, v.bias.all(), load);
    for (const Vector& x : v.vectors) {
      const std::string& name = x.name;
      if (x.parameter < 0)
        stream_out(name + index, x.value.all(), save);
      else
        both(name + index, x.value.all());
      if (spec_.momentum) both(name + "_moment1" + index, x.moment1.all());
      if (adam()) both(name + "_moment2" + index, x.moment2.all());
    }
    if (p.spikes()) {
      stream_out("lists" + index, v.kept.all(), lists, false);
      stream_out("dropped" + index, v.dropped.all(), lists, false);
    }
  }
}

// Spikes and dropped candidates of each sample, of all spiking populations, in one stream. Every batch reports these
// counts; the lists themselves stay on the device until the host reads them.
void Builder::stream_counts(Sequence& batch) {
  std::vector<Tensor> counts;
  for (std::size_t k = 0; k < populations_.size(); ++k)
    if (spec_.populations[k].spikes()) counts.push_back(populations_[k].counts.all());
  if (!counts.empty()) stream_out("counts", concat(counts), batch, false);
}

}  // namespace sparsesnn::ipu
