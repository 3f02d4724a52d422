// From bit masks and slot records to lists: select, count, fill.
#include <cstring>

#include "codelets/cpu/select.h"
#include "kernel_parts.h"

namespace sparsesnn::SPARSESNN_ISA {

std::uint64_t rotation_of(const LayerSpec& spec, int t, int b) {
  return rotation(spec.seed, spec.first_step + t, spec.first_sample + b);
}

int select(const ForwardPass& pass, int t, int b, const std::int32_t* others) {
  const LayerSpec& spec = *pass.spec;
  const std::size_t stride = words_stride(pass), i = static_cast<std::size_t>(t) * pass.n_samples + b;
  const int n_tiles = spec.n_tiles();
  OtherShards shards;
  if (others) shards = {others[0], others[1], others[2], others[3], spec.n_all() - spec.n, spec.first};
  const int dropped =
      select_capacity(pass.fired + i, pass.listed + i, pass.sent + i, pass.near + i, stride, n_tiles, spec.n,
                      spec.tile_width, spec.capacity, spec.fixed, rotation_of(spec, t, b), shards);
  if (pass.slope)  // no gradient passes through the spike of an unlisted neuron
    for (int p = 0; p < n_tiles; ++p) {
      float* slope = pass.slope + (static_cast<std::size_t>(p) * pass.n_samples + b) * spec.tile_width;
      std::uint64_t unlisted = valid_word(spec, p) & ~(pass.sent[p * stride + i] | pass.near[p * stride + i]);
      for (; unlisted; unlisted &= unlisted - 1) slope[__builtin_ctzll(unlisted)] = 0.0f;
    }
  return dropped;
}

void count_candidates(const ForwardPass& pass, std::int64_t i0, std::int64_t i1, std::int32_t* counts) {
  const std::size_t stride = words_stride(pass);
  std::memset(counts, 0, sizeof(std::int32_t) * 2 * static_cast<std::size_t>(i1 - i0));
  for (int p = 0; p < pass.spec->n_tiles(); ++p)
    for (std::int64_t i = i0; i < i1; ++i) {
      const std::uint64_t fired = pass.fired[p * stride + i], listed = pass.listed[p * stride + i];
      counts[2 * (i - i0)] += __builtin_popcountll(fired);
      counts[2 * (i - i0) + 1] += __builtin_popcountll(listed & ~fired);
    }
}

namespace {

template <class Id>
inline std::int64_t decode_sent(const ForwardPass& pass, std::int64_t list, Id* ids) {
  const std::size_t stride = words_stride(pass);
  Id* out = ids;
  for (int p = 0; p < pass.spec->n_tiles(); ++p)
    for (std::uint64_t bits = pass.sent[p * stride + list]; bits; bits &= bits - 1)
      *out++ = static_cast<Id>(p * pass.spec->tile_width + __builtin_ctzll(bits));
  return out - ids;
}

}  // namespace

std::int64_t sent_ids(const ForwardPass& pass, std::int64_t list, void* ids) {
  return with_ids(pass.wide, ids, [&](auto* to) { return decode_sent(pass, list, to); });
}

namespace {

// Without a capacity `sent` is `fired`, and every other listed neuron is a near-spike.
inline std::uint64_t near_word(const ForwardPass& pass, std::size_t at) {
  return pass.near ? pass.near[at] : pass.listed[at] & ~pass.fired[at];
}

}  // namespace

void count(const ForwardPass& pass, std::int64_t i0, std::int64_t i1, std::int32_t* n_spikes, std::int32_t* n_listed,
           std::int32_t* n_silenced) {
  const std::size_t stride = words_stride(pass);
  for (std::int64_t i = i0; i < i1; ++i) {
    n_spikes[i] = n_listed[i] = 0;
    if (n_silenced) n_silenced[i] = 0;
  }
  for (int p = 0; p < pass.spec->n_tiles(); ++p)
    for (std::int64_t i = i0; i < i1; ++i) {
      const std::size_t at = p * stride + i;
      const std::uint64_t sent = pass.sent[at], near = near_word(pass, at);
      n_spikes[i] += __builtin_popcountll(sent);
      n_listed[i] += __builtin_popcountll(sent | near);
      if (n_silenced) n_silenced[i] += __builtin_popcountll(pass.fired[at] & ~sent);
    }
}

namespace {

// The neurons with a record in a tile: all candidates, also those that a capacity dropped; for fixed lists all neurons.
inline std::uint64_t stored_word(const ForwardPass& pass, std::size_t at, int tile) {
  return pass.near && pass.spec->fixed ? valid_word(*pass.spec, tile) : pass.listed[at];
}

// The ids of one list and, at most, one field of each. Words list a neuron or two, so four are written without a check:
// surplus or dropped ones go to the place of the next near-spike, which must be in bounds (`roomy`).
template <class Id, bool fields, bool limited>
inline void fill_list(const ForwardPass& pass, const ListsOut& out, SlotBuffer* records, std::int64_t list,
                      bool roomy) {
  const std::size_t stride = words_stride(pass);
  const int n_tiles = pass.spec->n_tiles(), w = pass.spec->tile_width;
  Id* const ids = static_cast<Id*>(out.ids);
  std::int64_t spike = out.offsets[list], near_spike = spike + out.n_spikes[list];
  for (int p = 0; p < n_tiles; ++p) {
    const std::size_t at = p * stride + list;
    const std::uint64_t sent = pass.sent[at], kept = limited ? sent | pass.near[at] : pass.listed[at];
    std::uint64_t bits = limited && fields ? stored_word(pass, at, p) : kept;
    SlotBuffer& tile = records[p * pass.n_blocks];
    const float* record = tile.data + tile.size;
    if (fields) tile.size += static_cast<std::size_t>(__builtin_popcountll(bits));
    const int first = p * w;
    const auto put = [&] {
      const std::uint64_t one = bits & -bits;  // 0 once nothing is left
      const std::int64_t is_spike = (sent & one) != 0, to = is_spike ? spike : near_spike;
      ids[to] = static_cast<Id>(first + __builtin_ctzll(bits | 1ull << 63));
      if constexpr (fields) out.fields[to] = *record++;
      spike += is_spike;
      near_spike += ((limited ? kept & one : one) != 0) - is_spike;
      bits &= bits - 1;
    };
    if (roomy && (!fields || tile.data)) {
      for (int k = 0; k < 4; ++k) put();
      while (bits) put();
    }
    while (bits)
      if (!limited || kept & bits & -bits) {
        put();
      } else {
        bits &= bits - 1;
        ++record;
      }
  }
}

// The same with several fields, or ids of dropped spikes.
template <class Id>
inline void fill_any_list(const ForwardPass& pass, const ListsOut& out, SlotBuffer* records, std::int64_t list) {
  const LayerSpec& spec = *pass.spec;
  const std::size_t stride = words_stride(pass);
  const int n_tiles = spec.n_tiles(), n_fields = spec.n_fields(), w = spec.tile_width;
  Id* const ids = static_cast<Id*>(out.ids);
  std::int64_t spike = out.offsets[list], near_spike = spike + out.n_spikes[list];
  std::int64_t silenced = out.silenced_offsets ? out.silenced_offsets[list] : 0;
  for (int p = 0; p < n_tiles; ++p) {
    const std::size_t at = p * stride + list;
    const std::uint64_t sent = pass.sent[at], near = near_word(pass, at), stored = stored_word(pass, at, p);
    SlotBuffer& tile = records[p * pass.n_blocks];
    const float* record = tile.data + tile.size;
    tile.size += static_cast<std::size_t>(__builtin_popcountll(stored)) * n_fields;
    for (std::uint64_t bits = stored; bits; bits &= bits - 1, record += n_fields) {
      const int k = __builtin_ctzll(bits);
      if (!((sent | near) >> k & 1)) {
        if (out.silenced_offsets && pass.fired[at] >> k & 1)
          out.silenced_ids[silenced++] = static_cast<std::uint32_t>(p * w + k);
        continue;
      }
      // No branch on the kind, which is unpredictable.
      const std::int64_t is_spike = sent >> k & 1, slot = is_spike ? spike : near_spike;
      spike += is_spike;
      near_spike += 1 - is_spike;
      ids[slot] = static_cast<Id>(p * w + k);
      for (int f = 0; f < n_fields; ++f) out.fields[f * out.n_slots + slot] = record[f];
    }
  }
}

// A tile's records of a block of samples have the order of the forward pass: by step, then sample. `size` counts them
// again as they are read.
inline void rewind_records(const ForwardPass& pass, int b0, int b1) {
  for (int p = 0; p < pass.spec->n_tiles(); ++p)
    for (int block = b0 / pass.block_size; block * pass.block_size < b1; ++block)
      pass.slots[p * pass.n_blocks + block].size = 0;
}

// Prefetches the data of the lists of samples b0..b1-1 at the next step, `row` being the first list of this one: too
// many streams for the hardware prefetcher.
template <class Id>
inline void ask_for_next_step(const ForwardPass& pass, const ListsOut& out, std::int64_t row, int b0, int b1) {
  for (int p = 0; p < pass.spec->n_tiles(); ++p) {
    const std::size_t word = p * words_stride(pass) + row + pass.n_samples + b0;
    __builtin_prefetch(pass.fired + word);
    __builtin_prefetch(pass.listed + word);
    if (pass.near) {
      __builtin_prefetch(pass.sent + word);
      __builtin_prefetch(pass.near + word);
    }
    const SlotBuffer& records = pass.slots[p * pass.n_blocks + b0 / pass.block_size];
    __builtin_prefetch(records.data + records.size + 32);
  }
  if (row + pass.n_samples == static_cast<std::int64_t>(words_stride(pass))) return;  // the last step
  const std::int64_t from = out.offsets[row + pass.n_samples + b0], to = out.offsets[row + pass.n_samples + b1];
  for (std::int64_t j = from; j < to; j += 32) __builtin_prefetch(static_cast<Id*>(out.ids) + j, 1);
  for (int f = 0; f < pass.spec->n_fields(); ++f)
    for (std::int64_t j = from; j < to; j += 16) __builtin_prefetch(out.fields + f * out.n_slots + j, 1);
}

// Calls body(list, its records, whether more lists of the same samples and step follow).
template <class Id, class Body>
inline void each_list(const ForwardPass& pass, const ListsOut& out, int b0, int b1, Body&& body) {
  rewind_records(pass, b0, b1);
  for (int t = 0; t < pass.n_steps; ++t) {
    const std::int64_t row = static_cast<std::int64_t>(t) * pass.n_samples, limit = out.offsets[row + b1];
    ask_for_next_step<Id>(pass, out, row, b0, b1);
    for (std::int64_t i = row + b0; i < row + b1; ++i)
      body(i, pass.slots + (i - row) / pass.block_size, out.offsets[i + 1] < limit);
  }
}

template <class Id, bool fields, bool limited>
void fill_plain(const ForwardPass& pass, const ListsOut& out, int b0, int b1) {
  each_list<Id>(pass, out, b0, b1, [&](std::int64_t list, SlotBuffer* records, bool roomy) {
    fill_list<Id, fields, limited>(pass, out, records, list, roomy);
  });
}

template <class Id>
void fill_any(const ForwardPass& pass, const ListsOut& out, int b0, int b1) {
  each_list<Id>(pass, out, b0, b1,
                [&](std::int64_t list, SlotBuffer* records, bool) { fill_any_list<Id>(pass, out, records, list); });
}

template <class Id>
void fill_lists(const ForwardPass& pass, const ListsOut& out, int b0, int b1) {
  const int n_fields = pass.spec->n_fields();
  if (n_fields > 1 || out.silenced_offsets) return fill_any<Id>(pass, out, b0, b1);
  if (pass.near)
    n_fields ? fill_plain<Id, true, true>(pass, out, b0, b1) : fill_plain<Id, false, true>(pass, out, b0, b1);
  else
    n_fields ? fill_plain<Id, true, false>(pass, out, b0, b1) : fill_plain<Id, false, false>(pass, out, b0, b1);
}

}  // namespace

void fill(const ForwardPass& pass, const ListsOut& out, int b0, int b1) {
  if (out.wide)
    fill_lists<Id32>(pass, out, b0, b1);
  else
    fill_lists<Id16>(pass, out, b0, b1);
}

}  // namespace sparsesnn::SPARSESNN_ISA
