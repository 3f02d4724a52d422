"""sparsesnn through its public interface, as in training: one call a step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import sparsesnn as ss
from rivals import cameras
from rivals.contestants.torch_tools import fused_adam, learning_step, tensor
from rivals.task import BETA, LEARNING_RATE, SLOPE, THRESHOLD, Task
from sparsesnn.adam import Adam
from sparsesnn.engines import set_threads
from sparsesnn.loss import CrossEntropy

#: the longest axonal delay, in steps: the same as in the workloads with delays
LONGEST = 24


def make(
    task: Task, grad_threshold: float, backend: str = "cpu", axonal: str = "", reset: str = "subtract"
) -> Callable[[], float]:
    set_threads(backend, torch.get_num_threads())
    described = (
        network(task, grad_threshold, reset) if task.maps is None else cameras.network(task.maps.net, grad_threshold)
    )
    if axonal:
        described = described.with_axonal_delays(LONGEST, learn=axonal == "trained")
    with torch.device("cpu"):
        model = ss.Model(described, backend=backend)
    if task.maps is not None:
        cameras.put(task, model)
    with torch.no_grad():
        for k, (layer, own) in enumerate(
            zip(model.layers.values(), [*task.recurrent, None], strict=True) if task.maps is None else ()
        ):
            weights = [*(weight for _, weight in task.taps(k)), *([] if own is None else [own])]
            for parameter, weight in zip(layer.weights, weights, strict=True):  # type: ignore[arg-type]
                parameter.copy_(torch.from_numpy(weight))
    model.to(torch.get_default_device())
    spikes = ss.SpikeBatch.from_dense(tensor(task.dense()))
    adam = own_adam if backend == "cpu" else fused_adam
    n_classes = described.populations[described.output].n
    loss_of = CrossEntropy(tensor(task.labels), "mean", n_classes)

    def learn() -> Tensor:
        loss, _ = model.learn(spikes, loss_of)
        return loss

    return learning_step(learn, model.parameters(), adam)


def own_adam(parameters: list[Tensor]) -> torch.optim.Optimizer:
    """The optimizer that training uses with the engine."""
    return Adam(parameters, lr=LEARNING_RATE)


def network(task: Task, grad_threshold: float = 0.9, reset: str = "subtract") -> ss.Network:
    """The task's network as a description."""
    hidden = [
        ss.LIF(
            weight.shape[-1],
            beta=BETA,
            threshold=THRESHOLD,
            reset=reset,
            grad_threshold=grad_threshold,
            surrogate=ss.fast_sigmoid(slope=SLOPE),
            recurrent=recurrent is not None,
        )
        for weight, recurrent in zip(task.weights[:-1], task.recurrent, strict=True)
    ]
    readout = ss.LI(task.weights[-1].shape[1], beta=BETA)
    chain = ss.Network.chain(ss.Input(task.spikes.shape[-1]), *hidden, readout)
    return chain.with_delays(task.delays) if task.delays else chain
