"""The network of a point at its activity, and its amount of work: the same on CPUs and IPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsesnn.host.comm import Communicator
from sparsesnn.launch.points import Point
from sparsesnn.layers import LI
from sparsesnn.network import Network
from sparsesnn.spikes import SpikeBatch

#: samples for calibrating the gains of all layers, the same on every rank and for every number of ranks
N_CALIBRATION = 16


def draw_spikes(point: Point, first: int, last: int) -> SpikeBatch:
    """Random input of samples `first` to `last` - 1, the same on every rank."""
    parts = []
    for sample in range(first, last):
        generator = torch.Generator().manual_seed(point.seed + 1 + sample)
        parts.append(torch.rand(point.n_steps, 1, point.width, generator=generator) < point.activity)
    return SpikeBatch.from_dense(torch.cat(parts, 1).float())


@torch.no_grad()
def calibrate(model: Any, network: Network, spikes: SpikeBatch, activity: float) -> None:
    """Scales the weights of every spiking layer to the wanted activity, as far as its lists have room.

    By bisection on the logarithm of one gain per layer, from the first layer to the last; each trial runs that layer alone.
    All ranks do the same, and the gains do not depend on their number: layers have the same bits on every rank.
    """
    outputs: dict[str, Any] = {"input": spikes}
    for name, layer in model.layers.items():
        inputs = [outputs[c.pre] for c in network.senders(name)]
        if isinstance(network.populations[name], LI):
            continue
        weights = list(layer.weights)
        originals = [weight.detach().clone() for weight in weights]

        def fire(gain: float, run: Callable[[], Any], weights: list[nn.Parameter], from_: list[Tensor]) -> Any:
            for weight, original in zip(weights, from_, strict=True):
                weight.copy_(original * gain)
            return run()

        def run(layer: Any = layer, inputs: list[Any] = inputs) -> Any:
            return layer(inputs)[0]

        low, high = -4.0, 10.0
        for _ in range(12):
            middle = (low + high) / 2
            if fire(2.0**middle, run, weights, originals).activity() < activity:
                low = middle
            else:
                high = middle
        outputs[name] = fire(2.0**high, run, weights, originals)


def average(replicas: Communicator, rates: dict[str, float], n: int) -> dict[str, float]:
    """Rates over the samples of all replicas; this one has `n`."""
    parts = replicas.all_gather(np.array([n, *rates.values()], np.float64))
    total = sum(part[0] for part in parts)
    return {name: float(sum(part[0] * part[1 + k] for part in parts) / total) for k, name in enumerate(rates)}


def lists_of(output: Any) -> dict[str, SpikeBatch]:
    """Lists of whole populations, on one rank and on many."""
    return dict(getattr(output.spikes, "lists", output.spikes))


def n_places(lists: SpikeBatch) -> int:
    return lists.n_steps * lists.n_samples * lists.n_neurons


def events_of(network: Network, activity: dict[str, float], listed: dict[str, float]) -> float:
    """Synaptic events per sample and step of training: a spike added to a neuron forward, a neuron's gradient added to a
    weight backward, and to the gradient of a listed sender."""
    size = {name: p.n for name, p in network.populations.items()}
    pairs = [(c.pre, c.post) for c in network.connections]
    return sum((2 * activity[pre] + listed.get(pre, 0.0)) * size[pre] * size[post] for pre, post in pairs)
