"""Plain autograd over the steps: `step`, the loop that people write, and `hoist`, with its input products batched."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from sparsesnn.engines.dense.layer import Call, Loop, Result, arriving
from sparsesnn.engines.dense.neuron import Moment, Neuron
from sparsesnn.engines.dense.spikes import DenseSpikes


def step(call: Call) -> Result:
    """Everything one step at a time: the products with the input, the recurrent product, the update."""
    moment = call.neuron.first(call.state, fresh=call.fresh)
    # unbind: its backward stacks once, where spikes[t] would add T full-size tensors
    steps = [spikes.unbind(0) for spikes in _tensors(call)]
    out = list(call.own)
    for t in range(call.n_steps):
        i = call.v.new_zeros(call.n_samples, call.n) if call.bias is None else call.bias.expand(call.n_samples, -1)
        for source, spikes in zip(call.sources, steps, strict=True):
            if t >= source.shift and source.synapses.is_matrix:
                i = torch.addmm(i, spikes[t - source.shift], source.weight)
            elif t >= source.shift:
                i = i + source.synapses.product(spikes[t - source.shift], source.weight)
        fired, moment = call.neuron.step(with_loops(i, call.loops, out), moment)
        out.append(fired)
    return _stack(out[len(call.own) :], call), moment.state


def hoist(call: Call) -> Result:
    """One product per source over all T·B rows; the recurrent product and the update stay in the loop."""
    moment = call.neuron.first(call.state, fresh=call.fresh)
    out, moment, _ = over_steps(call.neuron, input_current(call), moment, call.own, call.loops)
    return out, moment.state


def over_steps(
    neuron: Neuron, currents: Tensor, moment: Moment, own: Sequence[Tensor], loops: Sequence[Loop]
) -> tuple[Tensor, Moment, tuple[Tensor, ...]]:
    """The updates of currents [T, B, N], one after the other: spikes (LI: potentials), and what the next steps need.

    `own`: the spikes of as many steps before as loops reach back.
    """
    out = list(own)
    for i in currents.unbind(0):
        fired, moment = neuron.step(with_loops(i, loops, out), moment)
        out.append(fired)
    spikes = out[len(own) :]
    return torch.stack(spikes) if spikes else torch.zeros_like(currents), moment, tuple(out[len(out) - len(own) :])


def with_loops(i: Tensor, loops: Sequence[Loop], own: Sequence[Tensor]) -> Tensor:
    """A step's current with what the loops bring, from the spikes of all steps before it."""
    for loop in loops:
        if loop.synapses.is_matrix:
            i = torch.addmm(i, loop.arriving(own), loop.weight)
        else:
            i = i + loop.synapses.product(loop.arriving(own), loop.weight)
    return i


def input_current(call: Call) -> Tensor:
    """[T, B, N]: bias and the current of all sources, summed in their order."""
    total: Tensor | None = call.bias
    for source, spikes in zip(call.sources, _tensors(call), strict=True):
        rows, silent = arriving(spikes, source.shift, 0, call.n_steps)
        current = source.synapses.product(rows.flatten(0, 1), source.weight).view(*rows.shape[:2], call.n)
        if silent:
            current = functional.pad(current, (0, 0, 0, 0, silent, 0))
        total = current if total is None else total + current
    assert total is not None, "a layer has at least one source"
    return total


def _tensors(call: Call) -> list[Tensor]:
    """The spikes of the sources."""
    return [x.spikes.to_dense() if isinstance(x.spikes, DenseSpikes) else x.spikes for x in call.sources]


def _stack(out: list[Tensor], call: Call) -> Tensor:
    return torch.stack(out) if out else call.v.new_zeros(0, call.n_samples, call.n)
