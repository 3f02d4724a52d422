"""Plain autograd with hoisted products, compiled as one graph over all steps by torch.compile (minutes, once a shape)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rivals.contestants.torch_tools import FastSigmoid, all_of, mean_of_potentials, parameters_of, step_of, tensor
from rivals.task import BETA, THRESHOLD, Task


def make(task: Task) -> Callable[[], float]:
    weights, recurrent = parameters_of(task)
    spikes = tensor(task.dense())
    compiled = torch.compile(logits, fullgraph=True, dynamic=False)
    return step_of(lambda: compiled(spikes, weights, recurrent), all_of(weights, recurrent), task.labels)


def logits(spikes: Tensor, weights: Sequence[Tensor], recurrent: Sequence[Tensor | None]) -> Tensor:
    """[B, n_classes]: time-mean of the readout's potentials."""
    x = spikes
    for weight, own in zip(weights[:-1], recurrent, strict=True):
        x = lif(x @ weight, own)
    return mean_of_potentials(x @ weights[-1])


def lif(currents: Tensor, own: Tensor | None) -> Tensor:
    """Spikes [T, B, N], reset by subtraction, detached."""
    v = torch.zeros_like(currents[0])
    s = v
    spikes = []
    for i in currents.unbind(0):
        if own is not None:
            i = i + s @ own
        v = BETA * v + i - THRESHOLD * s.detach()
        s = FastSigmoid.apply(v - THRESHOLD)
        spikes.append(s)
    return torch.stack(spikes)
