// Once a batch, between forward and backward steps: loss, and the activity regularizer.
#include "vertex.h"

namespace sparsesnn::ipu {
namespace {

// loss = -Σ_c target[c]·log softmax(logits)[c]; targets sum to 1, or to 0 for an absent sample, which has neither loss
// nor gradient. `d`: the gradient times `scale`. Returns the loss.
float cross_entropy(const float* logits, const float* target, float* d, unsigned n, float scale) {
  float most = logits[0], sum = 0.0f, shares = 0.0f, loss = 0.0f;
  for (unsigned c = 1; c < n; ++c) most = logits[c] > most ? logits[c] : most;
  for (unsigned c = 0; c < n; ++c) {
    d[c] = base::exp_of(logits[c] - most);
    sum += d[c];
    shares += target[c];
  }
  if (shares == 0.0f) {
    for (unsigned c = 0; c < n; ++c) d[c] = 0.0f;
    return 0.0f;
  }
  const float log_sum = base::log_of(sum);
  for (unsigned c = 0; c < n; ++c) {
    loss += target[c] * (log_sum - (logits[c] - most));  // large logits cancel before rounding
    d[c] = (d[c] / sum - target[c]) * scale;
  }
  SPARSESNN_WORK(loss_value, n);
  return loss;
}

}  // namespace

// The loss of the samples on a readout's collector. values[p] [n, w of shard p]: remote, decoded potentials. targets
// [n, C]: shares of the classes. logits [n, C]: means over the k neurons of a class. d_values [n, N]; d_logits [n, C]
// is workspace.
class Loss : public poplar::MultiVertex {
 public:
  ListOf<poplar::Input<Floats>> values;
  poplar::Input<Floats> targets;
  poplar::Input<Floats> settings;
  poplar::Output<Floats> logits;
  poplar::Output<Floats> d_logits;
  poplar::Output<Floats> d_values;
  poplar::Output<Array<float, 4>> losses;
  Numbers sizes;
  unsigned n_shards, n_samples, n_classes, n_per_class;

  bool compute(unsigned worker) {
    const float share = 1.0f / static_cast<float>(n_per_class);
    const unsigned n = n_classes * n_per_class;
    for (unsigned s = worker; s < n_samples; s += workers) {
      float *out = &logits[s * n_classes], *d = &d_logits[s * n_classes];
      for (unsigned c = 0; c < n_classes; ++c) out[c] = 0.0f;
      unsigned c = 0, of_class = 0;
      for (unsigned p = 0; p < n_shards; ++p) {
        const unsigned width = (sizes[p] + 1) & ~1u;
        for (unsigned k = 0; k < sizes[p]; ++k) {
          out[c] += values[p][s * width + k];
          if (++of_class == n_per_class) ++c, of_class = 0;
        }
      }
      for (c = 0; c < n_classes; ++c) out[c] *= share;
      losses[s] = cross_entropy(out, &targets[s * n_classes], d, n_classes, settings[setting_scale]);
      c = of_class = 0;
      for (unsigned k = 0; k < n; ++k) {
        d_values[s * n + k] = d[c] * share;
        if (++of_class == n_per_class) ++c, of_class = 0;
      }
    }
    return true;
  }
};

SPARSESNN_VERTEX(Loss, values, targets, settings, logits, d_logits, d_values, losses, sizes, n_shards, n_samples,
                 n_classes, n_per_class)

// The same if a class has several neurons and the maximum over time is taken of their mean. over_time [T, n, N]:
// potentials, which become their gradients; steps that hold the maximum share it.
class MaximumLoss : public poplar::MultiVertex {
 public:
  poplar::InOut<Floats> over_time;
  poplar::Input<Floats> targets;
  poplar::Input<Floats> settings;
  poplar::Output<Floats> logits;
  poplar::Output<Floats> d_logits;
  poplar::Output<Array<float, 4>> losses;
  unsigned n_steps, n_samples, n_classes, n_per_class;

  bool compute(unsigned worker) {
    const float share = 1.0f / static_cast<float>(n_per_class);
    const unsigned n = n_classes * n_per_class;
    for (unsigned s = worker; s < n_samples; s += workers) {
      float *out = &logits[s * n_classes], *d = &d_logits[s * n_classes];
      for (unsigned c = 0; c < n_classes; ++c) {
        out[c] = mean(s * n, c, share);
        for (unsigned t = 1; t < n_steps; ++t) {
          const float here = mean((t * n_samples + s) * n, c, share);
          out[c] = here > out[c] ? here : out[c];
        }
      }
      losses[s] = cross_entropy(out, &targets[s * n_classes], d, n_classes, settings[setting_scale]);
      for (unsigned c = 0; c < n_classes; ++c) {
        float ties = 0.0f;
        for (unsigned t = 0; t < n_steps; ++t) ties += mean((t * n_samples + s) * n, c, share) == out[c] ? 1.0f : 0.0f;
        for (unsigned t = 0; t < n_steps; ++t) {
          const unsigned row = (t * n_samples + s) * n;
          const float x = mean(row, c, share) == out[c] ? d[c] / ties * share : 0.0f;
          for (unsigned k = 0; k < n_per_class; ++k) over_time[row + c * n_per_class + k] = x;
        }
      }
      SPARSESNN_WORK(reduce_pair, 2 * n_steps * n);
    }
    return true;
  }

 private:
  // The mean of class c over its neurons.
  float mean(unsigned row, unsigned c, float share) const {
    float sum = 0.0f;
    for (unsigned k = 0; k < n_per_class; ++k) sum += over_time[row + c * n_per_class + k];
    return sum * share;
  }
};

SPARSESNN_VERTEX(MaximumLoss, over_time, targets, settings, logits, d_logits, losses, n_steps, n_samples, n_classes,
                 n_per_class)

// The loss of the samples on a spiking output's collector: logits are counts of the spikes that were sent. kept [T, n,
// stride].
class CountLoss : public poplar::MultiVertex {
 public:
  poplar::Input<Ids> kept;
  poplar::Input<Floats> targets;
  poplar::Input<Floats> settings;
  poplar::Output<Floats> logits;
  poplar::Output<Floats> d_logits;
  poplar::Output<Floats> d_values;
  poplar::Output<Array<float, 4>> losses;
  unsigned n_steps, n_samples, stride, n_classes, n_per_class;

  bool compute(unsigned worker) {
    const unsigned n = n_classes * n_per_class;
    for (unsigned s = worker; s < n_samples; s += workers) {
      float *out = &logits[s * n_classes], *d = &d_logits[s * n_classes], *counts = &d_values[s * n];
      for (unsigned k = 0; k < n; ++k) counts[k] = 0.0f;
      for (unsigned t = 0; t < n_steps; ++t) {
        const unsigned short* list = &kept[(t * n_samples + s) * stride];
        for (unsigned j = 0; j < list[0]; ++j) counts[list[list_ids + j]] += 1.0f;
        SPARSESNN_WORK(loss_value, 1);
      }
      unsigned k = 0;
      for (unsigned c = 0; c < n_classes; ++c) {
        out[c] = 0.0f;
        for (unsigned of_class = 0; of_class < n_per_class; ++of_class) out[c] += counts[k++];
      }
      losses[s] = cross_entropy(out, &targets[s * n_classes], d, n_classes, settings[setting_scale]);
      k = 0;
      for (unsigned c = 0; c < n_classes; ++c)
        for (unsigned of_class = 0; of_class < n_per_class; ++of_class) counts[k++] = d[c];
    }
    return true;
  }
};

SPARSESNN_VERTEX(CountLoss, kept, targets, settings, logits, d_logits, d_values, losses, n_steps, n_samples, stride,
                 n_classes, n_per_class)

// Spikes of each neuron over all steps and present samples of a tile's collectors, followed by their sum. counts [N +
// 1, even]: by collector. first_sample: of this replica.
class CountSpikes : public poplar::MultiVertex {
 public:
  ListOf<poplar::Input<Ids>> kept;
  ListOf<poplar::Output<Floats>> counts;
  poplar::Input<Floats> settings;
  poplar::Input<Words> first_sample;
  Numbers collectors;
  unsigned n_collectors, n_steps;

  bool compute(unsigned worker) {
    for (unsigned k = worker; k < n_collectors; k += workers) {
      const CountedCollector& c = record<CountedCollector>(collectors, k);
      float* count = &counts[k][0];
      for (unsigned n = 0; n < even(c.n_neurons + 1); ++n) count[n] = 0.0f;
      for (unsigned t = 0; t < n_steps; ++t)
        for (unsigned s = 0; s < c.n_samples; ++s) {
          if (static_cast<float>(first_sample[0] + c.first_sample + s) >= settings[setting_samples]) continue;
          const unsigned short* list = &kept[k][(t * c.n_samples + s) * c.stride];
          for (unsigned j = 0; j < list[0]; ++j) count[list[list_ids + j]] += 1.0f;
          count[c.n_neurons] += static_cast<float>(list[0]);
          SPARSESNN_WORK(fetch_id, list[0]);
        }
    }
    return true;
  }
};

SPARSESNN_VERTEX(CountSpikes, kept, counts, settings, first_sample, collectors, n_collectors, n_steps)

// The activity regularizer of sparsesnn/loss.py: ∂R/∂s of each neuron of a tile's shards, the same for all its spikes.
//
//   a[n] = (1 / (T·B)) Σ s[t,b,n]      R = λ·mean_n max(0, lower - a[n])² + μ·max(0, mean_n a[n] - upper)²
//
// counts, totals: by shard and collector: remote, of the shard's neurons, and of all. out [w + 2]: by shard; the last
// number but one is the count of samples present here: first_sample is that of this replica.
class Regularize : public poplar::MultiVertex {
 public:
  ListOf<poplar::Input<Array<float, 4>>> counts;
  ListOf<poplar::Input<Array<float, 4>>> totals;
  ListOf<poplar::Output<Floats>> out;
  poplar::Input<Floats> settings;
  poplar::Input<Words> first_sample;
  Numbers shards;
  unsigned n_shards, n_steps;
  float lower, upper, strength_lower, strength_upper;

  bool compute(unsigned worker) {
    for (unsigned k = worker; k < n_shards; k += workers) {
      const RegularizedShard& s = record<RegularizedShard>(shards, k);
      const float n_lists = settings[setting_samples] * static_cast<float>(n_steps), scale = 1.0f / n_lists;
      const float n_population = static_cast<float>(s.n_population), share = 1.0f / n_population;
      float total = 0.0f;
      for (unsigned c = s.first; c < s.first + s.n_collectors; ++c) total += totals[c][0];
      const float above =
          total / (n_lists * n_population) - upper;  // rounded once: an activity of 0.1 is not above 0.1
      const float of_all = upper > 0.0f && above > 0.0f ? 2.0f * strength_upper * above * share : 0.0f;
      for (unsigned n = 0; n < s.n_neurons; ++n) {
        float count = 0.0f;
        for (unsigned c = s.first; c < s.first + s.n_collectors; ++c) count += counts[c][n];
        const float below = lower - count / n_lists;
        const float of_one = lower > 0.0f && below > 0.0f ? -2.0f * strength_lower * below * share : 0.0f;
        out[k][n] = (of_all + of_one) * scale;
        SPARSESNN_WORK(reduce_pair, s.n_collectors);
      }
      out[k][even(s.n_neurons)] = settings[setting_samples] - static_cast<float>(first_sample[0]);
    }
    return true;
  }
};

SPARSESNN_VERTEX(Regularize, counts, totals, out, settings, first_sample, shards, n_shards, n_steps, lower, upper,
                 strength_lower, strength_upper)

}  // namespace sparsesnn::ipu
