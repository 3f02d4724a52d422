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
from sparsesnn.engines.dense.unrolled import input_current, over_steps
from sparsesnn.layers import LI, Population

BLOCK = 8


def run(call: Call) -> Result:
    """See the module."""
    neuron, currents = call.neuron, input_current(call)
    moment, own = neuron.first(call.state, fresh=call.fresh), call.own
    numbers = (neuron.parameters, neuron.grad_threshold)
    out = []
    for block in currents.split(BLOCK) if len(currents) else ():
        run_block = compiled_block(neuron.population) if len(block) == BLOCK else _block
        spikes, moment, own = run_block(neuron.population, numbers, block, moment, own, call.loops)
        out.append(spikes)
    return torch.cat(out) if out else torch.zeros_like(currents), moment.state


@functools.lru_cache(maxsize=64)
def compiled_block(population: LI | Population) -> Callable[..., Any]:
    """The block for one population: a code object of its own, since the compiler counts its variants by code object."""
    code = _block.__code__
    return torch.compile(types.FunctionType(code.replace(), _block.__globals__, _block.__name__), dynamic=False)


def _block(
    population: LI | Population, numbers: tuple[tuple[Tensor, ...], Tensor | None], *rest: Any
) -> tuple[Tensor, Moment, tuple[Tensor, ...]]:
    """A few steps; the population's description is a constant of the compiled code, its numbers are not."""
    return over_steps(Neuron(population, *numbers), *rest)
