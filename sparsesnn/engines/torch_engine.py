"""Base of engines whose network is a `torch.nn.Module` in this process: loss, backward pass, update."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sparsesnn.engines import optimizers
from sparsesnn.engines import tensors as named
from sparsesnn.engines.average import Average, evaluated_tensors
from sparsesnn.engines.base import Batch, Engine, Step, Training
from sparsesnn.engines.objective import gather, sum_whole
from sparsesnn.host.comm import Grid
from sparsesnn.init import Recurrence, init_activity, init_recurrent
from sparsesnn.network import Network
from sparsesnn.output import Output
from sparsesnn.spikes import SpikeBatch


class TorchEngine(Engine):
    """Trains a module in this process, with a `torch.optim.Optimizer`.

    Attributes:
        model: the network, with this rank's parameters.
        optimizer: updates them.
    """

    model: Any
    optimizer: torch.optim.Optimizer

    def __init__(self, name: str, network: Network, training: Training, grid: Grid) -> None:
        super().__init__(name, network, training, grid)
        self.model = self._make_model()
        self.model.watch = None  # the trainer reports on the run
        if training.recurrence != Recurrence():
            init_recurrent(self.model, training.recurrence, training.seed)
        self.optimizer = self._make_optimizer()
        ema = training.updates.ema
        self.average = Average(self.model, ema) if ema else None
        self.factors = training.dropout.factors(network)
        self._learning: dict[str, Tensor] = {}  # the trained parameters, while `evaluated` replaces them

    @classmethod
    def adam(cls, parameters: Any, **arguments: Any) -> torch.optim.Optimizer:
        """The fastest form of Adam for the engine's model; takes the arguments of `torch.optim.Adam`."""
        return torch.optim.Adam(parameters, fused=True, **arguments)

    @abstractmethod
    def _make_model(self) -> nn.Module:
        """The network with its initial weights."""

    @abstractmethod
    def _make_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the model's parameters."""

    # ---- batches -----------------------------------------------------------------------------------------------

    def step(self, batch: Batch, lr: float) -> Step:
        objective, replicas = self.training.objective, self.grid.replicas
        optimizers.set_learning_rate(self.optimizer, lr)
        self.optimizer.zero_grad(set_to_none=True)
        n_labels = self._n_labels(batch)
        criterion = self._criterion(batch, n_labels, trains=True)
        punished: Tensor | None = None

        def with_regularizer(output: Output) -> Tensor:
            nonlocal punished
            loss = criterion(output)
            punished = objective.regularizer(output, n_samples=batch.n_whole, over_batch=partial(sum_whole, replicas))
            return loss + punished

        output = self.learn(batch, with_regularizer if objective.regularizes else criterion)
        value = float(gather(replicas, criterion.losses).sum() / max(1, n_labels))
        if punished is not None:
            value += float(punished.detach())
        self._check_finite("loss", value, lambda: dict(self.model.named_parameters()))
        norm = self.finish_backward()
        self._check_finite("norm of the gradients", norm, lambda: optimizers.gradients_of(self.model))
        self._update()
        return self._measured(output, criterion.decoded, batch, n_labels, value, norm)

    def _update(self) -> None:
        """Makes the optimizer's step, and adds the new weights to their moving average."""
        self.optimizer.step()
        if self.average is not None:
            self.average.update()

    def finish_backward(self) -> float:
        """Completes the gradients of the whole batch and clips them; returns their norm before clipping."""
        gradients = optimizers.gradients_of(self.model)
        norm = self._norm(gradients) if gradients else 0.0
        optimizers.clip(gradients.values(), norm, self.training.updates.clip_norm)
        return norm

    def _norm(self, gradients: Mapping[str, Tensor]) -> float:
        """The norm of all gradients of the whole network together."""
        return float(optimizers.norm_of(gradients.values()))

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        """The context that sets the precision of products in a training step."""
        return contextlib.nullcontext()

    def run(self, batch: Batch) -> Output:
        output: Output = self.model(batch.spikes, heard=batch.heard)
        return output

    def learn(self, batch: Batch, loss_of: Callable[[Output], Tensor]) -> Output:
        """Runs a batch forward and its loss backward; returns the output and leaves the gradients in the model's parameters."""
        with self._precision():
            output = self.run(batch)
        loss_of(output).backward()
        return output

    @torch.no_grad()
    def output(self, spikes: SpikeBatch) -> Output:
        output: Output = self.model(spikes)
        return output

    # ---- weights -----------------------------------------------------------------------------------------------

    def initialize(
        self,
        batches: Iterable[SpikeBatch],
        target: Mapping[str, float],
        *,
        tolerance: float,
        mean_shift: float,
        readout_std: float | None,
    ) -> dict[str, float]:
        reached = init_activity(
            self.model, batches, target, tolerance=tolerance, mean_shift=mean_shift, readout_std=readout_std
        )
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                if name in self.factors:
                    p.div_(self.factors[name])
        return reached

    def start(self) -> None:
        """Does nothing."""

    @contextlib.contextmanager
    def evaluated(self) -> Iterator[None]:
        if self.average is None and not self.factors:
            yield
            return
        parameters = dict(self.model.named_parameters())
        shown = evaluated_tensors(self.state(), self.factors)
        self._learning = {name: p.detach().clone() for name, p in parameters.items()}
        try:
            self._take({name: shown[f"model/{name}"] for name in parameters})
            yield
        finally:
            self._take(self._learning)
            self._learning = {}

    @torch.no_grad()
    def _take(self, values: Mapping[str, Tensor]) -> None:
        for name, p in self.model.named_parameters():
            p.copy_(values[name])

    def weights(self) -> dict[str, Tensor]:
        return named.model_tensors(self.model)

    def state(self) -> dict[str, Tensor]:
        return {
            **named.model_tensors(self.model),
            **{f"model/{name}": x.clone() for name, x in self._learning.items()},
            **named.optimizer_tensors(self.model, self.optimizer),
            **(self.average.tensors() if self.average is not None else {}),
        }

    def load_weights(self, tensors: Mapping[str, Tensor], where: str) -> None:
        named.restore_model(self.model, tensors, where)

    def load(self, tensors: Mapping[str, Tensor], where: str) -> None:
        named.restore_model(self.model, tensors, where)
        named.restore_optimizer(self.model, self.optimizer, tensors, self.training.updates.state_keys, where)
        if self.average is not None:
            self.average.load(tensors, where)

    @property
    def n_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def weights_sha256(self) -> str:
        return named.weights_sha256(self.model)
