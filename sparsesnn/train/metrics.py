"""Measurements of training: sums over batches, one JSON line per epoch, and the result."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sparsesnn.config.tables import build
from sparsesnn.engines import Step
from sparsesnn.errors import CheckpointError
from sparsesnn.json_file import read_json, strict_json
from sparsesnn.regular_file import inside
from sparsesnn.value_errors import ValueErrors
from sparsesnn.whole_file import write_atomically

METRICS = "metrics.jsonl"
RESULT = "result.json"


@dataclass
class Tally:
    """Sums over the batches of a pass; float64, so that an interrupted pass ends with the same sums.

    Args:
        n_samples: samples seen.
        n_labels, n_correct: labels, one per sample or labeled step, and those predicted correctly (as the class of the largest share,
            if samples are mixed); of a task with values n_labels counts these.
        errors: of values.
        loss_sum: loss times labels.
        activity_sum: per population, activity times samples.
        dropped: per population, candidates that did not fit into their list.
        seconds: wall time.
        waited_s: of these, spent waiting for batches.
        gradient_norm_sum: norm of all gradients before clipping, times samples.
        n_batches: batches seen.
        silent: per population, batches in which it did not fire.
        notes: the notes of steps, see `Step`.
    """

    n_samples: int = 0
    n_labels: int = 0
    n_correct: int = 0
    errors: ValueErrors = field(default_factory=ValueErrors)
    loss_sum: float = 0.0
    activity_sum: dict[str, float] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    waited_s: float = 0.0
    gradient_norm_sum: float = 0.0
    n_batches: int = 0
    silent: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.n_labels:  # older checkpoints have a label for each sample
            self.n_labels = self.n_samples

    def add(self, step: Step) -> None:
        """Counts one batch."""
        n = step.n_samples
        self.n_samples += n
        self.n_batches += 1
        self.n_labels += step.n_labels
        self.n_correct += step.n_correct
        if step.errors is not None:
            self.errors += step.errors
        self.loss_sum += step.loss * step.n_labels
        self.gradient_norm_sum += step.gradient_norm * n
        for name, activity in step.activity.items():
            self.activity_sum[name] = self.activity_sum.get(name, 0.0) + activity * n
            self.silent[name] = self.silent.get(name, 0) + (activity == 0)
        for name, dropped in step.dropped.items():
            self.dropped[name] = self.dropped.get(name, 0) + dropped

    @property
    def loss(self) -> float:
        return self.loss_sum / max(1, self.n_labels)

    @property
    def accuracy(self) -> float | None:
        """The share of labels predicted correctly; None for values."""
        return None if self.errors.n else self.n_correct / max(1, self.n_labels)

    @property
    def rmse(self) -> float | None:
        """The root of the mean squared error of values; None for classes."""
        return self.errors.rmse if self.errors.n else None

    @property
    def r2(self) -> float | None:
        """The share of the variance of values that is explained; None for classes, and if all values are equal."""
        return self.errors.r2

    @property
    def score(self) -> float:
        """The accuracy, or minus the RMSE: more is better."""
        return -self.errors.rmse if self.errors.n else self.n_correct / max(1, self.n_labels)

    def scores(self, prefix: str = "") -> dict[str, float | None]:
        """Accuracy, or RMSE and R², by name."""
        if self.errors.n:
            return {f"{prefix}rmse": self.rmse, f"{prefix}r2": self.r2}
        return {f"{prefix}accuracy": self.accuracy}

    @property
    def activity(self) -> dict[str, float]:
        """Spikes per neuron and time step, per population."""
        return {name: total / max(1, self.n_samples) for name, total in self.activity_sum.items()}

    @property
    def samples_per_s(self) -> float:
        return self.n_samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def wait_share(self) -> float:
        """Share of the wall time that was spent waiting for batches."""
        return self.waited_s / self.seconds if self.seconds > 0 else 0.0


@dataclass
class Progress:
    """The position of a run; with the tensors of the checkpoint, it determines the rest of the run.

    Args:
        epoch: epochs finished.
        batch: batches done in the next one.
        step: optimizer steps since the beginning.
        first_loss: of the very first step; 0: unknown.
        tally: sums over the batches done.
        best_epoch, best_score, best_loss: of the best validation so far; epochs count from 1, 0: none yet. The score is
            `Tally.score`; older checkpoints call it best_accuracy.
        trained_samples, trained_s: samples trained, and the time for them in seconds, over all finished epochs.
        waited_s: of these seconds, spent waiting for batches.
        seconds: wall time of training and validation, over all finished epochs.
        metrics_position: bytes of `metrics.jsonl` that belong to the finished epochs.
        init: activity per population after the initialization.
        warned: the problems of the last epoch; see `health.py`.
        stale_epochs: epochs since the best one, or since the rate last fell, for the schedule plateau.
        plateau_factor: product of the factors by which the rate has fallen.
        extended: epochs at which the finished run was extended.

    The best epoch is the one with the highest validation accuracy, or the lowest RMSE of values; among equal ones that with the lowest
    validation loss; among these the first.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    first_loss: float = 0.0
    tally: Tally = field(default_factory=Tally)
    best_epoch: int = 0
    best_score: float = 0.0
    best_loss: float = math.inf
    trained_samples: int = 0
    trained_s: float = 0.0
    waited_s: float = 0.0
    seconds: float = 0.0
    metrics_position: int = 0
    init: dict[str, float] = field(default_factory=dict)
    warned: tuple[str, ...] = ()
    stale_epochs: int = 0
    plateau_factor: float = 1.0
    extended: tuple[int, ...] = ()

    def note_validation(self, score: float, loss: float) -> bool:
        """Whether the epoch just finished is the best so far, which is then recorded."""
        better = (score, -loss) > (self.best_score, -self.best_loss) or self.best_epoch == 0
        if better:
            self.best_epoch, self.best_score, self.best_loss = self.epoch, score, loss
        return better

    def is_over(self, n_epochs: int, patience: int) -> bool:
        """Whether all epochs are done, or validation has not improved for `patience` of them (0: never stops early)."""
        stale = patience and self.best_epoch and self.epoch - self.best_epoch >= patience
        return bool(self.epoch >= n_epochs or stale)

    def lower_rate(self, better: bool, factor: float, patience: int) -> None:
        """The schedule plateau, after an epoch that was `better` or not: the rate falls after `patience` epochs without improvement."""
        self.stale_epochs = 0 if better else self.stale_epochs + 1
        if self.stale_epochs >= patience:
            self.plateau_factor, self.stale_epochs = self.plateau_factor * factor, 0


def read_progress(table: Mapping[str, Any]) -> Progress:
    """The progress in a checkpoint; `ConfigError` for unknown keys and invalid values."""
    if isinstance(table, Mapping):
        table = {"best_score" if key == "best_accuracy" else key: value for key, value in table.items()}
    return build(Progress, table, "progress")


@dataclass(frozen=True)
class Result:
    """The result of a run, the content of `result.json`.

    Args:
        test_accuracy: on the test part, of the epoch that validation chose: the highest accuracy (of values: the lowest RMSE), among
            equal ones the lowest loss. Without a validation part it is the last epoch. If steps have labels, over labeled steps; None for values.
        test_accuracy_last: the same after the last epoch; it takes no part in any choice.
        test_loss: mean loss on the test part, of the chosen epoch.
        valid_accuracy, valid_loss: of the chosen epoch on the validation part; None without one.
        best_epoch: the chosen epoch, counted from 1.
        n_epochs: epochs trained.
        samples_per_s: training samples per second, validation and test left out.
        seconds: wall time of training and validation.
        activity, dropped: per population, on the test part.
        n_test, n_valid, n_train: samples of each part.
        n_lost: events of the training file that fell outside the time window.
        n_parameters: trained numbers.
        weights_sha256: of all parameters and buffers after the last epoch.
        config: the whole configuration.
        data: the origin of the training data.
        version: of sparsesnn.
        wait_share: share of the training time that was spent waiting for batches.
        dt_ms, tau_ms: see `Times`; time constants before training changes the decays.
        neurobench: synaptic operations per sample and sparsities of the test part, see `operations`; empty if the engine
            returns no spikes.
        extended: epochs at which the finished run was extended; without any, the run follows from the configuration alone.
        per_class: of the test part: class, name, n_samples (labeled steps, if steps have labels), precision, recall and f1.
        task: the kind of labels, see `sparsesnn.task.Task`.
        test_rmse, test_r2, test_rmse_last, valid_rmse: of values, as the accuracies; None for classes.
        machine: for an IPU: measured capacities of lists, and, if emulated, cycles of a training step (`sparsesnn.ipu.cycles`).
        ranks: if there were several: their grid, and the traffic of each in training (`rank_traffic`).
    """

    test_accuracy: float | None
    test_accuracy_last: float | None
    test_loss: float
    valid_accuracy: float | None
    best_epoch: int
    n_epochs: int
    samples_per_s: float
    seconds: float
    activity: Mapping[str, float]
    dropped: Mapping[str, int]
    n_test: int
    n_valid: int
    n_train: int
    n_lost: int
    n_parameters: int
    weights_sha256: str
    config: Mapping[str, Any]
    data: Mapping[str, Any]
    version: str
    wait_share: float = 0.0
    ranks: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    valid_loss: float | None = None
    dt_ms: float | None = None
    tau_ms: Mapping[str, Mapping[str, Sequence[float | str]]] = field(default_factory=dict)
    neurobench: Mapping[str, Any] = field(default_factory=dict)
    extended: Sequence[int] = field(default_factory=list)
    per_class: Sequence[Mapping[str, Any]] = field(default_factory=list)
    task: str = "class"
    test_rmse: float | None = None
    test_r2: float | None = None
    test_rmse_last: float | None = None
    valid_rmse: float | None = None

    def write(self, folder: Path) -> None:
        write_atomically(folder / RESULT, (strict_json(asdict(self), indent=2) + "\n").encode())

    @classmethod
    def read(cls, folder: Path) -> Result:
        """Reads the result of a run folder; `CheckpointError` if `result.json` is missing or damaged."""
        data = read_json(inside(folder, RESULT))
        try:
            return cls(**data)
        except TypeError as error:
            raise CheckpointError(f"{folder / RESULT}: is not a result: {error}; delete it and resume") from None


class MetricsFile:
    """`metrics.jsonl`: one line per epoch, never two for the same one.

    Args:
        folder: the run's.
        position: bytes that belong to the checkpoint; lines that an interrupted run wrote after it are cut off.
    """

    def __init__(self, folder: Path, position: int) -> None:
        self.path = inside(folder, METRICS)
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < position:
            raise CheckpointError(
                f"{self.path}: has {size:,} bytes, but the checkpoint needs {position:,}; restore the file, "
                "or start again in another folder"
            )
        with self.path.open("ab") as file:
            file.truncate(position)
        self.position = position

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds a line and waits until it is on the disk."""
        line = (strict_json(record) + "\n").encode()
        try:
            with self.path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CheckpointError(
                f"{self.path}: cannot be written: {error.strerror or error}; the last checkpoint is intact; "
                "free space, then run again with --resume"
            ) from error
        self.position += len(line)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The records of `metrics.jsonl`, one per epoch; empty if there are none yet."""
    path = inside(folder, METRICS)
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text().splitlines()]
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is damaged: {error}") from None
