"""Plain autograd over the steps: one loop, with input products computed per step or all at once before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from sparsesnn.engines.dense.call import Call, Loop, arriving
from sparsesnn.engines.dense.spikes import DenseSpikes


def run(call: Call, *, hoisted: bool, potentials: bool = False) -> tuple[Tensor, tuple[Tensor, ...], Tensor | None]:
    """Runs the recurrent products and the update of each step; returns a `Result`, and the potentials or None.

    Args:
        hoisted: one product per source over all T·B rows before the loop ("hoist"); otherwise one per step ("step").
        potentials: keep the first state of every step.
    """
    silent = call.v.new_zeros(0, call.n_samples, call.n)
    kept: list[Tensor] = []
    moment = call.neuron.first(call.state, fresh=call.fresh)
    out = list(call.own)
    for i in input_current(call).unbind(0) if hoisted else _current_of_each_step(call):
        fired, moment = call.neuron.step(_with_loops(i, call.loops, out), moment)
        out.append(fired)
        kept += [moment.state[0]] if potentials else []
    spikes = out[len(call.own) :]
    found = (torch.stack(kept) if kept else silent) if potentials else None
    return torch.stack(spikes) if spikes else silent, moment.state, found


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


def _current_of_each_step(call: Call) -> Iterator[Tensor]:
    """[B, N] for each step."""
    # unbind: its backward stacks once, where spikes[t] would add T full-size tensors
    steps = [spikes.unbind(0) for spikes in _tensors(call)]
    for t in range(call.n_steps):
        i = call.v.new_zeros(call.n_samples, call.n) if call.bias is None else call.bias.expand(call.n_samples, -1)
        for source, spikes in zip(call.sources, steps, strict=True):
            if t >= source.shift and source.synapses.is_matrix:
                i = torch.addmm(i, spikes[t - source.shift], source.weight)
            elif t >= source.shift:
                i = i + source.synapses.product(spikes[t - source.shift], source.weight)
        yield i


def _with_loops(i: Tensor, loops: Sequence[Loop], own: Sequence[Tensor]) -> Tensor:
    """The current of a step plus that of the recurrent connections, from the spikes of all steps before it."""
    for loop in loops:
        if loop.synapses.is_matrix:
            i = torch.addmm(i, loop.arriving(own), loop.weight)
        else:
            i = i + loop.synapses.product(loop.arriving(own), loop.weight)
    return i


def _tensors(call: Call) -> list[Tensor]:
    """The spikes of the sources."""
    return [x.spikes.to_dense() if isinstance(x.spikes, DenseSpikes) else x.spikes for x in call.sources]
