"""An engine in a separate file: the reference (`sparsesnn/reference.py`) behind the interface of all engines.

`test_toy_engine.py` installs it as another package would, by an entry point, and trains with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsesnn.bounds import bounded
from sparsesnn.engines.base import Training
from sparsesnn.engines.module import Model
from sparsesnn.engines.optimizers import make_optimizer
from sparsesnn.engines.runner import Runner
from sparsesnn.engines.torch_engine import TorchEngine
from sparsesnn.errors import ConfigError, ShapeError
from sparsesnn.network import Network
from sparsesnn.options import option
from sparsesnn.output import LayerState
from sparsesnn.reference import Parameters, Record, layer_backward, layer_forward


class ReferenceRunner(Runner):
    """Tensors [T, B, N] in and out; a layer is one node of PyTorch's graph."""

    def run_layer(
        self, layer: Any, sources: Sequence[Tensor], state: LayerState | None, *, packed: bool, first_sample: int
    ) -> tuple[Tensor, LayerState]:
        if state is not None:
            raise ShapeError(f"Layer: backend {self.name!r} runs whole sequences; give no state")
        p = Parameters.from_layer(layer, np.float32)
        record = layer_forward(p, [source.detach().numpy() for source in sources])
        ranges = {name: (low, high) for name, low, high in layer.population.parameters}
        read = [*sources, *layer.sender_matrices, *layer.loop_matrices, layer.tensor("bias")]
        read += [bounded(layer.tensor(name), *ranges[name]) for name in p.neuron]
        states = {name: torch.from_numpy(z[-2]) for name, z in zip(layer.population.states, record.states, strict=True)}
        out: Tensor = _Run.apply(p, record, self.options.decimals, *read)
        return out, LayerState(states, step=len(out))


class _Run(torch.autograd.Function):
    """forward(parameters, record, decimals, sources…, weights…, loops…, bias, numbers of the neuron…) → spikes or potentials."""

    @staticmethod
    def forward(ctx: Any, p: Parameters, record: Record, decimals: int, *read: Tensor | None) -> Tensor:
        ctx.given = p, record, decimals
        found = record.sent if p.fires else record.v[:-1]
        return torch.from_numpy(found.copy())

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
        p, record, decimals = ctx.given
        g = layer_backward(p, record, d_out.numpy())
        arrays = [*g.inputs, *g.weights, *g.loops, g.bias, *(g.neuron[name] for name in p.neuron)]
        return (
            None,
            None,
            None,
            *(None if x is None else torch.from_numpy(np.asarray(np.round(x, decimals))) for x in arrays),
        )


@dataclass(frozen=True)
class ToyOptions:
    """The engine's options."""

    decimals: int = option(8, "of gradients in the toy engine", low=0, high=8, flag="decimals", metavar="N")


class ToyEngine(TorchEngine):
    """Slow and clear, one process."""

    Options = ToyOptions
    options: ToyOptions
    runner = ReferenceRunner

    @classmethod
    def check(cls, name: str, network: Network, training: Training) -> None:
        for population_name, population in network.populations.items():
            if getattr(population, "capacity", None) is not None:
                raise ConfigError(f"{population_name}: has a capacity, which backend {name!r} does not know; remove it")

    def _make_model(self) -> nn.Module:
        return Model(self.network, backend=self.name, seed=self.training.seed)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        updates = self.training.updates
        return make_optimizer(self.model, updates, torch.optim.AdamW if updates.name == "adamw" else torch.optim.Adam)
