"""The engine for IPUs: whole training steps on a Graphcore IPU, or on an emulated one."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsesnn.adam import Adam, AdamW
from sparsesnn.engines.base import Batch, Step, Training, totals_over, weight_dtype
from sparsesnn.engines.module import Model
from sparsesnn.engines.objective import gather, sum_whole
from sparsesnn.engines.optimizers import make_optimizer
from sparsesnn.engines.torch_engine import TorchEngine
from sparsesnn.errors import ConfigError
from sparsesnn.host.comm import Grid
from sparsesnn.host.comm.environment import find_replicas
from sparsesnn.ipu import IpuProgram, Optimizer, Regularizer
from sparsesnn.ipu.backends import MACHINES, native_module
from sparsesnn.ipu.cycles import Cycles, compare_cycles
from sparsesnn.ipu.instance import Instance, find_instance
from sparsesnn.ipu.planned import ipu_target, make_program, slots_for
from sparsesnn.ipu.spec import check_network
from sparsesnn.layers import fires, is_readout
from sparsesnn.network import Network
from sparsesnn.options import option
from sparsesnn.output import Output
from sparsesnn.spikes import SpikeBatch
from sparsesnn.synapses.one_to_one import check_no_currents
from sparsesnn.wording import count

#: slots of an input list, as a multiple of the longest seen, so that few batches need another program
INPUT_ROOM = 1.25
#: slots of any other list, as a multiple of the longest in the first batches: activity changes as a network learns
LIST_ROOM = 2.0
#: name of the measured capacities in a checkpoint
_CAPACITY = "ipu/capacity"


@dataclass(frozen=True)
class IpuOptions:
    """The engine's options."""

    weight_dtype: str = weight_dtype("float16")
    target: str = option(
        "ipu-mk2:1x64",
        "for ipu and ipu-model: the machine of one copy of the network, such as ipu-mk2 (one IPU) or ipu-mk2:1x64 (64 tiles of it)",
        flag="target",
        metavar="MACHINE",
    )
    keep_every: int = option(
        1,
        "IPU: keep the potentials of this many steps at a time and recompute the others: less memory per tile, more cycles, "
        "the same numbers; about the square root of the number of steps needs the least memory",
        low=1,
        high=1_000_000,
        free=True,
    )


class IpuEngine(TorchEngine):
    """Runs loss, gradients and optimizer on the device; weights and moments are copied to the host when needed, as for a checkpoint.

    The program is built at the first batch, for its number of steps and its longest list. For a batch that does not fit, a new
    program is built, and weights and moments move to it. Lists of populations without a `capacity` have `LIST_ROOM` times as many
    slots as the longest list of the first batches, or one per neuron with `net.capacity = 0`. As long as lists fit, nothing is
    dropped and a run has the same meaning as on the CPU; the first dropped spike is reported.

    Attributes:
        model, optimizer: on the host, where the engine `on_host` runs the model; they hold weights and moments while the device does not.
        capacity: the slots of populations whose lists were measured.
        cycles: the cycles of the first training step, on the emulated machine.
    """

    model: Model
    Options = IpuOptions
    options: IpuOptions
    launchers = ("poprun",)
    makes_replicas = True
    on_host = "cpu"

    def __init__(self, name: str, network: Network, training: Training, grid: Grid) -> None:
        u, o = training.updates, training.objective
        self.updates = Optimizer(
            u.name, u.lr, u.weight_decay, u.momentum if u.name == "sgd" else 0.0, u.beta1, u.beta2, u.eps, u.clip_norm
        )
        self.regularizer = Regularizer(o.lower, o.upper, o.strength_lower, o.strength_upper)
        self.program: IpuProgram | None = None
        self.capacity: dict[str, int] = {}
        self._device_is_newer = False
        self.cycles: Cycles | None = None
        self._reported_drops = False
        super().__init__(name, network, training, grid)

    @classmethod
    def check_options(cls, options: IpuOptions, place: str) -> None:
        ipu_target(options.target, place)

    @classmethod
    def check(cls, name: str, network: Network, training: Training) -> None:
        check_no_currents(network, f"backend {name!r}")
        native_module(name)
        if not training.task.is_plain:
            raise ConfigError(
                f"backend {name!r} trains a class per sample, but the task of this data is: {training.task}; use backend cpu or dense"
            )
        check_network(network, training.decoding)
        if training.class_weights is not None:
            raise ConfigError(
                f"loss.class_weights: is 'balanced', which backend {name!r} does not support; set it to 'none', or use backend cpu or dense"
            )
        if training.graded:
            raise ConfigError(
                f"data.duplicates, or data.encoding: gives spikes values, but the lists of backend {name!r} hold only ids; give "
                "duplicates = 'binary' or encoding = 'latency', or use backend cpu or dense"
            )
        if training.dropout.heard < 1:
            raise ConfigError(
                f"dropout: is {training.dropout}, which backend {name!r} does not support; remove it, or use backend cpu or dense"
            )
        updates = training.updates
        for what in ("lr_factors", "weight_decays", "ema"):
            if getattr(updates, what):
                raise ConfigError(
                    f"optim.{what}: is {getattr(updates, what)!r}, which backend {name!r} does not support; remove it, or use "
                    "backend cpu or dense"
                )

    def _make_model(self) -> nn.Module:
        self.target = ipu_target(self.options.target)
        self.instance = find_instance(self.name, self.target, self.training.replicas)
        return Model(self.network, backend=self.on_host, seed=self.training.seed)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        updates = self.training.updates
        return make_optimizer(self.model, updates, AdamW if updates.name == "adamw" else Adam)

    # ---- capacities ----------------------------------------------------------------------------------------------

    def _measured_populations(self) -> list[str]:
        """The populations whose lists get a measured capacity."""
        if not self.training.measures_capacity:
            return []
        return [
            name
            for name, p in self.network.populations.items()
            if fires(p) and p.capacity is None and p.listed_above != -math.inf
        ]

    def prepare(self, batches: Iterable[SpikeBatch]) -> str:
        """Measures the lengths of lists, and gives each `LIST_ROOM` times as many slots."""
        names = self._measured_populations()
        if not names:
            return ""
        longest = [0] * len(names)
        model = copy.deepcopy(self.model)  # a copy, so that its training steps are not counted
        n_batches = 0
        for spikes in batches:
            n_batches += 1
            with torch.enable_grad():  # near-spikes are listed only if gradients are needed
                lists: Mapping[str, Any] = model(spikes).spikes
            longest = [max(k, _longest(lists[name])) for k, name in zip(longest, names, strict=True)]
        for name, k in zip(names, self._of_all_instances(longest), strict=True):
            self.capacity[name] = slots_for(k, self.network.populations[name].n, LIST_ROOM)
        given = ", ".join(f"{name} {k:,} of {self.network.populations[name].n:,}" for name, k in self.capacity.items())
        return (
            f"{given} slots: {LIST_ROOM:g} times the longest list of {count(n_batches, 'batch')}; "
            "change with --set net.capacity=K (0: all neurons)"
        )

    def _of_all_instances(self, lengths: list[int]) -> list[int]:
        """The maximum of each length over all instances, which build the same program."""
        replicas = self.grid.replicas
        if replicas.size == 1:
            return lengths
        return [max(column) for column in zip(*replicas.all_gather(np.array(lengths, np.int64)), strict=True)]

    def _drop_warning(self, dropped: Mapping[str, int]) -> str:
        """The warning for the first time that measured lists drop spikes; "": none."""
        full = [name for name in self.capacity if dropped.get(name)]
        if not full or self._reported_drops:
            return ""
        self._reported_drops = True
        slots = ", ".join(f"{name} {dropped[name]:,} ({self.capacity[name]:,} slots)" for name in full)
        return (
            f"spikes or near-spikes that did not fit into their list were dropped: {slots}; activity has risen since the "
            "lists were measured: give --set net.capacity=K with more slots, or 0 for all neurons"
        )

    # ---- batches -----------------------------------------------------------------------------------------------

    def step(self, batch: Batch, lr: float) -> Step:
        program, replicas = self._program_for(batch.spikes), self.grid.replicas
        if emulated := MACHINES[self.name].emulated and self.cycles is None:
            program.reset_counts()
        trained = program.train_step(batch.spikes, batch.labels, lr, n_samples=batch.n_whole)
        self._device_is_newer = True
        output = program.output(batch.spikes.n_samples)
        # over the samples of all instances
        loss = trained.loss if replicas.size == 1 else float(gather(replicas, trained.losses).sum() / batch.n_whole)
        if self.training.objective.regularizes:
            loss += float(
                self.training.objective.regularizer(
                    output, n_samples=batch.n_whole, over_batch=partial(sum_whole, replicas)
                )
            )
        self._check_finite("loss", loss, self.weights)
        self._check_finite("norm of the gradients", trained.gradient_norm, self.weights)
        step = self._measured(output, trained.logits, batch, batch.n_whole, loss, trained.gradient_norm)
        if emulated:  # one step of a run is enough, because all are alike
            self.cycles = compare_cycles(program, batch.spikes)
            step = replace(step, note=self.cycles.text())
        return replace(step, warning=self._drop_warning(step.dropped))

    def run_decoded(self, batch: Batch) -> tuple[Output, Tensor]:
        """The output's potentials hold only the decoded values, as a single step."""
        program = self._program_for(batch.spikes)
        logits = program.infer(batch.spikes)
        output = program.output(batch.spikes.n_samples)
        last = self.network.populations[self.network.output]
        if is_readout(last):
            per_class = last.n // self.training.n_classes
            output = replace(output, potentials=logits.repeat_interleave(per_class, 1)[None])
        return output, logits

    def run(self, batch: Batch) -> Output:
        return self.run_decoded(batch)[0]

    def _totals(self, output: Output, counts: Sequence[int]) -> tuple[list[int], dict[str, float], dict[str, int]]:
        if self.grid.replicas.size == 1:
            return super()._totals(output, counts)
        assert self.program is not None
        fired, n_steps = self.program.counts(counts[0]), self.program.plan.n_steps
        places = {name: n_steps * self.network.populations[name].n for name in fired}
        return totals_over(self.grid.replicas, counts, fired, places)

    @classmethod
    def launchers_of(cls, name: str) -> Sequence[str]:
        return cls.launchers if MACHINES[name].poprun else ()  # sums over processes are not emulated

    @classmethod
    def samples_of_rank(cls, batch: int, n_ranks: int) -> int:
        replicas = find_replicas(os.environ)
        if n_ranks == 1 or replicas is None:
            return 0
        return Instance(replicas.total, replicas.own).samples(batch)

    def output(self, spikes: SpikeBatch) -> Output:
        self._pull()
        return super().output(spikes)

    def machine(self) -> Mapping[str, Any]:
        return {"lists": dict(self.capacity), **(self.cycles.to_dict() if self.cycles else {})}

    # ---- weights; the device may have newer ones ---------------------------------------------------------------

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
        capacity = [self.capacity.get(name, 0) for name in self.network.populations]
        return {**super().state(), **({_CAPACITY: torch.tensor(capacity)} if self.capacity else {})}

    def load_weights(self, tensors: Mapping[str, Tensor], where: str) -> None:
        self._pull()
        super().load_weights(tensors, where)
        self._push()

    def load(self, tensors: Mapping[str, Tensor], where: str) -> None:
        self._pull()
        super().load(tensors, where)
        slots = tensors.get(_CAPACITY)
        if slots is not None:  # the same plan, and so the same bits, as before
            by_name = zip(self.network.populations, slots.tolist(), strict=True)
            self.capacity = {name: k for name, k in by_name if k}
        self._push()

    def weights_sha256(self) -> str:
        self._pull()
        return super().weights_sha256()

    def _pull(self) -> None:
        """Copies weights and moments to the host, if the device has newer ones."""
        if self.program is not None and self._device_is_newer:
            self.program.save(self.optimizer)
            self._device_is_newer = False

    def _push(self) -> None:
        """Copies the host's weights and moments to the device."""
        if self.program is not None:
            self.program.load(self.optimizer)

    def _program_for(self, spikes: SpikeBatch) -> IpuProgram:
        spikes.validate()  # a program is built for its longest list
        if not self.capacity:
            self.prepare([spikes])
        (longest,) = self._of_all_instances([_longest(spikes)])
        source = self.network.inputs[0]
        if self.program is not None:
            plan = self.program.plan
            if plan.n_steps == spikes.n_steps and longest <= plan.populations[source].capacity:
                return self.program
            longest = max(longest, plan.populations[source].capacity)
            self._pull()
            self.program = None  # frees its device, which the next program may need
        capacity = {**self.capacity, source: min(spikes.n_neurons, max(1, math.ceil(INPUT_ROOM * longest)))}
        training = self.training
        self.program = make_program(
            self.model,
            self.target,
            self.updates,
            machine=self.name,
            batch=training.batch,
            n_steps=spikes.n_steps,
            capacity=capacity,
            half_weights=self.options.weight_dtype == "float16",
            keep_every=self.options.keep_every,
            decoding=training.decoding,
            n_classes=training.n_classes,
            label_smoothing=training.objective.label_smoothing,
            regularizer=self.regularizer,
            instance=self.instance,
        )
        self.program.load(self.optimizer)
        return self.program


def _longest(lists: SpikeBatch) -> int:
    return int(lists.n_listed.max()) if lists.n_listed.numel() else 0
