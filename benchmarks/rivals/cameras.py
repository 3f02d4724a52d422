"""Tasks from event cameras: recordings cut into steps, a network with convolutions, and the common computation of all contestants."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

import sparsesnn as ss
from rivals.task import BETA, SLOPE, THRESHOLD, Maps, Task
from sparsesnn.init import init_activity
from sparsesnn.layers import fires
from sparsesnn.nir.maps import to_theirs

#: `catalog.SEMANTICS` in sparsesnn's arguments; these tasks have no delays
VARIANTS: dict[str, dict[str, Any]] = {
    "subtract": {},
    "at once": {"reset_decays": True},
    "zero": {"reset": "zero"},
}


@dataclass(frozen=True)
class Camera:
    """The parameters of a camera's task.

    Args:
        net: in the format of `sparsesnn.parse_net`.
        recording: data set whose recordings in $SPARSESNN_TEST_DATA are used; without them random events of `rate`.
        dt_ms, n_steps: width of a step, and T; later events are left out.
        n_samples: B.
        hidden_activity: target spikes per neuron and step of each hidden population.
        rate: input spikes per neuron and step, without recordings.
    """

    net: str
    recording: str
    dt_ms: float
    n_steps: int
    n_samples: int
    hidden_activity: float
    rate: float


def make_task(camera: Camera) -> Task:
    """A task with weights scaled to the hidden activity, for kind "subtract"."""
    spikes, labels, origin = _shown(camera)
    layers = layers_of(camera.net)
    task = Task(
        spikes.to_dense().numpy().astype(np.uint8), labels, [], [], {}, {}, maps=Maps(camera.net, layers, origin)
    )
    model = ss.Model(network(camera.net), seed=0)
    hidden = [name for name, p in model.network.populations.items() if fires(p)]
    init_activity(model, [spikes], dict.fromkeys(hidden, camera.hidden_activity), tolerance=0.05)
    task.weights.extend(_take(model))
    task.recurrent.extend([None] * len(hidden))
    for kind, changes in VARIANTS.items():
        other = ss.Model(network(camera.net, **changes))
        other.load_state_dict(model.state_dict())
        with torch.no_grad():
            output = other(spikes)
        assert output.potentials is not None, "the readout is LI"
        task.losses[kind] = float(functional.cross_entropy(output.potentials.mean(0), torch.from_numpy(labels)))
        if kind == "subtract":
            task.activity.update({"input": spikes.activity(), **output.activity()})
    return task


def network(net: str, grad_threshold: float = 0.9, **changes: Any) -> ss.Network:
    """The network; `changes` are those of a variant."""
    surrogate = ss.fast_sigmoid(slope=SLOPE)
    return ss.parse_net(
        net, beta=BETA, threshold=THRESHOLD, grad_threshold=grad_threshold, surrogate=surrogate, **changes
    )


def put(task: Task, model: ss.Model) -> None:
    """Copies the task's weights into a model."""
    with torch.no_grad():
        for parameter, order, weight in zip(*_parameters(model), task.weights, strict=True):
            rows = torch.from_numpy(weight)
            if order is None:
                parameter.copy_(rows.permute(2, 3, 1, 0))
            else:
                parameter[order] = rows


def layers_of(net: str) -> list[list[Any]]:
    """The layers, for contestants without sparsesnn: ["pool", reduction, size], ["conv", stride, padding] or ["dense"]; the weight of
    each of the latter two is the task's next one, followed by neurons."""
    layers: list[list[Any]] = []
    for c in network(net).connections:
        for kind in c.synapses.members if isinstance(c.synapses, ss.Series) else (c.synapses,):
            if isinstance(kind, ss.Pool):
                layers.append(["pool", kind.reduction, kind.size])
            elif isinstance(kind, ss.Conv2d):
                layers.append(["conv", kind.stride, kind.padding])
            else:
                layers.append(["dense"])
    return layers


def _take(model: ss.Model) -> list[NDArray[np.float32]]:
    """Weights as PyTorch's convolutions hold them, and [n_pre, n] in the order channels, height, width."""
    return [
        (weight.detach().permute(3, 2, 0, 1) if order is None else weight.detach()[order]).contiguous().numpy()
        for weight, order in zip(*_parameters(model), strict=True)
    ]


def _parameters(model: ss.Model) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Weights, and for a matrix the row of each sender in PyTorch's order; None for a convolution."""
    weights, orders = [], []
    for c in model.network.connections:
        weights.append(getattr(model.layers[c.post], c.name))
        kinds = c.synapses.members if isinstance(c.synapses, ss.Series) else (c.synapses,)
        shape = kinds[-2].post_shape if len(kinds) > 1 else model.network.shape(c.pre)
        order = np.arange(weights[-1].shape[0])
        orders.append(None if weights[-1].ndim == 4 else torch.from_numpy(to_theirs(order, shape) if shape else order))
    return weights, orders


def _shown(camera: Camera) -> tuple[ss.SpikeBatch, NDArray[np.int64], str]:
    """Spikes, labels, and their origin."""
    root = os.environ.get("SPARSESNN_TEST_DATA")
    if root:
        from sparsesnn import datasets

        options: dict[str, Any] = {"dt_ms": camera.dt_ms, "n_steps": camera.n_steps, "pool": 1}
        folder = {"nmnist": "nmnist", "dvsgesture": "dvs_gesture"}[camera.recording]
        data = datasets.load(camera.recording, split="train", data_dir=Path(root) / folder, **options)
        chosen = np.linspace(0, len(data) - 1, camera.n_samples).astype(np.int64)
        return data.batch(chosen), np.asarray(data.labels)[chosen].astype(np.int64), f"recordings of {camera.recording}"
    generator = torch.Generator().manual_seed(0)
    n, n_classes = (network(camera.net).populations[name].n for name in ("input", "output"))
    fired = torch.rand(camera.n_steps, camera.n_samples, n, generator=generator) < camera.rate
    labels = torch.randint(0, n_classes, (camera.n_samples,), generator=generator)
    return ss.SpikeBatch.from_dense(fired.float()), labels.numpy(), "random events"
