"""snnTorch's `StateLeaky`: all steps of a layer at once, as a convolution with the decay; its neurons have no reset."""

from __future__ import annotations

import math
from collections.abc import Callable

from snntorch import surrogate
from snntorch._neurons.stateleaky import StateLeaky
from torch import Tensor, nn

from rivals.contestants.torch_tools import linear, step_of, tensor
from rivals.task import BETA, SLOPE, THRESHOLD, Task

#: the argument `beta` of a decay of BETA per step: the kernel is exp(-t / τ), and beta stands for τ = 1 / (1 - beta)
STATED_BETA = 1 + math.log(BETA)


def make(task: Task) -> Callable[[], float]:
    layers = nn.ModuleList(linear(weight) for weight in task.weights)
    gradient = surrogate.fast_sigmoid(slope=SLOPE)
    neurons = [
        StateLeaky(beta=STATED_BETA, channels=weight.shape[1], threshold=THRESHOLD, spike_grad=gradient)
        for weight in task.weights[:-1]
    ]
    readout = StateLeaky(beta=STATED_BETA, channels=task.weights[-1].shape[1], output=False)
    spikes = tensor(task.dense())

    def logits() -> Tensor:
        x = spikes
        for layer, neuron in zip(layers[:-1], neurons, strict=True):
            x, _ = neuron(layer(x))
        potentials: Tensor = readout(layers[-1](x))
        return potentials.mean(0)

    return step_of(logits, layers.parameters(), task.labels)
