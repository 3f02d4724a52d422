"""sparsesnn through its public interface."""

from __future__ import annotations

from collections.abc import Callable

import torch

import sparsesnn as ss
from rivals.contestants.torch_tools import step_of
from rivals.task import BETA, SLOPE, THRESHOLD, Task


def make(task: Task, grad_threshold: float, backend: str = "cpu") -> Callable[[], float]:
    ss.set_num_threads(torch.get_num_threads())
    model = ss.Model(network(task, grad_threshold), backend=backend)
    with torch.no_grad():
        for k, layer in enumerate(model.layers.values()):
            layer.weights[0].copy_(torch.from_numpy(task.weights[k]))
            if layer.recurrent_weight is not None:
                layer.recurrent_weight.copy_(torch.from_numpy(task.recurrent[k]))
    spikes = ss.SpikeBatch.from_dense(torch.from_numpy(task.dense()))
    return step_of(lambda: model(spikes).potentials.mean(0), model.parameters(), task.labels)


def network(task: Task, grad_threshold: float = 0.9) -> ss.Network:
    """The task's network as a description."""
    hidden = [
        ss.LIF(
            weight.shape[1],
            beta=BETA,
            threshold=THRESHOLD,
            grad_threshold=grad_threshold,
            surrogate=ss.fast_sigmoid(slope=SLOPE),
            recurrent=recurrent is not None,
        )
        for weight, recurrent in zip(task.weights[:-1], task.recurrent, strict=True)
    ]
    readout = ss.LI(task.weights[-1].shape[1], beta=BETA)
    return ss.Network.chain(ss.Input(task.spikes.shape[-1]), *hidden, readout)
