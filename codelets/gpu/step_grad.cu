// Gradient of step, for one layer, from the last step to the first: ∂L/∂i of all neurons and steps. A block runs one
// sample, half a warp a tile. In a step the halves first take listed neurons in turn, each for ∂L/∂value through the
// recurrent connections; then every thread moves the adjoint of its own neurons.
//
// Macros: as for step.cu, without GIVEN. Of a readout, TRACES counts its trained parameters.
//
// A launch takes a wave of samples, from first_sample on, so that ∂L/∂i stays in L2 until its products are computed.
//
// Cost of a sample: 8 bytes from L2 per listed neuron, loop and neuron, and 4 bytes written per neuron and step.
#include "codelets/gpu/dot.h"
#include "codelets/neuron.h"

namespace sparsesnn::SPARSESNN_ISA {

using Model = Neuron<SHAPE>;

struct StepGradArgs {
  Loop loops[max_loops];
  Global<const float> entries;      // [entries][neurons], of the shape
  Global<const float> derivatives;  // [TRACES][entries][neurons], of a readout
  DeviceLists lists;                // the layer's own
  Global<const int32> n_dropped;    // with a capacity: [candidates, spikes][T·B]; the ids of the spikes follow the list
  Global<const float> fields;       // [fields][B·room], σ', then x
  Global<float> d_values;           // [B·room], ∂L/∂value without the part through loops; becomes σ'·∂L/∂value
  Global<const float> d_potentials;  // of a readout, [T, B, N], or [B, N] for all steps
  Global<const float> rows;          // of a readout whose parameters learn: see StepArgs
  Global<float> d_parameters;        // likewise, [TRACES][B][neurons]: written
  Global<float> d_currents;          // of the wave, [T·samples][tiles][16][COLUMNS]: written
  int32 n_loops, n, n_tiles, n_steps, n_samples, room, records_x, detaches, same_at_all_steps, first_sample, n_wave;
};

KERNEL(step_grad, StepGradArgs, THREADS) {
  constexpr int S = Model::n_states, n_traces = TRACES ? TRACES : 1, width = COLUMNS * n_lanes;
  const Place place;
  const int b = a.first_sample + block_index(), lane = place.lane;
  const int64 n_neurons = static_cast<int64>(a.n_tiles) * width, n_slots = static_cast<int64>(a.n_samples) * a.room;
  const Shared<int32> numbers =
      shared_memory<int32>(0);  // [neurons], of a listed one its place in the list + 1, of a dropped spike -1, else 0
  float d[ROUNDS][COLUMNS][S] = {}, d_parameter[ROUNDS][COLUMNS][n_traces] = {};
  if constexpr (FIRES) {
    for (int64 n = thread_index(); n < n_neurons; n += block_size()) numbers[n] = 0;
    barrier();
  }
  for (int t = a.n_steps - 1; t >= 0; --t) {
    const int list = t * a.n_samples + b;
    int begin = 0, n_spikes = 0;
    if constexpr (FIRES) {
      begin = a.lists.begin[list];
      n_spikes = a.lists.n_spikes[list];
      const int n_listed = a.lists.n_listed[list];
      for (int j0 = 0; j0 < n_listed; j0 += place.n_halves) {
        const int j = j0 + place.half;
        const bool exists = j < n_listed;
        const int neuron = exists ? static_cast<int>(a.lists.ids[begin + j]) : 0;
        float e = exists && !lane ? static_cast<float>(a.d_values[begin + j]) : 0.0f;
        for (int l = 0; l < a.n_loops; ++l) {
          const int later = t + a.loops[l].delay;
          if (later >= a.n_steps) continue;
          const Global<const Weight> weight = a.loops[l].weight;
          const Global<const float> d_currents = a.d_currents;
          const int64 row = static_cast<int64>(later) * a.n_wave + block_index();
          const float through = sum_tiles(a.n_tiles, [&](int tile) {
            return lane_dot<COLUMNS>(weight, neuron, d_currents, row, a.n_tiles, tile, lane);
          });
          e = e + through;
        }
        if (!exists || lane) continue;
        a.d_values[begin + j] = a.fields[begin + j] * e;
        numbers[neuron] = j + 1;
      }
      if constexpr (CAPACITY)
        for (int j = thread_index(); j < a.n_dropped[a.n_steps * a.n_samples + list]; j += block_size())
          numbers[a.lists.ids[begin + n_listed + j]] = -1;
      barrier();
    }
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
      const int tile = place.half + r * place.n_halves;
      if (tile >= a.n_tiles) continue;
      float d_current[COLUMNS];
#pragma unroll
      for (int k = 0; k < COLUMNS; ++k) {
        const int64 neuron = static_cast<int64>(tile) * width + k * n_lanes + lane;
        float p[Model::n_entries];
        float* const own = d[r][k];
        for (int q = 0; q < Model::n_entries; ++q) p[q] = a.entries[q * n_neurons + neuron];
        if constexpr (FIRES) {
          At<float> at{};
          const int number = numbers[neuron];
          if (CAPACITY && number < 0) {  // it fired and was reset, but no gradient passes through it
            at.s = {true};
            numbers[neuron] = 0;
          } else if (number) {
            const int64 slot = begin + number - 1;
            at = {{number <= n_spikes}, a.fields[slot], a.d_values[slot], 0.0f, 1.0f};
            if (a.records_x) at.x = a.fields[n_slots + slot];
            numbers[neuron] = 0;
          }
          at.through = 1.0f;
          bool done = false;
          if constexpr (Model::adds_q)
            if (a.detaches) {
              Model::adjoint(own, p, at.q);
              done = true;
            }
          if (!done && a.detaches)
            Model::template pull<true, false>(own, p, at);
          else if (!done)
            Model::template pull<true, true>(own, p, at);
        } else {
          const int64 out = (a.same_at_all_steps ? static_cast<int64>(b) : list) * a.n + neuron;
          Model::adjoint(own, p, neuron < a.n ? static_cast<float>(a.d_potentials[out]) : 0.0f);
          for (int q = 0; q < TRACES; ++q) {
            const int64 row = static_cast<int64>(a.n_steps) * a.n_samples * n_neurons, at = list * n_neurons + neuron;
            float by[Model::n_entries], before[S] = {}, now[S];
            for (int s = 0; s < Model::n_entries; ++s)
              by[s] = a.derivatives[(q * Model::n_entries + s) * n_neurons + neuron];
            for (int s = 0; s < S; ++s) now[s] = a.rows[s * row + at];
            for (int s = 0; t && s < S; ++s) before[s] = a.rows[s * row + at - a.n_samples * n_neurons];
            const float i = a.rows[S * row + at];
            d_parameter[r][k][q] =
                d_parameter[r][k][q] + Model::by_parameter(own, before, now, p, by, Fired<float>{false}, i);
          }
        }
        d_current[k] = Model::d_current(own, p);
      }
      store_columns(a.d_currents,
                    packed_at<COLUMNS>(static_cast<int64>(t) * a.n_wave + block_index(), a.n_tiles, tile, lane),
                    d_current);
    }
    if constexpr (FIRES) barrier();
  }
  if constexpr (!FIRES)
    for (int r = 0; r < ROUNDS; ++r) {
      const int tile = place.half + r * place.n_halves;
      for (int k = 0; tile < a.n_tiles && k < COLUMNS; ++k)
        for (int q = 0; q < TRACES; ++q)
          a.d_parameters[(static_cast<int64>(q) * a.n_samples + b) * n_neurons + static_cast<int64>(tile) * width +
                         k * n_lanes + lane] = d_parameter[r][k][q];
    }
}

}  // namespace sparsesnn::SPARSESNN_ISA
