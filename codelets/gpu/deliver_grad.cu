// Gradients of deliver: of list values, of weights, of given currents, and of numbers per neuron.
//
// A sender's spikes, in the order in which its gradient adds them, are the bits of its row of words: for each group of
// 8 samples, steps descending, then samples ascending. So nothing is sorted: each spike sets its bit.
//
// A launch takes a wave of samples, whole groups from first_sample on; d_currents holds their rows, [T·n_wave].
//
// Macros: COLUMNS, of the receiving layer; WEIGHT, see layout.h.
#include "codelets/gpu/dot.h"

namespace sparsesnn::SPARSESNN_ISA {

// ---- ∂L/∂value of lists -----------------------------------------------------------------------------------------

struct ListGradArgs {
  DeviceLists lists;
  Global<const Weight> weight;     // packed
  Global<const float> d_currents;  // likewise
  Global<float> d_values;          // of each entry, written, or added to
  int32 n_tiles, n_steps, n_samples, delay, adds, first_sample, n_wave;
};

// One block for each list, whose entries half warps take in turn. Entries that arrive after the last step get 0.
KERNEL(list_grad, ListGradArgs, 256) {
  const Place place;
  const int t = block_index() / a.n_wave, list = t * a.n_samples + a.first_sample + block_index() % a.n_wave;
  const int begin = a.lists.begin[list], n_listed = a.lists.n_listed[list];
  const bool arrives = t + a.delay < a.n_steps;
  const int64 row = block_index() + static_cast<int64>(a.delay) * a.n_wave;
  for (int j0 = 0; j0 < n_listed; j0 += place.n_halves) {
    const int j = j0 + place.half;
    const bool exists = j < n_listed;
    const int neuron = exists ? static_cast<int>(a.lists.ids[begin + j]) : 0;
    float sum = 0.0f;
    if (arrives)
      sum = sum_tiles(a.n_tiles, [&](int tile) {
        return lane_dot<COLUMNS>(a.weight, neuron, a.d_currents, row, a.n_tiles, tile, place.lane);
      });
    if (exists && place.lane == 0) a.d_values[begin + j] = a.adds ? a.d_values[begin + j] + sum : sum;
  }
}

// ---- events by sender -------------------------------------------------------------------------------------------

struct SendersArgs {
  DeviceLists lists;
  Global<uint32> bits;  // [groups of the wave][M][n_words], 0 before
  int32 n_pre, n_steps, n_samples, delay, n_words, first_sample, n_wave;
};

// Sets the bit of each spike that arrives; one block for each list.
KERNEL(senders, SendersArgs, 128) {
  const int t = block_index() / a.n_wave, b = block_index() % a.n_wave, arrives = t + a.delay;
  const int list = t * a.n_samples + a.first_sample + b;
  if (arrives >= a.n_steps) return;
  const int bit = (a.n_steps - 1 - arrives) * group_samples + b % group_samples;
  const int begin = a.lists.begin[list], n_spikes = a.lists.n_spikes[list];
  for (int j = thread_index(); j < n_spikes; j += block_size()) {
    const int64 row = static_cast<int64>(b / group_samples) * a.n_pre + a.lists.ids[begin + j];
    atomic_or(a.bits, row * a.n_words + bit / 32, 1u << bit % 32);
  }
}

// ---- ∂L/∂weight -------------------------------------------------------------------------------------------------

struct WeightGradArgs {
  Global<const uint32> bits;       // [groups of the wave][M][n_words]
  Global<const float> d_currents;  // packed
  Global<const int32> leaves;      // of the wave, [leaves][3]: the first group, the end, the slot of the sum
  Global<float> sums;              // [slots][M][tiles][16][COLUMNS]: those of the leaves are written
  DeviceLists lists;               // of the senders; read if their spikes have values
  int32 n_pre, n_tiles, n_steps, n_samples, n_words, n_blocks;  // n_blocks: of senders, for each tile and leaf
  int32 first_sample, n_wave, delay;
};

// The value of neuron m's spike in a list.
inline float value_of(const DeviceLists& lists, int list, int m) {
  int low = lists.begin[list], high = low + lists.n_spikes[list] - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (static_cast<int>(lists.ids[middle]) < m)
      low = middle + 1;
    else
      high = middle;
  }
  return lists.values[low];
}

// A block for some senders, a tile and a leaf of the tree of groups (host/src/training/group_tree.h); half a warp takes
// a sender. Each group is summed from zero, and then added.
KERNEL(weight_grad, WeightGradArgs, 256) {
  const Place place;
  const int block = block_index() % a.n_blocks, tile = block_index() / a.n_blocks % a.n_tiles;
  const int leaf = block_index() / a.n_blocks / a.n_tiles, n_senders = a.n_blocks * place.n_halves;
  const int first = a.leaves[3 * leaf], end = a.leaves[3 * leaf + 1], slot = a.leaves[3 * leaf + 2];
  for (int m = block * place.n_halves + place.half; m < a.n_pre; m += n_senders) {
    float total[COLUMNS] = {};
    bool any = false;
    for (int g = first; g < end; ++g) {
      float sum[COLUMNS] = {};
      bool some = false;
      const int64 words = (static_cast<int64>(g) * a.n_pre + m) * a.n_words;
      for (int w = 0; w < a.n_words; ++w)
        for (uint32 bits = a.bits[words + w]; bits; bits &= bits - 1) {
          const int bit = w * 32 + lowest_bit(bits), t = a.n_steps - 1 - bit / group_samples;
          const int b = g * group_samples + bit % group_samples;
          const int64 row = static_cast<int64>(t) * a.n_wave + b;
          float d[COLUMNS];
          load_columns(d, a.d_currents, packed_at<COLUMNS>(row, a.n_tiles, tile, place.lane));
          const int list = (t - a.delay) * a.n_samples + a.first_sample + b;
          const float value = a.lists.values ? value_of(a.lists, list, m) : 1.0f;
          for (int k = 0; k < COLUMNS; ++k) sum[k] = sum[k] + value * d[k];
          some = true;
        }
      if (!some) continue;
      for (int k = 0; k < COLUMNS; ++k) total[k] = any ? total[k] + sum[k] : sum[k];
      any = true;
    }
    store_columns(a.sums, packed_at<COLUMNS>(static_cast<int64>(slot) * a.n_pre + m, a.n_tiles, tile, place.lane),
                  total);
  }
}

struct AddLeavesArgs {
  Global<float> sums;         // [slots][size]
  Global<const int32> pairs;  // [n_pairs][2]: the first slot gets the second one added
  int32 n_pairs, size;
};

KERNEL(add_leaves, AddLeavesArgs, 256) {
  const int k = block_index() * block_size() + thread_index();
  if (k >= a.size) return;
  for (int pair = 0; pair < a.n_pairs; ++pair) {
    const int64 to = static_cast<int64>(a.pairs[2 * pair]) * a.size + k;
    const int64 from = static_cast<int64>(a.pairs[2 * pair + 1]) * a.size + k;
    a.sums[to] = a.sums[to] + a.sums[from];
  }
}

// ---- ∂L/∂i of given currents --------------------------------------------------------------------------------------

struct GivenGradArgs {
  Global<const float> d_currents;  // packed
  Global<float> d_given;           // [T, B, N], or [B, N] for all steps: written, or added to
  int32 n, n_tiles, n_steps, n_samples, once, adds, first_sample, n_wave;  // once: the same at all steps
};

// A block for a tile and a sample, a thread for each neuron. Sums over steps have steps descending.
KERNEL(given_grad, GivenGradArgs, 64) {
  constexpr int width = COLUMNS * n_lanes;
  const int tile = block_index() % a.n_tiles, sample = block_index() / a.n_tiles, n = thread_index();
  const int64 neuron = static_cast<int64>(tile) * width + n, b = a.first_sample + sample;
  if (n >= width || neuron >= a.n) return;
  float sum = 0.0f;
  for (int t = a.n_steps - 1; t >= 0; --t) {
    const int64 row = static_cast<int64>(t) * a.n_wave + sample;
    const float d = a.d_currents[packed_at<COLUMNS>(row, a.n_tiles, tile, n % n_lanes) + n / n_lanes];
    sum = a.once && t + 1 < a.n_steps ? sum + d : d;
    if (a.once && t) continue;
    const int64 to = (static_cast<int64>(t) * a.n_samples + b) * a.n + neuron;
    a.d_given[to] = a.adds ? a.d_given[to] + sum : sum;
  }
}

// ---- numbers per neuron, a sum for each group of samples ---------------------------------------------------------

struct NeuronGradArgs {
  Global<const float> d_currents;  // packed
  DeviceLists lists;               // the layer's own
  Global<const float> d_values;    // [B·room], σ'·∂L/∂value
  Global<const float> traces;      // [n_traces][B·room]
  Global<float> d_bias;            // [groups][neurons]: written; or null
  Global<float> d_parameters;      // [n_traces][groups][neurons]: written
  int32 n_tiles, n_steps, n_samples, room, n_traces, first_sample, n_wave;
};

// A block for a tile and a group of the wave, a thread for each neuron.
KERNEL(neuron_grad, NeuronGradArgs, 64) {
  constexpr int width = COLUMNS * n_lanes;
  const int tile = block_index() % a.n_tiles, group = block_index() / a.n_tiles, n = thread_index();
  const int n_groups = (a.n_samples + group_samples - 1) / group_samples, b0 = group * group_samples;
  const int b1 = b0 + group_samples < a.n_wave ? b0 + group_samples : a.n_wave;
  const int64 of_all = a.first_sample / group_samples + group;
  const int64 neuron = static_cast<int64>(tile) * width + n, n_neurons = static_cast<int64>(a.n_tiles) * width;
  if (n >= width) return;
  if (a.d_bias) {
    float sum = 0.0f;
    for (int t = a.n_steps - 1; t >= 0; --t)
      for (int b = b0; b < b1; ++b)
        sum =
            sum + a.d_currents[packed_at<COLUMNS>(static_cast<int64>(t) * a.n_wave + b, a.n_tiles, tile, n % n_lanes) +
                               n / n_lanes];
    a.d_bias[of_all * n_neurons + neuron] = sum;
  }
  for (int q = 0; q < a.n_traces; ++q) {
    double sum = 0.0;
    for (int t = 0; t < a.n_steps; ++t)
      for (int b = b0; b < b1; ++b) {
        const int list = t * a.n_samples + a.first_sample + b, begin = a.lists.begin[list],
                  n_listed = a.lists.n_listed[list];
        for (int j = 0; j < n_listed; ++j)
          if (a.lists.ids[begin + j] == neuron) {
            const float d = a.d_values[begin + j],
                        trace = a.traces[q * static_cast<int64>(a.n_samples) * a.room + begin + j];
            sum = sum + static_cast<double>(d) * static_cast<double>(trace);
          }
      }
    a.d_parameters[(q * static_cast<int64>(n_groups) + of_all) * n_neurons + neuron] = static_cast<float>(sum);
  }
}

}  // namespace sparsesnn::SPARSESNN_ISA
