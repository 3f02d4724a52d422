"""snnTorch: `Leaky` layers in a loop over time, products of feed-forward layers before it.

Its releases have no delays: spikes of all steps are shifted by hand, with an `nn.Linear` for each delay.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import snntorch
import torch
from snntorch import surrogate
from torch import Tensor, nn

from rivals.contestants.torch_tools import delayed, integrate, linear, step_of, tensor
from rivals.task import BETA, SLOPE, THRESHOLD, Task


def make(task: Task) -> Callable[[], float]:
    inputs = [[(delay, linear(w)) for delay, w in task.taps(k)] for k in range(len(task.recurrent))]
    readout = linear(task.weights[-1])
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
    spikes = tensor(task.dense())

    def logits() -> Tensor:
        x = spikes
        for taps, neuron, back in zip(inputs, neurons, own, strict=True):
            v, s, fired = neuron.init_leaky(), None, []
            currents = reduce(torch.add, (layer(delayed(x, delay)) for delay, layer in taps))
            for i in currents.unbind(0):
                if s is not None and isinstance(back, nn.Linear):
                    i = i + back(s)
                s, v = neuron(i, v)
                fired.append(s)
            x = torch.stack(fired)
        return integrate(readout(x)).mean(0)

    layers = nn.ModuleList([*(layer for taps in inputs for _, layer in taps), readout, own])
    return step_of(logits, layers.parameters(), task.labels)
