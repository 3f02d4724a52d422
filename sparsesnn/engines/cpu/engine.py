"""The event-sparse engine on the cores of this machine, in one process."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sparsesnn.adam import Adam, AdamW
from sparsesnn.engines.base import Batch, Step, Training
from sparsesnn.engines.cpu.switch import Switch
from sparsesnn.engines.module import WEIGHT_DTYPES, Model
from sparsesnn.engines.optimizers import make_optimizer
from sparsesnn.engines.torch_engine import TorchEngine
from sparsesnn.host.comm import Grid
from sparsesnn.in_lists import check_in_lists
from sparsesnn.network import Network
from sparsesnn.output import Output


class CpuEngine(TorchEngine):
    """Spike lists, tiles of neurons, all cores. Bit-equal over threads, instruction sets and repeats.

    Busy networks train with dense products, see `switch.py`; inference always takes lists.
    """

    reads: ClassVar[Mapping[str, Sequence[Any] | None]] = {"weight_dtype": WEIGHT_DTYPES, "lists": None}
    launchers: ClassVar[Sequence[str]] = ("mpirun", "poprun")
    takes_shards = True
    counts_phases = True

    def __init__(self, name: str, network: Network, training: Training, grid: Grid) -> None:
        super().__init__(name, network, training, grid)
        self.switch = Switch.of(self.model, training)

    @classmethod
    def adam(cls, parameters: Any, **arguments: Any) -> torch.optim.Optimizer:
        return Adam(parameters, **arguments)

    @classmethod
    def check(cls, name: str, network: Network, training: Training) -> None:
        check_in_lists(network.connections, f"backend {name!r}")

    def _make_model(self) -> nn.Module:
        return Model(self.network, seed=self.training.seed, weight_dtype=self.training.options.weight_dtype)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        updates = self.training.updates
        return make_optimizer(self.model, updates, AdamW if updates.name == "adamw" else self.adam)

    def step(self, batch: Batch, lr: float) -> Step:
        step = super().step(batch, lr)
        return replace(step, note=self.switch.note) if self.switch else step

    def learn(self, batch: Batch, loss_of: Callable[[Output], Tensor]) -> Output:
        model: Model = self.switch.model_for(batch.spikes) if self.switch else self.model
        _, output = model.learn(batch.spikes, loss_of, heard=batch.heard, first_sample=batch.first_sample)
        if self.switch:
            self.switch.count(batch.spikes, output)
        return output

    def state(self) -> dict[str, Tensor]:
        return {**super().state(), **(self.switch.tensors() if self.switch else {})}

    def load(self, tensors: Mapping[str, Tensor], where: str) -> None:
        super().load(tensors, where)
        if self.switch:
            self.switch.load(tensors)

    def _norm(self, gradients: Mapping[str, Tensor]) -> float:
        return gradient_norm(self.model, gradients)


def gradient_norm(model: Model, gradients: Mapping[str, Tensor]) -> float:
    """The norm of all gradients of the whole network together, given by the names of their parameters.

    Squares are summed neuron by neuron first: the same for any number of ranks that share the neurons.
    """
    squares: dict[str, npt.NDArray[np.float64]] = {}
    for name, g in gradients.items():
        if g.ndim:
            population, _, own = name.partition(".")[2].partition(".")
            squares[name] = model.layers[population].squares_per_receiver(own, g.numpy())  # type: ignore[operator]
    whole = model.parts.whole_neurons(squares) if model.parts else squares
    return math.sqrt(sum(float(whole[n].sum()) if g.ndim else float(g) ** 2 for n, g in gradients.items()))
