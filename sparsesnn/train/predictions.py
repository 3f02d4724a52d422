"""What a network made of every sample: a table, a confusion matrix, and figures per class."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sparsesnn.engines import Batch
from sparsesnn.errors import ConfigError, MissingDependencyError
from sparsesnn.output import Output
from sparsesnn.train.files import write_atomically


@dataclass
class Predictions:
    """Labels and logits of evaluated samples, in the order of evaluation.

    Args:
        samples: number of each sample in its split of the data.
        names: of the classes; empty where the data has none.
    """

    samples: Sequence[int] = ()
    names: Sequence[str] = ()
    _labels: list[npt.NDArray[np.int64]] = field(default_factory=list)
    _logits: list[npt.NDArray[np.float32]] = field(default_factory=list)

    def add(self, batch: Batch, output: Output, logits: Tensor) -> None:
        """Takes one batch; see `sparsesnn.train.evaluate`."""
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

    def name(self, k: int) -> str:
        """Of a class; its number where the data has no names."""
        return self.names[k] if k < len(self.names) else str(k)

    def confusion(self) -> npt.NDArray[np.int64]:
        """int64[C, C], samples of the row's class that were read as the column's. Needs scikit-learn."""
        classes = np.arange(self.logits.shape[1])
        found: npt.NDArray[np.int64] = _metrics().confusion_matrix(self.labels, self.predicted, labels=classes)
        return found

    def per_class(self) -> list[dict[str, Any]]:
        """For each class: class, name, n_samples, precision, recall and f1; 0 where a share has no samples.

        Needs scikit-learn.
        """
        classes = np.arange(self.logits.shape[1])
        columns = _metrics().precision_recall_fscore_support(
            self.labels, self.predicted, labels=classes, zero_division=0.0
        )
        return [
            {
                "class": k,
                "name": self.name(k),
                "n_samples": int(n),
                "precision": float(p),
                "recall": float(r),
                "f1": float(f),
            }
            for k, (p, r, f, n) in enumerate(zip(*columns, strict=True))
        ]

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


def _metrics() -> Any:
    try:
        from sklearn import metrics
    except ImportError:
        raise MissingDependencyError("scikit-learn", "digits", "the confusion matrix and figures per class") from None
    return metrics
