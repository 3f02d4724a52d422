// The backward pass of a recurrent shard through the population's own spikes.
#include <algorithm>
#include <cstring>
#include <utility>

#include "host/src/cpu/axonal_delays.h"
#include "host/src/cpu/kernels/kernels.h"
#include "host/src/cpu/packing.h"
#include "host/src/cpu/phases.h"
#include "host/src/cpu/sparse_rows.h"
#include "host/src/machine/thread_pool.h"
#include "host/src/training/group_tree.h"
#include "host/src/training/tile_sums.h"
#include "shard_lists.h"
#include "sharded.h"

namespace sparsesnn {
namespace {

// For every rank its first neuron and the blocks that its tiles add up to; how all blocks fold.
struct Ranks {
  const std::vector<std::uint32_t>& first;  // [R + 1]
  std::vector<std::vector<TileBlock>> blocks;
  std::vector<int> folds;

  Ranks(const LayerSpec& spec, const LayerRanks& ranks) : first(ranks.first), blocks(ranks.size()) {
    std::vector<TileBlock> all;
    for (int r = 0; r < ranks.size(); ++r) {
      const int w = spec.tile_width, begin = static_cast<int>(first[r]), end = static_cast<int>(first[r + 1]);
      blocks[r] = tile_blocks(begin / w, (end + w - 1) / w);
      all.insert(all.end(), blocks[r].begin(), blocks[r].end());
    }
    folds = block_folds(all);
  }
};

struct OwnGrads {
  Array<float> d_values;               // of this rank's list values, including the gradients through the loops
  std::vector<Array<float>> d_delays;  // as in LayerGradients
};

// The steps of a shard from the last to the first. ∂L/∂i of a rank's neurons at step t gives, through the rank's
// columns of the loops, a share of ∂L/∂(list values) of the steps t - delay of every neuron of the population: summed
// over blocks of the rank's tiles it goes to the neuron's owner, who adds up the blocks of all ranks. Shares are
// exchanged as rarely as spikes in the forward pass: once in every shortest delay of the loops.
class StepsBack {
 public:
  StepsBack(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved, const Lists& all,
            const float* d_values, const Wanted& wanted, const LayerRanks& ranks, const OutputGrads& d_potentials);
  OwnGrads run();

 private:
  // A loop that carries a step's lists; with fractional axonal delays, one of the two parts.
  struct Tap {
    const Loop* loop;
    int part;
  };
  // For each rank, step by step, [taps][K][its entries in one half's lists of the step].
  using Sums = std::vector<std::vector<float>>;

  std::int64_t list(int t, int b) const { return static_cast<std::int64_t>(t) * n_samples_ + b; }
  std::size_t n_own(int t, Half half) const {  // this rank's entries of a step
    return static_cast<std::size_t>(saved_.lists.offsets[list(t, half.b1)] - saved_.lists.offsets[list(t, half.b0)]);
  }
  void state_grads(int t, Half half);
  void send(int t0, int t1, int h);
  void arrive(int t0, int t1, int h);
  // A worker's memory for the shares of a list.
  struct Room {
    std::vector<float> whole;
    std::vector<const float*> d_each;
  };
  void shares(int t, int b, const std::size_t* at, const std::size_t* stride, Sums& to, Room& room);
  void add(int t, Half half, std::vector<const float*>& from);
  void add_parts(int t, Half half, const Loop& loop, const float* earlier, const float* later);

  const LayerSpec& spec_;
  const LayerSaved& saved_;
  const bool separate_;
  const Lists& all_;
  Exchange& exchange_;
  const Kernels& kernels_ = chosen_kernels();
  const int n_steps_, n_samples_;
  const std::size_t row_;
  const Ranks ranks_;
  const Owners owners_;
  const std::vector<TileBlock>& blocks_;  // of this rank
  const Padded neuron_;
  const PackedLoops loops_;
  const DelayGrads delay_grads_;
  const std::vector<Half> halves_;
  std::vector<std::vector<Tap>> heard_;  // [T], the taps that carry the lists of a step to later steps of this pass
  std::vector<Sums> sums_;               // by half
  std::vector<Room> rooms_;              // by worker
  // At the current step, for each tap the sums of all blocks; for both parts of a loop, their sums.
  std::vector<std::vector<const float*>> blocks_of_;
  std::vector<float> parts_[2];
  Array<float> total_;  // [own slots]
  const Array<float> d_slots_, d_currents_, d_current_;
  std::vector<Array<float>> d_state_;
  BackwardPass pass_{};
};

StepsBack::StepsBack(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved, const Lists& all,
                     const float* d_values, const Wanted& wanted, const LayerRanks& ranks,
                     const OutputGrads& d_potentials)
    : spec_(spec),
      saved_(saved),
      separate_(wanted.n_batch > 0),
      all_(all),
      exchange_(*ranks.exchange),
      n_steps_(input.n_steps),
      n_samples_(input.n_samples),
      row_(static_cast<std::size_t>(spec.n_padded())),
      ranks_(spec, ranks),
      owners_(all, list(n_steps_, 0), ranks_.first),
      blocks_(ranks_.blocks[ranks.rank()]),
      neuron_(spec, input),
      loops_(spec, input),
      delay_grads_(spec, input, wanted.delays),
      halves_(halves(n_samples_)),
      heard_(n_steps_),
      sums_(halves_.size(), Sums(ranks.size())),
      total_(saved.lists.offsets[list(n_steps_, 0)]),
      d_slots_(total_.size()),
      d_currents_(loops_.n_kept(n_steps_) * n_samples_ * row_),
      d_current_(n_samples_ * group_samples * row_) {
  for (int t = 0; t < n_steps_; ++t)
    for (const Loop& loop : loops_.loops)
      for (int part = 0; part < loop.axonal.n_parts() && t + loop.delay < n_steps_; ++part)
        heard_[t].push_back({&loop, part});
  if (total_.size()) std::memcpy(total_.data(), d_values, sizeof(float) * total_.size());
  pass_ = backward_pass(spec, input, saved, neuron_, loops_.loops);
  pass_.n_slots = static_cast<std::int64_t>(total_.size());
  pass_.d_values = total_.data();
  pass_.d_potentials = d_potentials;
  pass_.d_slots = d_slots_.data();
  for (int k = 0; k < spec.shape->n_states; ++k) {
    d_state_.push_back(Array<float>::zeros(n_samples_ * row_));
    pass_.d_state[k] = d_state_[k].data();
  }
  pass_.d_currents = d_currents_.data();
  pass_.n_kept = loops_.n_kept(n_steps_);
  delay_grads_.give(pass_);
}

OwnGrads StepsBack::run() {
  const int n_halves = static_cast<int>(halves_.size());
  int n_slab = n_steps_;
  for (const Loop& loop : loops_.loops) n_slab = std::min(n_slab, loop.delay);
  for (int t1 = n_steps_; t1 > 0; t1 -= n_slab) {
    const int t0 = std::max(0, t1 - n_slab);
    for (int h = 0; h < n_halves; ++h) {
      if (pass_.is_heard(t0)) arrive(t0, t1, h);
      for (int t = t1 - 1; t >= t0; --t) state_grads(t, halves_[h]);
      const int before = std::max(0, t0 - n_slab);
      if (t0 > 0 && pass_.is_heard(before)) send(before, t0, h);
    }
  }
  return {std::move(total_), delay_grads_.sums(spec_, n_samples_, separate_)};
}

// ∂L/∂v and ∂L/∂i of this rank's neurons.
void StepsBack::state_grads(int t, Half half) {
  BackwardPass step = pass_;  // for all samples: a copy takes longer than some of their steps
  step.n_steps = t + 1;       // ∂L/∂(list values) is complete: later steps add nothing more
  parallel_for(half.size(), [&](int k, int) {
    const int b = half.b0 + k;
    kernels_.state_grad_by_sample(step, {t, t + 1, b, b + 1}, t, t + 1, b,
                                  d_current_.data() + b * group_samples * row_);
  });
}

// Sends the shares of the lists of steps t0..t1-1 from this rank's neurons to the owners.
void StepsBack::send(int t0, int t1, int h) {
  const Half half = halves_[h];
  const int n_ranks = exchange_.size(), n_lists = (t1 - t0) * half.size();
  // For every list and rank, the position of the first sum, and the distance to the next one.
  std::vector<std::size_t> at(static_cast<std::size_t>(n_lists) * n_ranks),
      stride(static_cast<std::size_t>(t1 - t0) * n_ranks);
  std::vector<Message> to(n_ranks);
  for (int r = 0; r < n_ranks; ++r) {
    std::size_t end = 0;
    for (int t = t0; t < t1; ++t) {
      std::size_t n = 0;
      for (int k = 0; k < half.size(); ++k) {
        at[static_cast<std::size_t>((t - t0) * half.size() + k) * n_ranks + r] = end + n;
        n += static_cast<std::size_t>(owners_.runs(list(t, half.b0 + k), r).size());
      }
      stride[static_cast<std::size_t>(t - t0) * n_ranks + r] = n;
      end += n * heard_[t].size() * blocks_.size();
    }
    sums_[h][r].resize(end);
    to[r] = Message::of(sums_[h][r].data(), end);
  }
  rooms_.resize(num_threads());
  parallel_for(n_lists, [&](int i, int worker) {
    const int step = i / half.size();
    shares(t0 + step, half.b0 + i % half.size(), &at[static_cast<std::size_t>(i) * n_ranks],
           &stride[static_cast<std::size_t>(step) * n_ranks], sums_[h], rooms_[worker]);
  });
  const std::size_t n_own = to[exchange_.rank()].size / blocks_.size();
  exchange_.start(h, to, {"sums", {}, [this, n_own](int r) {
                            return Array<unsigned char>::zeros(n_own * ranks_.blocks[r].size());
                          }});
}

// The shares of one list: computed for the whole list at once, because the kernel works on many rows together; then
// each rank's part, which goes to at[r] of its sums, those of the next tap or block `stride[r]` further.
void StepsBack::shares(int t, int b, const std::size_t* at, const std::size_t* stride, Sums& to, Room& room) {
  const std::vector<Tap>& taps = heard_[t];
  const std::size_t n_sums = taps.size() * blocks_.size();
  const std::int64_t i = list(t, b), begin = all_.offsets[i];
  const std::size_t n = static_cast<std::size_t>(all_.offsets[i + 1] - begin);
  if (room.whole.size() < n * n_sums) room.whole.resize(2 * n * n_sums);
  if (room.d_each.size() < n) room.d_each.resize(2 * n);
  const OwnSpikes listed{all_.at(begin), static_cast<std::int64_t>(n), all_.wide};
  float* to_write = room.whole.data();
  for (const Tap& tap : taps) {
    const Loop& loop = *tap.loop;
    for (std::size_t j = 0; loop.axonal && j < n; ++j)
      room.d_each[j] = pass_.d_current_at(loop, t, listed.id(static_cast<std::int64_t>(j)), tap.part, b);
    const CurrentGrads d =
        loop.axonal ? CurrentGrads(room.d_each.data()) : CurrentGrads(pass_.d_current_of(t + loop.delay, b));
    kernels_.recurrent_shares(spec_, loop, listed, d, blocks_.data(),
                              std::exchange(to_write, to_write + n * blocks_.size()), n);
  }
  for (int r = 0; r < exchange_.size(); ++r) {
    const Runs runs = owners_.runs(i, r);
    for (std::size_t s = 0; s < n_sums; ++s) {
      const float* from = room.whole.data() + s * n - begin;
      float* out = std::copy_n(from + runs.spikes, runs.n_spikes(), to[r].data() + at[r] + s * stride[r]);
      std::copy_n(from + runs.near, runs.n_near(), out);
    }
  }
}

// Adds the shares sent by all ranks to ∂L/∂(own list values) of steps t0..t1-1.
void StepsBack::arrive(int t0, int t1, int h) {
  const Half half = halves_[h];
  const std::vector<Message> from = exchange_.finish(h);
  std::size_t n = 0;  // for each block of tiles
  for (int t = t0; t < t1; ++t) n += heard_[t].size() * n_own(t, half);
  std::vector<const float*> next;
  for (int r = 0; r < exchange_.size(); ++r) {
    const std::size_t size = sizeof(float) * n * ranks_.blocks[r].size();
    if (from[r].size != size)
      throw InputError("ShapeError", "rank " + std::to_string(r) + " of a layer sent " + std::to_string(from[r].size) +
                                         " bytes of gradients, not " + std::to_string(size));
    next.push_back(reinterpret_cast<const float*>(from[r].data));
  }
  for (int t = t0; t < t1; ++t) add(t, half, next);
}

// The same for one step; from: the current position in each rank's sums.
void StepsBack::add(int t, Half half, std::vector<const float*>& from) {
  const std::int64_t begin = saved_.lists.offsets[list(t, half.b0)];
  const std::size_t n = n_own(t, half);
  const std::vector<Tap>& taps = heard_[t];
  blocks_of_.resize(taps.size());
  for (std::vector<const float*>& of_tap : blocks_of_) of_tap.clear();
  for (int r = 0; r < exchange_.size(); ++r)
    for (std::vector<const float*>& of_tap : blocks_of_)
      for (std::size_t k = 0; k < ranks_.blocks[r].size(); ++k) of_tap.push_back(std::exchange(from[r], from[r] + n));
  for (std::vector<float>& part : parts_) part.resize(std::max(part.size(), n));
  for (std::size_t k = 0; k < taps.size(); ++k) {
    const Loop& loop = *taps[k].loop;
    float* const sums = parts_[taps[k].part].data();
    add_branches(blocks_of_[k], ranks_.folds, n, sums);
    if (!loop.axonal)
      for (std::size_t j = 0; j < n; ++j) total_[begin + j] += sums[j];
    else if (taps[k].part + 1 == loop.axonal.n_parts())
      add_parts(t, half, loop, parts_[0].data(), parts_[1].data());
  }
}

// The same for a loop with axonal delays, from the sums of both parts of every entry of one half.
void StepsBack::add_parts(int t, Half half, const Loop& loop, const float* earlier, const float* later) {
  double* const d_delays = pass_.d_delays[&loop - loops_.loops.data()];
  for (int b = half.b0; b < half.b1; ++b) {
    const std::int64_t i = list(t, b), begin = saved_.lists.offsets[i], near = begin + saved_.lists.n_spikes[i];
    for (std::int64_t j = begin; j < saved_.lists.offsets[i + 1]; ++j, ++earlier, ++later) {
      const std::uint32_t own = saved_.lists.id(j);
      if (!loop.axonal.fraction) {
        total_[j] += *earlier;
        continue;
      }
      const float f = loop.axonal.fraction[static_cast<std::uint32_t>(spec_.first) + own];
      total_[j] += (1.0f - f) * *earlier + f * *later;
      if (d_delays && j < near) d_delays[b * row_ + own] += static_cast<double>(*later) - *earlier;
    }
  }
}

}  // namespace

// With ∂L/∂(list values) complete, the rest is the backward pass of a layer without loops, whose additional sources,
// one per loop, are its population's lists.
LayerGradients recurrent_backward(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved,
                                  const OutputGrads& d_out, const Wanted& wanted, const OutputGrads& d_potentials) {
  const Lists& all = input.population;
  if (!all.offsets) throw InputError("ShapeError", "backward: a recurrent shard needs its population's lists");
  OwnGrads own;
  {
    const PhaseTimer timer(Phase::step_grad);
    own = StepsBack(spec, input, saved, all, d_out.data, wanted, *input.ranks, d_potentials).run();
  }
  LayerInput heard = input;
  heard.loops.clear();
  Wanted rest = wanted;
  rest.loops.clear();
  rest.delays.clear();
  std::vector<DelayedLists> moved;
  for (std::size_t k = 0; k < input.loops.size(); ++k) {
    if (!wanted.loops[k]) continue;
    const LoopInput& loop = input.loops[k];
    SourceInput from;
    from.lists = all;
    from.n_list_steps = input.n_steps;
    from.n_pre = spec.n_all();
    from.delay = loop.delay;
    from.weight = loop.weight;
    from.rows = loop.rows;
    if (loop.axonal) {
      moved.push_back(heard_lists({}, 0, all, input.n_steps, input.n_samples, spec.n_all(), loop));
      from.lists = moved.back().view(all.wide);
      from.delay = 0;
    }
    heard.sources.push_back(from);
    rest.weight.push_back(true);
    rest.value.push_back(false);
  }
  LayerGradients found = layer_backward(spec, heard, saved, {own.d_values.data()}, rest, d_potentials);
  std::size_t next = input.sources.size();
  for (std::size_t k = 0; k < input.loops.size(); ++k)
    found.d_loops.push_back(wanted.loops[k] ? std::move(found.d_weight[next++]) : Array<float>());
  found.d_weight.resize(input.sources.size());
  found.d_value.resize(input.sources.size());
  found.d_delays = std::move(own.d_delays);
  return found;
}

}  // namespace sparsesnn
