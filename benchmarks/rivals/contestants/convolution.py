"""Delays as a convolution over time: one `conv1d` a layer with a tap for each delay, the products of oneDNN; its loops are those of `fused`.

The least computation for delays trained as positions of taps (DCLS): its kernel has the same length, and is made again at each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rivals.contestants.fused import fire, go_back
from rivals.contestants.torch_tools import mean_of_potentials, parameters_of, step_of, tensor
from rivals.task import Task


def make(task: Task) -> Callable[[], float]:
    weights, _ = parameters_of(task)
    kernels = [torch.nn.Parameter(kernel(weight.detach())) for weight in weights[:-1]]
    spikes = tensor(task.dense())

    def step() -> Tensor:
        return logits(spikes, [*kernels, weights[-1]], task.delays)

    return step_of(step, [*kernels, weights[-1]], task.labels)


def kernel(weight: Tensor) -> Tensor:
    """The kernel of `conv1d`, [N, M, n_delays], the longest delay first, from weights [n_delays, M, N]."""
    return weight.flip(0).permute(2, 1, 0).contiguous()


def logits(spikes: Tensor, weights: Sequence[Tensor], delays: tuple[int, ...]) -> Tensor:
    """[B, n_classes]: time-mean of the readout's potentials; delays ascend from 0 by equal steps."""
    (dilation,) = {late - early for early, late in pairwise(delays)} or {1}
    x = spikes
    for taps in weights[:-1]:
        padded = functional.pad(x.permute(1, 2, 0), (delays[-1], 0))
        x = Neurons.apply(functional.conv1d(padded, taps, dilation=dilation).permute(2, 0, 1).contiguous())
    return mean_of_potentials(x @ weights[-1])


class Neurons(torch.autograd.Function):
    """Spikes [T, B, N] of LIF neurons from their currents: reset by subtraction, detached; fast sigmoid."""

    @staticmethod
    def forward(ctx: Any, currents: Tensor) -> Tensor:
        v = currents.clone()
        spikes = fire(v, None)
        ctx.save_for_backward(v)
        return spikes

    @staticmethod
    def backward(ctx: Any, *d_spikes: Tensor) -> Tensor:
        return go_back(ctx.saved_tensors[0], d_spikes[0].clone(), None)
