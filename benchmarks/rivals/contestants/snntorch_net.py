"""snnTorch: `Leaky` layers in a loop over time; the products of a feed-forward layer run in the loop or before it."""

from __future__ import annotations

from collections.abc import Callable

import snntorch
import torch
from snntorch import surrogate
from torch import Tensor, nn

from rivals.contestants.torch_tools import integrate, linear, step_of
from rivals.task import BETA, SLOPE, THRESHOLD, Task


def make(task: Task) -> Callable[[], float]:
    linears = nn.ModuleList(linear(w) for w in task.weights)
    own = nn.ModuleList(nn.Identity() if w is None else linear(w) for w in task.recurrent)
    neurons = [
        snntorch.Leaky(
            beta=BETA,
            threshold=THRESHOLD,
            spike_grad=surrogate.fast_sigmoid(slope=SLOPE),
            reset_mechanism="subtract",
        )
        for _ in task.recurrent
    ]
    spikes = torch.from_numpy(task.dense())

    def logits() -> Tensor:
        x = spikes
        for layer, neuron, back in zip(linears[:-1], neurons, own, strict=True):
            v, s, fired = neuron.init_leaky(), None, []
            for i in layer(x).unbind(0):
                if s is not None and isinstance(back, nn.Linear):
                    i = i + back(s)
                s, v = neuron(i, v)
                fired.append(s)
            x = torch.stack(fired)
        return integrate(linears[-1](x)).mean(0)

    return step_of(logits, [*linears.parameters(), *own.parameters()], task.labels)
