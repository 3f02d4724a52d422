"""The IPU program: whole training steps on a Graphcore IPU, or on the emulated one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor, nn

from sparsesnn.engines.base import Batch, Options, Step, Training
from sparsesnn.engines.cpu.engine import CpuEngine
from sparsesnn.engines.module import Model
from sparsesnn.errors import ConfigError
from sparsesnn.host.comm import Grid
from sparsesnn.ipu import IpuProgram, Optimiser, Regulariser
from sparsesnn.ipu.backends import native_module
from sparsesnn.ipu.spec import check_network
from sparsesnn.layers import LI
from sparsesnn.network import Network
from sparsesnn.output import Output
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.target import parse_target
from sparsesnn.spikes import SpikeBatch
from sparsesnn.wording import powers_of_two_near

#: room in the input's lists beyond the longest one seen, so that few batches need another program
INPUT_ROOM = 1.25


class IpuEngine(CpuEngine):
    """Loss, gradients and optimizer on the device; weights and moments come to the host where a checkpoint needs them.

    The program is built with the first batch, for its number of steps and the longest of its lists. A batch that does
    not fit is given a new program; weights and moments move over. Lists of hidden populations hold every neuron unless
    a population has a `capacity`, so that a run means what it means on the CPU.

    Attributes:
        model, optimizer: of the engine `cpu`; they keep weights and moments while the device does not.
    """

    model: Model
    reads: ClassVar[Mapping[str, Sequence[Any] | None]] = {
        "weight_dtype": ("float32", "float16"),
        "target": None,
        "keep_every": None,
    }
    launcher = ""
    takes_shards = False
    makes_replicas = True
    on_host = "cpu"

    def __init__(self, name: str, network: Network, training: Training, grid: Grid) -> None:
        u, o = training.updates, training.objective
        self.optimiser = Optimiser(
            u.name, u.lr, u.weight_decay, u.momentum if u.name == "sgd" else 0.0, u.beta1, u.beta2, u.eps, u.clip_norm
        )
        self.regulariser = Regulariser(o.lower, o.upper, o.strength_lower, o.strength_upper)
        self.target = parse_target(training.options.target)
        self.program: IpuProgram | None = None
        self._device_is_newer = False
        super().__init__(name, network, training, grid)

    @classmethod
    def check_options(cls, options: Options, where: str) -> None:
        if parse_target(options.target).kind != "ipu":
            raise ConfigError(f"{where}target: is {options.target!r}; give an IPU, such as ipu-mk2:1x64 or ipu-mk2")

    @classmethod
    def check(cls, name: str, network: Network, training: Training) -> None:
        native_module(name)
        if near := powers_of_two_near(max(1, training.replicas)):
            raise ConfigError(
                f"parallel.replicas: is {training.replicas} with backend {name!r}; IPUs come in powers of two: give {near}"
            )
        check_network(network, training.decoding)
        if training.graded:
            raise ConfigError(
                f"data.duplicates: gives spikes values, but the lists of backend {name!r} say only who fired; give "
                "duplicates = 'binary', or take backend cpu or dense"
            )
        if training.dropout.heard < 1:
            raise ConfigError(
                f"dropout: is {training.dropout}, which backend {name!r} does not do; remove it, or take backend cpu or dense"
            )
        updates = training.updates
        for option in ("lr_factors", "weight_decays", "ema"):
            if getattr(updates, option):
                raise ConfigError(
                    f"optim.{option}: is {getattr(updates, option)!r}, which backend {name!r} does not do; remove it, or take "
                    "backend cpu or dense"
                )

    def _make_model(self) -> nn.Module:
        return Model(self.network, seed=self.training.seed)

    # ---- batches -----------------------------------------------------------------------------------------------

    def step(self, batch: Batch, lr: float) -> Step:
        program = self._program_for(batch.spikes)
        trained = program.train_step(batch.spikes, batch.labels, lr)
        self._device_is_newer = True
        output, loss = program.output(batch.spikes.n_samples), trained.loss
        if self.training.objective.regularizes:
            loss += float(self.training.objective.regularizer(output))
        self._check_finite("loss", loss, self.weights)
        self._check_finite("norm of the gradients", trained.gradient_norm, self.weights)
        return self._measured(output, trained.logits, batch.labels, loss, trained.gradient_norm)

    def run(self, batch: Batch) -> Output:
        """Potentials hold the decoded value alone, one step of it."""
        program = self._program_for(batch.spikes)
        logits = program.infer(batch.spikes)
        output = program.output(batch.spikes.n_samples)
        last = self.network.populations[self.network.output]
        if not isinstance(last, LI):
            return output
        return replace(output, potentials=logits.repeat_interleave(last.n // self.training.n_classes, 1)[None])

    def output(self, spikes: SpikeBatch) -> Output:
        self._pull()
        return super().output(spikes)

    # ---- weights, which the device may have newer ones of -------------------------------------------------------

    def initialize(
        self,
        batches: Iterable[SpikeBatch],
        target: Mapping[str, float],
        *,
        tolerance: float,
        mean_shift: float,
        readout_std: float | None,
    ) -> dict[str, float]:
        self._pull()
        reached = super().initialize(
            batches, target, tolerance=tolerance, mean_shift=mean_shift, readout_std=readout_std
        )
        self._push()
        return reached

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
        self._pull()
        super().load(tensors, where)
        self._push()

    def weights_sha256(self) -> str:
        self._pull()
        return super().weights_sha256()

    def _pull(self) -> None:
        """Weights and moments to the host, if the device has newer ones."""
        if self.program is not None and self._device_is_newer:
            self.program.save(self.optimizer)
            self._device_is_newer = False

    def _push(self) -> None:
        """The host's weights and moments to the device."""
        if self.program is not None:
            self.program.load(self.optimizer)

    def _program_for(self, spikes: SpikeBatch) -> IpuProgram:
        spikes.validate()  # a program is built for its longest list
        longest = int(spikes.n_listed.max()) if spikes.n_listed.numel() else 0
        source = self.network.inputs[0]
        if self.program is not None:
            plan = self.program.plan
            if plan.n_steps == spikes.n_steps and longest <= plan.populations[source].capacity:
                return self.program
            longest = max(longest, plan.populations[source].capacity)
            self._pull()
        capacity: Mapping[str, int] = {source: min(spikes.n_neurons, max(1, math.ceil(INPUT_ROOM * longest)))}
        training, options = self.training, self.training.options
        replicas = max(1, training.replicas)
        plan = make_plan(
            self.network,
            -(-training.batch // replicas),
            spikes.n_steps,
            self.target,
            max_activity=1.0,
            capacity=capacity,
            optimizer="sgd" if self.optimiser.kind == "sgd" else "adam",
            weight_dtype="half" if options.weight_dtype == "float16" else "float32",
            replicas=replicas,
            regularises=self.regulariser.bounds,
            keep_every=options.keep_every,
        )
        self.program = IpuProgram(
            plan,
            self.model,
            self.optimiser,
            decoding=training.decoding,
            n_classes=training.n_classes,
            backend=self.name,
            label_smoothing=training.objective.label_smoothing,
            regulariser=self.regulariser,
        )
        self.program.load(self.optimizer)
        return self.program
