"""What an engine is: it runs one network on one kind of machine, in whole training steps.

The trainer, evaluation, initialization, metrics and checkpoints hold one `Engine` and never ask which one it is.
`sparsesnn.engines` has the table from names to engines.
"""

from __future__ import annotations

import contextlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from sparsesnn.engines.dropout import Dropout, Heard
from sparsesnn.engines.objective import Objective, gather
from sparsesnn.engines.optimizers import Updates
from sparsesnn.engines.registry import options_for
from sparsesnn.engines.runner import Runner
from sparsesnn.engines.tensors import first_not_finite
from sparsesnn.errors import NotFiniteError
from sparsesnn.host.comm import Communicator, Grid
from sparsesnn.init import Recurrence
from sparsesnn.loss import decode
from sparsesnn.network import Network
from sparsesnn.options import option
from sparsesnn.output import Output
from sparsesnn.spikes import SpikeBatch


def weight_dtype(*others: str) -> Any:
    """The option of engines that read weights rounded; `others`: the types that this one reads in addition to float32."""
    return option(
        "float32",
        "how weights are read; those that learn stay float32. bfloat16 (cpu) or float16 (IPU): rounded, half the bytes. int8, int4 (cpu, "
        "dense): rounded to integers times a scale per receiving neuron",
        choices=("float32", *others),
    )


@dataclass(frozen=True)
class NoOptions:
    """Of an engine that reads none."""


@dataclass(frozen=True)
class Training:
    """What a run asks of an engine in addition to the network.

    Args:
        n_classes: C.
        decoding: of the readout, see `sparsesnn.loss.decode`.
        batch: samples per step, of all replicas together.
        seed: of the initial weights.
        objective: the loss.
        updates: the optimizer.
        options: of single engines, by name; those that are missing are defaults.
        replicas: of an engine that makes its replicas itself; 0: one.
        recurrence: how recurrent weights are drawn.
        dropout: of spikes, in training; `Batch.heard` draws them.
        graded: whether the spikes of the data have values.
        measures_capacity: whether an engine whose lists need a size may measure it, where a population has no capacity.
    """

    n_classes: int
    decoding: str
    batch: int = 1
    seed: int = 0
    objective: Objective = field(default_factory=Objective)
    updates: Updates = field(default_factory=Updates)
    options: Mapping[str, Any] = field(default_factory=dict)
    replicas: int = 0
    dropout: Dropout = field(default_factory=Dropout)
    recurrence: Recurrence = field(default_factory=Recurrence)
    graded: bool = False
    measures_capacity: bool = False


@dataclass(frozen=True)
class Batch:
    """This replica's part of a batch.

    Args:
        spikes: T steps of B samples.
        labels: int64[B], or float32[B, C], the share of each class in a mixed sample.
        first_sample: samples of the batch that other replicas run before these.
        n_samples: of the whole batch; None: these are all.
        heard: which spikes dropout leaves; None: all.
    """

    spikes: SpikeBatch
    labels: Tensor
    first_sample: int = 0
    n_samples: int | None = None
    heard: Heard | None = None

    @property
    def n_whole(self) -> int:
        """Samples of the whole batch."""
        return len(self.labels) if self.n_samples is None else self.n_samples


@dataclass(frozen=True)
class Step:
    """What a batch gave; of the whole batch, whichever replicas ran its samples.

    Args:
        loss: mean over the samples.
        n_samples, n_correct: samples seen, and classified right (as the class of the largest share).
        activity: spikes per neuron and time step, per spiking population.
        dropped: candidates that found no slot, per spiking population.
        gradient_norm: of all gradients together before clipping; 0 without training.
        note: what changes from the next training step on, for the log; "": nothing.
        warning: what the user should know about this step; "": nothing.
    """

    loss: float
    n_samples: int
    n_correct: int
    activity: Mapping[str, float]
    dropped: Mapping[str, int]
    gradient_norm: float = 0.0
    note: str = ""
    warning: str = ""


class Engine(ABC):
    """One network on one kind of machine.

    Args:
        name: of the engine, one of `sparsesnn.engines.names()`.
        network: the description.
        training: what the run asks for.
        grid: the ranks, as replicas × shards. Every rank makes an engine, and calls its methods together with the others.

    Attributes:
        options: of this engine, an instance of `Options`.
        model: the network as a `torch.nn.Module` of this process, with this rank's weights as of the last `weights`.

    Errors: `ConfigError` or `DescriptionError` for what the engine does not support, before anything runs.
    """

    model: Any

    #: the options that this engine reads, a frozen dataclass of `sparsesnn.options.option`; engines that share an option give it the same
    #: name, type and default, and each the values that it takes as choices
    Options: ClassVar[type] = NoOptions
    #: those that a run reads only while it trains: where it is evaluated, they are defaults
    only_trains: ClassVar[Sequence[str]] = ()
    #: what runs layers for `Model` and `Layer`; None: the engine runs whole networks alone
    runner: ClassVar[type[Runner] | None] = None
    #: what can start its ranks; none: it runs on one rank (`launchers_of` says it by the engine's name)
    launchers: ClassVar[Sequence[str]] = ()
    #: whether ranks can share the neurons of a replica
    takes_shards: ClassVar[bool] = False
    #: whether its replicas are copies that it makes itself, not ranks; their number then changes the last bits of weights
    makes_replicas: ClassVar[bool] = False
    #: whether `_core.phase_seconds` says where its time goes
    counts_phases: ClassVar[bool] = False
    #: the engine that runs its networks layer by layer on this machine, for `load_run`; "": itself
    on_host: ClassVar[str] = ""

    def __init__(self, name: str, network: Network, training: Training, grid: Grid) -> None:
        self.check(name, network, training)
        self.name, self.network, self.training, self.grid = name, network, training, grid
        self.options = self.Options(**options_for(name, training.options))

    # ---- what it supports --------------------------------------------------------------------------------------

    @classmethod
    def check_options(cls, options: Any, place: str) -> None:
        """`ConfigError` for a value that its choices let pass.

        Args:
            options: an instance of `Options`.
            place: for the message, with {} where the option's name goes.
        """
        return

    @classmethod
    @abstractmethod
    def check(cls, name: str, network: Network, training: Training) -> None:
        """`ConfigError` or `DescriptionError` that names the part of the network or the setting that is not supported."""

    @classmethod
    def uses_torch_threads(cls, options: Any) -> bool:
        """Whether PyTorch does the bulk of the work; else it runs on one thread, next to those of the engine."""
        return False

    @classmethod
    def launchers_of(cls, name: str) -> Sequence[str]:
        """What can start ranks of the engine of this name."""
        return cls.launchers

    @classmethod
    def samples_of_rank(cls, batch: int, n_ranks: int) -> int:
        """Samples of a whole batch that each of `n_ranks` replicas takes, as many as there are; 0: groups, dealt out evenly."""
        return 0

    # ---- batches -----------------------------------------------------------------------------------------------

    @abstractmethod
    def step(self, batch: Batch, lr: float) -> Step:
        """One training step.

        Errors: `NotFiniteError` where the loss or the norm of the gradients is not finite; nothing is changed then, except
        on an IPU, which has made the step already.
        """

    @torch.no_grad()
    def infer(self, batch: Batch, seen: Callable[[Output, Tensor], None] | None = None) -> Step:
        """The same without learning; the loss is the plain cross-entropy, and may be not finite.

        Args:
            seen: called with the output and the logits [B, C] of this replica's samples.
        """
        output, logits = self.run_decoded(batch)
        if seen is not None:
            seen(output, logits)
        losses = gather(
            self.grid.replicas, functional.cross_entropy(logits, batch.labels.to(logits.device), reduction="none")
        )
        return self._measured(output, logits, batch.labels, float(losses.sum() / len(losses)))

    def run_decoded(self, batch: Batch) -> tuple[Output, Tensor]:
        """`run`, and the logits [B, C] of this replica's samples."""
        output = self.run(batch)
        return output, decode(output, self.training.decoding, self.training.n_classes)

    @abstractmethod
    def run(self, batch: Batch) -> Output:
        """What the network puts out for this replica's samples: enough for `sparsesnn.loss.decode`."""

    @abstractmethod
    def output(self, spikes: SpikeBatch) -> Output:
        """Everything that the network puts out for samples that all ranks have, without gradient: for pictures."""

    def _totals(self, output: Output, n: int, n_correct: int) -> tuple[int, int, dict[str, float], dict[str, int]]:
        """Over all replicas: samples, samples classified right, activity and dropped of every spiking population."""
        return n, n_correct, output.activity(), output.dropped()

    def _measured(self, output: Output, logits: Tensor, labels: Tensor, loss: float, norm: float = 0.0) -> Step:
        """Of the whole batch, from this replica's output and labels."""
        n = len(labels)
        classes = (labels if labels.ndim == 1 else labels.argmax(1)).to(logits.device)
        n_correct = int((logits.detach().argmax(1) == classes).sum()) if n else 0
        return Step(loss, *self._totals(output, n, n_correct), gradient_norm=norm)

    # ---- weights -----------------------------------------------------------------------------------------------

    @abstractmethod
    def initialize(
        self,
        batches: Iterable[SpikeBatch],
        target: Mapping[str, float],
        *,
        tolerance: float,
        mean_shift: float,
        readout_std: float | None,
    ) -> dict[str, float]:
        """Scales the initial weights on data that all ranks have; see `sparsesnn.init.init_activity`."""

    def prepare(self, batches: Iterable[SpikeBatch]) -> str:
        """Called once before a new run, with its first batches. Returns a line for the log; "": nothing to report."""
        return ""

    def machine(self) -> Mapping[str, Any]:
        """Facts of the machine at the end of a run, for `result.json`."""
        return {}

    @abstractmethod
    def start(self) -> None:
        """Called once, after the weights are there and before the first batch."""

    def evaluated(self) -> contextlib.AbstractContextManager[None]:
        """While it holds, the model has the weights that are evaluated: those it learns, or their moving average."""
        return contextlib.nullcontext()

    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """`model/<name>` → parameter or buffer, of the neurons of this rank; copies."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """`weights`, and `optim/<parameter>/<key>` → state of the optimizer: all that a checkpoint needs."""

    @abstractmethod
    def load_weights(self, tensors: Mapping[str, Tensor], where: str) -> None:
        """Takes the `model/<name>` tensors; `CheckpointError`, which names `where`, if they are not the network's."""

    @abstractmethod
    def load(self, tensors: Mapping[str, Tensor], where: str) -> None:
        """`load_weights`, and the same for the state of the optimizer."""

    # ---- finite numbers ----------------------------------------------------------------------------------------

    def check_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Looks whether what `weights` or `state` gave may become a checkpoint.

        Errors: `NotFiniteError` on all ranks, which names the first tensor with NaN. Infinity is fine only in what does not
        learn, such as a threshold of the lists.
        """
        if found := self._not_finite_of_any_rank(tensors):
            raise NotFiniteError(*found)

    def _check_finite(self, what: str, value: float, suspects: Callable[[], Mapping[str, Tensor]]) -> None:
        """`NotFiniteError` for a number that is NaN or infinite on all ranks; names the first of the suspects that is."""
        if math.isfinite(value):
            return
        found = self._not_finite_of_any_rank(suspects())
        raise NotFiniteError(what, value, f" ({found[0]} holds {found[1]})" if found else "")

    def _not_finite_of_any_rank(self, tensors: Mapping[str, Tensor]) -> tuple[str, float] | None:
        learns = {f"model/{name}" for name, _ in self.model.named_parameters()}
        constant = {name for name in tensors if name.startswith("model/") and name not in learns}
        found = first_not_finite(tensors, constant)
        if self.grid.world.size > 1:
            texts = self.grid.world.all_texts("" if found is None else json.dumps([found[0], str(found[1])]))
            named = [json.loads(text) for text in texts if text]
            found = (named[0][0], float(named[0][1])) if named else None
        return found

    @property
    def columns(self) -> Mapping[str, tuple[int, int]] | None:
        """Per population first and last + 1 of the neurons whose columns this rank holds; None: all of all populations."""
        return None

    @property
    @abstractmethod
    def n_parameters(self) -> int:
        """Trained numbers of the whole network."""

    @abstractmethod
    def weights_sha256(self) -> str:
        """SHA-256 over name, dtype, shape and bytes of every parameter and buffer of the whole network."""


def totals_over(
    replicas: Communicator, counts: Mapping[str, tuple[int, int]], places: Mapping[str, int], n: int, n_correct: int
) -> tuple[int, int, dict[str, float], dict[str, int]]:
    """`Engine._totals` over the ranks of `replicas`.

    Args:
        counts: spikes and dropped candidates of this rank's samples, by population.
        places: T·N of each of them.
    """
    fired, dropped = ([pair[k] for pair in counts.values()] for k in (0, 1))
    sums = replicas.sum_counts([n, n_correct, *fired, *dropped])
    n, all_fired, all_dropped = sums[0], sums[2 : 2 + len(counts)], sums[2 + len(counts) :]
    activity = {name: float(total) / max(1, places[name] * n) for name, total in zip(counts, all_fired, strict=True)}
    return n, sums[1], activity, dict(zip(counts, all_dropped, strict=True))
