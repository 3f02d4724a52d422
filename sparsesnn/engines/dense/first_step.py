"""Dynamics over steps of which the first may be that of the sequence: nobody has fired before it, so nobody is reset.

The kernels read who fired before a step off the potential: v > θ. Before the first step it is 0, and that is what it says
unless a threshold is negative, which one that learns can become. Then 0 > θ, though there was no spike, and subtracting θ
would change what follows. So that step goes by itself, without a reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType

import torch
from torch import Tensor

from sparsesnn.engines.dense.dynamics import NO_RESET, Dynamics
from sparsesnn.layers import LI, Population

#: arguments of the kernels with a row a step, and those with one more, for the state before the first
STEPS, STATES = ("out", "fired", "current", "d_current"), ("v_rows", "i_syn_rows")


def goes_apart(population: LI | Population) -> bool:
    """Whether 0 may lie above a threshold and matter; to set the potential 0 to zero does not."""
    return isinstance(population, Population) and population.learn_threshold and population.reset == "subtract"


def forward(
    kit: ModuleType,
    dynamics: Dynamics,
    neuron: Mapping[str, Tensor | None],
    current: Tensor,
    *,
    apart: bool,
    **arrays: Tensor | None,
) -> None:
    """`kit.forward`; with `apart`, the first step of `current` [T, B, N] is that of the sequence."""
    n_steps = len(current)
    if not apart or n_steps == 0:
        kit.forward(dynamics, neuron, current, **arrays)
        return
    kit.forward(replace(dynamics, reset=NO_RESET), neuron, current[:1], **_part(arrays, 0, 1))
    if n_steps > 1:
        kit.forward(dynamics, neuron, current[1:], **_part(arrays, 1, n_steps))


def backward(
    kit: ModuleType,
    dynamics: Dynamics,
    neuron: Mapping[str, Tensor | None],
    d_out: Tensor,
    *,
    apart: bool,
    **arrays: Tensor | None,
) -> None:
    """`kit.backward` of the same steps."""
    n_steps, v_rows, threshold = len(d_out), arrays["v_rows"], neuron["threshold"]
    if not apart or n_steps == 0 or v_rows is None or threshold is None:
        kit.backward(dynamics, neuron, d_out, **arrays)
        return
    if n_steps > 1:
        kit.backward(dynamics, neuron, d_out[1:], **_part(arrays, 1, n_steps))
    # Only ∂ρ/∂β = 0 and ∂ρ/∂θ = 0 read the state before: a potential that did not fire, and no sum over β.
    first = _part(arrays, 0, 1) | {"d_beta": None}
    first["v_rows"] = torch.cat([torch.minimum(v_rows[:1], threshold), v_rows[1:2]])
    kit.backward(dynamics, neuron, d_out[:1], **first)


def _part(arrays: Mapping[str, Tensor | None], start: int, stop: int) -> dict[str, Tensor | None]:
    """Arguments for some of the steps; the others are running sums and states, or the same for all steps."""
    ends = {**dict.fromkeys(STEPS, stop), **dict.fromkeys(STATES, stop + 1)}
    return {k: x[start : ends[k]] if x is not None and k in ends else x for k, x in arrays.items()}
