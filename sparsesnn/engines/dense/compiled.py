"""`compile`: the loop of `hoist` through torch.compile, a block of steps at a time.

A graph of all T steps compiles for minutes and again for each T; one of eight steps compiles in seconds and serves
every length. The steps that are left over at the end run uncompiled.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparsesnn.engines.dense.layer import Call, Result
from sparsesnn.engines.dense.neuron import Moment, Neuron
from sparsesnn.engines.dense.unrolled import input_current
from sparsesnn.layers import LI, Population

BLOCK = 8


def run(call: Call) -> Result:
    """See the module."""
    moment, own = call.neuron.first(call.state, fresh=call.fresh), call.own
    return over_steps(call.neuron, input_current(call), moment, own, call.recurrent_weight)


def over_steps(
    neuron: Neuron,
    currents: Tensor,
    moment: Moment,
    own: Tensor | None = None,
    recurrent_weight: Tensor | None = None,
) -> Result:
    """As `unrolled.over_steps`."""
    numbers = (neuron.parameters, neuron.grad_threshold)
    out = []
    for block in currents.split(BLOCK) if len(currents) else ():
        run_block = compiled_block(neuron.population) if len(block) == BLOCK else _block
        spikes, moment, own = run_block(neuron.population, numbers, block, moment, own, recurrent_weight)
        out.append(spikes)
    return torch.cat(out) if out else torch.zeros_like(currents), moment.state


@functools.lru_cache(maxsize=64)
def compiled_block(population: LI | Population) -> Callable[..., Any]:
    """The block for one population: a code object of its own, since the compiler counts its variants by code object."""
    code = _block.__code__
    return torch.compile(types.FunctionType(code.replace(), _block.__globals__, _block.__name__), dynamic=False)


def _block(
    population: LI | Population,
    numbers: tuple[tuple[Tensor, ...], Tensor | None],
    currents: Tensor,
    moment: Moment,
    own: Tensor | None,
    recurrent_weight: Tensor | None,
) -> tuple[Tensor, Moment, Tensor | None]:
    """Spikes (LI: potentials) of a few steps, and what the next steps need."""
    neuron = Neuron(population, *numbers)
    out = []
    for i in currents.unbind(0):
        if own is not None and recurrent_weight is not None:
            i = torch.addmm(i, own, recurrent_weight)
        fired, moment = neuron.step(i, moment)
        own = fired if own is not None else None
        out.append(fired)
    return torch.stack(out), moment, own
