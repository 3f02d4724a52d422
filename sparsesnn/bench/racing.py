"""Training steps of several models on the same batch, interleaved, so that a busy machine slows down all alike."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sparsesnn.adam import Adam
from sparsesnn.bench.step import _step
from sparsesnn.module import Model, Output
from sparsesnn.spikes import SpikeBatch
from sparsesnn.train.prepare import set_threads


class Trainee:
    """A model and Adam with a learning rate of 0: the update costs what it costs, and the activity stays what it was."""

    def __init__(self, model: Model, n_threads: int = 0) -> None:
        self.model = model
        self.n_threads = n_threads
        self.optimiser: torch.optim.Optimizer
        if model.backend == "cpu":
            self.optimiser = Adam(model.parameters(), lr=0.0)
        else:
            self.optimiser = torch.optim.Adam(model.parameters(), lr=0.0, fused=True)

    def step(self, spikes: SpikeBatch, labels: Tensor) -> tuple[Output, float, float]:
        """One training step on the threads that its backend takes; the output, the loss, and seconds."""
        set_threads(self.n_threads, self.model.backend)
        output, loss, seconds = _step(self.model, self.optimiser, spikes, labels)
        return output, loss, sum(seconds)


def race(
    trainees: Mapping[str, Trainee], spikes: SpikeBatch, labels: Tensor, *, repeats: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Seconds of `repeats` steps of each, one of each in turn, after `warm_up` that are not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in trainees}
    for k in range(warm_up + repeats):
        for name, trainee in trainees.items():
            took = trainee.step(spikes, labels)[2]
            if k >= warm_up:
                seconds[name].append(took)
    return seconds
