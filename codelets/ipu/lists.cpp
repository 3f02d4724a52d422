// Lists: Compact makes them from bit masks, Fetch sends kept ones again.
//
// Both run on collectors, which own some samples of a population: kept [T, n, stride], the lists of all steps; outs[k]
// [n, stride], what is sent, of `lags[k]` steps ago. All six workers share each list: a worker owns a range of whole
// words.
#include "vertex.h"

namespace sparsesnn::ipu {
namespace {

unsigned count_bits(unsigned x) { return static_cast<unsigned>(__builtin_popcount(x)); }

// The words [first, last) of `n` that one of six workers owns.
void deal(unsigned n, unsigned worker, unsigned& first, unsigned& last) {
  const unsigned share = (n + workers - 1) / workers;
  first = share * worker < n ? share * worker : n;
  last = first + share < n ? first + share : n;
}

// This worker's part of the list that was made `lag` steps before t, into `out`; an empty list where there is none.
void send_kept(unsigned short* out, const unsigned short* kept, bool exists, unsigned worker) {
  if (!exists) {
    if (worker == 0) out[0] = out[1] = 0;
    return;
  }
  unsigned first, last;
  deal((kept[1] + 1) / 2, worker, first, last);
  const unsigned end = 2 * last < kept[1] ? 2 * last : kept[1];  // the last word may be half a one
  for (unsigned k = 2 * first; k < end; ++k) out[list_ids + k] = kept[list_ids + k];
  if (worker == 0) out[0] = kept[0], out[1] = kept[1];
  SPARSESNN_WORK(fetch_list, 1);
  SPARSESNN_WORK(fetch_id, last - first);
}

}  // namespace

// masks[p] [n, 2, words of shard p]: remote. firsts[p]: first neuron of shard p; firsts[n_shards]: all neurons.
// Fired neurons win over near-spikes; what does not fit is counted in dropped [T, n]. With `fixed` silent neurons fill
// the list, and all of it is sent as spikes.
class Compact : public poplar::MultiVertex {
 public:
  ListOf<poplar::Input<Words>> masks;
  poplar::InOut<Ids> kept;
  ListOf<poplar::Output<Ids>> outs;
  poplar::Output<Words> dropped;
  poplar::InOut<Words> steps;
  Numbers firsts;
  Numbers lags;
  unsigned n_shards, n_outs, n_samples, first_sample, capacity, fixed, seed_low, seed_high;

  bool compute(unsigned worker) {
    const unsigned t = steps[worker], stride = list_ids + ((capacity + 1) & ~1u);
    steps[worker] = t + 1;
    for (unsigned s = 0; s < n_samples; ++s) {
      make_list(s, t, &kept[(t * n_samples + s) * stride], stride, worker);
      for (unsigned k = 0; k < n_outs; ++k)
        if (lags[k])
          send_kept(&outs[k][s * stride], t >= lags[k] ? &kept[((t - lags[k]) * n_samples + s) * stride] : nullptr,
                    t >= lags[k], worker);
    }
    return true;
  }

 private:
  void make_list(unsigned s, unsigned t, unsigned short* list, unsigned stride, unsigned worker) {
    unsigned n_fired = 0, n_near = 0;
    for (unsigned p = 0; p < n_shards; ++p) {
      const unsigned n_words = (firsts[p + 1] - firsts[p] + 31) / 32;
      const unsigned* words = &masks[p][2 * n_words * s];
      for (unsigned k = 0; k < n_words; ++k) n_fired += count_bits(words[k]), n_near += count_bits(words[n_words + k]);
      SPARSESNN_WORK(compact_word, 2 * n_words);
    }
    const tile::Word64 seed = static_cast<tile::Word64>(seed_high) << 32 | seed_low;
    const unsigned sample = first_sample + s;
    tile::Group fired, near, silent;
    fired.limit(n_fired, capacity, seed, t, sample);
    near.limit(n_near, capacity - fired.n_keep, seed, t, sample);
    const unsigned left = capacity - fired.n_keep - near.n_keep;
    silent.limit(firsts[n_shards] - n_fired - n_near, fixed ? left : 0, seed, t, sample);
    const unsigned n_listed = fired.n_keep + near.n_keep + silent.n_keep;

    unsigned begin, end;  // the slots that this worker fills
    deal((n_listed + 1) / 2, worker, begin, end);
    begin *= 2, end *= 2;
    unsigned next = 0, next_near = fixed ? 0 : fired.n_keep;
    for (unsigned p = 0; p < n_shards; ++p) {
      const unsigned n_neurons = firsts[p + 1] - firsts[p], n_words = (n_neurons + 31) / 32;
      const unsigned* words = &masks[p][2 * n_words * s];
      for (unsigned k = 0; k < n_words; ++k) {
        const unsigned id = firsts[p] + 32 * k;
        unsigned first = fired.kept(words[k]), second = near.kept(words[n_words + k]);
        if (fixed) {
          const unsigned n_valid = n_neurons - 32 * k;
          const unsigned valid = n_valid >= 32 ? ~0u : (1u << n_valid) - 1;
          first |= second | silent.kept(valid & ~(words[k] | words[n_words + k]));
          second = 0;
        }
        next = emit(list, s, stride, first, id, next, begin, end);
        next_near = emit(list, s, stride, second, id, next_near, begin, end);
      }
      SPARSESNN_WORK(compact_word, 2 * n_words);
    }
    if (worker == 0) {
      const unsigned n_spikes = fixed ? n_listed : fired.n_keep;
      write(list, s, stride, 0, n_spikes);
      write(list, s, stride, 1, n_listed);
      dropped[t * n_samples + s] = n_fired + n_near - fired.n_keep - near.n_keep;
    }
    SPARSESNN_WORK(compact_list, 1);
  }

  // Writes those of the word's ids whose slots, from `slot` on, are this worker's; returns the slot after them.
  unsigned emit(unsigned short* list, unsigned s, unsigned stride, unsigned bits, unsigned first_id, unsigned slot,
                unsigned begin, unsigned end) {
    const unsigned after = slot + count_bits(bits);
    if (after <= begin || slot >= end) return after;
    for (; bits; bits &= bits - 1, ++slot)
      if (slot >= begin && slot < end) {
        write(list, s, stride, list_ids + slot, first_id + static_cast<unsigned>(__builtin_ctz(bits)));
        SPARSESNN_WORK(compact_id, 1);
      }
    return after;
  }

  void write(unsigned short* list, unsigned s, unsigned stride, unsigned at, unsigned value) {
    list[at] = static_cast<unsigned short>(value);
    for (unsigned k = 0; k < n_outs; ++k)
      if (!lags[k]) outs[k][s * stride + at] = static_cast<unsigned short>(value);
  }
};

SPARSESNN_VERTEX(Compact, masks, kept, outs, dropped, steps, firsts, lags, n_shards, n_outs, n_samples, first_sample,
                 capacity, fixed, seed_low, seed_high)

// The next step's lists of an input, forwards.
class FetchForward : public poplar::MultiVertex {
 public:
  poplar::Input<Ids> kept;
  ListOf<poplar::Output<Ids>> outs;
  poplar::InOut<Words> steps;
  Numbers lags;
  unsigned n_outs, n_samples, stride;

  bool compute(unsigned worker) {
    const unsigned t = steps[worker];
    steps[worker] = t + 1;
    for (unsigned s = 0; s < n_samples; ++s)
      for (unsigned k = 0; k < n_outs; ++k)
        send_kept(&outs[k][s * stride], t >= lags[k] ? &kept[((t - lags[k]) * n_samples + s) * stride] : nullptr,
                  t >= lags[k], worker);
    return true;
  }
};

SPARSESNN_VERTEX(FetchForward, kept, outs, steps, lags, n_outs, n_samples, stride)

// The lists of the step before, backwards; buckets [n, 12 + room]: their spikes by id modulo 6.
class FetchBackward : public poplar::MultiVertex {
 public:
  poplar::Input<Ids> kept;
  poplar::Output<Ids> out;
  poplar::Output<Ids> buckets;
  poplar::InOut<Words> steps;
  unsigned n_samples, stride, bucket_stride;

  bool compute(unsigned worker) {
    const unsigned t = steps[worker] - 1;
    steps[worker] = t;
    for (unsigned s = 0; s < n_samples; ++s) {
      const unsigned short* list = &kept[(t * n_samples + s) * stride];
      send_kept(&out[s * stride], list, true, worker);
      fill_bucket(list, &buckets[s * bucket_stride], worker);
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

SPARSESNN_VERTEX(FetchBackward, kept, out, buckets, steps, n_samples, stride, bucket_stride)

}  // namespace sparsesnn::ipu
