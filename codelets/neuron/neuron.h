// The interface of a neuron model, for the engines that run it.
//
// A model is linear between spikes. It carries a few numbers per neuron, its states z. The first one, x, is the value
// that was compared with the threshold in the last step, before any reset, so that the state shows which neurons fired:
//
//   s = [x > θ];    z ← A_s·z + c_s + B·i                        one step; it applies the reset of the spike before
// One struct per model in its own file (lif.h is the simplest); models.h lists all of them. A struct has
//
//   name                     by which the description names it
//   state_names, parameter_names, and the places of states, parameters (a number per neuron) and constants (one for
//                            all), in the order in which the description names them
//   threshold                the place of θ among the parameters; -1: a readout, which never fires
//   step(z, p, c, reset, spike, i)
//                            one step, in place. `reset` and `spike` mark fired neurons; they differ where a dual
//                            number's derivative passes through spikes, but not through the reset (`through`)
//   adjoint(d, p, c)         d ← ∂L/∂z of a step from that of the step after, if the neuron is not listed
//   adjoint(d, p, c, At)     the same for a listed neuron; returns the part through σ', of which -1 times
//                            is the direct part of ∂L/∂θ
//   adjoint(d, p, c, q)      if adds_q: the same for a neuron whose reset passes no gradient; q = 0: not listed
//   d_current(d, p, c)       ∂L/∂i of the step whose ∂L/∂z is d
//   by_parameter(k, d, z, p, c, s, i)
//                            ∂L/∂p[k] of that step, from the states z before it; without θ's part in s = [x > θ]
// and declares about itself
//
//   adds_q                   unless the reset passes a gradient, listing changes the adjoint by q alone, added to d[0]
//   reads_x                  the adjoint of a listed neuron reads x, and whether the neuron fired: x is recorded
//   feeds_spikes             a spike acts on the state other than by the reset
//   fused                    worth its own loop, fused with the delivery of currents
//   lists_all                only if the step is not linear: its derivative by x is known only where x is recorded
//                            (reads_x), so that the description lists all neurons
//
// d follows the model's order: a state that another one reads within the step includes the gradient through that one.
#pragma once

#include "codelets/number.h"

namespace sparsesnn::SPARSESNN_ISA {

enum class Reset { subtract, subtract_decays, zero, none };

// A listed neuron at one step.
template <class F>
struct At {
  Fired<F> s;
  F sigma;    // σ'(x - θ)
  F q;        // σ'·e, e = ∂L/∂(list value)
  F x;        // if the model reads it
  F through;  // 1: the reset passes the gradient of the spike; 0: it is detached
};

}  // namespace sparsesnn::SPARSESNN_ISA
