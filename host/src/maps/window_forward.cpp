// The forward pass of a layer with windows as input (windows.h): sample by sample, row by row.
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "codelets/capacity.h"
#include "host/src/cpu/kernels/kernels.h"
#include "host/src/cpu/packing.h"
#include "host/src/cpu/phases.h"
#include "host/src/machine/isa.h"
#include "host/src/machine/thread_pool.h"
#include "window_passes.h"

namespace sparsesnn {
namespace {

// Arrays of one worker.
class ForwardRoom {
 public:
  ForwardRoom(const LayerSpec& spec, const LayerInput& input, const PackedWindows& packed, const WindowRows& rows)
      : sources(input, packed, std::vector<bool>(input.sources.size())),
        n_(window_row_floats(rows.length)),
        n_blocks_(window_blocks(rows.length)) {
    const int n_states = spec.shape->n_states, n_entries = static_cast<int>(spec.shape->entries.size());
    const int n_arrays = (1 + spec.n_learnt()) * (n_states + n_entries) + 4;
    floats_ = Array<float>::zeros(n_ * n_arrays + 2 * rows.margin);
    steps_ = Array<std::int32_t>(2 * static_cast<std::size_t>(n_blocks_));
    fired_ = Array<bool>(n_blocks_);
    records_ = std::vector<SlotBuffer>(n_blocks_);
    float* next = floats_.data();
    const auto take = [&] { return std::exchange(next, next + n_); };
    for (int s = 0; s < n_states; ++s) room_.state[s] = take();
    for (int k = 0; k < n_entries; ++k) room_.entry[k] = take();
    for (int q = 0; q < spec.n_learnt(); ++q) {
      for (int s = 0; s < n_states; ++s) room_.trace[q][s] = take();
      for (int k = 0; k < n_entries; ++k) room_.derivative[q][k] = take();
    }
    room_.grad_threshold = take();
    room_.bias = take();
    if (spec.traces_spikes()) room_.slope = take();
    room_.current = next + rows.margin;
    room_.next = steps_.data();
    room_.reached = steps_.data() + n_blocks_;
    room_.fired = fired_.data();
    room_.records = records_.data();
  }

  const WindowForwardRoom& room() const { return room_; }

  // Appends the records of a row, ids of each step ascending.
  void take_records(std::vector<float>& to) const {
    for (const SlotBuffer& block : records_) to.insert(to.end(), block.data, block.data + block.size);
  }

  RowSources sources;

 private:
  std::size_t n_;
  int n_blocks_;
  Array<float> floats_;
  Array<std::int32_t> steps_;
  Array<bool> fired_;
  std::vector<SlotBuffer> records_;
  WindowForwardRoom room_{};
};

using Kept = KeptRanks<std::int64_t>;

class Forward {
 public:
  Forward(const LayerSpec& spec, const LayerInput& input)
      : spec_(spec),
        input_(input),
        rows_(input),
        packed_(spec, input),
        neuron_(spec, input),
        n_lists_(static_cast<std::int64_t>(input.n_steps) * input.n_samples),
        records_(input.n_samples) {}

  LayerOutput run();

 private:
  void run_samples();
  void count(int sample);
  void fill(int sample);
  // Calls visit(record, fields) for the records of a sample: by rows, and within them by blocks, steps and ids.
  template <class Visit>
  void each_record(int sample, Visit&& visit) const {
    const std::vector<float>& records = records_[sample];
    for (std::size_t k = 0; k < records.size(); k += window_record_floats + spec_.n_fields()) {
      WindowRecord record;
      std::memcpy(&record, records.data() + k, sizeof(record));
      visit(record, records.data() + k + window_record_floats);
    }
  }
  std::int64_t list(int t, int sample) const { return static_cast<std::int64_t>(t) * input_.n_samples + sample; }

  const LayerSpec& spec_;
  const LayerInput& input_;
  const Kernels& kernels_ = chosen_kernels();
  const WindowRows rows_;
  const PackedWindows packed_;
  const Padded neuron_;
  const std::int64_t n_lists_;
  std::vector<std::vector<float>> records_;  // of each sample
  std::vector<Kept> fired_, near_;           // of each list
  LayerOutput out_;
};

void Forward::run_samples() {
  const PhaseTimer timer(Phase::forward);
  WindowForward pass{};
  set_up(pass, spec_, input_, neuron_);
  for (std::size_t s = 0; s < out_.state.size(); ++s) pass.state[s] = out_.state[s].data();
  pass.starts_silent = !input_.state[0];
  pass.nobody_fired = pass.starts_silent && neuron_.any_threshold_below_zero();
  std::vector<std::unique_ptr<ForwardRoom>> rooms(num_threads());
  parallel_for(input_.n_samples, [&](int sample, int worker) {
    std::unique_ptr<ForwardRoom>& room = rooms[worker];
    if (!room) room = std::make_unique<ForwardRoom>(spec_, input_, packed_, rows_);
    room->sources.find(sample);
    for (int row = 0; row < rows_.n_rows; ++row) {
      kernels_.forward_row(pass, sample, row, room->sources.of_row(row), room->room());
      room->take_records(records_[sample]);
    }
  });
}

// Counts the candidates of each list of a sample, and determines which are kept.
void Forward::count(int sample) {
  std::vector<std::int32_t> n(2 * static_cast<std::size_t>(input_.n_steps));
  each_record(sample, [&](const WindowRecord& record, const float*) { ++n[2 * record.t + (record.id & 1)]; });
  const std::int64_t none = std::numeric_limits<std::int32_t>::max();
  for (int t = 0; t < input_.n_steps; ++t) {
    const std::int64_t i = list(t, sample), room = spec_.capacity ? spec_.capacity : none;
    const std::uint64_t hash = spec_.capacity ? kernels_.rotation(spec_, t, sample) : 0;
    const auto modulo = [&](std::int64_t n) { return static_cast<std::int64_t>(hash % static_cast<Hash64>(n)); };
    fired_[i] = keep_ranks<std::int64_t>(n[2 * t + 1], room, modulo);
    near_[i] = keep_ranks<std::int64_t>(n[2 * t], room - fired_[i].n_kept, modulo);
    out_.n_spikes[i] = static_cast<std::int32_t>(fired_[i].n_kept);
    if (spec_.capacity)
      out_.dropped[i] = static_cast<std::int32_t>(fired_[i].n + near_[i].n - fired_[i].n_kept - near_[i].n_kept);
  }
}

void Forward::fill(int sample) {
  struct Next {
    std::int64_t fired = 0, near = 0;  // ranks
    std::int64_t slot, near_slot, silenced;
  };
  std::vector<Next> next(input_.n_steps);
  for (int t = 0; t < input_.n_steps; ++t) {
    const std::int64_t i = list(t, sample);
    next[t].slot = out_.offsets[i];
    next[t].near_slot = out_.offsets[i] + out_.n_spikes[i];
    next[t].silenced = out_.silenced_offsets ? out_.silenced_offsets[i] : 0;
  }
  const std::size_t n_slots = static_cast<std::size_t>(out_.offsets[n_lists_]);
  const int n_fields = spec_.n_fields();
  each_record(sample, [&](const WindowRecord& record, const float* fields) {
    Next& at = next[record.t];
    const std::int64_t i = list(record.t, sample);
    const std::uint32_t id = record.id / 2;
    const bool fired = record.id & 1;
    if (!(fired ? fired_[i].has(at.fired++) : near_[i].has(at.near++))) {
      if (fired && out_.silenced_offsets) out_.silenced_ids[at.silenced++] = id;
      return;
    }
    const std::int64_t slot = fired ? at.slot++ : at.near_slot++;
    if (out_.wide)
      reinterpret_cast<std::uint32_t*>(out_.ids.data())[slot] = id;
    else
      reinterpret_cast<std::uint16_t*>(out_.ids.data())[slot] = static_cast<std::uint16_t>(id);
    for (int f = 0; f < n_fields; ++f) out_.fields[f * n_slots + slot] = fields[f];
  });
}

LayerOutput Forward::run() {
  const std::size_t n_states = static_cast<std::size_t>(input_.n_samples) * spec_.n;
  for (int s = 0; s < spec_.shape->n_states; ++s) {
    out_.state.push_back(Array<float>::zeros(n_states));
    if (input_.state[s]) std::memcpy(out_.state[s].data(), input_.state[s], sizeof(float) * n_states);
  }
  run_samples();

  const PhaseTimer timer(Phase::collect);
  out_.wide = spec_.n > 65536;
  out_.offsets = Array<std::int64_t>(n_lists_ + 1);
  out_.n_spikes = Array<std::int32_t>(n_lists_);
  if (spec_.capacity) out_.dropped = Array<std::int32_t>(n_lists_);
  fired_.resize(n_lists_);
  near_.resize(n_lists_);
  parallel_for(input_.n_samples, [&](int sample, int) { count(sample); });
  out_.offsets[0] = 0;
  for (std::int64_t i = 0; i < n_lists_; ++i)
    out_.offsets[i + 1] = out_.offsets[i] + fired_[i].n_kept + near_[i].n_kept;
  const std::size_t n_slots = static_cast<std::size_t>(out_.offsets[n_lists_]);
  if (spec_.stores_silenced()) {
    out_.silenced_offsets = Array<std::int64_t>(n_lists_ + 1);
    out_.silenced_offsets[0] = 0;
    for (std::int64_t i = 0; i < n_lists_; ++i)
      out_.silenced_offsets[i + 1] = out_.silenced_offsets[i] + fired_[i].n - fired_[i].n_kept;
    out_.silenced_ids = Array<std::uint32_t>(out_.silenced_offsets[n_lists_]);
  }
  out_.ids = Array<unsigned char>(n_slots * (out_.wide ? 4 : 2));
  out_.fields = Array<float>(n_slots * spec_.n_fields());
  parallel_for(input_.n_samples, [&](int sample, int) {
    fill(sample);
    std::vector<float>().swap(records_[sample]);
  });
  constexpr std::size_t piece = 16384;
  if (spec_.n_fields())
    parallel_for(static_cast<int>((n_slots + piece - 1) / piece), [&](int k, int) {
      kernels_.slopes(spec_, out_.fields.data(), static_cast<std::int64_t>(k * piece),
                      static_cast<std::int64_t>(std::min(n_slots, (k + 1) * piece)));
    });
  return std::move(out_);
}

}  // namespace

LayerOutput window_forward(const LayerSpec& spec, const LayerInput& input) { return Forward(spec, input).run(); }

}  // namespace sparsesnn
