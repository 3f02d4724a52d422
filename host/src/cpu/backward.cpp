// The backward pass of a layer. Chunk by chunk (layer.h) ∂L/∂i is computed backward through time, tile by tile or
// sample by sample (loop_order.h). The gradients of weights and the tiles' shares of the list gradients follow from it,
// tile by tile; then the shares are added up, or the list gradients come from a product over all neurons
// (dense_shares.h).
#include <algorithm>
#include <cstring>
#include <utility>

#include "axonal_delays.h"
#include "chunks.h"
#include "constant_sources.h"
#include "dense_shares.h"
#include "events.h"
#include "host/src/cpu/kernels/kernels.h"
#include "host/src/machine/isa.h"
#include "host/src/machine/thread_pool.h"
#include "host/src/maps/windows.h"
#include "host/src/ranks/sharded.h"
#include "host/src/ranks/sorted_lists.h"
#include "host/src/training/group_sums.h"
#include "host/src/training/tile_sums.h"
#include "loop_order.h"
#include "packing.h"
#include "phases.h"
#include "readout_backward.h"
#include "sparse_rows.h"

namespace sparsesnn {
namespace {

// Adds the tiles' shares of a sender's events: to a sum for each of the blocks or, not `by_blocks`, to one sum of all.
// Calls put(k, first, sums, n) with those of block k for n events from `first` on.
template <class Put>
void add_shares(const Kernels& kernels, std::size_t n_events, const float* shares, const std::vector<TileBlock>& blocks,
                bool by_blocks, Put&& put) {
  const PhaseTimer timer(Phase::sum_shares);
  parallel_for(static_cast<int>((n_events + share_piece - 1) / share_piece), [&](int item, int) {
    const std::size_t first = item * share_piece, n = std::min(share_piece, n_events - first);
    float sum[share_piece], block[share_piece];
    const float* tiles = shares + first;
    for (const TileBlock& of : blocks) tiles += of.n * n_events;
    for (std::size_t k = blocks.size(); k-- > 0;) {
      tiles -= blocks[k].n * n_events;
      const bool begins = by_blocks || k + 1 == blocks.size();
      kernels.add_tiles(tiles, n_events, blocks[k].n, n, begins ? sum : block);
      if (!begins)
        for (std::size_t j = 0; j < n; ++j) sum[j] = block[j] + sum[j];
      if (by_blocks || !k) put(k, first, sum, n);
    }
  });
}

class Backward {
 public:
  Backward(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved, const OutputGrads& d_out,
           const Wanted& wanted, const OutputGrads& d_potentials, const BackwardPolicy& policy);
  LayerGradients run();

 private:
  struct Sender {
    SenderInput input;
    const SparseRows* rows;  // of sparse synapses, else null: `M, N` below then means one number a synapse
    const float* weight;     // [M, N], of sparse synapses in the order of the rows; null: tiles make no shares
    LeafSums sums;           // of d_weight [K, M, N]
    Array<float> group;      // [M, N], if a group of samples takes several chunks
    // For a convolution `weight` is null, and `M, N` means one number a weight, in packed order until the end.
    const Windows* windows = nullptr;
    WindowSender window = {};
    Array<float> by_sample = {};          // [samples of the chunk][M, N + slack]
    const SortedLists* sorted = nullptr;  // if these hold its events
  };

  void add_sender(const SenderInput& from, const SparseRows* rows, const float* weight, float* d_weight,
                  const Windows* windows = nullptr);
  void sort();
  void share_out(int c);
  void return_step(const Chunk& chunk, int t);
  void run_states(const Chunk& chunk);
  void run_tiles(const ChunkPass& at_hand);
  void keep_currents(const Chunk& chunk, int tile, const float* d_current) const;
  ChunkPass pass_of(int c, const Leaf& leaf, const SenderSums* sums) const;
  void run_leaf(int c0, int c1, const Leaf& leaf);
  void run_sparse(const ChunkPass& at_hand, int sender);
  void run_windows(const Chunk& chunk, const Leaf& leaf, Sender& of);
  void sum_shares(int c, int source);
  void unpack_windows();
  const std::vector<TileBlock>& share_blocks(const Sender& of) const { return of.rows ? sparse_blocks_ : blocks_; }
  const Events& events(int c, int k) const {
    return senders_[k].sorted ? senders_[k].sorted->events(c) : events_[at(c, k)];
  }
  std::size_t at(int c, int k) const { return static_cast<std::size_t>(c) * senders_.size() + k; }
  std::size_t n_value_blocks() const { return by_blocks_ ? blocks_.size() : 1; }
  int n_senders() const { return static_cast<int>(senders_.size()); }

  const LayerSpec& spec_;
  const LayerInput& input_;
  const LayerSaved& saved_;
  const float* d_values_;
  const Wanted& wanted_;
  const Kernels& kernels_ = chosen_kernels();
  const int n_steps_, n_samples_, n_tiles_, n_groups_;
  const BackwardPolicy& policy_;
  const bool separate_;
  const bool by_blocks_;
  const std::vector<TileBlock> blocks_;         // of this layer's tiles
  const std::vector<TileBlock> sparse_blocks_;  // for the shares of sparse synapses, which are sums of blocks already
  const std::size_t n_, row_;                   // neurons; the same padded to whole tiles
  const bool spiking_, by_tile_, keeps_all_;
  const int n_parts_;  // the parts of a tile's senders, so that even few tiles occupy all threads
  const std::int64_t n_slots_;
  const Padded neuron_;
  const PackedLoops loops_;
  const DelayGrads delay_grads_;
  const std::vector<Leaf> leaves_;
  const std::vector<Chunk> chunks_;
  std::vector<Sender> senders_;       // the sources, then the loops
  std::vector<Events> events_;        // [chunk][sender], sorted by sender
  std::vector<Listed> listed_;        // [chunk], sorted by tile
  std::vector<SenderChunk> arrived_;  // [chunk][sender], the kernels' view of events_
  std::vector<Packed> packed_;        // weights of sparse synapses
  std::vector<DelayedLists> heard_;   // own lists as they arrive through loops with axonal delays
  Array<float> d_bias_, d_slots_, d_current_, d_currents_, shares_;
  std::vector<Array<float>> d_state_, d_parameters_by_sample_;
  Array<float> returned_;      // [loops][slots], list gradients through loops, if a product gives them; else empty
  std::size_t most_rows_ = 0;  // of a chunk
  std::vector<Array<float>> worker_d_current_;  // [rows][W] each, tile by tile; made by the first tile of a worker
  BackwardPass pass_{};
  LayerGradients out_;
};

Backward::Backward(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved, const OutputGrads& d_out,
                   const Wanted& wanted, const OutputGrads& d_potentials, const BackwardPolicy& policy)
    : spec_(spec),
      input_(input),
      saved_(saved),
      d_values_(d_out.data),
      wanted_(wanted),
      n_steps_(input.n_steps),
      n_samples_(input.n_samples),
      n_tiles_(spec.n_tiles()),
      n_groups_(count_groups(input.n_samples)),
      policy_(policy),
      separate_(wanted.n_batch > 0),
      by_blocks_(input.ranks != nullptr),
      blocks_(tile_blocks(spec.first_tile(), spec.first_tile() + spec.n_tiles())),
      sparse_blocks_(by_blocks_ ? blocks_.size() : 1, TileBlock{0, 1}),
      n_(static_cast<std::size_t>(spec.n)),
      row_(static_cast<std::size_t>(spec.n_padded())),
      spiking_(spec.fires),
      by_tile_(policy.order == LoopOrder::by_tile),
      keeps_all_(policy.keeps_all_tiles()),
      n_parts_(by_tile_ ? 1 : (2 * num_threads() - 1 + n_tiles_) / n_tiles_),
      n_slots_(spiking_ ? saved.lists.offsets[static_cast<std::int64_t>(n_steps_) * n_samples_] : 0),
      neuron_(spec, input),
      loops_(spec, input),
      delay_grads_(spec, input, wanted.delays),
      leaves_(make_leaves(input.n_samples, spec.first_sample, wanted.n_batch)),
      chunks_(make_chunks(chunk_plan(by_tile_), input.n_steps, input.n_samples, leaves_)) {
  // A leaf's first chunk writes all of a weight gradient; without chunks there is no such write.
  const auto weight_like = [&](std::size_t n_pre, const SparseRows* rows, const Windows* windows = nullptr) {
    const std::size_t n_branches = leaves_.empty() ? 0 : leaves_.back().branch + 1;
    const std::size_t n_weights = rows ? rows->n_synapses : windows ? windows->n_weights() : n_pre * n_;
    const std::size_t size = n_weights * (separate_ ? n_branches : 1);
    if (separate_ && !chunks_.empty()) return Array<float>::shared(size);  // for the replicas on this host
    return chunks_.empty() ? Array<float>::zeros(size) : Array<float>(size);
  };
  const std::size_t n_sources = input.sources.size();
  out_.d_weight.resize(n_sources);
  out_.d_value.resize(n_sources);
  for (std::size_t k = 0; k < n_sources; ++k) {
    const SourceInput& from = input.sources[k];
    if (wanted.weight[k]) out_.d_weight[k] = weight_like(from.n_pre, from.rows, from.windows);
    const bool dense = policy.sources[k] == ListGradients::product;
    const float* weight = policy.sources[k] == ListGradients::shares ? from.weight : nullptr;
    if (weight && from.rows) {
      packed_.push_back(pack_rows_of(*from.rows, weight, spec.bf16, "weight"));
      weight = static_cast<const float*>(packed_.back().data);
    }
    const bool sorted = from.sorted && !from.windows && from.sorted->serves(from.delay, chunks_);
    if (wanted.value[k] && sorted && !dense)
      out_.d_value[k] = Array<float>(from.sorted->size() * n_value_blocks());
    else if (wanted.value[k])  // windows add to the gradient
      out_.d_value[k] = value_grads(from, from.windows ? 0 : n_steps_, n_samples_, n_value_blocks());
    add_sender({from.lists, from.n_pre, from.delay, wanted.value[k] && !dense}, from.rows, weight,
               out_.d_weight[k].data(), from.windows);
    if (sorted) senders_.back().sorted = from.sorted;
    if (!from.windows) continue;
    packed_.push_back(pack_windows(*from.windows, from.weight, spec.bf16));
    senders_.back().window = {from.windows, from.lists, from.delay, static_cast<const float*>(packed_.back().data),
                              out_.d_value[k].data()};
  }
  out_.d_loops.resize(input.loops.size());
  for (std::size_t k = 0; k < input.loops.size(); ++k) {
    const LoopInput& from = input.loops[k];
    if (!wanted.loops[k]) continue;
    out_.d_loops[k] = weight_like(n_, from.rows);
    SenderInput own{saved.lists, spec.n, from.delay, false, input.own_before, input.n_before};
    if (from.axonal) {
      heard_.push_back(heard_lists(input.own_before, input.n_before, saved.lists, n_steps_, n_samples_, spec.n, from));
      own = {heard_.back().view(saved.lists.wide), spec.n, 0, false};
    }
    add_sender(own, from.rows, nullptr, out_.d_loops[k].data());
  }
  if (wanted.bias) d_bias_ = Array<float>::zeros(n_groups_ * row_);
  if (wanted.currents) {
    const std::size_t size = (input.currents.constant ? 1 : n_steps_) * n_samples_ * n_;
    out_.d_currents = chunks_.empty() ? Array<float>::zeros(size) : Array<float>(size);
  }
  out_.d_parameters.resize(spec.n_learnt());
  for (int k = 0; !spiking_ && k < spec.n_learnt(); ++k)
    d_parameters_by_sample_.push_back(Array<float>::zeros(n_samples_ * row_));
  if (spec.n_learnt() || !by_tile_) d_slots_ = Array<float>(n_slots_);
  for (int s = 0; s < spec.shape->n_states; ++s) d_state_.push_back(Array<float>::zeros(n_samples_ * row_));
  pass_ = backward_pass(spec, input, saved, neuron_, loops_.loops);
  pass_.n_kept = loops_.n_kept(n_steps_);
  if (spiking_ && !by_tile_) d_currents_ = Array<float>(pass_.n_kept * n_samples_ * row_);
  for (const Chunk& chunk : chunks_) most_rows_ = std::max(most_rows_, chunk.n_rows());
  if (policy.loops_by_product) returned_ = Array<float>(input.loops.size() * n_slots_);
  pass_.returned = returned_.data();
  if (keeps_all_)  // a product also reads rows that are never written
    d_current_ = policy.has_product() ? Array<float>::zeros(most_rows_ * row_) : Array<float>(most_rows_ * row_);
  worker_d_current_.resize(num_threads());
  pass_.n_slots = n_slots_;
  pass_.d_values = d_values_;
  pass_.d_slots = d_slots_.data();
  pass_.potentials = saved.potentials;
  pass_.rows = saved.rows;
  std::copy(std::begin(input.state), std::end(input.state), pass_.initial_state);
  pass_.d_potentials = spiking_ ? d_potentials : d_out;
  for (std::size_t k = 0; k < d_parameters_by_sample_.size(); ++k)
    pass_.d_parameters_by_sample[k] = d_parameters_by_sample_[k].data();
  for (std::size_t s = 0; s < d_state_.size(); ++s) pass_.d_state[s] = d_state_[s].data();
  pass_.d_currents = d_currents_.data();
  delay_grads_.give(pass_);
  pass_.own_before = input.own_before;
  pass_.n_before = input.n_before;
  pass_.n_senders = n_senders();
}

void Backward::add_sender(const SenderInput& from, const SparseRows* rows, const float* weight, float* d_weight,
                          const Windows* windows) {
  const bool several_a_group = static_cast<int>(chunks_.size()) > n_groups_ && !windows;
  const std::size_t size = rows ? rows->n_synapses : windows ? windows->n_weights() : from.n_pre * n_;
  senders_.push_back({from, rows, weight, LeafSums(d_weight, size, leaves_),
                      d_weight && several_a_group ? Array<float>(size) : Array<float>(), windows});
}

void Backward::sort() {
  const PhaseTimer timer(Phase::sort);
  const int n_chunks = static_cast<int>(chunks_.size()), n_sorts = n_senders() + by_tile_;
  events_.resize(at(n_chunks, 0));
  listed_.resize(n_chunks);
  parallel_for(n_chunks * n_sorts, [&](int item, int) {
    const int c = item / n_sorts, k = item % n_sorts;
    if (k < n_senders() && (senders_[k].windows || senders_[k].sorted)) return;
    if (k < n_senders())
      events_[at(c, k)] = sort_by_sender(senders_[k].input, chunks_[c], n_samples_);
    else
      listed_[c] = sort_by_tile(spec_, saved_, d_values_, d_slots_.data(), n_slots_, chunks_[c], n_samples_);
  });
  for (int c = 0; c < n_chunks; ++c)
    for (int k = 0; k < n_senders(); ++k) {
      const Events& e = events(c, k);
      arrived_.push_back({e.starts.data(), e.rows.data(), e.n, e.values.data(), nullptr});
    }
}

LayerGradients Backward::run() {
  sort();
  const int n_chunks = static_cast<int>(chunks_.size());
  int c = 0;
  for (const Leaf& leaf : leaves_) {
    const int first = c;
    while (c < n_chunks && chunks_[c].b0 < leaf.hi * group_samples) ++c;
    run_leaf(first, c, leaf);
    if (!leaf.folds || !n_chunks) continue;
    const PhaseTimer timer(Phase::deliver_grad);
    for (const Sender& to : senders_) to.sums.fold(leaf);
  }
  unpack_windows();
  for (std::size_t k = 0; k < input_.sources.size(); ++k)
    if (!senders_[k].weight || !senders_[k].sorted)  // in the order of the lists so far
      sort_value_grads(input_.sources[k], n_samples_, out_.d_value[k]);
  if (wanted_.bias) out_.d_bias = sum_padded_groups(d_bias_, row_, n_, separate_);
  out_.d_delays = delay_grads_.sums(spec_, n_samples_, separate_);
  if (spiking_ && spec_.n_learnt()) parameter_grads(spec_, input_, saved_, d_slots_.data(), n_slots_, separate_, out_);
  for (std::size_t q = 0; q < d_parameters_by_sample_.size(); ++q)
    if (const Array<float>& by_sample = d_parameters_by_sample_[q])
      out_.d_parameters[q] = sum_samples(by_sample, row_, n_samples_, n_, separate_);
  return std::move(out_);
}

// Allocates the tiles' shares of the list gradients.
void Backward::share_out(int c) {
  std::size_t n = 0;
  const auto n_shares = [&](int k) {
    return arrived_[at(c, k)].n_events *
           (senders_[k].rows ? sparse_blocks_.size() : static_cast<std::size_t>(n_tiles_));
  };
  for (int k = 0; k < n_senders(); ++k)
    if (senders_[k].weight) n += n_shares(k);
  if (!shares_ || shares_.size() < n) shares_ = Array<float>(n + n / 8);
  float* next = shares_.data();
  for (int k = 0; k < n_senders(); ++k)
    if (senders_[k].weight) arrived_[at(c, k)].shares = std::exchange(next, next + n_shares(k));
}

// The gradients of the lists of step t, of all neurons, through the loops from later steps of the chunk.
void Backward::return_step(const Chunk& chunk, int t) {
  for (std::size_t k = 0; k < input_.loops.size(); ++k) {
    const LoopInput& loop = input_.loops[k];
    const SenderInput own{saved_.lists, spec_.n, loop.delay, true};
    for (int b = chunk.b0; t + loop.delay < chunk.t1 && b < chunk.b1; b += group_samples)
      dense_step_grads(kernels_, spec_, chunk, t + loop.delay, b, n_samples_, own, loop.weight, d_current_.data(),
                       {blocks_, false, returned_.data() + k * n_slots_, 0});
  }
}

// ∂L/∂i of all neurons in a chunk, sample by sample.
void Backward::run_states(const Chunk& chunk) {
  const PhaseTimer timer(Phase::step_grad);
  const auto run_steps = [&](int t0, int t1) {
    parallel_for(chunk.b1 - chunk.b0, [&](int k, int) {
      kernels_.state_grad_by_sample(pass_, chunk, t0, t1, chunk.b0 + k, d_current_.data());
    });
  };
  if (!returned_) return run_steps(chunk.t0, chunk.t1);
  pass_.returned_end = chunk.t1;
  for (int t = chunk.t1 - 1; t >= chunk.t0; --t) {  // all samples: a row of weights is read once for a group of samples
    return_step(chunk, t);
    run_steps(t, t + 1);
  }
}

ChunkPass Backward::pass_of(int c, const Leaf& leaf, const SenderSums* sums) const {
  const Chunk& chunk = chunks_[c];
  return {chunk,
          chunk.b0 == leaf.lo * group_samples,
          d_bias_ ? d_bias_.data() + chunk.b0 / group_samples * row_ : nullptr,
          sums,
          arrived_.data() + at(c, 0),
          listed_[c].grads.data(),
          listed_[c].states.data(),
          listed_[c].starts.data()};
}

void Backward::run_tiles(const ChunkPass& at_hand) {
  const int n_items = n_tiles_ * n_parts_, n_workers = std::min(n_items, num_threads());
  parallel_for(n_items, [&](int item, int worker) {
    const int p = item / n_parts_;
    float* d_current = d_current_.data() + (keeps_all_ ? at_hand.chunk.n_rows() * spec_.tile_width * p : 0);
    if (by_tile_) {
      const PhaseTimer timer(Phase::step_grad, n_workers);
      if (!keeps_all_) {
        Array<float>& own = worker_d_current_[worker];  // any thread may get a tile, and not all threads may be needed
        if (!own) own = Array<float>(most_rows_ * spec_.tile_width);
        d_current = own.data();
      }
      kernels_.state_grad_by_tile(pass_, at_hand, p, d_current);
    }
    if (wanted_.currents && item % n_parts_ == 0) keep_currents(at_hand.chunk, p, d_current);
    const PhaseTimer timer(Phase::deliver_grad, n_workers);
    kernels_.weight_grad(pass_, at_hand, p, {item % n_parts_, n_parts_}, d_current);
  });
}

// ∂L/∂i of a tile and a chunk, [rows][W], into the gradient of the given currents. Chunks come with steps descending,
// so a sum over steps has that order.
void Backward::keep_currents(const Chunk& chunk, int tile, const float* d_current) const {
  const std::size_t w = static_cast<std::size_t>(spec_.tile_width), first = tile * w, n = std::min(w, n_ - first);
  for (int t = chunk.t1 - 1; t >= chunk.t0; --t)
    for (int b = chunk.b0; b < chunk.b1; ++b) {
      const float* const from = d_current + chunk.row(t, b) * w;
      const std::size_t step = input_.currents.constant ? 0 : static_cast<std::size_t>(t) * n_samples_;
      float* const to = out_.d_currents.data() + (step + b) * n_ + first;
      if (!input_.currents.constant || t == n_steps_ - 1)
        std::copy_n(from, n, to);
      else
        for (std::size_t k = 0; k < n; ++k) to[k] += from[k];
    }
}

// Chunks c0..c1-1, which make up a leaf.
void Backward::run_leaf(int c0, int c1, const Leaf& leaf) {
  std::vector<SenderSums> sums;
  for (const Sender& from : senders_)
    sums.push_back(
        {from.input.n_pre, from.weight, from.windows ? nullptr : from.sums.of(leaf), from.group.data(), from.rows});
  for (int c = c0; c < c1; ++c) {
    const Chunk& chunk = chunks_[c];
    share_out(c);
    const ChunkPass at_hand = pass_of(c, leaf, sums.data());
    if (!by_tile_) run_states(chunk);
    run_tiles(at_hand);
    for (int k = 0; k < n_senders(); ++k)
      if (senders_[k].rows)
        run_sparse(at_hand, k);
      else if (senders_[k].windows)
        run_windows(chunk, leaf, senders_[k]);
    for (std::size_t k = 0; k < input_.sources.size(); ++k)
      if (policy_.sources[k] == ListGradients::product)
        dense_list_grads(kernels_, spec_, chunk, n_samples_, senders_[k].input, input_.sources[k].weight,
                         d_current_.data(),
                         {blocks_, by_blocks_, out_.d_value[k].data(), out_.d_value[k].size() / n_value_blocks()});
      else if (policy_.sources[k] == ListGradients::shares)
        sum_shares(c, static_cast<int>(k));
  }
}

// Adds up the tiles' shares of the gradients of a source's lists in a chunk.
void Backward::sum_shares(int c, int source) {
  const Sender& from = senders_[source];
  const Events& heard = events(c, source);
  const std::vector<TileBlock>& blocks = share_blocks(from);
  float *const shares = arrived_[at(c, source)].shares, *const d_value = out_.d_value[source].data();
  const std::size_t n_values = out_.d_value[source].size() / n_value_blocks();
  std::vector<float*> sums;  // one per block, in the place of its first shares
  float* next = shares;
  for (const TileBlock& block : blocks) sums.push_back(std::exchange(next, next + block.n * heard.n));
  add_shares(kernels_, heard.n, shares, blocks, by_blocks_,
             [&](std::size_t j, std::size_t first, const float* sum, std::size_t n) {
               if (from.sorted)
                 from.sorted->put(c, first, sum, n, d_value + j * n_values);
               else
                 std::copy_n(sum, n, sums[j] + first);
             });
  sums.resize(n_value_blocks());
  if (!from.sorted) put_in_lists(heard, {sums.begin(), sums.end()}, d_value, n_values);
}

// Samples separately, each in the order of its chunks; a chunk with the first steps completes the groups' sums.
void Backward::run_windows(const Chunk& chunk, const Leaf& leaf, Sender& of) {
  const PhaseTimer timer(Phase::deliver_grad);
  float* const total = of.sums.of(leaf);
  const int n_samples = chunk.b1 - chunk.b0;
  const std::size_t size = of.sums.size(), stride = size + window_slack;
  if (total && chunk.t1 == n_steps_) of.by_sample = Array<float>::zeros(stride * n_samples);
  parallel_for(n_samples, [&](int k, int) {
    const Array<float> row = Array<float>::zeros(row_ + window_slack);
    kernels_.windows_grad(pass_, chunk, of.window, chunk.b0 + k, d_current_.data(), row.data(),
                          total ? of.by_sample.data() + stride * k : nullptr);
  });
  if (total && chunk.t0 == 0)
    add_samples(of.by_sample.data(), stride, size, n_samples, chunk.b0 == leaf.lo * group_samples, total);
}

// Gradients of windows in the order of their weights.
void Backward::unpack_windows() {
  for (std::size_t k = 0; k < input_.sources.size(); ++k) {
    const Sender& of = senders_[k];
    if (!of.windows || !of.sums) continue;
    const std::size_t size = of.sums.size();
    const Array<float> packed(size);
    for (std::size_t from = 0; from < out_.d_weight[k].size(); from += size) {
      float* const d_weight = out_.d_weight[k].data() + from;
      std::memcpy(packed.data(), d_weight, sizeof(float) * size);
      of.windows->unpack(packed.data(), d_weight);
    }
  }
}

// Senders in pieces: each writes the gradients of its own synapses.
void Backward::run_sparse(const ChunkPass& at_hand, int sender) {
  const PhaseTimer timer(Phase::deliver_grad);
  const SparseRows& rows = *senders_[sender].rows;
  const int piece = std::clamp(rows.n_pre / (8 * num_threads()), 1, 256);
  parallel_for((rows.n_pre + piece - 1) / piece, [&](int item, int) {
    const Array<float> sum(rows.longest);
    kernels_.sparse_grad(pass_, at_hand, sender, item * piece, std::min(rows.n_pre, (item + 1) * piece),
                         d_current_.data(), sum.data());
  });
}

}  // namespace

LayerGradients layer_backward(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved,
                              const OutputGrads& d_out, const Wanted& wanted, const OutputGrads& d_potentials) {
  check_layer(spec, input);
  if (has_constant_sources(input)) return backward_constant_sources(spec, input, saved, d_out, wanted, d_potentials);
  if (input.ranks && !input.loops.empty()) return recurrent_backward(spec, input, saved, d_out, wanted, d_potentials);
  const BackwardPolicy policy = backward_policy(spec, input, saved, wanted);
  if (policy.order == LoopOrder::by_tile || policy.order == LoopOrder::by_sample)
    return Backward(spec, input, saved, d_out, wanted, d_potentials, policy).run();
  LayerGradients out = policy.order == LoopOrder::by_row
                           ? window_backward(spec, input, saved, d_out.data, wanted)
                           : readout_backward(spec, input, saved, d_out, wanted, d_potentials);
  for (std::size_t k = 0; k < out.d_value.size(); ++k)
    sort_value_grads(input.sources[k], input.n_samples, out.d_value[k]);
  return out;
}

}  // namespace sparsesnn
