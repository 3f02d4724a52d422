// Deliver, step and select of one layer over all steps: a block runs one sample, half a warp a tile of neurons (with
// ROUNDS > 1 that many tiles in turn). States stay in registers. A recurrent layer reads the lists that its block has
// just written; the barriers of a step are those around them.
//
// Macros: SHAPE, of codelets/neuron.h; COLUMNS, neurons of a tile per lane; ROUNDS; TRACES, trained parameters of
// neurons that fire; FIRES; CAPACITY, whether lists have one; THREADS, at most, of a block; WEIGHT and GIVEN, see
// layout.h.
//
// Cost of a sample: 4 bytes from L2 (bfloat16: 2) per arriving spike and neuron; launched with B blocks.
#include "codelets/gpu/deliver.h"
#include "codelets/gpu/select.h"
#include "codelets/neuron.h"
#include "codelets/surrogate.h"

namespace sparsesnn::SPARSESNN_ISA {

using Model = Neuron<SHAPE>;

struct StepArgs {
  Source sources[max_sources];
  Loop loops[max_loops];
  Global<const float> entries;               // [entries][neurons], of the shape
  Global<const float> derivatives;           // [TRACES][entries][neurons]
  Global<const float> grad_threshold, bias;  // [neurons]
  // of neurons that fire: their lists; fields: [fields][B·room], σ', then x, then ∂(x - θ)/∂p
  Global<int32> begin, n_spikes, n_listed, needed;  // [T·B]; needed: [B], the entries of each sample
  Global<int32> n_dropped;                          // with a capacity: [candidates, spikes][T·B]
  Global<const uint64> rotation;                    // likewise: the seed of the lists, the number of the first sample
  Global<uint16> ids;                               // [B·room]
  Global<float> fields;
  Global<float> potentials;  // of a readout, [T, B, N]
  Global<float> rows;        // its states and currents, [states + 1][T·B][neurons], if parameters learn; or null
  int32 n_sources, n_loops, n, n_tiles, n_steps, n_samples, room;
  int32 capacity, surrogate, saves, records_x, traces_spikes, detaches;
  float slope;
  // of a network whose input is currents; further up, they make some kernels spill
  Global<const float> given;  // [T, B, N], or [B, N] for all steps
  int32 given_step;           // rows of `given` from step to step
};

template <class F>
inline void load_numbers(F* to, Global<const float> from, int n, int64 stride, int64 neuron) {
  for (int q = 0; q < n; ++q) to[q] = from[q * stride + neuron];
}

KERNEL(step, StepArgs, THREADS) {
  constexpr int S = Model::n_states, n_traces = TRACES ? TRACES : 1, width = COLUMNS * n_lanes;
  const Place place;
  const int b = block_index(), lane = place.lane;
  const int64 n_neurons = static_cast<int64>(a.n_tiles) * width, n_slots = static_cast<int64>(a.n_samples) * a.room;
  // of even and of odd steps: one barrier a step is enough for them
  const Shared<uint64> words = shared_memory<uint64>(0);  // [2][fired, listed][tiles]
  float z[ROUNDS][COLUMNS][S] = {}, trace[ROUNDS][COLUMNS][n_traces][S] = {}, slope[ROUNDS][COLUMNS] = {};
  int used = 0;
  for (int t = 0; t < a.n_steps; ++t) {
    const int list = t * a.n_samples + b;
    const Shared<uint64> fired_words = words + t % 2 * 2 * a.n_tiles, listed_words = fired_words + a.n_tiles;
    uint64 fired_word[ROUNDS], listed_word[ROUNDS];
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
      const int tile = place.half + r * place.n_halves;
      const bool exists = tile < a.n_tiles;
      bool fired[COLUMNS] = {}, listed[COLUMNS] = {};
      if (exists) {
        float current[COLUMNS];
        const int64 first = static_cast<int64>(tile) * width + lane;
        for (int k = 0; k < COLUMNS; ++k) current[k] = a.bias ? float(a.bias[first + k * n_lanes]) : 0.0f;
        if constexpr (GIVEN)
          for (int k = 0; k < COLUMNS; ++k) {
            const int64 neuron = first + k * n_lanes, row = static_cast<int64>(t) * a.given_step + b;
            if (neuron < a.n) current[k] = current[k] + a.given[row * a.n + neuron];
          }
        for (int s = 0; s < a.n_sources; ++s) {
          const Source& from = a.sources[s];
          if (t < from.delay) continue;
          const int arrives = list - from.delay * a.n_samples;
          deliver(current, from.weight, a.n_tiles, tile, lane, from.lists.ids, from.lists.values,
                  from.lists.begin[arrives], from.lists.n_spikes[arrives]);
        }
        for (int l = 0; l < a.n_loops; ++l) {
          if (t < a.loops[l].delay) continue;
          const int arrives = list - a.loops[l].delay * a.n_samples;
          deliver(current, a.loops[l].weight, a.n_tiles, tile, lane, Global<const uint16>(a.ids), Global<const float>(),
                  a.begin[arrives], a.n_spikes[arrives]);
        }
#pragma unroll
        for (int k = 0; k < COLUMNS; ++k) {
          const int64 neuron = first + k * n_lanes;
          float p[Model::n_entries], before[S];
          load_numbers(p, a.entries, Model::n_entries, n_neurons, neuron);
          for (int s = 0; s < S; ++s) before[s] = z[r][k][s];
          if constexpr (FIRES) {
            const float theta = p[Model::threshold];
            const Fired<float> s = Fired<float>::of(before[0], t ? theta : 3.402823466e+38f);  // no neuron fired before
            Model::step(z[r][k], p, s, current[k]);
            const float x = z[r][k][0];
            fired[k] = x > theta;
            listed[k] = fired[k] || (a.saves && x > a.grad_threshold[neuron]);
            for (int q = 0; q < TRACES; ++q) {
              float by[Model::n_entries];
              float* const d = trace[r][k][q];
              load_numbers(by, a.derivatives, Model::n_entries, n_neurons, q * Model::n_entries * n_neurons + neuron);
              if (a.traces_spikes)
                Model::template step_trace<true>(d, before, z[r][k], p, by, s,
                                                 slope[r][k] * (d[0] - by[Model::threshold]), !a.detaches, current[k]);
              else
                Model::template step_trace<false>(d, before, z[r][k], p, by, s, 0.0f, false, current[k]);
            }
          } else {
            Model::step(z[r][k], p, Fired<float>{false}, current[k]);
            if (neuron < a.n) a.potentials[static_cast<int64>(list) * a.n + neuron] = z[r][k][0];
            if (a.rows) {
              const int64 row = static_cast<int64>(a.n_steps) * a.n_samples * n_neurons, at = list * n_neurons + neuron;
              for (int s = 0; s < S; ++s) a.rows[s * row + at] = z[r][k][s];
              a.rows[S * row + at] = current[k];
            }
          }
        }
      }
      if constexpr (FIRES) {
        fired_word[r] = tile_word(fired, place.half);
        listed_word[r] = tile_word(listed, place.half);
        if (exists && lane == 0) fired_words[tile] = fired_word[r], listed_words[tile] = listed_word[r];
      }
    }
    if constexpr (FIRES) {
      barrier();
#pragma unroll
      for (int r = 0; r < ROUNDS; ++r) {
        const int tile = place.half + r * place.n_halves;
        const ListCounts n = count_list(fired_words, listed_words, a.n_tiles, tile);
        const Kept kept = keep<CAPACITY>(n, a.capacity, [&] { return rotation(a.rotation[0], t, a.rotation[1] + b); });
        const int n_listed = kept.n_listed(), n_stored = n_listed + (a.saves ? kept.n_silenced() : 0);
        const bool fits = used + n_stored <= a.room;
        const int64 begin = static_cast<int64>(b) * a.room + used;
#pragma unroll
        for (int k = 0; k < COLUMNS; ++k) {
          const int bit = k * n_lanes + lane;
          if (tile >= a.n_tiles || !(listed_word[r] >> bit & 1)) {
            slope[r][k] = 0.0f;
            continue;
          }
          const int64 neuron = static_cast<int64>(tile) * width + bit;
          const auto place_of = [&] { return place_in_list<CAPACITY>(n, kept, fired_word[r], listed_word[r], bit); };
          if constexpr (CAPACITY) {
            const int at = place_of();
            if (at < 0 || at >= n_listed) {  // dropped: no gradient passes through it
              slope[r][k] = 0.0f;
              if (fits && at >= 0 && at < n_stored) a.ids[begin + at] = static_cast<uint16>(neuron);
              continue;
            }
          }
          const float x = z[r][k][0], above = x - a.entries[Model::threshold * n_neurons + neuron];
          slope[r][k] = a.saves ? surrogate(a.surrogate, a.slope, above) : 0.0f;
          if (!fits) continue;
          const int64 slot = begin + place_of();
          a.ids[slot] = static_cast<uint16>(neuron);
          if (!a.saves) continue;
          int64 field = slot;
          a.fields[field] = slope[r][k];
          if (a.records_x) a.fields[field += n_slots] = x;
          for (int q = 0; q < TRACES; ++q)
            a.fields[field += n_slots] =
                trace[r][k][q][0] - a.derivatives[(q * Model::n_entries + Model::threshold) * n_neurons + neuron];
        }
        if (r + 1 < ROUNDS) continue;
        if (thread_index() == 0) {
          a.begin[list] = static_cast<int32>(fits ? begin : 0);
          a.n_spikes[list] = fits ? kept.spikes.n_kept : 0;
          a.n_listed[list] = fits ? n_listed : 0;
          if constexpr (CAPACITY) {
            a.n_dropped[list] = n.spikes + n.near - n_listed;
            a.n_dropped[a.n_steps * a.n_samples + list] = fits ? n_stored - n_listed : 0;
          }
        }
        used += n_stored;
      }
      if (a.n_loops) barrier();
    }
  }
  if constexpr (FIRES)
    if (thread_index() == 0) a.needed[b] = used;
}

}  // namespace sparsesnn::SPARSESNN_ISA
