"""Writes a task: runs in sparsesnn's environment, and computes the loss under each contestant's semantics."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

import sparsesnn as ss
from rivals import cameras
from rivals.contestants.ours import LONGEST, network
from rivals.task import Task
from sparsesnn.bench import Workload

#: `catalog.SEMANTICS` in sparsesnn's arguments
VARIANTS: dict[str, Callable[[ss.Network], ss.Network]] = {
    "subtract": lambda net: net,
    "at once": lambda net: _with_hidden(net, reset_decays=True),
    "zero": lambda net: _with_hidden(net, reset="zero"),
    "none": lambda net: _with_hidden(net, reset="none"),
    "late": lambda net: net.with_delay(1, from_inputs=False),
    "axonal": lambda net: net.with_axonal_delays(LONGEST),
    "axonal, trained": lambda net: net.with_axonal_delays(LONGEST, learn=True),
}
#: kinds that change the delay of a connection
OF_ONE_DELAY = ("late", "axonal", "axonal, trained")


def make_task(workload: Workload) -> Task:
    """A task with weights scaled to the hidden activity, for kind "subtract"."""
    spikes = workload.spikes()
    model = workload.model("cpu", spikes)
    layers = [layer for layer in model.layers.values() if isinstance(layer, ss.Layer)]
    task = Task(
        spikes=spikes.to_dense().numpy().astype(np.uint8),
        labels=workload.labels().numpy(),
        weights=[_weight(layer, len(workload.delays)) for layer in layers[:-1]] + [_weight(layers[-1], 0)],
        recurrent=[None if layer.loop_weight is None else layer.loop_weight.detach().numpy() for layer in layers[:-1]],
        losses={},
        activity={},
        unreset={},
        delays=tuple(workload.delays),
    )
    for kind, variant in VARIANTS.items():
        if len(workload.delays) > 1 and kind in OF_ONE_DELAY:
            continue
        other = ss.Model(variant(network(task)))
        with torch.no_grad():
            for mine, given in zip(other.layers.values(), layers, strict=True):  # names contain delays, which differ
                for weight, wanted in zip(mine.weights, given.weights, strict=True):  # type: ignore[arg-type]
                    weight.copy_(wanted)
            output = other(spikes)
        assert output.potentials is not None, "the readout is LI"
        task.losses[kind] = float(functional.cross_entropy(output.potentials.mean(0), workload.labels()))
        if kind == "subtract":
            task.activity.update({"input": spikes.activity(), **output.activity()})
        elif kind == "none":
            task.unreset.update(output.activity())
    return task


def _weight(layer: ss.Layer, n_delays: int) -> NDArray[np.float32]:
    """float32[n_pre, n_post] of a layer's input, with `n_delays` float32[n_delays, n_pre, n_post]."""
    weights = [weight.detach().numpy() for weight in layer.weights[: n_delays or 1]]
    return np.stack(weights) if n_delays else weights[0]


def _with_hidden(net: ss.Network, **changes: object) -> ss.Network:
    for name, population in net.populations.items():
        if isinstance(population, ss.LIF):
            net = net.with_population(name, **changes)
    return net


def main() -> None:
    """Reads a list of {"workload": arguments of `Workload`, "out": path} as JSON, or of "camera"; makes one file each."""
    for order in json.load(sys.stdin):
        if "camera" in order:
            task = cameras.make_task(cameras.Camera(**order["camera"]))
        else:
            task = make_task(Workload(**order["workload"]))
        task.save(Path(order["out"]))


if __name__ == "__main__":
    main()
