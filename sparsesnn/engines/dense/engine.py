"""The engine that computes every neuron in every step with PyTorch, on the cores of this machine or on CUDA devices."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sparsesnn.engines.base import DEVICE_HELP, Batch, Training, weight_dtype
from sparsesnn.engines.dense import MODES, products_are_ours
from sparsesnn.engines.dense.device import autocast, check_precision, find_device, use_precision
from sparsesnn.engines.dense.replicas import Replicated
from sparsesnn.engines.dense.runner import DenseRunner
from sparsesnn.engines.module import Model
from sparsesnn.engines.optimizers import make_optimizer
from sparsesnn.engines.torch_engine import TorchEngine
from sparsesnn.errors import ConfigError
from sparsesnn.host.comm import Grid
from sparsesnn.host.comm.torch_group import TorchGroup
from sparsesnn.layers import fires
from sparsesnn.network import Network
from sparsesnn.options import option
from sparsesnn.output import Output
from sparsesnn.rounding import BITS


@dataclass(frozen=True)
class DenseOptions:
    """The engine's options."""

    weight_dtype: str = weight_dtype(*BITS)
    dense_mode: str = option(
        "auto", "how dense computes; auto: the fastest", choices=MODES, flag="dense-mode", metavar="MODE"
    )
    device: str = option("auto", DEVICE_HELP, flag="device", metavar="NAME")
    precision: str = option(
        "float32",
        "of the products of dense: float32 or bfloat16; state, weights that learn and evaluation stay float32",
        flag="precision",
        metavar="P",
    )


class DenseEngine(TorchEngine):
    """The baseline; over ranks of torchrun it uses DistributedDataParallel, for replicas only."""

    Options = DenseOptions
    options: DenseOptions
    only_trains = ("device", "precision")
    runner = DenseRunner
    launchers = ("torchrun",)

    def __init__(self, name: str, network: Network, training: Training, grid: Grid) -> None:
        super().__init__(name, network, training, grid)
        self.replicated: Replicated | None = None

    @classmethod
    def check_options(cls, options: DenseOptions, place: str) -> None:
        check_precision(options.precision, place)
        if options.precision == "float16":
            raise ConfigError(
                f"{place.format('precision')} is 'float16', whose small gradients become 0 without a scaled loss; use 'bfloat16'"
            )

    @classmethod
    def check(cls, name: str, network: Network, training: Training) -> None:
        for population_name, population in network.populations.items():
            if fires(population) and population.capacity is not None:
                raise ConfigError(
                    f"{population_name}: capacity is {population.capacity}, but backend {name!r} has no lists that could "
                    "fill up; allowed: no capacity; remove it, or use backend 'cpu'"
                )

    @classmethod
    def uses_torch_threads(cls, options: DenseOptions) -> bool:
        return not (options.dense_mode in ("auto", "fused") and products_are_ours())

    def _make_model(self) -> nn.Module:
        options = self.options
        self.device = find_device(options.device)
        use_precision(self.device, options.precision)
        model = Model(
            self.network,
            backend="dense",
            dense_mode=options.dense_mode,
            seed=self.training.seed,
            weight_dtype=options.weight_dtype,
        )
        return model.to(self.device)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        updates = self.training.updates
        kind = torch.optim.AdamW if updates.name == "adamw" else torch.optim.Adam
        return make_optimizer(self.model, updates, kind, fused=True)

    def start(self) -> None:
        """Gives all ranks the weights of the first one."""
        if isinstance(self.grid.replicas, TorchGroup):
            self.replicated = Replicated(self.model, self.grid.replicas)

    def run(self, batch: Batch) -> Output:
        output: Output = (self.replicated or self.model)(batch.spikes, heard=batch.heard)
        return output

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        context: contextlib.AbstractContextManager[Any] = autocast(self.device, self.options.precision)
        return context

    def _totals(self, output: Output, counts: Sequence[int]) -> tuple[list[int], dict[str, float], dict[str, int]]:
        replicas = self.grid.replicas
        if replicas.size == 1:
            return super()._totals(output, counts)
        own, totals = output.activity(), replicas.sum_counts(counts)
        parts = [torch.tensor([a * counts[0] for a in own.values()], dtype=torch.float64, device="cpu")]
        parts = [torch.from_numpy(part) for part in replicas.all_gather(parts[0].numpy())]
        means = (torch.stack(parts).sum(0) / max(1, totals[0])).tolist()
        return totals, dict(zip(own, means, strict=True)), dict.fromkeys(own, 0)
