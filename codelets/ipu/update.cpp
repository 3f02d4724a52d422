// Once a batch, after the backward steps: norm of the gradient, optimizer.
#include "vertex.h"

namespace sparsesnn::ipu {

// Shared by an optimizer's vertices: the arrays of a tile's shards, and vectors with one value a neuron (biases, and
// trained parameters). A bias's gradient is spread over six rows, a worker's samples each. A vector that a whole
// population shares has one value, of which every shard keeps a copy; its gradient is already summed.
namespace {

// At an end of a parameter's range, or beyond it, a gradient that would move the parameter further out counts as 0: the
// rule of sparsesnn/bounds.py.
float gradient_of(const TrainedVector& v, float value, const float* rows, unsigned k) {
  float g = 0.0f;
  if (v.shared) {
    g = rows[0];
  } else {
    const unsigned width = even(v.n);
    for (unsigned r = 0; r < v.n_rows; ++r) g += rows[r * width + k];
  }
  const bool outwards = (value >= v.high && g < 0.0f) || (value <= v.low && g > 0.0f);
  return outwards ? 0.0f : g;
}

}  // namespace

// The gradient of a shared value: rows [w]: remote, of each shard of its population, added in this order. total: a
// pair, the sum and 0.
class Total : public poplar::Vertex {
 public:
  ListOf<poplar::Input<Floats>> rows;
  poplar::Output<Floats> total;
  Numbers sizes;  // neurons of each shard
  unsigned n_shards;

  bool compute() {
    float sum = 0.0f;
    for (unsigned p = 0; p < n_shards; ++p) {
      for (unsigned k = 0; k < sizes[p]; ++k) sum += rows[p][k];
      SPARSESNN_WORK(reduce_pair, even(sizes[p]) / 2);
    }
    total[0] = sum, total[1] = 0.0f;
    return true;
  }
};

SPARSESNN_VERTEX(Total, rows, total, sizes, n_shards)

// Sum of squares of a tile's gradients, one number a worker. sizes[k]: elements of gradients[k], even.
class SquareSum : public poplar::MultiVertex {
 public:
  ListOf<poplar::Input<Floats>> gradients;
  ListOf<poplar::Input<Floats>> values;
  ListOf<poplar::Input<Floats>> d_vectors;
  poplar::Output<Array<float, 4>> sums;
  Numbers sizes;
  Numbers vectors;
  unsigned n_arrays, n_vectors;

  bool compute(unsigned worker) {
    Pair sum = {};
    for (unsigned a = 0; a < n_arrays; ++a) {
      const Pair* g = pairs(&gradients[a][0]);
      for (unsigned k = worker; k < sizes[a] / 2; k += workers) sum += g[k] * g[k];
      SPARSESNN_WORK(norm_pair, sizes[a] / 2 / workers + 1);
    }
    float rest = 0.0f;
    for (unsigned a = worker; a < n_vectors; a += workers) {
      const TrainedVector& v = record<TrainedVector>(vectors, a);
      for (unsigned k = 0; v.counts_in_norm && k < v.n; ++k) {
        const float g = gradient_of(v, values[a][k], &d_vectors[a][0], k);
        rest += g * g;
      }
      SPARSESNN_WORK(norm_pair, v.n);
    }
    sums[worker] = sum[0] + sum[1] + rest;
    return true;
  }
};

SPARSESNN_VERTEX(SquareSum, gradients, values, d_vectors, sums, sizes, vectors, n_arrays, n_vectors)

// Adds sums of squares, divided among the workers: those of the tiles of one IPU.
class DeviceNorm : public poplar::MultiVertex {
 public:
  poplar::Input<Array<float, 4>> parts;
  poplar::Output<Array<float, 4>> sums;  // [6]
  unsigned n_parts;

  bool compute(unsigned worker) {
    float sum = 0.0f;
    for (unsigned k = worker; k < n_parts; k += workers) sum += parts[k];
    sums[worker] = sum;
    SPARSESNN_WORK(norm_pair, n_parts / workers + 1);
    return true;
  }
};

SPARSESNN_VERTEX(DeviceNorm, parts, sums, n_parts)

// The norm of all gradients together, and the factor that reduces it to the highest allowed norm.
class Norm : public poplar::Vertex {
 public:
  poplar::Input<Array<float, 4>> sums;
  poplar::Input<Floats> settings;
  poplar::Output<Floats> norm;  // [2]
  unsigned n_sums;

  bool compute() {
    float sum = 0.0f;
    for (unsigned k = 0; k < n_sums; ++k) sum += sums[k];
    const float root = base::sqrt_of(sum), highest = settings[setting_clip];
    norm[0] = root;
    norm[1] = highest > 0.0f && root > highest ? highest / root : 1.0f;
    SPARSESNN_WORK(norm_pair, n_sums);
    return true;
  }
};

SPARSESNN_VERTEX(Norm, sums, settings, norm, n_sums)

enum OptimizerKind : unsigned { sgd, adam, adamw };

// Updates a tile's weights and vectors, then clears the gradients of the weights. rounded: the weights as halves, for
// codelets that read halves (`rounds`); else one pair. moments1, moments2 and their counterparts for vectors: one pair
// each if the optimizer has none. used: a copy of the vector for each neuron, clamped to its range; one pair if the
// vector itself is used (n_used = 0).
//
//   sgd    m ← μ·m + g + λ·w ;  w ← w - lr·m
//   adam   g ← g + λ·w       ;  m ← m + (1 - β1)·(g - m) ;  s ← β2·s + (1 - β2)·g² ;  w ← w - lr/c1·m / (√s/√c2 + ε)
//   adamw  w ← (1 - lr·λ)·w  ;  then as adam without λ
//
// λ acts on weights, never on vectors. As torch.optim.SGD, Adam and AdamW.
class Update : public poplar::MultiVertex {
 public:
  ListOf<poplar::InOut<Floats>> weights;
  ListOf<poplar::Output<Halves>> rounded;
  ListOf<poplar::InOut<Floats>> gradients;
  ListOf<poplar::InOut<Floats>> moments1;
  ListOf<poplar::InOut<Floats>> moments2;
  ListOf<poplar::InOut<Floats>> values;
  ListOf<poplar::Input<Floats>> d_vectors;
  ListOf<poplar::InOut<Floats>> value_moments1;
  ListOf<poplar::InOut<Floats>> value_moments2;
  ListOf<poplar::Output<Floats>> used;
  poplar::Input<Floats> settings;
  poplar::Input<Floats> norm;
  Numbers sizes;
  Numbers vectors;
  unsigned n_arrays, n_vectors, kind, has_momentum, rounds;

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
        if (rounds) rounded[a][k] = w[k];
      }
      if (kind == sgd) {
        SPARSESNN_WORK(sgd_pair, last - first);
      } else {
        SPARSESNN_WORK(adam_pair, last - first);
      }
    }
    for (unsigned a = worker; a < n_vectors; a += workers) update_vector(a, factor);
    return true;
  }

 private:
  void update_vector(unsigned a, float factor) {
    const TrainedVector& v = record<TrainedVector>(vectors, a);
    float* value = &values[a][0];
    for (unsigned k = 0; k < v.n; ++k)
      update(value[k], gradient_of(v, value[k], &d_vectors[a][0], k) * factor, &value_moments1[a][has_momentum ? k : 0],
             &value_moments2[a][kind != sgd ? k : 0], 0.0f);
    for (unsigned k = 0; k < v.n_used; ++k) {
      const float x = value[v.shared ? 0 : k];
      used[a][k] = x < v.low ? v.low : x > v.high ? v.high : x;
    }
    SPARSESNN_WORK(adam_pair, v.n / 2 + 1);
  }

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
    *m += settings[setting_one_minus_beta1] * (g - *m);
    *s = settings[setting_beta2] * *s + settings[setting_one_minus_beta2] * g * g;
    const float root = base::sqrt_of(*s) / settings[setting_correction2_root] + settings[setting_eps];
    w -= lr / settings[setting_correction1] * (*m / root);
  }
};

SPARSESNN_VERTEX(Update, weights, rounded, gradients, moments1, moments2, values, d_vectors, value_moments1,
                 value_moments2, used, settings, norm, sizes, vectors, n_arrays, n_vectors, kind, has_momentum, rounds)

}  // namespace sparsesnn::ipu
