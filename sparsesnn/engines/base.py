"""The interface of an engine, which runs one network on one kind of machine, in whole training steps.

The trainer, evaluation, initialization, metrics and checkpoints hold an `Engine` and never ask which one it is.
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

from sparsesnn.decoding import decode
from sparsesnn.engines.dropout import Dropout, Heard
from sparsesnn.engines.objective import Criterion, Objective, gather, gather_rows
from sparsesnn.engines.optimizers import Updates
from sparsesnn.engines.registry import options_for
from sparsesnn.engines.runner import Runner
from sparsesnn.engines.tensors import first_not_finite
from sparsesnn.errors import NotFiniteError
from sparsesnn.host.comm import Communicator, Grid
from sparsesnn.init import Recurrence
from sparsesnn.loss import CrossEntropy, RegressionLoss
from sparsesnn.network import Network
from sparsesnn.options import option
from sparsesnn.output import Output
from sparsesnn.spikes import SpikeBatch
from sparsesnn.task import PLAIN, Task
from sparsesnn.value_errors import ValueErrors, sums_of_samples


def weight_dtype(*others: str) -> Any:
    """The option of engines that can round weights when reading them; `others`: the types allowed besides float32."""
    return option(
        "float32",
        "type in which the engine reads weights; the trained weights stay float32. bfloat16 (cpu, gpu) or float16 (IPU): rounded, half the bytes. int8, int4 "
        "(cpu, dense): rounded to integers times a scale per receiving neuron",
        choices=("float32", *others),
    )


#: help of the option `device`
DEVICE_HELP = "device of the backend: cpu, cuda, cuda:0, … for dense; cuda, cuda:0, … for gpu (default: the first GPU)"


@dataclass(frozen=True)
class NoOptions:
    """The options of an engine that has none."""


@dataclass(frozen=True)
class Training:
    """The settings that a run gives an engine, besides the network.

    Args:
        n_classes: C; K for a task with values.
        decoding: decoding of the readout, see `sparsesnn.decoding.decode`.
        task: the kind of labels.
        class_weights: [C], weights of the classes in the loss of training; None: equal.
        batch: samples per step, over all replicas.
        seed: seed of the initial weights.
        objective: the loss.
        updates: the optimizer.
        options: engine options by name; missing ones take their defaults.
        replicas: number of replicas, for an engine that makes them itself; 0: one.
        recurrence: how recurrent weights are drawn.
        dropout: dropout of spikes in training; `Batch.heard` draws it.
        graded: whether the spikes of the data have values.
        measures_capacity: whether an engine with lists of fixed size may measure the size, for populations without a capacity.
    """

    n_classes: int
    decoding: str
    task: Task = PLAIN
    class_weights: Sequence[float] | None = None
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
        labels: int64[B], or float32[B, C], the share of each class in a mixed sample; for other tasks see `sparsesnn.task.Task`.
        first_sample: number of samples of the batch that come before these, on other replicas.
        n_samples: size of the whole batch; None: these samples are all of it.
        heard: selects the spikes that dropout keeps; None: all.
    """

    spikes: SpikeBatch
    labels: Tensor
    first_sample: int = 0
    n_samples: int | None = None
    heard: Heard | None = None

    @property
    def n_whole(self) -> int:
        """Samples of the whole batch."""
        return self.spikes.n_samples if self.n_samples is None else self.n_samples


@dataclass(frozen=True)
class Step:
    """The results of a batch, over all replicas.

    Args:
        loss: mean over the labels.
        n_samples: samples seen.
        n_labels, n_correct: labels, one per sample or labeled step, and those predicted correctly (as the class of the largest share).
        errors: sums of the errors of values; None for classes.
        activity: spikes per neuron and time step, per spiking population.
        dropped: candidates that did not fit in a list, per spiking population.
        gradient_norm: norm of all gradients together before clipping; 0 without training.
        note: a line for the log; "": none.
        warning: a warning about this step for the user; "": none.
    """

    loss: float
    n_samples: int
    n_labels: int
    n_correct: int
    activity: Mapping[str, float]
    dropped: Mapping[str, int]
    gradient_norm: float = 0.0
    errors: ValueErrors | None = None
    note: str = ""
    warning: str = ""


class Engine(ABC):
    """One network on one kind of machine.

    Args:
        name: the engine's name, one of `sparsesnn.engines.names()`.
        network: the description.
        training: the settings of the run.
        grid: the ranks, as replicas × shards. Every rank makes an engine; all ranks call its methods together.

    Attributes:
        options: the engine's options, an instance of `Options`.
        model: the network as a `torch.nn.Module` in this process, with this rank's weights as of the last `weights`.

    Errors: `ConfigError` or `DescriptionError` for anything that the engine does not support, before it runs.
    """

    model: Any

    #: this engine's options, a frozen dataclass of `sparsesnn.options.option`; engines that share an option give it the same name,
    #: type and default, each with its own choices
    Options: ClassVar[type] = NoOptions
    #: the options that apply only in training: evaluation uses their defaults
    only_trains: ClassVar[Sequence[str]] = ()
    #: runs layers for `Model` and `Layer`; None: the engine only runs whole networks
    runner: ClassVar[type[Runner] | None] = None
    #: the launchers that can start its ranks; none: it runs on one rank (`launchers_of` gives them by the engine's name)
    launchers: ClassVar[Sequence[str]] = ()
    #: whether ranks can share the neurons of a replica
    takes_shards: ClassVar[bool] = False
    #: whether it makes its replicas itself, instead of using ranks; their number then changes the last bits of weights
    makes_replicas: ClassVar[bool] = False
    #: whether weights live on its device in training, where `Model.learn` and an optimizer would copy them in each step
    copies_weights: ClassVar[bool] = False
    #: whether `_core.phase_seconds` measures its phases
    counts_phases: ClassVar[bool] = False
    #: the engine that runs its networks layer by layer on this machine, for `load_run`; "": itself
    on_host: ClassVar[str] = ""
    #: the engine whose bits it promises, on any of its devices: a run may continue on another engine with the same one; "": none
    bits_of: ClassVar[str] = ""

    def __init__(self, name: str, network: Network, training: Training, grid: Grid) -> None:
        self.check(name, network, training)
        self.name, self.network, self.training, self.grid = name, network, training, grid
        self.options = self.Options(**options_for(name, training.options))

    # ---- supported features ------------------------------------------------------------------------------------

    @classmethod
    def check_options(cls, options: Any, place: str) -> None:
        """Raises `ConfigError` for an invalid value that the option's choices do not rule out.

        Args:
            options: an instance of `Options`.
            place: prefix of the message, with {} for the option's name.
        """
        return

    @classmethod
    @abstractmethod
    def check(cls, name: str, network: Network, training: Training) -> None:
        """Raises `ConfigError` or `DescriptionError` that names the unsupported part of the network, or setting."""

    @classmethod
    def uses_torch_threads(cls, options: Any) -> bool:
        """Whether PyTorch does most of the work; if not, it gets one thread, next to the engine's."""
        return False

    @classmethod
    def launchers_of(cls, name: str) -> Sequence[str]:
        """The launchers that can start ranks of the engine called `name`."""
        return cls.launchers

    @classmethod
    def samples_of_rank(cls, batch: int, n_ranks: int) -> int:
        """Samples of a whole batch that each of `n_ranks` replicas runs, while they last; 0: groups of samples, spread evenly."""
        return 0

    # ---- batches -----------------------------------------------------------------------------------------------

    @abstractmethod
    def step(self, batch: Batch, lr: float) -> Step:
        """Runs one training step.

        Errors: `NotFiniteError` if the loss or the norm of the gradients is not finite; the weights are then unchanged, except
        on an IPU, which has already made the step.
        """

    @torch.no_grad()
    def infer(self, batch: Batch, seen: Callable[[Output, Tensor], None] | None = None) -> Step:
        """Evaluates a batch without learning; the loss is the plain cross-entropy, or the error, and may be infinite or NaN.

        Args:
            seen: called with the output and the decoded values of this replica's samples: logits [B, C], or for other tasks [T, B, C],
                [B, K] or [T, B, K].
        """
        output, decoded = self.run_decoded(batch)
        if seen is not None:
            seen(output, decoded)
        n_labels = self._n_labels(batch)
        losses = gather(self.grid.replicas, self._criterion(batch, n_labels, trains=False).losses_of(decoded))
        return self._measured(output, decoded, batch, n_labels, float(losses.sum() / max(1, n_labels)))

    def _n_labels(self, batch: Batch) -> int:
        """Labels, or values, of the whole batch."""
        task = self.training.task
        return batch.n_whole if task.is_plain else self.grid.replicas.sum_counts([task.n_labels(batch.labels)])[0]

    def _criterion(self, batch: Batch, n_labels: int, *, trains: bool) -> Criterion:
        """The loss of this replica's samples; `trains`: with label smoothing and weights of classes."""
        training, objective = self.training, self.training.objective
        if training.task.has_values:
            return RegressionLoss(batch.labels, training.decoding, objective.error, n_targets=n_labels)
        return CrossEntropy(
            batch.labels,
            training.decoding,
            training.n_classes,
            label_smoothing=objective.label_smoothing if trains else 0.0,
            class_weights=training.class_weights if trains else None,
            n_samples=n_labels,
        )

    def run_decoded(self, batch: Batch) -> tuple[Output, Tensor]:
        """`run`, and the logits [B, C] of this replica's samples."""
        output = self.run(batch)
        return output, decode(output, self.training.decoding, self.training.n_classes)

    @abstractmethod
    def run(self, batch: Batch) -> Output:
        """The network's output for this replica's samples: enough for `sparsesnn.loss.decode`."""

    @abstractmethod
    def output(self, spikes: SpikeBatch) -> Output:
        """The network's full output for samples that all ranks have, without gradients: for plots."""

    def _totals(self, output: Output, counts: Sequence[int]) -> tuple[list[int], dict[str, float], dict[str, int]]:
        """Over all replicas: the counts, of which the first is that of the samples, and activity and dropped of each spiking population."""
        return list(counts), output.activity(), output.dropped()

    def _measured(
        self, output: Output, decoded: Tensor, batch: Batch, n_labels: int, loss: float, norm: float = 0.0
    ) -> Step:
        """The `Step` of the whole batch, from this replica's decoded output and labels."""
        decoded, labels, task, errors, n_correct = decoded.detach(), batch.labels, self.training.task, None, 0
        if task.has_values:
            errors = ValueErrors.of(gather_rows(self.grid.replicas, sums_of_samples(decoded, labels)))
        elif decoded.numel():
            shares = labels.is_floating_point()
            n_correct = int((decoded.argmax(-1) == (labels.argmax(1) if shares else labels).to(decoded.device)).sum())
        (n_samples, n_correct), activity, dropped = self._totals(output, (batch.spikes.n_samples, n_correct))
        return Step(loss, n_samples, n_labels, n_correct, activity, dropped, gradient_norm=norm, errors=errors)

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
        """Called once, after the weights are set and before the first batch."""

    def evaluated(self) -> contextlib.AbstractContextManager[None]:
        """Context in which the model has the weights to evaluate: those it learns, or their moving average."""
        return contextlib.nullcontext()

    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """`model/<name>` → parameter or buffer, for the neurons of this rank; copies."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """`weights`, and `optim/<parameter>/<key>` → state of the optimizer: everything a checkpoint needs."""

    @abstractmethod
    def load_weights(self, tensors: Mapping[str, Tensor], where: str) -> None:
        """Loads the `model/<name>` tensors; raises `CheckpointError`, which names `where`, if they do not fit the network."""

    @abstractmethod
    def load(self, tensors: Mapping[str, Tensor], where: str) -> None:
        """`load_weights`, and the same for the state of the optimizer."""

    # ---- finite numbers ----------------------------------------------------------------------------------------

    def check_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Checks that the tensors of `weights` or `state` may become a checkpoint.

        Errors: `NotFiniteError` on all ranks, which names the first tensor that holds NaN or infinity. Infinity is allowed only in
        buffers that are not trained, such as `grad_threshold`.
        """
        if found := self._not_finite_of_any_rank(tensors):
            raise NotFiniteError(*found)

    def _check_finite(self, what: str, value: float, suspects: Callable[[], Mapping[str, Tensor]]) -> None:
        """Raises `NotFiniteError` if `value`, the same on all ranks, is NaN or infinite; names the first such suspect."""
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
        """Per population, first and last + 1 of the neurons whose columns this rank holds; None: all neurons."""
        return None

    @property
    @abstractmethod
    def n_parameters(self) -> int:
        """Number of trained values in the whole network."""

    @abstractmethod
    def weights_sha256(self) -> str:
        """SHA-256 over name, dtype, shape and bytes of every parameter and buffer of the whole network."""


def totals_over(
    replicas: Communicator, counts: Sequence[int], fired: Mapping[str, tuple[int, int]], places: Mapping[str, int]
) -> tuple[list[int], dict[str, float], dict[str, int]]:
    """`Engine._totals` over the ranks of `replicas`.

    Args:
        fired: spikes and dropped candidates of this rank's samples, by population.
        places: T·N of each of them.
    """
    spikes, dropped = ([pair[k] for pair in fired.values()] for k in (0, 1))
    sums = replicas.sum_counts([*counts, *spikes, *dropped])
    totals, sums = sums[: len(counts)], sums[len(counts) :]
    activity = {
        name: float(total) / max(1, places[name] * totals[0])
        for name, total in zip(fired, sums[: len(fired)], strict=True)
    }
    return totals, activity, dict(zip(fired, sums[len(fired) :], strict=True))
