"""The fastest hand-written dense PyTorch: large products, a time loop without autograd, nothing computed twice.

Per layer one product makes the currents of all steps; the loop over time then works in place on slices that stay in the
cache. Backward, the loop turns ∂L/∂s into ∂L/∂i in place; two large products give ∂L/∂W and the next ∂L/∂s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rivals.contestants.torch_tools import all_of, mean_of_potentials, parameters_of, step_of, tensor
from rivals.task import BETA, SLOPE, THRESHOLD, Task


def make(task: Task) -> Callable[[], float]:
    weights, recurrent = parameters_of(task)
    spikes = tensor(task.dense())
    return step_of(lambda: logits(spikes, weights, recurrent, task.delays), all_of(weights, recurrent), task.labels)


def logits(
    spikes: Tensor, weights: Sequence[Tensor], recurrent: Sequence[Tensor | None], delays: tuple[int, ...] = ()
) -> Tensor:
    """[B, n_classes]: time-mean of the readout's potentials."""
    x = spikes
    for weight, own in zip(weights[:-1], recurrent, strict=True):
        x = Lif.apply(x, weight, own, delays)
    return mean_of_potentials(x @ weights[-1])


class Lif(torch.autograd.Function):
    """Spikes [T, B, N] of a LIF layer from spikes [T, B, M]: reset by subtraction, detached; fast sigmoid."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, own: Tensor | None, delays: tuple[int, ...]) -> Tensor:
        v = deliver(x, weight, delays)
        spikes = fire(v, own)
        ctx.save_for_backward(x, weight, own, v, spikes)
        ctx.delays = delays
        return spikes

    @staticmethod
    def backward(ctx: Any, *d_spikes: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None]:
        x, weight, own, v, spikes = ctx.saved_tensors
        d_current = go_back(v, d_spikes[0], own)
        d_x, d_weight = deliver_grad(x, weight, ctx.delays, d_current, with_x=ctx.needs_input_grad[0])
        d_own = None if own is None else spikes[:-1].flatten(0, 1).T @ d_current[1:].flatten(0, 1)
        return d_x, d_weight, d_own, None


def deliver(x: Tensor, weight: Tensor, delays: tuple[int, ...]) -> Tensor:
    """Currents [T, B, N] of spikes [T, B, M]: one product over all steps, or one for each delay, without the steps before it."""
    if not delays:
        return x @ weight
    n_steps, currents = len(x), x.new_zeros(*x.shape[:2], weight.shape[-1])
    for delay, tap in zip(delays, weight.unbind(0), strict=True):
        if delay < n_steps:
            currents[delay:].flatten(0, 1).addmm_(x[: n_steps - delay].flatten(0, 1), tap)
    return currents


def deliver_grad(
    x: Tensor, weight: Tensor, delays: tuple[int, ...], d_current: Tensor, *, with_x: bool
) -> tuple[Tensor | None, Tensor]:
    """∂L/∂x, if wanted, and ∂L/∂weight."""
    if not delays:
        return d_current @ weight.T if with_x else None, x.flatten(0, 1).T @ d_current.flatten(0, 1)
    n_steps, d_x, d_weight = len(x), torch.zeros_like(x) if with_x else None, torch.zeros_like(weight)
    for k, delay in enumerate(delays):
        if delay < n_steps:
            sent, d_arrivals = x[: n_steps - delay].flatten(0, 1), d_current[delay:].flatten(0, 1)
            torch.mm(sent.T, d_arrivals, out=d_weight[k])
            if d_x is not None:
                d_x[: n_steps - delay].flatten(0, 1).addmm_(d_arrivals, weight[k].T)
    return d_x, d_weight


def fire(v: Tensor, own: Tensor | None) -> Tensor:
    """Turns currents [T, B, N] into potentials, in place, and returns the spikes."""
    spikes = torch.empty_like(v)
    for t in range(len(v)):
        if t:
            v[t].add_(v[t - 1], alpha=BETA).sub_(spikes[t - 1], alpha=THRESHOLD)
            if own is not None:
                v[t].addmm_(spikes[t - 1], own)
        torch.gt(v[t], THRESHOLD, out=spikes[t])
    return spikes


def go_back(v: Tensor, d_spikes: Tensor, own: Tensor | None) -> Tensor:
    """∂L/∂i[t] = β·∂L/∂i[t+1] + σ'(v[t] - θ)·(∂L/∂s[t] + V·∂L/∂i[t+1]); overwrites `v`."""
    d_current = d_spikes if d_spikes.is_contiguous() else d_spikes.contiguous()
    for t in range(len(v) - 1, -1, -1):
        # 1/σ' = (slope·|v - θ| + 1)²
        inverse = v[t].sub_(THRESHOLD).abs_().mul_(SLOPE).add_(1).square_()
        later = d_current[t + 1] if t + 1 < len(v) else None
        if own is not None and later is not None:
            d_current[t].addmm_(later, own.T)
        d_current[t].div_(inverse)
        if later is not None:
            d_current[t].add_(later, alpha=BETA)
    return d_current
