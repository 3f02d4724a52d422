"""The event-sparse engine on the cores of this machine, in one process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sparsesnn.adam import Adam, AdamW
from sparsesnn.engines.base import Training
from sparsesnn.engines.module import WEIGHT_DTYPES, Model
from sparsesnn.engines.optimizers import make_optimizer
from sparsesnn.engines.torch_engine import TorchEngine
from sparsesnn.in_lists import check_in_lists
from sparsesnn.network import Network


class CpuEngine(TorchEngine):
    """Spike lists, tiles of neurons, all cores. Bit-equal over threads, instruction sets and repeats."""

    reads: ClassVar[Mapping[str, Sequence[Any] | None]] = {"weight_dtype": WEIGHT_DTYPES}
    launcher = "mpirun"
    takes_shards = True
    counts_phases = True
    busy_maps = 0.15  # docs/speed.md, "Convolutions"

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
