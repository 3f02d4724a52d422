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
from sparsesnn.whole_file import write_atomically


class Confusion:
    """`counts[a, b]`: samples of class a that were predicted as class b. Whole numbers, so that sums do not depend on ranks.

    Args:
        n_classes: C.
    """

    def __init__(self, n_classes: int) -> None:
        self.counts = np.zeros((n_classes, n_classes), np.int64)

    def add(self, labels: npt.ArrayLike, predicted: npt.ArrayLike) -> None:
        """Counts samples by their class and predicted class, int[B] each."""
        np.add.at(self.counts, (np.asarray(labels), np.asarray(predicted)), 1)

    def of_all_ranks(self, grid: Grid) -> Confusion:
        """The sum over replicas; every rank calls this."""
        own = self.counts.ravel().tolist() if grid.shards.rank == 0 else None
        found = [json.loads(text) for text in grid.world.all_texts(json.dumps(own))]
        total = Confusion(len(self.counts))
        for counts in found:
            if counts is not None:
                total.counts += np.reshape(counts, total.counts.shape)
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
    """Labels and logits of evaluated samples, in the order of evaluation.

    Args:
        samples: index of each sample in its split of the data.
        names: of the classes; empty if the data has none.
    """

    samples: Sequence[int] = ()
    names: Sequence[str] = ()
    _labels: list[npt.NDArray[np.int64]] = field(default_factory=list)
    _logits: list[npt.NDArray[np.float32]] = field(default_factory=list)

    def add(self, batch: Batch, output: Output, logits: Tensor) -> None:
        """Adds one batch; see `sparsesnn.train.evaluate`."""
        self._labels.append(batch.labels.numpy())
        self._logits.append(logits.detach().cpu().float().numpy())

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """int64[samples]."""
        return np.concatenate(self._labels)

    @property
    def logits(self) -> npt.NDArray[np.float32]:
        """float32[samples, C]."""
        return np.concatenate(self._logits)

    @property
    def predicted(self) -> npt.NDArray[np.int64]:
        """int64[samples], the class of the largest logit."""
        return np.asarray(self.logits.argmax(1), np.int64)

    def confusion(self) -> Confusion:
        """Samples of each class by predicted class."""
        confusion = Confusion(self.logits.shape[1])
        confusion.add(self.labels, self.predicted)
        return confusion

    def write(self, path: Path) -> None:
        """A CSV file: sample, label, predicted, and the logit of each class."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        logits = self.logits
        rows.writerow(["sample", "label", "predicted", *(f"logit_{k}" for k in range(logits.shape[1]))])
        for sample, label, guess, row in zip(self.samples, self.labels, self.predicted, logits, strict=True):
            rows.writerow([int(sample), int(label), int(guess), *(repr(float(x)) for x in row)])
        try:
            write_atomically(path, text.getvalue().encode())
        except OSError as error:
            raise ConfigError(f"predictions: {path} cannot be written: {error.strerror}; give another file") from None
