"""Training runs on the IPU program: whole steps on the device, weights on the host where a checkpoint needs them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sparsesnn.ipu import IpuProgram, Optimiser, Regulariser
from sparsesnn.layers import LI
from sparsesnn.loss import activity_regulariser
from sparsesnn.module import Model, Output
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.target import parse_target
from sparsesnn.spikes import SpikeBatch

if TYPE_CHECKING:
    from sparsesnn.train.config import Config

#: room in the input's lists beyond the longest one seen, so that few batches need another program
INPUT_ROOM = 1.25


class IpuTrainer:
    """Runs a training run's batches on the device.

    The program is built with the first batch, for its number of steps and the longest of its lists. A batch that does
    not fit is given a new program; weights and moments move over. Lists of hidden populations hold every neuron unless
    a population has a `capacity`, so that a run means what it means on the CPU.

    Args:
        config: of the run; `train.target` names the machine of a replica, `parallel.replicas` says how many share the batch.
        model, optimizer: keep weights and moments while the device does not.
        decoding, n_classes: of the readout.

    Errors: `ConfigError` for what the device does not do; those of `IpuProgram` when the program is built.
    """

    def __init__(
        self, config: Config, model: Model, optimizer: torch.optim.Optimizer, decoding: str, n_classes: int
    ) -> None:
        o = config.optim
        self.config, self.model, self.optimizer = config, model, optimizer
        self.decoding, self.n_classes = decoding, n_classes
        self.optimiser = Optimiser(
            o.name, o.lr, o.weight_decay, o.momentum if o.name == "sgd" else 0.0, o.beta1, o.beta2, o.eps, o.clip_norm
        )
        self.target = parse_target(config.train.target)
        self.program: IpuProgram | None = None
        self._device_is_newer = False

    def step(self, spikes: SpikeBatch, labels: Tensor, lr: float) -> tuple[Output, Tensor, float, float]:
        """One training step: its output, logits, loss and gradient norm."""
        program = self._program_for(spikes)
        trained = program.train_step(spikes, labels, lr)
        self._device_is_newer = True
        output, loss, c = program.output(spikes.n_samples), trained.loss, self.config.loss
        if c.lower or c.upper:
            loss += float(
                activity_regulariser(
                    output,
                    lower=c.lower or None,
                    upper=c.upper or None,
                    strength_lower=c.strength_lower,
                    strength_upper=c.strength_upper,
                )
            )
        return output, trained.logits, loss, trained.gradient_norm

    def __call__(self, spikes: SpikeBatch) -> Output:
        """Inference, as a model's output; potentials hold the decoded value alone, one step of it."""
        program = self._program_for(spikes)
        logits = program.infer(spikes)
        output = program.output(spikes.n_samples)
        network = self.model.network
        last = network.populations[network.output]
        if not isinstance(last, LI):
            return output
        return replace(output, potentials=logits.repeat_interleave(last.n // self.n_classes, 1)[None])

    def pull(self) -> None:
        """Weights and moments to the host, if the device has newer ones."""
        if self.program is not None and self._device_is_newer:
            self.program.save(self.optimizer)
            self._device_is_newer = False

    def push(self) -> None:
        """The host's weights to the device."""
        self._device_is_newer = False
        if self.program is not None:
            self.program.load(self.optimizer)

    def _program_for(self, spikes: SpikeBatch) -> IpuProgram:
        longest = int(spikes.n_listed.max()) if spikes.n_listed.numel() else 0
        source = self.model.network.inputs[0]
        if self.program is not None:
            plan = self.program.plan
            if plan.n_steps == spikes.n_steps and longest <= plan.populations[source].capacity:
                return self.program
            longest = max(longest, plan.populations[source].capacity)
            self.pull()
        capacity: Mapping[str, int] = {source: min(spikes.n_neurons, max(1, math.ceil(INPUT_ROOM * longest)))}
        c, replicas = self.config.loss, max(1, self.config.parallel.replicas)
        regulariser = Regulariser(c.lower, c.upper, c.strength_lower, c.strength_upper)
        plan = make_plan(
            self.model.network,
            -(-self.config.train.batch // replicas),
            spikes.n_steps,
            self.target,
            max_activity=1.0,
            capacity=capacity,
            optimizer="sgd" if self.optimiser.kind == "sgd" else "adam",
            weight_dtype="half" if self.config.train.weight_dtype == "float16" else "float32",
            replicas=replicas,
            regularises=regulariser.bounds,
            keep_every=self.config.train.keep_every,
        )
        self.program = IpuProgram(
            plan,
            self.model,
            self.optimiser,
            decoding=self.decoding,
            n_classes=self.n_classes,
            backend=self.config.train.backend,
            label_smoothing=self.config.loss.label_smoothing,
            regulariser=regulariser,
        )
        self.program.load(self.optimizer)
        return self.program
