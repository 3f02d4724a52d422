// Once a batch: the entries of a neuron model from its trained parameters, and the gradients of these, each by a list
// of
// + - × ÷ that the description recorded (sparsesnn/layers/recorded.py).
#include "vertex.h"

namespace sparsesnn::ipu {

// The formulas of a tile's shards, evaluated for each neuron. By shard: parameters [P, w], within their ranges; sums
// [S, 6, w]: gradients of entries, six rows each, to be added; one pair if there are none; results [n_results, w].
// shards, steps, constants, operands (of results): see FormulaShard. scratch [6, most steps]: a worker's results of
// steps.
class Formulas : public poplar::MultiVertex {
 public:
  ListOf<poplar::Input<Floats>> parameters;
  ListOf<poplar::Input<Floats>> sums;
  ListOf<poplar::Output<Floats>> results;
  poplar::InOut<Floats> scratch;
  Numbers shards;
  Numbers steps;
  Numbers constants;  // floats
  Numbers operands;
  unsigned n_shards, n_scratch;

  bool compute(unsigned worker) {
    for (unsigned k = 0; k < n_shards; ++k) {
      const FormulaShard& s = record<FormulaShard>(shards, k);
      for (unsigned j = worker; j < s.n_neurons; j += workers) evaluate(s, k, j, &scratch[worker * n_scratch]);
      const unsigned width = even(s.n_neurons);
      for (unsigned i = worker; i < s.n_results && s.n_neurons < width; i += workers)
        results[k][i * width + s.n_neurons] = 0.0f;
    }
    return true;
  }

 private:
  void evaluate(const FormulaShard& s, unsigned k, unsigned j, float* made) {
    const unsigned width = even(s.n_neurons);
    for (unsigned i = 0; i < s.n_steps; ++i) {
      const FormulaStep& step = record<FormulaStep>(steps, s.first_step + i);
      const float a = value(s, k, j, made, step.a), b = value(s, k, j, made, step.b);
      made[i] = step.operation == op_add        ? a + b
                : step.operation == op_subtract ? a - b
                : step.operation == op_multiply ? a * b
                                                : a / b;
    }
    for (unsigned i = 0; i < s.n_results; ++i)
      results[k][i * width + j] = value(s, k, j, made, operands[s.first_result + i]);
    SPARSESNN_WORK(reduce_row, s.n_steps + s.n_results);
  }

  float value(const FormulaShard& s, unsigned k, unsigned j, const float* made, unsigned operand) {
    const unsigned width = even(s.n_neurons);
    if (operand < s.n_constants) return record<float>(constants, s.first_constant + operand);
    operand -= s.n_constants;
    if (operand < s.n_parameters) return parameters[k][operand * width + j];
    operand -= s.n_parameters;
    if (operand >= s.n_sums) return made[operand - s.n_sums];
    float sum = 0.0f;
    for (unsigned w = 0; w < workers; ++w) sum += sums[k][(operand * workers + w) * width + j];
    return sum;
  }
};

SPARSESNN_VERTEX(Formulas, parameters, sums, results, scratch, shards, steps, constants, operands, n_shards, n_scratch)

}  // namespace sparsesnn::ipu
