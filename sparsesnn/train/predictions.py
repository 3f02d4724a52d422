"""A network's predictions for every sample: a table, a confusion matrix, and figures per class."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sparsesnn.engines import Batch
from sparsesnn.errors import ConfigError
from sparsesnn.host.comm import Grid
from sparsesnn.output import Output
from sparsesnn.task import NO_LABEL, PLAIN, Task
from sparsesnn.whole_file import write_atomically


class Confusion:
    """`counts[a, b]`: samples (or steps) of class a that were predicted as class b. Whole numbers, so that sums do not depend on ranks.

    Args:
        n_classes: C.
    """

    def __init__(self, n_classes: int) -> None:
        self.counts = np.zeros((n_classes, n_classes), np.int64)

    def add(self, labels: npt.ArrayLike, predicted: npt.ArrayLike) -> None:
        """Counts samples, or steps, by their class and predicted class, int[B] or [T, B] each; those without a label do not count."""
        labels, predicted = np.asarray(labels), np.asarray(predicted)
        labeled = labels != NO_LABEL
        np.add.at(self.counts, (labels[labeled], predicted[labeled]), 1)

    def of_all_ranks(self, grid: Grid) -> Confusion:
        """The sum over replicas; every rank calls this."""
        own = self.counts.ravel().tolist() if grid.shards.rank == 0 else None
        found = [json.loads(text) for text in grid.world.all_texts(json.dumps(own))]
        total = Confusion(len(self.counts))
        for counts in found:
            if counts is not None:
                total.counts += np.reshape(np.array(counts, np.int64), total.counts.shape)
        return total

    def per_class(self, names: Sequence[str] = ()) -> list[dict[str, Any]]:
        """For each class: class, name, n_samples, precision, recall and f1; 0 for a share without samples."""
        right, of, read = np.diag(self.counts), self.counts.sum(1), self.counts.sum(0)
        return [
            {
                "class": k,
                "name": class_name(names, k),
                "n_samples": int(of[k]),
                "precision": int(right[k]) / max(1, int(read[k])),
                "recall": int(right[k]) / max(1, int(of[k])),
                "f1": 2 * int(right[k]) / max(1, int(of[k]) + int(read[k])),
            }
            for k in range(len(self.counts))
        ]


def class_name(names: Sequence[str], k: int) -> str:
    """The name of class k; its number if the data has no names."""
    return names[k] if k < len(names) else str(k)


@dataclass
class Predictions:
    """Labels and outputs of evaluated samples, in the order of evaluation.

    Args:
        samples: index of each sample in its split of the data.
        names: of the classes; empty if the data has none.
        task: the kind of labels.
    """

    samples: Sequence[int] = ()
    names: Sequence[str] = ()
    task: Task = PLAIN
    _labels: list[npt.NDArray[Any]] = field(default_factory=list)
    _outputs: list[npt.NDArray[np.float32]] = field(default_factory=list)

    def add(self, batch: Batch, output: Output, decoded: Tensor) -> None:
        """Adds one batch; see `sparsesnn.train.evaluate`."""
        labels, outputs = batch.labels.cpu().numpy(), decoded.detach().cpu().float().numpy()
        if self.task.per_step:  # samples first
            labels, outputs = np.swapaxes(labels, 0, 1), np.swapaxes(outputs, 0, 1)
        self._labels.append(labels)
        self._outputs.append(outputs)

    @property
    def labels(self) -> npt.NDArray[Any]:
        """int64[samples]; for other tasks int64[samples, T], float32[samples, K] or float32[samples, T, K]."""
        return np.concatenate(self._labels)

    @property
    def outputs(self) -> npt.NDArray[np.float32]:
        """The decoded outputs, float32[samples, C or K], or [samples, T, C or K]."""
        return np.concatenate(self._outputs)

    @property
    def logits(self) -> npt.NDArray[np.float32]:
        """`outputs`, for classes."""
        return self.outputs

    @property
    def predicted(self) -> npt.NDArray[np.int64]:
        """int64[samples] or [samples, T], the class of the largest logit."""
        return np.asarray(self.outputs.argmax(-1), np.int64)

    def confusion(self) -> Confusion:
        """Samples (or labeled steps) of each class by predicted class."""
        confusion = Confusion(self.outputs.shape[-1])
        confusion.add(self.labels, self.predicted)
        return confusion

    def write(self, path: Path) -> None:
        """A CSV file: sample, label, predicted, and the logit of each class; of values, target_k and output_k. If each step has its own,
        a row per step, with its number after the sample's; an empty field stands for no label.
        """
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(self._header())
        for sample, label, out in zip(self.samples, self.labels, self.outputs, strict=True):
            for step, (own, values) in enumerate(
                zip(label, out, strict=True) if self.task.per_step else [(label, out)]
            ):
                rows.writerow([int(sample), *([step] if self.task.per_step else []), *self._fields(own, values)])
        try:
            write_atomically(path, text.getvalue().encode())
        except OSError as error:
            raise ConfigError(f"predictions: {path} cannot be written: {error.strerror}; give another file") from None

    def _header(self) -> list[str]:
        n = self.outputs.shape[-1]
        first = ["sample", *(["step"] if self.task.per_step else [])]
        if self.task.has_values:
            return [*first, *(f"target_{k}" for k in range(n)), *(f"output_{k}" for k in range(n))]
        return [*first, "label", "predicted", *(f"logit_{k}" for k in range(n))]

    def _fields(self, label: Any, outputs: npt.NDArray[np.float32]) -> list[Any]:
        numbers = [repr(float(x)) for x in outputs]
        if self.task.has_values:
            return [*("" if np.isnan(x) else repr(float(x)) for x in label), *numbers]
        return ["" if label == NO_LABEL else int(label), int(outputs.argmax()), *numbers]
