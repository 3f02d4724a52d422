// Lists: Compact makes them from bit masks, Fetch sends kept ones again.
//
// All run on collectors, which own some samples of a population: kept [T, n, stride], the lists of all steps; outs [n,
// stride], the lists of `lags` steps ago, which are sent. All six workers share each list: a worker owns a range of
// whole words.
#include "vertex.h"

namespace sparsesnn::ipu {
namespace {

// The words [first, last) of `n` that one of six workers owns.
void deal(unsigned n, unsigned worker, unsigned& first, unsigned& last) {
  const unsigned share = (n + workers - 1) / workers;
  first = share * worker < n ? share * worker : n;
  last = first + share < n ? first + share : n;
}

// Copies this worker's part of the list made `lag` steps before t into `out`; an empty list if there is none.
void send_kept(unsigned short* out, const unsigned short* kept, bool exists, unsigned worker) {
  if (!exists) {
    if (worker == 0) out[0] = out[1] = 0;
    return;
  }
  unsigned first, last;
  deal((kept[1] + 1) / 2, worker, first, last);
  const unsigned end = 2 * last < kept[1] ? 2 * last : kept[1];  // the last word may be half full
  for (unsigned k = 2 * first; k < end; ++k) out[list_ids + k] = kept[list_ids + k];
  if (worker == 0) out[0] = kept[0], out[1] = kept[1];
  SPARSESNN_WORK(fetch_list, 1);
  SPARSESNN_WORK(fetch_id, last - first);
}

}  // namespace

// By collector: masks [n, words] of each of its shards: remote; firsts: the first neuron of each of its shards,
// followed by the number of all neurons. Fired neurons win over near-spikes; candidates that do not fit are counted in
// dropped [T, n]. counts [n, 2]: spikes and dropped candidates of all steps so far. With `fixed` silent neurons fill
// the list, and all of it is sent as spikes.
//
// Slots are divided among the workers. Each counts all words, and remembers how many candidates come before every sixth
// of them; it thus finds its first slot in that sixth, and stops after its last. outs are InOut: they keep their
// contents during the turns of other populations.
class Compact : public poplar::MultiVertex {
 public:
  ListOf<poplar::Input<Words>> masks;
  ListOf<poplar::InOut<Ids>> kept;
  ListOf<poplar::InOut<Ids>> outs;
  ListOf<poplar::InOut<Words>> dropped;
  ListOf<poplar::InOut<Words>> counts;
  poplar::InOut<Words> clock;
  poplar::Input<Words> first_sample;  // of this replica
  poplar::Input<Words> seeds;         // of each population's lists in this pass, low word first
  Numbers collectors;
  Numbers firsts;
  Numbers lags;
  unsigned n_collectors, n_turns;

  bool compute(unsigned worker) {
    const Moment now = forwards(&clock[0], worker, n_turns);
    for (unsigned k = 0; k < n_collectors; ++k) {
      const CompactCollector& c = record<CompactCollector>(collectors, k);
      if (c.turn != now.turn) continue;
      const unsigned t = now.t, stride = list_ids + even(c.capacity);
      for (unsigned s = 0; s < c.n_samples; ++s) {
        make_list(c, k, s, t, worker);
        for (unsigned j = c.first_out; j < c.first_out + c.n_outs; ++j)
          if (lags[j])
            send_kept(&outs[j][s * stride],
                      t >= lags[j] ? &kept[k][((t - lags[j]) * c.n_samples + s) * stride] : nullptr, t >= lags[j],
                      worker);
      }
    }
    return true;
  }

 private:
  // A word, and the candidates before it: fired, near, and all neurons.
  struct Place {
    unsigned shard, word, fired, near, neurons;
  };
  enum Kind { spikes, near_spikes };
  // The current list: its place in `kept`, and the kept part of each group of candidates.
  struct List {
    unsigned short* ids;
    const CompactCollector& c;
    const unsigned* firsts;
    unsigned sample, stride;
    tile::Group fired, near, silent;

    unsigned spikes_before(const Place& p) const {
      const unsigned n = fired.before(p.fired);
      return c.fixed ? n + near.before(p.near) + silent.before(p.neurons - p.fired - p.near) : n;
    }
  };

  void make_list(const CompactCollector& c, unsigned k, unsigned s, unsigned t, unsigned worker) {
    const unsigned stride = list_ids + even(c.capacity);
    List list{&kept[k][(t * c.n_samples + s) * stride], c, &firsts[c.first_shard + k], s, stride, {}, {}, {}};
    Place places[workers] = {};
    const Place all = count(list, places);

    const Hash64 seed = static_cast<Hash64>(seeds[2 * c.seed + 1]) << 32 | seeds[2 * c.seed];
    const unsigned sample = first_sample[0] + c.first_sample + s, n_silent = all.neurons - all.fired - all.near;
    list.fired.limit(all.fired, c.capacity, seed, t, sample);
    list.near.limit(all.near, c.capacity - list.fired.n_kept, seed, t, sample);
    const unsigned left = c.capacity - list.fired.n_kept - list.near.n_kept;
    list.silent.limit(n_silent, c.fixed ? left : 0, seed, t, sample);
    const unsigned n_listed = list.fired.n_kept + list.near.n_kept + list.silent.n_kept;
    const unsigned n_spikes = c.fixed ? n_listed : list.fired.n_kept;

    unsigned begin, end;  // the slots that this worker fills
    deal((n_listed + 1) / 2, worker, begin, end);
    begin *= 2, end = 2 * end < n_listed ? 2 * end : n_listed;
    if (begin < n_spikes) emit(list, spikes, places, 0, begin, end < n_spikes ? end : n_spikes);
    if (end > n_spikes) emit(list, near_spikes, places, n_spikes, begin > n_spikes ? begin : n_spikes, end);
    if (worker == 0) {
      write(list, 0, n_spikes);
      write(list, 1, n_listed);
      const unsigned n_dropped = all.fired + all.near - list.fired.n_kept - list.near.n_kept;
      dropped[k][t * c.n_samples + s] = n_dropped;
      unsigned* const totals = &counts[k][2 * s];
      totals[0] = n_spikes + (t ? totals[0] : 0);
      totals[1] = n_dropped + (t ? totals[1] : 0);
    }
    SPARSESNN_WORK(compact_list, 1);
  }

  Masks masks_of(const List& list, unsigned shard) const {
    const unsigned n = list.firsts[shard + 1] - list.firsts[shard];
    return {&masks[list.c.first_shard + shard][mask_words(n) * list.sample], n};
  }

  // The place after all words; `places`: the beginning of each sixth of them.
  Place count(const List& list, Place* places) const {
    unsigned n_words = 0, word = 0, next = 0, first = 0, last;
    for (unsigned p = 0; p < list.c.n_shards; ++p) n_words += masks_of(list, p).n_words();
    Place at{};
    for (; at.shard < list.c.n_shards; ++at.shard) {
      const Masks here = masks_of(list, at.shard);
      const unsigned n_here = here.n_words();
      for (at.word = 0; at.word < n_here; ++at.word, ++word) {
        at.neurons = list.firsts[at.shard] + 32 * at.word;
        while (next < workers && first == word) {
          places[next++] = at;
          if (next < workers) deal(n_words, next, first, last);
        }
        if (here.packed() && !here.words[0]) continue;
        at.fired += count_bits(here.fired(at.word)), at.near += count_bits(here.near(at.word));
      }
      SPARSESNN_WORK(compact_count, here.packed() ? (here.words[0] ? 3 : 1) : 2 * n_here);
    }
    at.neurons = list.firsts[at.shard], at.word = 0;
    while (next < workers) places[next++] = at;
    return at;
  }

  // Writes the kept candidates of one kind into slots [begin, end); the first of that kind has slot `first`.
  void emit(const List& list, Kind kind, const Place* places, unsigned first, unsigned begin, unsigned end) {
    const auto slot_at = [&](const Place& p) {
      return first + (kind == spikes ? list.spikes_before(p) : list.near.before(p.near));
    };
    unsigned start = workers - 1;
    while (start && slot_at(places[start]) > begin) --start;
    const Place& from = places[start];
    unsigned slot = slot_at(from);
    tile::Group fired = list.fired, near = list.near, silent = list.silent;
    fired.rank = from.fired, near.rank = from.near, silent.rank = from.neurons - from.fired - from.near;
    for (unsigned p = from.shard, k = from.word; slot < end && p < list.c.n_shards; ++p, k = 0) {
      const Masks here = masks_of(list, p);
      for (; slot < end && k < here.n_words(); ++k) {
        unsigned bits = kind == spikes ? fired.kept(here.fired(k)) : near.kept(here.near(k));
        if (list.c.fixed) {
          const unsigned n_valid = here.n_neurons - 32 * k, valid = n_valid >= 32 ? ~0u : (1u << n_valid) - 1;
          bits |= near.kept(here.near(k)) | silent.kept(valid & ~(here.fired(k) | here.near(k)));
        }
        for (; bits && slot < end; bits &= bits - 1, ++slot) {
          if (slot < begin) continue;
          const unsigned id = list.firsts[p] + 32 * k + static_cast<unsigned>(__builtin_ctz(bits));
          write(list, list_ids + slot, id);
          SPARSESNN_WORK(compact_id, 1);
        }
        SPARSESNN_WORK(compact_word, kind == spikes && list.c.fixed ? 2 : 1);
      }
    }
  }

  void write(const List& list, unsigned at, unsigned value) {
    list.ids[at] = static_cast<unsigned short>(value);
    for (unsigned j = list.c.first_out; j < list.c.first_out + list.c.n_outs; ++j)
      if (!lags[j]) outs[j][list.sample * list.stride + at] = static_cast<unsigned short>(value);
  }
};

SPARSESNN_VERTEX(Compact, masks, kept, outs, dropped, counts, clock, first_sample, seeds, collectors, firsts, lags,
                 n_collectors, n_turns)

// The next step's lists of an input, forward; if steps run again (`every`, see `Rows`), those of all populations.
class FetchForward : public poplar::MultiVertex {
 public:
  ListOf<poplar::Input<Ids>> kept;
  ListOf<poplar::Output<Ids>> outs;
  poplar::InOut<Words> clock;
  Numbers collectors;
  Numbers lags;
  unsigned n_collectors, every;

  bool compute(unsigned worker) {
    const unsigned t = forwards(&clock[0], worker, 1, every).t;
    for (unsigned k = 0; k < n_collectors; ++k) {
      const FetchCollector& c = record<FetchCollector>(collectors, k);
      for (unsigned s = 0; s < c.n_samples; ++s)
        for (unsigned j = c.first_out; j < c.first_out + c.n_outs; ++j) {
          const unsigned ago = lags[j] + c.shift;
          send_kept(&outs[j][s * c.stride], t >= ago ? &kept[k][((t - ago) * c.n_samples + s) * c.stride] : nullptr,
                    t >= ago, worker);
        }
    }
    return true;
  }
};

SPARSESNN_VERTEX(FetchForward, kept, outs, clock, collectors, lags, n_collectors, every)

// The lists of the step before, backward; buckets [n, 12 + room]: their spikes by id modulo 6.
class FetchBackward : public poplar::MultiVertex {
 public:
  ListOf<poplar::Input<Ids>> kept;
  ListOf<poplar::Output<Ids>> outs;
  ListOf<poplar::Output<Ids>> buckets;
  poplar::InOut<Words> clock;
  Numbers collectors;
  unsigned n_collectors;

  bool compute(unsigned worker) {
    const unsigned t = backwards(&clock[0], worker, 1).t;
    for (unsigned k = 0; k < n_collectors; ++k) {
      const FetchCollector& c = record<FetchCollector>(collectors, k);
      for (unsigned s = 0; s < c.n_samples; ++s) {
        const unsigned short* list = &kept[k][(t * c.n_samples + s) * c.stride];
        send_kept(&outs[k][s * c.stride], list, true, worker);
        fill_bucket(list, &buckets[k][s * c.bucket_stride], worker);
      }
    }
    return true;
  }

 private:
  // Every worker counts all buckets and fills its own.
  static void fill_bucket(const unsigned short* list, unsigned short* bucket, unsigned worker) {
    unsigned counts[workers] = {};
    const unsigned n = list[0];
    for (unsigned j = 0; j < n; ++j) ++counts[tile::modulo_6(list[list_ids + j])];
    unsigned start = 0;
    for (unsigned w = 0; w < workers; ++w) {
      if (worker == 0) {
        bucket[w] = static_cast<unsigned short>(start);
        bucket[bucket_counts + w] = static_cast<unsigned short>(counts[w]);
      }
      if (w == worker) {
        unsigned short* to = bucket + bucket_ids + start;
        for (unsigned j = 0; j < n; ++j)
          if (tile::modulo_6(list[list_ids + j]) == w) *to++ = list[list_ids + j];
      }
      start += (counts[w] + 1) & ~1u;
    }
    SPARSESNN_WORK(fetch_id, 2 * n);
  }
};

SPARSESNN_VERTEX(FetchBackward, kept, outs, buckets, clock, collectors, n_collectors)

}  // namespace sparsesnn::ipu
