"""Yin-Yang: points of the plane in the classes yin, yang and dot, as spike times; a small task that needs a hidden layer.

Files, in one folder: train_samples.npy (5,000 points), train_labels.npy, and the same for validation and test (1,000 each), from
https://github.com/lkriener/yin_yang_data_set (publication_data). A point is x, y, 1 - x, 1 - y, in [0, 1].

Encoding: latency, as in the publication. Neurons 0 to 3 encode the four numbers, neuron 4 is a bias; each fires once, at step

    t = round(value·(n_steps - 1 - tail))        the bias at step 0        tail = n_steps // 4

so that the last `tail` steps are empty and give the network time to answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn.datasets.binning import bin_events
from sparsesnn.datasets.event_set import EventSet
from sparsesnn.datasets.files import map_npy
from sparsesnn.errors import DataError
from sparsesnn.options import option

SPLITS = ("train", "valid", "test")
LICENSE = "MIT"
CITATION = "L. Kriener, J. Goeltz, M. A. Petrovici, The Yin-Yang dataset, NICE 2022, doi 10.1145/3517343.3517380"
RECIPE: dict[str, dict[str, Any]] = {
    "net": {"text": "auto-120-auto", "beta": 0.98, "learn_beta": True, "bias": True},
    "optim": {"lr": 5e-3},
    "train": {"epochs": 60, "batch": 32},
}

CLASSES = ("yin", "yang", "dot")
_FILES = {"train": "train", "valid": "validation", "test": "test"}
_N_NUMBERS = 4


@dataclass(frozen=True)
class Options:
    """How points become spikes."""

    n_steps: int = option(100, "steps of a sample; a number becomes a time", low=8, high=1_000_000)


def load(*, split: str, data_dir: Path | None, options: Options, **_: Any) -> EventSet:
    """One part; it is read from its files, which are small, and not cached."""
    if data_dir is None:
        raise DataError(
            "yin_yang: no folder was given; give data_dir (--data), the folder that holds train_samples.npy and train_labels.npy"
        )
    stem = _FILES[split]
    points, labels = (map_npy(data_dir / f"{stem}_{what}.npy") for what in ("samples", "labels"))
    where = f"{data_dir / stem}_*.npy"
    if (
        points.ndim != 2
        or points.shape[1] != _N_NUMBERS
        or points.dtype.kind != "f"
        or labels.shape != points.shape[:1]
    ):
        raise DataError(
            f"{where}: samples are {points.dtype}{list(points.shape)}, labels {labels.dtype}{list(labels.shape)}; they must be floats [n, 4] "
            "and whole numbers [n]"
        )
    if labels.dtype.kind not in "iu" or not np.isin(labels, range(len(CLASSES))).all():
        raise DataError(
            f"{where}: labels are {labels.dtype}, from {labels.min()} to {labels.max()}; allowed: 0 to {len(CLASSES) - 1}"
        )
    if not ((points >= 0) & (points <= 1)).all():
        raise DataError(f"{where}: samples hold numbers outside 0 to 1, or NaN; get a fresh copy")
    binned = bin_events(
        [encode(point, options.n_steps) for point in points],
        n_neurons=_N_NUMBERS + 1,
        n_steps=options.n_steps,
        dt_us=1.0,
        source="yin_yang",
    )
    return EventSet.from_binned(
        binned,
        labels.astype(np.int64),
        len(CLASSES),
        description={
            "name": "yin_yang",
            "split": split,
            "n_steps": options.n_steps,
            "source": f"{stem}_samples.npy",
            "classes": list(CLASSES),
            "license": LICENSE,
        },
    )


def encode(point: npt.ArrayLike, n_steps: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Steps and neurons of the five spikes of a point, float[4] from 0 to 1."""
    values = np.append(np.asarray(point, np.float64), 0.0)
    return np.rint(values * (n_steps - 1 - n_steps // 4)), np.arange(values.size)
