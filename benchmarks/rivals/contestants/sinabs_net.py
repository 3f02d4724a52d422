"""Sinabs: `LIF` and `LIFRecurrent`, batch first, one spike a step at most, and its own leaky readout."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from sinabs.activation import MembraneSubtract, SingleExponential, SingleSpike
from sinabs.layers import LIF, ExpLeak, LIFRecurrent
from torch import Tensor, nn

from rivals.contestants.torch_tools import linear, step_of, tensor
from rivals.task import BETA, THRESHOLD, Task


def make(task: Task) -> Callable[[], float]:
    tau = -1 / math.log(BETA)
    neuron = {
        "tau_mem": tau,
        "spike_threshold": torch.tensor(THRESHOLD),
        "spike_fn": SingleSpike,
        "reset_fn": MembraneSubtract(),
        "surrogate_grad_fn": SingleExponential(),
        "norm_input": False,
    }
    layers: list[nn.Module] = []
    for weight, own in zip(task.weights[:-1], task.recurrent, strict=True):
        lif = LIF(**neuron) if own is None else LIFRecurrent(rec_connect=linear(own), **neuron)
        layers += [linear(weight), lif]
    net = nn.Sequential(*layers, linear(task.weights[-1]), ExpLeak(tau_mem=tau, norm_input=False))
    stateful = [layer for layer in net if isinstance(layer, LIF)]
    for layer in stateful:
        layer.tau_mem.requires_grad_(False)
    spikes = tensor(task.dense()).transpose(0, 1).contiguous()

    def logits() -> Tensor:
        for layer in stateful:
            layer.reset_states()
        potentials: Tensor = net(spikes)
        return potentials.mean(1)

    return step_of(logits, [p for p in net.parameters() if p.requires_grad], task.labels)
