"""Networks with convolutions: for all contestants PyTorch's convolutions and pools over all steps at once, and each library's neurons.

`fused` has a hand-written time loop, in place and without autograd (`convolution.Neurons`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rivals.contestants.torch_tools import integrate, linear, mean_of_potentials, step_of, tensor
from rivals.task import BETA, SLOPE, THRESHOLD, Task

#: from currents to spikes, both [T, B, …], or [B, T, …] for batch-first libraries
Neurons = Callable[[Tensor], Tensor]


def make(task: Task, library: str) -> Callable[[], float]:
    assert task.maps is not None, "for cameras only"
    scale = 1 / (1 - BETA) if library == "norse" else 1.0  # its step scales the input by 1 - β
    batch_first = library == "sinabs"
    stages: list[tuple[list[nn.Module], Neurons | None]] = []
    weights, before = list(task.weights), []
    for kind, *options in task.maps.layers:
        before.append(_module(kind, options, weights, scale))
        if kind != "pool":
            stages.append((before, LIBRARIES[library]() if weights else None))
            before = []
    spikes = tensor(task.dense()).unflatten(-1, task.maps.shape)
    spikes = spikes.transpose(0, 1).contiguous() if batch_first else spikes

    def logits() -> Tensor:
        x = spikes
        for modules, neurons in stages:
            made = x.flatten(0, 1)
            for module in modules:
                made = module(made)
            x = made.unflatten(0, x.shape[:2])
            x = x if neurons is None else neurons(x)
        x = x.transpose(0, 1) if batch_first else x
        return mean_of_potentials(x) if library == "fused" else integrate(x).mean(0)

    layers = nn.ModuleList(module for modules, _ in stages for module in modules)
    return step_of(logits, layers.parameters(), task.labels)


def _module(kind: str, options: list[Any], weights: list[Any], scale: float) -> nn.Module:
    """A pool, or a layer with the next weight."""
    if kind == "pool":
        reduction, size = options
        return (
            nn.MaxPool2d(size)
            if reduction == "max"
            else nn.AvgPool2d(size, divisor_override=1 if reduction == "sum" else None)
        )
    weight = weights.pop(0)
    own = scale if weights else 1.0
    if kind == "dense":
        return nn.Sequential(nn.Flatten(), linear(weight, own))
    stride, padding = options
    layer = nn.Conv2d(weight.shape[1], weight.shape[0], weight.shape[2:], stride, padding, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight) * own)
    return layer


def _fused() -> Neurons:
    from rivals.contestants import convolution

    def fire(currents: Tensor) -> Tensor:
        return convolution.Neurons.apply(currents)  # type: ignore[no-any-return]

    return fire


def _snntorch() -> Neurons:
    import snntorch
    from snntorch import surrogate

    sigma = surrogate.fast_sigmoid(slope=SLOPE)
    neuron = snntorch.Leaky(beta=BETA, threshold=THRESHOLD, spike_grad=sigma, reset_mechanism="subtract")

    def fire(currents: Tensor) -> Tensor:
        v, fired = neuron.init_leaky(), []
        for i in currents.unbind(0):
            s, v = neuron(i, v)
            fired.append(s)
        return torch.stack(fired)

    return fire


def _spikingjelly() -> Neurons:
    from spikingjelly.activation_based import functional

    from rivals.contestants.spikingjelly_net import _lif

    neuron = _lif("m")

    def fire(currents: Tensor) -> Tensor:
        functional.reset_net(neuron)
        return neuron(currents)  # type: ignore[no-any-return]

    return fire


def _norse() -> Neurons:
    from norse.torch import LIFBoxCell, LIFBoxParameters

    dt = 1e-3
    inverse = torch.tensor((1 - BETA) / dt)
    cell = LIFBoxCell(
        LIFBoxParameters(tau_mem_inv=inverse, v_th=torch.tensor(THRESHOLD), method="super", alpha=SLOPE), dt=dt
    )

    def fire(currents: Tensor) -> Tensor:
        state, fired = None, []
        for i in currents.unbind(0):
            s, state = cell(i, state)
            fired.append(s)
        return torch.stack(fired)

    return fire


def _sinabs() -> Neurons:
    from sinabs.activation import MembraneSubtract, SingleExponential, SingleSpike
    from sinabs.layers import LIF

    neuron = LIF(
        tau_mem=-1 / math.log(BETA),
        spike_threshold=torch.tensor(THRESHOLD),
        spike_fn=SingleSpike,
        reset_fn=MembraneSubtract(),
        surrogate_grad_fn=SingleExponential(),
        norm_input=False,
    )
    neuron.tau_mem.requires_grad_(False)

    def fire(currents: Tensor) -> Tensor:
        neuron.reset_states()
        return neuron(currents)  # type: ignore[no-any-return]

    return fire


LIBRARIES: dict[str, Callable[[], Neurons]] = {
    "fused": _fused,
    "snntorch": _snntorch,
    "spikingjelly": _spikingjelly,
    "norse": _norse,
    "sinabs": _sinabs,
}
