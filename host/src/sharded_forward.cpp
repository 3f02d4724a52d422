// The forward pass of a shard, where it has to ask the other ranks.
#include <algorithm>
#include <cstring>

#include "kernels.h"
#include "phases.h"
#include "sharded.h"
#include "thread_pool.h"

namespace sparsesnn {
namespace {

// Fired and near candidates of the other shards, all and before this one: [4] for each of `n` lists, from what every
// rank counted, [R][n][2].
std::vector<std::int32_t> others_of(const std::vector<std::int32_t>& all, const Exchange& exchange, std::size_t n) {
  std::vector<std::int32_t> others(4 * n);
  for (int r = 0; r < exchange.size(); ++r) {
    if (r == exchange.rank()) continue;
    for (std::size_t i = 0; i < n; ++i)
      for (int kind = 0; kind < 2; ++kind) {
        const std::int32_t count = all[(r * n + i) * 2 + kind];
        others[4 * i + kind] += count;
        if (r < exchange.rank()) others[4 * i + 2 + kind] += count;
      }
  }
  return others;
}

// Applies the capacity to lists i0..i1-1, of which all ranks counted the candidates.
void select_lists(const Kernels& kernels, const ForwardPass& pass, const Exchange& exchange,
                  const std::vector<std::int32_t>& counts, std::int64_t i0, std::int64_t i1, std::int32_t* dropped) {
  const std::vector<std::int32_t> others = others_of(counts, exchange, static_cast<std::size_t>(i1 - i0));
  constexpr std::int64_t piece = 64;
  parallel_for(static_cast<int>((i1 - i0 + piece - 1) / piece), [&](int item, int) {
    for (std::int64_t i = i0 + item * piece; i < std::min(i1, i0 + (item + 1) * piece); ++i)
      dropped[i] = kernels.select(pass, static_cast<int>(i / pass.n_samples), static_cast<int>(i % pass.n_samples),
                                  others.data() + 4 * (i - i0));
  });
}

// The same where they have yet to tell one another.
void count_and_select(const Kernels& kernels, const ForwardPass& pass, Exchange& exchange, std::int64_t i0,
                      std::int64_t i1, std::int32_t* dropped) {
  const std::size_t n = static_cast<std::size_t>(i1 - i0);
  std::vector<std::int32_t> own(2 * n), all(2 * n * exchange.size());
  constexpr std::int64_t piece = 1024;
  parallel_for(static_cast<int>((i1 - i0 + piece - 1) / piece), [&](int item, int) {
    const std::int64_t from = i0 + item * piece;
    kernels.count_candidates(pass, from, std::min(i1, from + piece), own.data() + 2 * (from - i0));
  });
  exchange.all_gather(own.data(), own.size(), all.data());
  select_lists(kernels, pass, exchange, all, i0, i1, dropped);
}

// The steps of a shard, in two halves of the samples: while one half's spikes travel the other half is computed. Ids of
// the population are uint16 or uint32.
//
// Of a recurrent layer a message holds, for each sample, how many neurons fired (and nearly fired, with a capacity),
// then the ids that fired. A capacity is applied when the messages are there: every rank knows by the counts which of
// its own candidates stay, and which of the others' spikes. Only lists of fixed activity are chosen before they are
// sent, for they hold silent neurons too.
template <class Id>
class Steps {
 public:
  Steps(const Kernels& kernels, const ForwardPass& pass, Exchange& exchange, std::int32_t* dropped)
      : kernels_(kernels),
        pass_(pass),
        exchange_(exchange),
        dropped_(dropped),
        halves_(halves(pass.n_samples)),
        recurrent_(pass.n_loops > 0),
        selects_late_(recurrent_ && dropped && !pass.spec->fixed),
        n_kept_(longest_delay(pass)),
        arrived_(static_cast<std::size_t>(n_kept_) * pass.n_samples),
        heard_(static_cast<std::size_t>(pass.n_loops) * pass.n_samples),
        messages_(halves_.size()) {
    for (Message& message : messages_) message.merged.resize(n_kept_);
  }

  void run() {
    const std::size_t row = static_cast<std::size_t>(pass_.spec->n_padded());
    const Array<float> current(static_cast<std::size_t>(pass_.n_samples) * row);
    const int n_halves = static_cast<int>(halves_.size());
    for (int t = 0; t < pass_.n_steps; ++t)
      for (int h = 0; h < n_halves; ++h) {
        const Half half = halves_[h];
        if (recurrent_ && t > 0) arrive(t - 1, h);
        parallel_for(half.size(), [&](int k, int) {
          const int b = half.b0 + k;
          OwnSpikes* const heard = heard_.data() + static_cast<std::size_t>(b) * pass_.n_loops;
          for (int l = 0; l < pass_.n_loops; ++l) {
            const int from = t - pass_.loops[l].delay;
            heard[l] = from < 0 ? OwnSpikes() : arrived_[of(from, b)];
          }
          kernels_.forward_step(pass_, t, b, current.data() + b * row, heard);
        });
        if (dropped_ && !selects_late_)
          count_and_select(kernels_, pass_, exchange_, list(t, half.b0), list(t, half.b1), dropped_);
        if (recurrent_ && (t + 1 < pass_.n_steps || selects_late_)) send(t, h);
      }
    for (int h = 0; h < n_halves && selects_late_ && pass_.n_steps; ++h) arrive(pass_.n_steps - 1, h);
  }

 private:
  struct Message {
    Array<unsigned char> own;  // room for all neurons
    std::size_t size = 0;
    std::vector<std::vector<Id>> merged;  // [D], the population's spikes of a step, sample after sample
  };

  static int longest_delay(const ForwardPass& pass) {
    int longest = 0;
    for (int k = 0; k < pass.n_loops; ++k) longest = std::max(longest, pass.loops[k].delay);
    return std::min(longest, std::max(1, pass.n_steps));
  }
  std::size_t of(int t, int b) const { return static_cast<std::size_t>(t % n_kept_) * pass_.n_samples + b; }

  std::int64_t list(int t, int b) const { return static_cast<std::int64_t>(t) * pass_.n_samples + b; }
  std::size_t n_counts(Half half) const { return static_cast<std::size_t>(half.size()) * (selects_late_ ? 2 : 1); }

  void send(int t, int h) {
    const Half half = halves_[h];
    const LayerSpec& spec = *pass_.spec;
    Message& message = messages_[h];
    if (!message.own) message.own = Array<unsigned char>(4 * n_counts(half) + sizeof(Id) * half.size() * spec.n);
    std::int32_t* counts = reinterpret_cast<std::int32_t*>(message.own.data());
    Id* const ids = reinterpret_cast<Id*>(counts + n_counts(half));
    Id* to = ids;
    const std::size_t stride = static_cast<std::size_t>(pass_.n_steps) * pass_.n_samples;
    const std::uint64_t* words = selects_late_ ? pass_.fired : pass_.sent;
    for (int k = 0; k < half.size(); ++k) {
      const Id* const begin = to;
      for (int p = 0; p < spec.n_tiles(); ++p)
        for (std::uint64_t bits = words[p * stride + list(t, half.b0 + k)]; bits; bits &= bits - 1)
          *to++ = static_cast<Id>(spec.first + p * spec.tile_width + __builtin_ctzll(bits));
      if (!selects_late_) counts[k] = static_cast<std::int32_t>(to - begin);
    }
    if (selects_late_) kernels_.count_candidates(pass_, list(t, half.b0), list(t, half.b1), counts);
    message.size = 4 * n_counts(half) + sizeof(Id) * static_cast<std::size_t>(to - ids);
    exchange_.start(h, std::vector<Bytes>(exchange_.size(), {message.own.data(), message.size}));
  }

  // Ends step t of half h: capacity, and the spikes of the whole population.
  void arrive(int t, int h) {
    const Half half = halves_[h];
    std::vector<Bytes> from = exchange_.finish(h);
    from[exchange_.rank()] = {messages_[h].own.data(), messages_[h].size};
    const int n_ranks = exchange_.size(), kinds = selects_late_ ? 2 : 1;
    std::vector<std::int32_t> counts(n_counts(half) * n_ranks);
    std::vector<const Id*> ids(n_ranks);
    std::size_t n_ids = 0;
    for (int r = 0; r < n_ranks; ++r) {
      std::int32_t* of_rank = counts.data() + n_counts(half) * r;
      std::size_t n = 0, bytes = 4 * n_counts(half);
      if (from[r].size >= bytes) std::memcpy(of_rank, from[r].data, bytes);
      for (int k = 0; k < half.size(); ++k) n += static_cast<std::size_t>(of_rank[k * kinds]);
      if (from[r].size != bytes + n * sizeof(Id))
        throw InputError("SpikeListError", "rank " + std::to_string(r) + " of a layer sent " +
                                               std::to_string(from[r].size) + " bytes of spikes, not " +
                                               std::to_string(bytes + n * sizeof(Id)));
      ids[r] = reinterpret_cast<const Id*>(static_cast<const unsigned char*>(from[r].data) + bytes);
      n_ids += n;
    }
    if (selects_late_) select_lists(kernels_, pass_, exchange_, counts, list(t, half.b0), list(t, half.b1), dropped_);

    std::vector<Id>& merged = messages_[h].merged[t % n_kept_];
    merged.resize(n_ids);
    Id* to = merged.data();
    for (int k = 0; k < half.size(); ++k) {
      Id* const begin = to;
      for (int r = 0; r < n_ranks; ++r) {
        const std::int32_t n = counts[n_counts(half) * r + k * kinds];
        to = std::copy_n(ids[r], n, to);
        ids[r] += n;
      }
      const std::int64_t n = to - begin;
      arrived_[of(t, half.b0 + k)] = {begin, selects_late_ ? keep(begin, n, t, half.b0 + k) : n, sizeof(Id) == 4};
    }
  }

  // Leaves those of n spikes that the capacity leaves; returns how many.
  std::int64_t keep(Id* ids, std::int64_t n, int t, int b) const {
    const std::int64_t capacity = pass_.spec->capacity;
    if (n <= capacity) return n;
    // start.. of the circle of n, as in codelets/select.h
    const std::int64_t start = static_cast<std::int64_t>(kernels_.rotation(*pass_.spec, t, b) % n);
    const std::int64_t wrapped = std::max<std::int64_t>(0, start + capacity - n);
    std::copy(ids + start, ids + start + capacity - wrapped, ids + wrapped);
    return capacity;
  }

  const Kernels& kernels_;
  const ForwardPass& pass_;
  Exchange& exchange_;
  std::int32_t* const dropped_;
  const std::vector<Half> halves_;
  const bool recurrent_, selects_late_;
  const int n_kept_;                // D, the longest delay of a loop
  std::vector<OwnSpikes> arrived_;  // [D][B], the population's spikes of the last D steps
  std::vector<OwnSpikes> heard_;    // [B][loops], of the step at hand
  std::vector<Message> messages_;   // by half
};

}  // namespace

void run_by_step(const Kernels& kernels, const ForwardPass& pass, Exchange& exchange, std::int32_t* dropped) {
  const PhaseTimer timer(Phase::forward);
  if (pass.spec->n_all() > 65536)
    Steps<std::uint32_t>(kernels, pass, exchange, dropped).run();
  else
    Steps<std::uint16_t>(kernels, pass, exchange, dropped).run();
}

void select_shards(const Kernels& kernels, const ForwardPass& pass, Exchange& exchange, std::int32_t* dropped) {
  count_and_select(kernels, pass, exchange, 0, static_cast<std::int64_t>(pass.n_steps) * pass.n_samples, dropped);
}

}  // namespace sparsesnn
