"""The engine that computes every neuron in every step with PyTorch, on the cores of this machine or on CUDA devices."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sparsesnn.engines import optimizers
from sparsesnn.engines.base import DEVICE_HELP, Batch, Step, Training, weight_dtype
from sparsesnn.engines.dense import MODES, products_are_ours
from sparsesnn.engines.dense.device import autocast, check_precision, check_tf32, find_device, tf32, use_precision
from sparsesnn.engines.dense.replicas import Replicated
from sparsesnn.engines.dense.runner import DenseRunner
from sparsesnn.engines.dense.step_graph import StepGraph, StepGraphs
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
        "auto",
        "how the backend dense computes; auto: the fastest mode (bench baselines --help explains them)",
        choices=MODES,
        flag="dense-mode",
        metavar="MODE",
    )
    device: str = option("cpu", DEVICE_HELP, flag="device", metavar="NAME")
    precision: str = option(
        "float32",
        "precision of the matrix products of the backend dense: float32, tf32 (on cuda: float32 rounded to 10 bits of mantissa) or "
        "bfloat16; state, trained weights and evaluation stay float32",
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
        self.graphs = StepGraphs(self)

    @classmethod
    def check_options(cls, options: DenseOptions, place: str) -> None:
        check_precision(options.precision, options.device, place)
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
        check_tf32(self.device, options.precision)
        use_precision(self.device, "float32" if options.precision == "tf32" else options.precision)
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
        # capturable: its steps may be part of a CUDA graph
        optimizer: Any = make_optimizer(self.model, updates, kind, fused=True, capturable=self.device.type == "cuda")
        optimizer._warned_capturable_if_run_uncaptured = (
            True  # PyTorch would warn about the first steps, which are not part of one
        )
        return optimizer  # type: ignore[no-any-return]

    def start(self) -> None:
        """Gives all ranks the weights of the first one."""
        if isinstance(self.grid.replicas, TorchGroup):
            self.replicated = Replicated(self.model, self.grid.replicas)

    def step(self, batch: Batch, lr: float) -> Step:
        with tf32(self.options.precision):
            graph = self.graphs.graph_of(batch)
            return super().step(batch, lr) if graph is None else self._step_of(graph, batch, lr)

    def _step_of(self, graph: StepGraph, batch: Batch, lr: float) -> Step:
        """`TorchEngine.step` by a graph."""
        n_labels = self._n_labels(batch)
        criterion = self._criterion(batch, n_labels, trains=True)
        criterion.check(tuple(graph.found.there["decoded"].shape))
        graph.run(batch, criterion.answers, n_labels, lr)
        found = graph.found.here
        loss, norm = found["loss_norm"].tolist()
        self._check_finite("loss", loss, lambda: dict(self.model.named_parameters()))
        self._check_finite("norm of the gradients", norm, lambda: optimizers.gradients_of(self.model))
        if self.average is not None:
            self.average.update()
        return self._measured(graph.output(), found["decoded"], batch, n_labels, loss, norm)

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
