"""The event-sparse engine on the cores of this machine, in one process."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from sparsesnn.adam import Adam, AdamW
from sparsesnn.engines.base import Batch, Step, Training, weight_dtype
from sparsesnn.engines.cpu.runner import CpuRunner
from sparsesnn.engines.module import Model
from sparsesnn.engines.optimizers import make_optimizer, squares_per_neuron
from sparsesnn.engines.runner import Runner
from sparsesnn.engines.sgd import SGD
from sparsesnn.engines.torch_engine import TorchEngine
from sparsesnn.host.comm import Grid
from sparsesnn.in_lists import check_in_lists
from sparsesnn.network import Network
from sparsesnn.output import Output
from sparsesnn.rounding import BITS

#: dense products are faster when more than this share of the senders fires in each step (docs/speed.md)
BUSY = 0.5


@dataclass(frozen=True)
class CpuOptions:
    """The options of the engine."""

    weight_dtype: str = weight_dtype("bfloat16", *BITS)


class CpuEngine(TorchEngine):
    """Spike lists, tiles of neurons, all cores. Bit-equal over threads, instruction sets, ranks and repeats."""

    Options = CpuOptions
    options: CpuOptions
    runner: ClassVar[type[Runner] | None] = CpuRunner
    launchers: ClassVar[Sequence[str]] = ("mpirun", "poprun")
    takes_shards = True
    bits_of = "cpu"
    counts_phases = True

    def __init__(self, name: str, network: Network, training: Training, grid: Grid) -> None:
        super().__init__(name, network, training, grid)
        self.products = [(c.pre, c.synapses.n_products(*network.ends(c))) for c in network.connections]
        self.is_busy = False

    @classmethod
    def adam(cls, parameters: Any, **arguments: Any) -> torch.optim.Optimizer:
        return Adam(parameters, **arguments)

    @classmethod
    def check(cls, name: str, network: Network, training: Training) -> None:
        check_in_lists(network.connections, f"backend {name!r}")

    def _make_model(self) -> nn.Module:
        return Model(self.network, seed=self.training.seed, weight_dtype=self.options.weight_dtype)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        updates = self.training.updates
        return make_optimizer(self.model, updates, AdamW if updates.name == "adamw" else self.adam, SGD)

    def step(self, batch: Batch, lr: float) -> Step:
        step = super().step(batch, lr)
        if self.is_busy or (fired := self._share_fired(batch, step)) <= BUSY:
            return step
        self.is_busy = True
        return replace(
            step,
            note=f"{fired:.0%} of the senders fire in each step (weighted by their synapses); backend 'dense' is faster for a network as busy as this",
        )

    def _share_fired(self, batch: Batch, step: Step) -> float:
        """The mean activity of all senders, each weighted by the multiply-adds of its connections in dense products."""
        activity = {self.network.inputs[0]: batch.spikes.activity(), **step.activity}
        return sum(n * activity[pre] for pre, n in self.products) / max(1, sum(n for _, n in self.products))

    def learn(self, batch: Batch, loss_of: Callable[[Output], Tensor]) -> Output:
        _, output = self.model.learn(batch.spikes, loss_of, heard=batch.heard, first_sample=batch.first_sample)
        return cast(Output, output)

    def _norm(self, gradients: Mapping[str, Tensor]) -> float:
        return gradient_norm(self.model, gradients)


def gradient_norm(model: Model, gradients: Mapping[str, Tensor]) -> float:
    """The norm of all gradients of the whole network together, given by the names of their parameters.

    Squares are summed neuron by neuron first: the same for any number of ranks that share the neurons.
    """
    squares = {name: squares_per_neuron(model, name, g) for name, g in gradients.items() if g.ndim}
    whole = model.parts.whole_neurons(squares) if model.parts else squares
    return math.sqrt(sum(float(whole[n].sum()) if g.ndim else float(g) ** 2 for n, g in gradients.items()))
