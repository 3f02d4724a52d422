// The forward pass of a shard with requests to the other ranks.
#include <algorithm>
#include <cstring>

#include "codelets/capacity.h"
#include "host/src/cpu/axonal_delays.h"
#include "host/src/cpu/kernels/kernels.h"
#include "host/src/cpu/packing.h"
#include "host/src/cpu/phases.h"
#include "host/src/machine/thread_pool.h"
#include "made_up.h"
#include "shard_lists.h"
#include "sharded.h"

namespace sparsesnn {
namespace {

// Applies the capacity to lists i0..i1-1; others: for each list the fired and near candidates of the other shards, in
// all and before this one, [n][4].
void select_lists(const Kernels& kernels, const ForwardPass& pass, const std::int32_t* others, std::int64_t i0,
                  std::int64_t i1, std::int32_t* dropped) {
  constexpr std::int64_t piece = 64;
  parallel_for(static_cast<int>((i1 - i0 + piece - 1) / piece), [&](int item, int) {
    for (std::int64_t i = i0 + item * piece; i < std::min(i1, i0 + (item + 1) * piece); ++i)
      dropped[i] = kernels.select(pass, static_cast<int>(i / pass.n_samples), static_cast<int>(i % pass.n_samples),
                                  others + 4 * (i - i0));
  });
}

// The same if ranks have not exchanged counts yet: it takes only a total and a sum over the ranks before this one.
void count_and_select(const Kernels& kernels, const ForwardPass& pass, Exchange& exchange, std::int64_t i0,
                      std::int64_t i1, std::int32_t* dropped) {
  const std::size_t n = static_cast<std::size_t>(i1 - i0);
  const Array<std::int32_t> own(2 * n), total(2 * n), before(2 * n), others(4 * n);
  constexpr std::int64_t piece = 1024;
  parallel_for(static_cast<int>((i1 - i0 + piece - 1) / piece), [&](int item, int) {
    const std::int64_t from = i0 + item * piece;
    kernels.count_candidates(pass, from, std::min(i1, from + piece), own.data() + 2 * (from - i0));
  });
  exchange.scan(own.data(), own.size(), total.data(), before.data());
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t kind = 0; kind < 2; ++kind) {
      others[4 * i + kind] = total[2 * i + kind] - own[2 * i + kind];
      others[4 * i + 2 + kind] = before[2 * i + kind];
    }
  select_lists(kernels, pass, others.data(), i0, i1, dropped);
}

// The steps of a shard, in two halves of the samples: while one half's spikes travel the other half is computed. Ids of
// the population are uint16 or uint32.
//
// In a recurrent layer spikes are exchanged once per slab, a number of steps equal to the shortest delay of its loops:
// they arrive no earlier. A message holds the ids that fired, then, for each step and sample, the number of neurons
// that fired (and nearly fired, with a capacity). A capacity is applied once the messages have arrived: from the counts
// every rank knows which of its candidates are kept, and which of the others' spikes. Two kinds of lists are
// selected before they are sent: those of fixed activity, because they hold silent neurons too, and those whose next
// step differentiates through the kept spikes.
template <class Id>
class Steps {
 public:
  Steps(const Kernels& kernels, const ForwardPass& pass, TileColumns* columns, const LayerRanks& ranks,
        std::int32_t* dropped)
      : kernels_(kernels),
        pass_(pass),
        of_loops_(pass),
        columns_(columns),
        ranks_(ranks),
        exchange_(*ranks.exchange),
        dropped_(dropped),
        halves_(halves(pass.n_samples)),
        recurrent_(pass.n_loops > 0),
        selects_late_(recurrent_ && dropped && !pass.spec->fixed &&
                      !(pass.spec->needs_step_order() && shortest_delay(pass) > 1)),
        n_kept_(longest_delay(pass)),
        n_slab_(shortest_delay(pass)),
        arrived_(static_cast<std::size_t>(n_kept_) * pass.n_samples),
        heard_(static_cast<std::size_t>(pass.n_loops) * pass.n_samples),
        messages_(halves_.size()) {
    of_loops_.sources_wait = columns != nullptr;
    for (HalfSpikes& message : messages_) message.merged.resize(n_kept_);
    for (int b = 0; b < pass.n_samples; ++b) under_way_.emplace_back(pass);
  }

  void run() {
    const std::size_t row = static_cast<std::size_t>(pass_.spec->n_padded());
    if (columns_) n_waiting_ = std::max(1, waiting_rows / pass_.n_samples);
    current_ = Array<float>(static_cast<std::size_t>(pass_.n_samples) * n_waiting_ * row);
    const int n_halves = static_cast<int>(halves_.size()), n_steps = pass_.n_steps;
    int sent = 0;  // the first step of the slab that was sent last
    for (int t0 = 0; t0 < n_steps; t0 += n_slab_) {
      const int t1 = std::min(n_steps, t0 + n_slab_);
      for (int h = 0; h < n_halves; ++h) {
        if (recurrent_ && t0 > 0) arrive(sent, t0, h);
        for (int t = t0; t < t1; ++t) step(t, halves_[h]);
        if (recurrent_ && (t1 < n_steps || selects_late_)) send(t0, t1, h);
      }
      sent = t0;
    }
    for (int h = 0; h < n_halves && selects_late_ && n_steps; ++h) arrive(sent, n_steps, h);
  }

 private:
  struct HalfSpikes {
    Array<unsigned char> own;  // room for all neurons
    std::size_t size = 0;
    std::vector<std::vector<Id>> merged;  // [D], the population's spikes of a step, sample after sample
  };

  // Sums the input currents of steps t..t+n_waiting_-1 from the sources.
  void hear(int t, Half half) {
    const int t1 = std::min(pass_.n_steps, t + n_waiting_);
    parallel_for(pass_.spec->n_tiles(), [&](int p, int worker) {
      ForwardPass here = pass_;
      here.sources = columns_->of(p, worker);
      kernels_.hear_sources(here, p, t, t1, half.b0, half.b1, current_of(t, half.b0));
    });
  }

  // [P·W]; from hear_sources, those of a half's samples and of n_waiting_ steps are contiguous.
  float* current_of(int t, int b) const {
    const int first = t - t % n_waiting_, n_together = std::min(pass_.n_steps - first, n_waiting_);
    const Half half = halves_[b >= halves_.back().b0 ? halves_.size() - 1 : 0];
    const std::size_t before = static_cast<std::size_t>(half.b0) * n_waiting_;
    const std::size_t here = static_cast<std::size_t>(b - half.b0) * n_together + (t - first);
    return current_.data() + (before + here) * pass_.spec->n_padded();
  }

  void step(int t, Half half) {
    if (columns_ && t % n_waiting_ == 0) hear(t, half);
    parallel_for(half.size(), [&](int k, int) {
      const int b = half.b0 + k;
      OwnSpikes* const heard = heard_.data() + static_cast<std::size_t>(b) * pass_.n_loops;
      for (int l = 0; l < pass_.n_loops; ++l) {
        const int from = t - pass_.loops[l].delay;
        if (SpikesUnderWay* const way = under_way_[b].pointers[l])
          heard[l] = way->arrive(t);
        else
          heard[l] = from < 0 ? OwnSpikes() : arrived_[of(from, b)];
      }
      kernels_.forward_step(of_loops_, t, b, current_of(t, b), heard);
    });
    if (dropped_ && !selects_late_)
      count_and_select(kernels_, pass_, exchange_, list(t, half.b0), list(t, half.b1), dropped_);
  }

  static int longest_delay(const ForwardPass& pass) {
    int longest = 0;
    for (int k = 0; k < pass.n_loops; ++k) longest = std::max(longest, pass.loops[k].delay);
    return std::min(longest, std::max(1, pass.n_steps));
  }
  static int shortest_delay(const ForwardPass& pass) {
    int shortest = std::max(1, pass.n_steps);
    for (int k = 0; k < pass.n_loops; ++k) shortest = std::min(shortest, pass.loops[k].delay);
    return pass.n_loops ? shortest : 1;
  }
  std::size_t of(int t, int b) const { return static_cast<std::size_t>(t % n_kept_) * pass_.n_samples + b; }

  std::int64_t list(int t, int b) const { return static_cast<std::int64_t>(t) * pass_.n_samples + b; }
  std::size_t kinds() const { return selects_late_ ? 2 : 1; }
  std::size_t n_counts(Half half) const { return static_cast<std::size_t>(half.size()) * kinds(); }  // of a step

  // Starts to send the ids that fired in steps t0..t1-1.
  void send(int t0, int t1, int h) {
    const Half half = halves_[h];
    const LayerSpec& spec = *pass_.spec;
    const std::size_t n_bytes = count_bytes(static_cast<std::uint32_t>(spec.n));
    const std::size_t n = n_counts(half) * static_cast<std::size_t>(t1 - t0);
    HalfSpikes& message = messages_[h];
    if (!message.own) {
      const std::size_t n_lists = static_cast<std::size_t>(n_slab_) * half.size();
      message.own = Array<unsigned char>(n_lists * (kinds() * n_bytes + sizeof(Id) * spec.n));
    }
    Id* const ids = reinterpret_cast<Id*>(message.own.data());
    Id* to = ids;
    counts_.assign(n, 0);
    std::int32_t* count = counts_.data();
    const std::size_t stride = static_cast<std::size_t>(pass_.n_steps) * pass_.n_samples;
    const std::uint64_t* words = selects_late_ ? pass_.fired : pass_.sent;
    for (int t = t0; t < t1; ++t, count += n_counts(half)) {
      for (int k = 0; k < half.size(); ++k) {
        const Id* const begin = to;
        for (int p = 0; p < spec.n_tiles(); ++p)
          for (std::uint64_t bits = words[p * stride + list(t, half.b0 + k)]; bits; bits &= bits - 1)
            *to++ = static_cast<Id>(spec.first + p * spec.tile_width + __builtin_ctzll(bits));
        if (!selects_late_) count[k] = static_cast<std::int32_t>(to - begin);
      }
      if (selects_late_) kernels_.count_candidates(pass_, list(t, half.b0), list(t, half.b1), count);
    }
    pack_counts(counts_.data(), n, n_bytes, reinterpret_cast<unsigned char*>(to));
    message.size = sizeof(Id) * static_cast<std::size_t>(to - ids) + n * n_bytes;
    const Message own{message.own.data(), message.size};
    exchange_.start(h, std::vector<Message>(exchange_.size(), own),
                    {"spikes", {}, [this, own, n](int r) {
                       return made_up_spikes(own, n / kinds(), kinds(), sizeof(Id) == 4, ranks_, r);
                     }});
  }

  // Ends steps t0..t1-1 of half h: capacity, and the spikes of the whole population.
  void arrive(int t0, int t1, int h) {
    const Half half = halves_[h];
    const std::vector<Message> from = exchange_.finish(h);
    const int n_ranks = exchange_.size();
    const std::size_t of_step = n_counts(half), n = of_step * static_cast<std::size_t>(t1 - t0);
    counts_.assign(n * n_ranks, 0);
    ids_.resize(n_ranks);
    for (int r = 0; r < n_ranks; ++r) {
      std::int32_t* of_rank = counts_.data() + n * r;
      const std::size_t n_bytes = count_bytes(ranks_.n_neurons(r)), tail = n * n_bytes;
      std::size_t n_ids = 0;
      if (from[r].size >= tail) unpack_counts(from[r].data + from[r].size - tail, n, n_bytes, of_rank);
      for (std::size_t k = 0; k < n; k += kinds()) n_ids += static_cast<std::size_t>(of_rank[k]);
      if (from[r].size != tail + n_ids * sizeof(Id))
        throw InputError("SpikeListError", "rank " + std::to_string(r) + " of a layer sent " +
                                               std::to_string(from[r].size) + " bytes of spikes, not " +
                                               std::to_string(tail + n_ids * sizeof(Id)));
      ids_[r] = reinterpret_cast<const Id*>(from[r].data);
    }
    for (int t = t0; t < t1; ++t) {
      const std::int32_t* of_first = counts_.data() + of_step * static_cast<std::size_t>(t - t0);
      if (selects_late_)
        select_lists(kernels_, pass_, others_of(of_first, n, half.size()).data(), list(t, half.b0), list(t, half.b1),
                     dropped_);
      merge(t, h, of_first, n);
    }
  }

  // Candidates of the other shards for the lists of a step, [B/2][4], from the counts of all: of_first, `stride`
  // further for the next rank.
  std::vector<std::int32_t> others_of(const std::int32_t* of_first, std::size_t stride, int n) const {
    std::vector<std::int32_t> others(4 * static_cast<std::size_t>(n));
    for (int r = 0; r < exchange_.size(); ++r) {
      if (r == exchange_.rank()) continue;
      for (int i = 0; i < n; ++i)
        for (int kind = 0; kind < 2; ++kind) {
          const std::int32_t count = of_first[stride * r + 2 * i + kind];
          others[4 * i + kind] += count;
          if (r < exchange_.rank()) others[4 * i + 2 + kind] += count;
        }
    }
    return others;
  }

  // The population's spikes of one step.
  void merge(int t, int h, const std::int32_t* of_first, std::size_t stride) {
    const Half half = halves_[h];
    std::size_t n_ids = 0;
    for (int r = 0; r < exchange_.size(); ++r)
      for (int k = 0; k < half.size(); ++k) n_ids += static_cast<std::size_t>(of_first[stride * r + k * kinds()]);
    std::vector<Id>& merged = messages_[h].merged[t % n_kept_];
    merged.resize(n_ids);
    Id* to = merged.data();
    for (int k = 0; k < half.size(); ++k) {
      Id* const begin = to;
      for (int r = 0; r < exchange_.size(); ++r) {
        const std::int32_t n = of_first[stride * r + k * kinds()];
        to = std::copy_n(ids_[r], n, to);
        ids_[r] += n;
      }
      const std::int64_t n = to - begin;
      const int b = half.b0 + k;
      const OwnSpikes& fired = arrived_[of(t, b)] = {begin, selects_late_ ? keep(begin, n, t, b) : n, sizeof(Id) == 4};
      for (SpikesUnderWay* way : under_way_[b].pointers)
        if (way) way->send(t, fired);
    }
  }

  // Keeps those of n spikes that the capacity admits; returns their number.
  std::int64_t keep(Id* ids, std::int64_t n, int t, int b) const {
    const std::int64_t capacity = pass_.spec->capacity;
    if (n <= capacity) return n;
    const auto kept = keep_ranks<std::int64_t>(n, capacity, [&](std::int64_t n) {
      return static_cast<std::int64_t>(kernels_.rotation(*pass_.spec, t, b) % static_cast<Hash64>(n));
    });
    std::copy(ids + kept.start, ids + kept.end(), ids + kept.wrapped());
    return capacity;
  }

  const Kernels& kernels_;
  const ForwardPass& pass_;
  ForwardPass of_loops_;        // the same with the sources already in the currents, if they are stored
  TileColumns* const columns_;  // if input currents of sources are stored before the loops run, else null
  const LayerRanks& ranks_;
  Exchange& exchange_;
  std::int32_t* const dropped_;
  const std::vector<Half> halves_;
  const bool recurrent_, selects_late_;
  const int n_kept_;                  // D, the longest delay of a loop
  const int n_slab_;                  // steps between two exchanges, the shortest delay of a loop
  std::vector<OwnSpikes> arrived_;    // [D][B], the population's spikes of the last D steps
  std::vector<OwnSpikes> heard_;      // [B][loops], of the current step
  std::vector<UnderWay> under_way_;   // [B]
  std::vector<HalfSpikes> messages_;  // by half
  std::vector<std::int32_t> counts_;  // of the current messages
  std::vector<const Id*> ids_;        // [R], the current position in those of each rank, likewise
  int n_waiting_ = 1;                 // steps whose currents are stored
  Array<float> current_;              // [B][n_waiting_][row]
};

}  // namespace

void run_by_step(const Kernels& kernels, const ForwardPass& pass, TileColumns* columns, const LayerRanks& ranks,
                 std::int32_t* dropped) {
  const PhaseTimer timer(Phase::forward);
  if (pass.spec->n_all() > 65536)
    Steps<std::uint32_t>(kernels, pass, columns, ranks, dropped).run();
  else
    Steps<std::uint16_t>(kernels, pass, columns, ranks, dropped).run();
}

void select_shards(const Kernels& kernels, const ForwardPass& pass, Exchange& exchange, std::int32_t* dropped) {
  count_and_select(kernels, pass, exchange, 0, static_cast<std::int64_t>(pass.n_steps) * pass.n_samples, dropped);
}

}  // namespace sparsesnn
