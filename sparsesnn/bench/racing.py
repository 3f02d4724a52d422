"""Interleaved training steps of several models on the same batch, so that a busy machine slows down all equally."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sparsesnn.bench.step import still_adam, train_step
from sparsesnn.engines import set_threads
from sparsesnn.engines.dense.device import use_precision
from sparsesnn.engines.module import Model
from sparsesnn.output import Output
from sparsesnn.spikes import SpikeBatch


class Trainee:
    """A model on its device, with an Adam that does not change it; `precision` of products, see `dense.device`."""

    def __init__(
        self,
        model: Model,
        n_threads: int = 0,
        *,
        device: torch.device | None = None,
        precision: str = "float32",
    ) -> None:
        self.model: Model = model if device is None else model.to(device)
        self.device = device or torch.device("cpu")
        self.precision = precision
        use_precision(self.device, precision)
        self.n_threads = n_threads
        self.optimizer = still_adam(self.model)

    def step(self, spikes: SpikeBatch, labels: Tensor) -> tuple[Output, float, float]:
        """One training step on the threads that its backend takes; the output, the loss, and seconds."""
        set_threads(self.model.backend, self.n_threads, {"dense_mode": self.model.dense_mode})
        output, loss, seconds = train_step(self.model, self.optimizer, spikes, labels, self.precision)
        return output, loss, sum(seconds)


def race(
    trainees: Mapping[str, Trainee],
    spikes: SpikeBatch,
    labels: Tensor,
    *,
    repeats: int,
    warm_up: int = 1,
) -> dict[str, list[float]]:
    """Seconds of `repeats` steps of each model, taking turns, after `warm_up` untimed steps."""
    seconds: dict[str, list[float]] = {name: [] for name in trainees}
    for k in range(warm_up + repeats):
        for name, trainee in trainees.items():
            took = trainee.step(spikes, labels)[2]
            if k >= warm_up:
                seconds[name].append(took)
    return seconds
