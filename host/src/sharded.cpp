#include "sharded.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "packing.h"
#include "phases.h"
#include "thread_pool.h"

namespace sparsesnn {

namespace {

// Two halves of the samples, so that one half can be computed while what the other half sent is on its way.
struct Half {
  int b0, b1;
  int size() const { return b1 - b0; }
};

std::vector<Half> halves(int n_samples) {
  if (n_samples < 2) return {{0, n_samples}};
  return {{0, n_samples / 2}, {n_samples / 2, n_samples}};
}

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

// How many neurons of list i fired, and how many nearly did.
void count_candidates(const ForwardPass& pass, std::int64_t i, std::int32_t* count) {
  const std::size_t stride = static_cast<std::size_t>(pass.n_steps) * pass.n_samples;
  for (int p = 0; p < pass.spec->n_tiles(); ++p) {
    const std::uint64_t fired = pass.fired[p * stride + i], listed = pass.listed[p * stride + i];
    count[0] += __builtin_popcountll(fired);
    count[1] += __builtin_popcountll(listed & ~fired);
  }
}

// Applies the capacity to lists t0..t1-1 of samples b0..b1-1.
void select_lists(const Kernels& kernels, const ForwardPass& pass, Exchange& exchange, int t0, int t1, Half half,
                  std::int32_t* dropped) {
  const int n_samples = half.size();
  const std::size_t n = static_cast<std::size_t>(t1 - t0) * n_samples;
  std::vector<std::int32_t> own(2 * n), all(2 * n * exchange.size());
  const auto list = [&](std::size_t k) {
    return (t0 + static_cast<std::int64_t>(k / n_samples)) * pass.n_samples + half.b0 + k % n_samples;
  };
  for (std::size_t k = 0; k < n; ++k) count_candidates(pass, list(k), own.data() + 2 * k);
  exchange.all_gather(own.data(), own.size(), all.data());
  const std::vector<std::int32_t> others = others_of(all, exchange, n);
  for (std::size_t k = 0; k < n; ++k)
    dropped[list(k)] = kernels.select(pass, t0 + static_cast<int>(k / n_samples),
                                      half.b0 + static_cast<int>(k % n_samples), others.data() + 4 * k);
}

// What a shard sends of one step: how many of its neurons fired, [samples], then their ids in the population.
class SpikeMessage {
 public:
  template <class Id>
  static std::vector<unsigned char> of(const ForwardPass& pass, int t, Half half) {
    const std::size_t stride = static_cast<std::size_t>(pass.n_steps) * pass.n_samples;
    const LayerSpec& spec = *pass.spec;
    std::vector<std::int32_t> counts(half.size());
    std::vector<Id> ids;
    for (int b = half.b0; b < half.b1; ++b) {
      const std::size_t before = ids.size(), list = static_cast<std::size_t>(t) * pass.n_samples + b;
      for (int p = 0; p < spec.n_tiles(); ++p)
        for (std::uint64_t bits = pass.sent[p * stride + list]; bits; bits &= bits - 1)
          ids.push_back(static_cast<Id>(spec.first + p * spec.tile_width + __builtin_ctzll(bits)));
      counts[b - half.b0] = static_cast<std::int32_t>(ids.size() - before);
    }
    std::vector<unsigned char> message(counts.size() * 4 + ids.size() * sizeof(Id));
    std::memcpy(message.data(), counts.data(), counts.size() * 4);
    if (!ids.empty()) std::memcpy(message.data() + counts.size() * 4, ids.data(), ids.size() * sizeof(Id));
    return message;
  }

  // The population's spikes of each sample of the half, shard after shard.
  template <class Id>
  static void merge(const std::vector<Bytes>& messages, int n_samples, std::vector<unsigned char>& ids,
                    std::vector<OwnSpikes>& spikes) {
    std::vector<const unsigned char*> at(messages.size());
    std::size_t n_bytes = 0;
    for (std::size_t r = 0; r < messages.size(); ++r) {
      const std::size_t counts = static_cast<std::size_t>(n_samples) * 4;
      std::int64_t n_ids = 0;
      for (int b = 0; b < n_samples && messages[r].size >= counts; ++b) n_ids += count(messages[r], b);
      if (messages[r].size != counts + static_cast<std::size_t>(n_ids) * sizeof(Id))
        throw InputError("SpikeListError", "rank " + std::to_string(r) + " of a layer sent " +
                                               std::to_string(messages[r].size) + " bytes of spikes, not " +
                                               std::to_string(counts + n_ids * sizeof(Id)));
      at[r] = static_cast<const unsigned char*>(messages[r].data) + counts;
      n_bytes += messages[r].size - counts;
    }
    ids.resize(n_bytes);
    unsigned char* to = ids.data();
    for (int b = 0; b < n_samples; ++b) {
      spikes[b] = {to, 0, sizeof(Id) == 4};
      for (std::size_t r = 0; r < messages.size(); ++r) {
        const std::size_t n = static_cast<std::size_t>(count(messages[r], b));
        if (n) std::memcpy(to, at[r], n * sizeof(Id));
        at[r] += n * sizeof(Id);
        to += n * sizeof(Id);
        spikes[b].n += static_cast<std::int64_t>(n);
      }
    }
  }

 private:
  static std::int32_t count(const Bytes& message, int b) {
    std::int32_t n;
    std::memcpy(&n, static_cast<const unsigned char*>(message.data) + 4 * static_cast<std::size_t>(b), 4);
    return n;
  }
};

template <class Id>
void run_steps(const Kernels& kernels, const ForwardPass& pass, Exchange& exchange, std::int32_t* dropped) {
  const std::vector<Half> parts = halves(pass.n_samples);
  const bool recurrent = pass.recurrent_weight != nullptr;
  const std::size_t row = static_cast<std::size_t>(pass.spec->n_padded());
  const Array<float> current(static_cast<std::size_t>(pass.n_samples) * row);
  std::vector<std::vector<unsigned char>> own(parts.size()), ids(parts.size());
  std::vector<OwnSpikes> before(pass.n_samples);
  for (int t = 0; t < pass.n_steps; ++t)
    for (std::size_t h = 0; h < parts.size(); ++h) {
      const Half half = parts[h];
      if (recurrent && t > 0) {
        std::vector<Bytes> messages = exchange.finish(static_cast<int>(h));
        messages[exchange.rank()] = {own[h].data(), own[h].size()};
        std::vector<OwnSpikes> spikes(half.size());
        SpikeMessage::merge<Id>(messages, half.size(), ids[h], spikes);
        std::copy(spikes.begin(), spikes.end(), before.begin() + half.b0);
      }
      parallel_for(half.size(), [&](int k, int) {
        const int b = half.b0 + k;
        kernels.forward_step(pass, t, b, current.data() + b * row, before[b]);
      });
      if (dropped) select_lists(kernels, pass, exchange, t, t + 1, half, dropped);
      if (!recurrent || t + 1 == pass.n_steps) continue;
      own[h] = SpikeMessage::of<Id>(pass, t, half);
      exchange.start(static_cast<int>(h), std::vector<Bytes>(exchange.size(), {own[h].data(), own[h].size()}));
    }
}

std::uint32_t id_of(const Lists& lists, std::int64_t slot) {
  return lists.wide ? static_cast<const std::uint32_t*>(lists.ids)[slot]
                    : static_cast<const std::uint16_t*>(lists.ids)[slot];
}

// The first slot of begin..end-1, ascending, whose id is at least `id`.
std::int64_t lower_bound(const Lists& lists, std::int64_t begin, std::int64_t end, std::uint32_t id) {
  while (begin < end) {
    const std::int64_t middle = begin + (end - begin) / 2;
    if (id_of(lists, middle) < id)
      begin = middle + 1;
    else
      end = middle;
  }
  return begin;
}

// Entries from..to-1 of one shard, with the ids of the population, to `at` and on.
template <class Id, class ShardId>
void merge_run(const ShardId* ids, std::int64_t from, std::int64_t to, std::uint32_t first, Id* out, std::int64_t at) {
  for (std::int64_t k = from; k < to; ++k) out[at + k - from] = static_cast<Id>(ids[k] + first);
}

template <class Id>
void merge_ids(const std::vector<Lists>& shards, const std::vector<std::uint32_t>& first, std::int64_t n_lists,
               MergedLists& out) {
  Id* ids = reinterpret_cast<Id*>(out.ids.data());
  constexpr std::int64_t piece = 1024;
  parallel_for(static_cast<int>((n_lists + piece - 1) / piece), [&](int k, int) {
    for (std::int64_t i = k * piece; i < std::min(n_lists, (k + 1) * piece); ++i) {
      std::int64_t spike = out.offsets[i], near = spike + out.n_spikes[i];
      for (std::size_t r = 0; r < shards.size(); ++r) {
        const Lists& from = shards[r];
        const std::int64_t begin = from.offsets[i], middle = begin + from.n_spikes[i], end = from.offsets[i + 1];
        const auto merge = [&](auto* shard_ids) {
          merge_run(shard_ids, begin, middle, first[r], ids, spike);
          merge_run(shard_ids, middle, end, first[r], ids, near);
        };
        if (from.wide)
          merge(static_cast<const std::uint32_t*>(from.ids));
        else
          merge(static_cast<const std::uint16_t*>(from.ids));
        spike += middle - begin;
        near += end - middle;
      }
    }
  });
}

// The runs of one list that belong to one shard.
struct Runs {
  std::int64_t spikes, spikes_end, near, near_end;
  std::int64_t size() const { return spikes_end - spikes + near_end - near; }
};

}  // namespace

MergedLists merge_lists(const std::vector<Lists>& shards, const std::vector<std::uint32_t>& first, std::int64_t n_lists,
                        bool wide) {
  MergedLists out;
  out.offsets = Array<std::int64_t>(n_lists + 1);
  out.n_spikes = Array<std::int32_t>::zeros(n_lists);
  out.offsets[0] = 0;
  for (std::int64_t i = 0; i < n_lists; ++i) {
    std::int64_t n = 0;
    for (const Lists& from : shards) {
      n += from.offsets[i + 1] - from.offsets[i];
      out.n_spikes[i] += from.n_spikes[i];
    }
    out.offsets[i + 1] = out.offsets[i] + n;
  }
  out.ids = Array<unsigned char>(static_cast<std::size_t>(out.offsets[n_lists]) * (wide ? 4 : 2));
  if (wide)
    merge_ids<std::uint32_t>(shards, first, n_lists, out);
  else
    merge_ids<std::uint16_t>(shards, first, n_lists, out);
  return out;
}

std::vector<Array<float>> split_values(const Lists& population, std::int64_t n_lists, const float* values,
                                       const std::vector<std::uint32_t>& first) {
  const int n_ranks = static_cast<int>(first.size()) - 1;
  // Calls visit(r, begin, end) for the entries that belong to one rank, list by list, its spikes before its
  // near-spikes.
  const auto each_run = [&](auto&& visit) {
    for (std::int64_t i = 0; i < n_lists; ++i) {
      const std::int64_t begin = population.offsets[i], near = begin + population.n_spikes[i],
                         end = population.offsets[i + 1];
      std::int64_t spike = begin, other = near;
      for (int r = 0; r < n_ranks; ++r) {
        const bool last = r + 1 == n_ranks;
        const std::int64_t spike_end = last ? near : lower_bound(population, spike, near, first[r + 1]),
                           other_end = last ? end : lower_bound(population, other, end, first[r + 1]);
        visit(r, std::exchange(spike, spike_end), spike_end);
        visit(r, std::exchange(other, other_end), other_end);
      }
    }
  };
  std::vector<std::int64_t> count(n_ranks);
  each_run([&](int r, std::int64_t begin, std::int64_t end) { count[r] += end - begin; });
  std::vector<Array<float>> parts;
  for (std::int64_t& n : count) parts.emplace_back(static_cast<std::size_t>(std::exchange(n, 0)));
  each_run([&](int r, std::int64_t begin, std::int64_t end) {
    std::copy_n(values + begin, end - begin, parts[r].data() + count[r]);
    count[r] += end - begin;
  });
  return parts;
}

void run_by_step(const Kernels& kernels, const ForwardPass& pass, Exchange& exchange, std::int32_t* dropped) {
  const PhaseTimer timer(Phase::forward);
  if (pass.spec->n_all() > 65536)
    run_steps<std::uint32_t>(kernels, pass, exchange, dropped);
  else
    run_steps<std::uint16_t>(kernels, pass, exchange, dropped);
}

void select_shards(const Kernels& kernels, const ForwardPass& pass, Exchange& exchange, std::int32_t* dropped) {
  select_lists(kernels, pass, exchange, 0, pass.n_steps, {0, pass.n_samples}, dropped);
}

Array<float> recurrent_value_grads(const LayerSpec& spec, const LayerInput& input, const LayerSaved& saved,
                                   const Lists& all, const float* d_values, Exchange& exchange) {
  const PhaseTimer timer(Phase::step_grad);
  const Kernels& kernels = chosen_kernels();
  const int n_steps = input.n_steps, n_samples = input.n_samples, n_tiles = spec.n_tiles();
  const int rank = exchange.rank(), n_ranks = exchange.size();
  const std::size_t row = static_cast<std::size_t>(spec.n_padded());
  const std::int64_t n_slots = saved.lists.offsets[static_cast<std::int64_t>(n_steps) * n_samples];
  const Padded neuron(spec, input);
  const Packed weight = pack(input.recurrent_weight, spec.n_all(), spec, spec.n_padded(), "recurrent_weight");

  // Every rank's first neuron and tiles.
  const std::int32_t mine[2] = {spec.first, n_tiles};
  std::vector<std::int32_t> theirs(2 * static_cast<std::size_t>(n_ranks));
  exchange.all_gather(mine, 2, theirs.data());
  const auto first_of = [&](int r) { return static_cast<std::uint32_t>(theirs[2 * r]); };
  const auto n_tiles_of = [&](int r) { return r ? theirs[2 * r + 1] : 1; };  // rank 0 sends the sum over its tiles
  const auto runs_of = [&](std::int64_t i, int r) {
    const std::int64_t begin = all.offsets[i], near = begin + all.n_spikes[i], end = all.offsets[i + 1];
    const bool last = r + 1 == n_ranks;
    return Runs{lower_bound(all, begin, near, first_of(r)),
                last ? near : lower_bound(all, begin, near, first_of(r + 1)), lower_bound(all, near, end, first_of(r)),
                last ? end : lower_bound(all, near, end, first_of(r + 1))};
  };

  Array<float> total(n_slots);
  if (n_slots) std::memcpy(total.data(), d_values, sizeof(float) * n_slots);
  const Array<float> d_slots(n_slots), d_v = Array<float>::zeros(n_samples * row), d_next(n_samples * row);
  const Array<float> d_i_syn = spec.model == Model::cuba_lif ? Array<float>::zeros(n_samples * row) : Array<float>();
  const std::size_t scratch = group_samples * row;  // rows of ∂L/∂i of one sample and step
  const Array<float> d_current(n_samples * scratch);
  BackwardPass pass{};
  pass.spec = &spec;
  pass.neuron = neuron.pointers();
  pass.n_samples = n_samples;
  pass.lists = saved.lists;
  pass.fields = saved.fields;
  pass.n_slots = n_slots;
  pass.silenced_offsets = saved.silenced_offsets;
  pass.silenced_ids = saved.silenced_ids;
  pass.d_values = total.data();
  pass.d_slots = d_slots.data();
  pass.d_v = d_v.data();
  pass.d_i_syn = d_i_syn.data();
  pass.d_current_next = d_next.data();

  const std::vector<Half> parts = halves(n_samples);
  // Shares of this rank's tiles: [half][rank][tiles][slots of that rank].
  std::vector<std::vector<std::vector<float>>> shares(parts.size(), std::vector<std::vector<float>>(n_ranks));

  // ∂L/∂v and ∂L/∂i of this rank's neurons.
  const auto state_grads = [&](int t, Half half) {
    parallel_for(half.size(), [&](int k, int) {
      const int b = half.b0 + k;
      BackwardPass step = pass;
      step.n_steps = t + 1;  // ∂L/∂(list values) is whole: nothing more comes from the step after
      kernels.state_grad_by_sample(step, {t, t + 1, b, b + 1}, b, d_current.data() + b * scratch);
    });
  };
  // What the lists of step t receive from this rank's neurons, sent to their owners.
  const auto send_shares = [&](int t, std::size_t h) {
    const Half half = parts[h];
    std::vector<std::vector<std::int64_t>> starts(n_ranks, std::vector<std::int64_t>(half.size() + 1));
    std::vector<Bytes> to(n_ranks);
    for (int r = 0; r < n_ranks; ++r) {
      for (int k = 0; k < half.size(); ++k)
        starts[r][k + 1] = starts[r][k] + runs_of(static_cast<std::int64_t>(t) * n_samples + half.b0 + k, r).size();
      shares[h][r].resize(static_cast<std::size_t>(starts[r].back()) * n_tiles);
    }
    parallel_for(half.size(), [&](int k, int) {
      // The whole list in one go, for the kernel works on many rows at once; then each rank's part of it.
      const int b = half.b0 + k;
      const std::int64_t i = static_cast<std::int64_t>(t) * n_samples + b, begin = all.offsets[i];
      const std::size_t n = static_cast<std::size_t>(all.offsets[i + 1] - begin);
      const Array<float> whole(n * n_tiles);
      kernels.recurrent_shares(spec, weight.data, {all.at(begin), static_cast<std::int64_t>(n), all.wide},
                               d_next.data() + b * row, whole.data(), n);
      for (int r = 0; r < n_ranks; ++r) {
        const Runs runs = runs_of(i, r);
        const std::size_t n_spikes = static_cast<std::size_t>(runs.spikes_end - runs.spikes),
                          n_near = static_cast<std::size_t>(runs.near_end - runs.near);
        float* out = shares[h][r].data() + starts[r][k];
        for (int p = 0; p < n_tiles; ++p, out += starts[r].back()) {
          const float* from = whole.data() + p * n;
          std::copy_n(from + (runs.spikes - begin), n_spikes, out);
          std::copy_n(from + (runs.near - begin), n_near, out + n_spikes);
        }
      }
    });
    for (int r = 0; r < n_ranks; ++r) {
      const std::size_t n = static_cast<std::size_t>(starts[r].back());
      float* sum = shares[h][r].data();
      if (rank == 0)
        for (int p = 1; p < n_tiles; ++p)
          for (std::size_t j = 0; j < n; ++j) sum[j] += sum[p * n + j];
      to[r] = {sum, sizeof(float) * n * (rank ? n_tiles : 1)};
    }
    exchange.start(static_cast<int>(h), to);
  };
  // Adds to ∂L/∂(own list values) of step t what all ranks' neurons sent, tiles ascending.
  const auto receive_shares = [&](int t, std::size_t h) {
    const Half half = parts[h];
    std::vector<Bytes> from = exchange.finish(static_cast<int>(h));
    const std::int64_t* offsets = saved.lists.offsets + static_cast<std::int64_t>(t) * n_samples;
    const std::size_t n = static_cast<std::size_t>(offsets[half.b1] - offsets[half.b0]);
    from[rank] = {shares[h][rank].data(), sizeof(float) * n * (rank ? n_tiles : 1)};
    std::vector<float> sum(n);
    for (int r = 0; r < n_ranks; ++r) {
      if (from[r].size != sizeof(float) * n * n_tiles_of(r))
        throw InputError("ShapeError", "rank " + std::to_string(r) + " of a layer sent " +
                                           std::to_string(from[r].size) + " bytes of gradients, not " +
                                           std::to_string(sizeof(float) * n * n_tiles_of(r)));
      const float* shared = static_cast<const float*>(from[r].data);
      for (int p = 0; p < n_tiles_of(r); ++p)
        for (std::size_t j = 0; j < n; ++j) sum[j] += shared[p * n + j];
    }
    for (std::size_t j = 0; j < n; ++j) total[offsets[half.b0] + j] += sum[j];
  };

  for (int t = n_steps - 1; t >= 0; --t)
    for (std::size_t h = 0; h < parts.size(); ++h) {
      if (t + 1 < n_steps) receive_shares(t, h);
      state_grads(t, parts[h]);
      if (t > 0) send_shares(t - 1, h);
    }
  return total;
}

}  // namespace sparsesnn
