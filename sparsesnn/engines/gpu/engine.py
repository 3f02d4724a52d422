"""The event-sparse engine on an NVIDIA GPU, in whole training steps, with the bits of the engine `cpu`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sparsesnn.adam import Adam, AdamW
from sparsesnn.engines import optimizers
from sparsesnn.engines.base import DEVICE_HELP, Batch, Training, weight_dtype
from sparsesnn.engines.gpu.choose import open_device
from sparsesnn.engines.gpu.device import Device
from sparsesnn.engines.gpu.layers import check_network
from sparsesnn.engines.gpu.learn import learn
from sparsesnn.engines.gpu.output import output_of
from sparsesnn.engines.gpu.program import Program
from sparsesnn.engines.gpu.runner import GpuRunner
from sparsesnn.engines.module import Model
from sparsesnn.engines.optimizers import make_optimizer
from sparsesnn.engines.runner import Runner
from sparsesnn.engines.sgd import SGD
from sparsesnn.engines.torch_engine import TorchEngine
from sparsesnn.host.comm import Grid
from sparsesnn.network import Network
from sparsesnn.options import option
from sparsesnn.output import Output
from sparsesnn.spikes import SpikeBatch


@dataclass(frozen=True)
class GpuOptions:
    """The engine's options."""

    device: str = option("cpu", DEVICE_HELP, flag="device", metavar="NAME")
    weight_dtype: str = weight_dtype("bfloat16")


class GpuEngine(TorchEngine):
    """Weights, their gradients and moments stay on the device; parameters of neurons and biases, which are few, are updated on the host.

    Attributes:
        model, optimizer: on the host, where the engine `cpu` runs the model to initialize it and for plots; their weights and moments are
            those of the device as of the last `weights` or `state`.
    """

    model: Model
    Options = GpuOptions
    options: GpuOptions
    runner: ClassVar[type[Runner] | None] = GpuRunner
    copies_weights = True
    on_host = "cpu"
    bits_of = "cpu"

    def __init__(self, name: str, network: Network, training: Training, grid: Grid) -> None:
        super().__init__(name, network, training, grid)
        self._device: Device | None = open_device(
            self.options.device
        )  # a device that is missing is reported before a run begins
        self._program: Program | None = None
        self._is_newer = False  # the device's weights
        self._scale = 1.0  # of gradients, by clipping

    @classmethod
    def check(cls, name: str, network: Network, training: Training) -> None:
        check_network(network, f"backend {name!r}")

    def _make_model(self) -> nn.Module:
        return Model(self.network, seed=self.training.seed, weight_dtype=self.options.weight_dtype)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        updates = self.training.updates
        return make_optimizer(self.model, updates, AdamW if updates.name == "adamw" else Adam, SGD)

    @property
    def program(self) -> Program:
        """The network on the device, made on first use."""
        if self._program is None:
            self._device = self._device or open_device(self.options.device)
            self._program = Program(self._device, self.network, self.model.layers._modules)
            if self.average is not None:
                self.average.elsewhere = frozenset(matrix.name for matrix in self._program.weights.learning)
            self._push()
        return self._program

    @property
    def _parameters(self) -> dict[str, Tensor]:
        return dict(self.model.named_parameters())

    # ---- batches ---------------------------------------------------------------------------------------------------

    def learn(self, batch: Batch, loss_of: Callable[[Output], Tensor]) -> Output:
        _, output = learn(self.program, *self._inputs(batch), loss_of, self.network.output)
        return output

    def _inputs(self, batch: Batch) -> tuple[Any, Any, Any]:
        """What a pass reads: the checked input, the numbers of the neurons, and its random choices."""
        program = self.program
        choices = program.choices(batch.heard, batch.spikes.n_samples, batch.first_sample)
        return program.check(batch.spikes), program.tensors(), choices

    def finish_backward(self) -> float:
        weights, own = self.program.weights, optimizers.gradients_of(self.model)
        by_name = {matrix.name: matrix for matrix in weights.learning}
        total = 0.0
        for name in self._parameters:  # in the order of the engine `cpu`
            if name in by_name:
                total += float(weights.squares(by_name[name]).sum())
            elif name in own:
                g = own[name]
                total += float(optimizers.squares_per_neuron(self.model, name, g).sum()) if g.ndim else float(g) ** 2
        norm = math.sqrt(total)
        self._scale = optimizers.clip(own.values(), norm, self.training.updates.clip_norm)
        return norm

    def _update(self) -> None:
        super()._update()
        average = self.average
        self.program.weights.update(
            self.optimizer.param_groups,
            self._parameters,
            updates=self.training.updates,
            scale=self._scale,
            decay=average.last_decay if average else None,
            begins=average is not None and average.n_steps == 1,
        )
        self._is_newer = True

    @torch.no_grad()
    def run(self, batch: Batch) -> Output:
        return output_of(self.program.forward(*self._inputs(batch), saves=False), self.network.output, learns=False)

    def output(self, spikes: SpikeBatch) -> Output:
        self._pull()
        return super().output(spikes)

    # ---- weights; the device may have newer ones ------------------------------------------------------------------

    def initialize(self, *arguments: Any, **settings: Any) -> dict[str, float]:
        self._pull()
        reached = super().initialize(*arguments, **settings)
        self._push()
        return reached

    @contextlib.contextmanager
    def evaluated(self) -> Iterator[None]:
        self._pull()
        with super().evaluated():
            yield

    def _take(self, values: Mapping[str, Tensor]) -> None:
        super()._take(values)
        if self._program is not None:
            self._program.changed()
            self._program.weights.put(self._parameters)

    def weights(self) -> dict[str, Tensor]:
        self._pull()
        return super().weights()

    def state(self) -> dict[str, Tensor]:
        self._pull()
        return super().state()

    def load_weights(self, tensors: Mapping[str, Tensor], where: str) -> None:
        self._pull()
        super().load_weights(tensors, where)
        self._push()

    def load(self, tensors: Mapping[str, Tensor], where: str) -> None:
        super().load(tensors, where)
        self._is_newer = False
        self._push()

    def weights_sha256(self) -> str:
        self._pull()
        return super().weights_sha256()

    def close(self) -> None:
        """Frees everything on the device; the engine opens it again when it is needed."""
        self._pull()
        if self._program is not None:
            self._program.close()
            self._program = self._device = None

    @torch.no_grad()
    def _pull(self) -> None:
        """Copies weights, moments and averages to the host, if the device has newer ones."""
        if self._program is None or not self._is_newer:
            return
        weights, parameters = self._program.weights, self._parameters
        for matrix in weights.learning:
            parameters[matrix.name].copy_(weights.get(matrix))
            if self.average is not None and "average" in matrix.at:
                self.average.values[matrix.name] = weights.get(matrix, "average")
        weights.save_optimizer(self.optimizer, parameters)
        self._is_newer = False

    def _push(self) -> None:
        """Copies the host's weights, moments and averages to the device."""
        if self._program is None:
            return
        self._program.changed()
        weights, parameters = self._program.weights, self._parameters
        weights.put(parameters)
        weights.load_optimizer(self.optimizer, parameters)
        if self.average is not None:
            weights.put_averages(self.average.values)
