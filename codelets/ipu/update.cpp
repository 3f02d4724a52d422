// Once a batch: loss, norm of the gradient, optimiser.
#include "vertex.h"

namespace sparsesnn::ipu {

// What the host sends with each batch.
enum Setting : unsigned {
  setting_lr,
  setting_weight_decay,
  setting_momentum,
  setting_beta1,
  setting_beta2,
  setting_eps,
  setting_correction1,       // 1 - beta1^step
  setting_correction2_root,  // √(1 - beta2^step)
  setting_clip,              // highest norm; 0: none
  setting_scale,             // 1 / samples of the batch
  n_settings
};

namespace {

// loss = -Σ_c target[c]·log softmax(logits)[c], target = (1 - ε)·[c = label] + ε / C. `d`: its gradient times `scale`;
// an absent sample (label ≥ C) has none. Returns the loss.
float cross_entropy(const float* logits, float* d, unsigned n, unsigned label, float smoothing, float scale) {
  if (label >= n) {
    for (unsigned c = 0; c < n; ++c) d[c] = 0.0f;
    return 0.0f;
  }
  float most = logits[0], sum = 0.0f, mean = 0.0f;
  for (unsigned c = 1; c < n; ++c) most = logits[c] > most ? logits[c] : most;
  for (unsigned c = 0; c < n; ++c) {
    d[c] = tile::exp_of(logits[c] - most);
    sum += d[c];
    mean += logits[c];
  }
  const float classes = static_cast<float>(n), log_sum = most + tile::log_of(sum);
  for (unsigned c = 0; c < n; ++c) {
    const float target = (c == label ? 1.0f - smoothing : 0.0f) + smoothing / classes;
    d[c] = (d[c] / sum - target) * scale;
  }
  SPARSESNN_WORK(loss_value, n);
  return log_sum - (1.0f - smoothing) * logits[label] - smoothing * (mean / classes);
}

}  // namespace

// Of the samples of a readout's collector. values[p] [n, w of shard p]: remote, decoded potentials. logits [n, C]:
// means over the k neurons of a class. d_values [n, N]; d_logits [n, C] is room to work in.
class Loss : public poplar::MultiVertex {
 public:
  ListOf<poplar::Input<Floats>> values;
  poplar::Input<Words> labels;
  poplar::Input<Floats> settings;
  poplar::Output<Floats> logits;
  poplar::Output<Floats> d_logits;
  poplar::Output<Floats> d_values;
  poplar::Output<Array<float, 4>> losses;
  Numbers sizes;
  unsigned n_shards, n_samples, n_classes, n_per_class;
  float smoothing;

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
      losses[s] = cross_entropy(out, d, n_classes, labels[s], smoothing, settings[setting_scale]);
      c = of_class = 0;
      for (unsigned k = 0; k < n; ++k) {
        d_values[s * n + k] = d[c] * share;
        if (++of_class == n_per_class) ++c, of_class = 0;
      }
    }
    return true;
  }
};

SPARSESNN_VERTEX(Loss, values, labels, settings, logits, d_logits, d_values, losses, sizes, n_shards, n_samples,
                 n_classes, n_per_class, smoothing)

// Of the samples of a spiking output's collector: logits are counts of the spikes that were sent. kept [T, n, stride].
class CountLoss : public poplar::MultiVertex {
 public:
  poplar::Input<Ids> kept;
  poplar::Input<Words> labels;
  poplar::Input<Floats> settings;
  poplar::Output<Floats> logits;
  poplar::Output<Floats> d_logits;
  poplar::Output<Floats> d_values;
  poplar::Output<Array<float, 4>> losses;
  unsigned n_steps, n_samples, stride, n_classes, n_per_class;
  float smoothing;

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
      losses[s] = cross_entropy(out, d, n_classes, labels[s], smoothing, settings[setting_scale]);
      k = 0;
      for (unsigned c = 0; c < n_classes; ++c)
        for (unsigned of_class = 0; of_class < n_per_class; ++of_class) counts[k++] = d[c];
    }
    return true;
  }
};

SPARSESNN_VERTEX(CountLoss, kept, labels, settings, logits, d_logits, d_values, losses, n_steps, n_samples, stride,
                 n_classes, n_per_class, smoothing)

// Sum of squares of a shard's gradients, one number a worker. sizes[k]: elements of gradients[k], even.
class SquareSum : public poplar::MultiVertex {
 public:
  ListOf<poplar::Input<Floats>> gradients;
  poplar::Input<Floats> d_bias;
  poplar::Output<Array<float, 4>> sums;
  Numbers sizes;
  unsigned n_arrays, n_neurons, has_bias;

  bool compute(unsigned worker) {
    Pair sum = {};
    for (unsigned a = 0; a < n_arrays; ++a) {
      const Pair* g = pairs(&gradients[a][0]);
      for (unsigned k = worker; k < sizes[a] / 2; k += workers) sum += g[k] * g[k];
      SPARSESNN_WORK(norm_pair, sizes[a] / 2 / workers + 1);
    }
    float bias = 0.0f;
    if (has_bias && worker == 0) {
      const unsigned width = (n_neurons + 1) & ~1u;
      for (unsigned k = 0; k < n_neurons; ++k) {
        float g = 0.0f;
        for (unsigned w = 0; w < workers; ++w) g += d_bias[w * width + k];
        bias += g * g;
      }
    }
    sums[worker] = sum[0] + sum[1] + bias;
    return true;
  }
};

SPARSESNN_VERTEX(SquareSum, gradients, d_bias, sums, sizes, n_arrays, n_neurons, has_bias)

// The norm of all gradients together, and the factor that brings it down to the highest allowed.
class Norm : public poplar::Vertex {
 public:
  poplar::Input<Array<float, 4>> sums;
  poplar::Input<Floats> settings;
  poplar::Output<Floats> norm;  // [2]
  unsigned n_sums;

  bool compute() {
    float sum = 0.0f;
    for (unsigned k = 0; k < n_sums; ++k) sum += sums[k];
    const float root = tile::sqrt_of(sum), highest = settings[setting_clip];
    norm[0] = root;
    norm[1] = highest > 0.0f && root > highest ? highest / root : 1.0f;
    SPARSESNN_WORK(norm_pair, n_sums / 2);
    return true;
  }
};

SPARSESNN_VERTEX(Norm, sums, settings, norm, n_sums)

enum OptimiserKind : unsigned { sgd, adam, adamw };

// Updates a shard's weights, then clears the gradients. moments1, moments2: one pair each where the kind has none.
//
//   sgd    m ← μ·m + g + λ·w ;  w ← w - lr·m
//   adam   g ← g + λ·w       ;  m ← m + (1 - β1)·(g - m) ;  s ← β2·s + (1 - β2)·g² ;  w ← w - lr/c1·m / (√s/√c2 + ε)
//   adamw  w ← (1 - lr·λ)·w  ;  then as adam without λ
//
// λ acts on weights, never on biases. As torch.optim.SGD, Adam and AdamW.
class Update : public poplar::MultiVertex {
 public:
  ListOf<poplar::InOut<Floats>> weights;
  ListOf<poplar::InOut<Floats>> gradients;
  ListOf<poplar::InOut<Floats>> moments1;
  ListOf<poplar::InOut<Floats>> moments2;
  poplar::InOut<Floats> bias;
  poplar::Input<Floats> d_bias;
  poplar::InOut<Floats> bias_moment1;
  poplar::InOut<Floats> bias_moment2;
  poplar::Input<Floats> settings;
  poplar::Input<Floats> norm;
  Numbers sizes;
  unsigned n_arrays, n_neurons, has_bias, kind, has_momentum;

  bool compute(unsigned worker) {
    const float decay = settings[setting_weight_decay], factor = norm[1];
    for (unsigned a = 0; a < n_arrays; ++a) {
      const unsigned n_pairs = sizes[a] / 2, share = (n_pairs + workers - 1) / workers;
      const unsigned first = share * worker < n_pairs ? share * worker : n_pairs;
      const unsigned last = first + share < n_pairs ? first + share : n_pairs;
      float *w = &weights[a][0], *g = &gradients[a][0], *m = &moments1[a][0], *s = &moments2[a][0];
      for (unsigned k = 2 * first; k < 2 * last; ++k) {
        update(w[k], g[k] * factor, m + (has_momentum ? k : 0), s + (kind != sgd ? k : 0), decay);
        g[k] = 0.0f;
      }
      if (kind == sgd) {
        SPARSESNN_WORK(sgd_pair, last - first);
      } else {
        SPARSESNN_WORK(adam_pair, last - first);
      }
    }
    if (has_bias && worker == 0) {
      const unsigned width = (n_neurons + 1) & ~1u;
      for (unsigned k = 0; k < n_neurons; ++k) {
        float g = 0.0f;
        for (unsigned i = 0; i < workers; ++i) g += d_bias[i * width + k];
        update(bias[k], g * factor, &bias_moment1[has_momentum ? k : 0], &bias_moment2[kind != sgd ? k : 0], 0.0f);
      }
    }
    return true;
  }

 private:
  void update(float& w, float g, float* m, float* s, float decay) const {
    const float lr = settings[setting_lr];
    if (kind == sgd) {
      g += decay * w;
      if (has_momentum) g = *m = settings[setting_momentum] * *m + g;
      w -= lr * g;
      return;
    }
    if (kind == adamw)
      w *= 1.0f - lr * decay;
    else
      g += decay * w;
    *m += (1.0f - settings[setting_beta1]) * (g - *m);
    *s = settings[setting_beta2] * *s + (1.0f - settings[setting_beta2]) * g * g;
    const float root = tile::sqrt_of(*s) / settings[setting_correction2_root] + settings[setting_eps];
    w -= lr / settings[setting_correction1] * (*m / root);
  }
};

SPARSESNN_VERTEX(Update, weights, gradients, moments1, moments2, bias, d_bias, bias_moment1, bias_moment2, settings,
                 norm, sizes, n_arrays, n_neurons, has_bias, kind, has_momentum)

}  // namespace sparsesnn::ipu
