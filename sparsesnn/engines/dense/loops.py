"""A chunk of a recurrent population, step by step, forward and backward: its current depends on the spikes of the step before."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from sparsesnn.engines.dense.dynamics import Dynamics, Numbers


def forward(
    kit: ModuleType,
    dynamics: Dynamics,
    neuron: Numbers,
    current: Tensor,
    *,
    weight: Any,
    own: Tensor,
    state: Sequence[Tensor],
    out: Tensor | None,
    fired: Tensor | None,
    fresh: bool,
) -> None:
    """`kit.forward`, with own · weight added to the current of each step first.

    Args:
        weight: `kit.Factor` of the recurrent weight.
        own: [B, N], the spikes of the step before the chunk; on return, those of its last step.
    """
    n_states = len(state)

    def work(weight: Any, read: Sequence[Tensor], written: Sequence[Any]) -> None:
        numbers = Numbers(*read)
        current, own, out, fired = written[n_states:]
        spikes, before = out if fired is None else fired, own
        for t in range(len(current)):
            step = slice(t, t + 1)
            weight.product(before, current[t], accumulate=True)
            before = spikes[t]
            kit.forward(
                dynamics,
                numbers,
                current[step],
                fresh=fresh and t == 0,
                state=written[:n_states],
                out=None if out is None else out[step],
                fired=None if fired is None else fired[step],
            )
        own.copy_(before)

    read = [neuron.entries, neuron.grad_threshold]
    kit.loop(work, ("forward", dynamics, fresh), weight, read, [*state, current, own, out, fired])


def backward(
    kit: ModuleType,
    dynamics: Dynamics,
    neuron: Numbers,
    d_out: Tensor,
    *,
    weight: Any,
    d_next: Tensor,
    rows: Sequence[Tensor],
    current: Tensor,
    d_state: Sequence[Tensor],
    d_current: Tensor,
    d_bias: Tensor | None,
    d_parameters: Sequence[Tensor],
    fresh: bool,
) -> None:
    """`kit.backward`, last step first, with (∂L/∂current of the next step) · weight added to `d_out` of each step first.

    Args:
        weight: `kit.Factor` of the recurrent weight's transpose.
        d_next: [B, N], ∂L/∂current of the step after the chunk; on return, that of its first step.
    """
    n_states = len(d_state)

    def work(weight: Any, read: Sequence[Any], written: Sequence[Any]) -> None:
        entries, grad_threshold, derivatives, d_out, current, *rows = read
        numbers = Numbers(entries, grad_threshold, derivatives)
        d_next, d_current, d_bias, *sums = written
        d_one, later = torch.empty_like(d_out[:1], dtype=sums[0].dtype), d_next
        for t in reversed(range(len(d_out))):
            step = slice(t, t + 1)
            d_one.copy_(d_out[step])
            weight.product(later, d_one[0], accumulate=True)
            kit.backward(
                dynamics,
                numbers,
                d_one,
                fresh=fresh and t == 0,
                rows=tuple(one[t : t + 2] for one in rows),
                d_state=sums[:n_states],
                d_current=d_current[step],
                d_bias=d_bias,
                d_parameters=sums[n_states:],
                current=current[step],
            )
            later = d_current[t]
        d_next.copy_(later)

    read = [*neuron, d_out, current, *rows]
    kit.loop(work, ("backward", dynamics, fresh), weight, read, [d_next, d_current, d_bias, *d_state, *d_parameters])
