"""QTDB: electrocardiograms as spikes, with a class for each step: P, PQ, QR, RS, ST, TP, the waves of a heartbeat and their gaps.

The QT Database (P. Laguna et al., Computers in Cardiology 1997) in the form of B. Yin, F. Corradi, S. Bohte (2021): segments of 1,300
steps of 4 ms, two leads, each turned into events by level crossing: 4 channels, lead 1 up, lead 1 down, lead 2 up, lead 2 down.
A step in which no wave was annotated (8 %) has no label.

Files, in one folder: QTDB_train.mat (618 segments) and QTDB_test.mat (141), MATLAB 5 files with `x` [segments, 1301, 4], whose last step
is not data, and `y` [segments, 1301, 6], a 1 for the class. They are part of https://github.com/AdaptiveAILab/brf-neurons
(experiments/ecg/data). Needs SciPy. The segments of one patient follow one another, so a validation part of neighboring
segments, as in the recipe's `valid`, is a better measure than a random one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn.datasets.binning import smallest
from sparsesnn.datasets.event_set import EventSet
from sparsesnn.errors import DataError, MissingDependencyError
from sparsesnn.options import option
from sparsesnn.regular_file import check_regular
from sparsesnn.task import NO_LABEL

SPLITS = ("train", "test")
LICENSE = "Open Data Commons Attribution License (QT Database)"
CITATION = (
    "P. Laguna, R. Mark, A. Goldberger, G. Moody, A database for evaluation of algorithms for measurement of QT and other waveform "
    "intervals in the ECG, Computers in Cardiology 1997; B. Yin, F. Corradi, S. Bohte, Accurate and efficient time-domain classification "
    "with adaptive spiking recurrent neural networks, Nature Machine Intelligence 2021, doi 10.1038/s42256-021-00397-w"
)
RECIPE: dict[str, dict[str, Any]] = {}

CLASSES = ("P", "PQ", "QR", "RS", "ST", "TP")
DT_US = 4000.0
N_STEPS, N_CHANNELS = 1300, 4
#: MATLAB compresses arrays; DEFLATE expands one byte to at most this many
_MOST_FROM_ONE = 1040


@dataclass(frozen=True)
class Options:
    """How much of a segment is used."""

    n_steps: int = option(1300, "steps of a segment, from its beginning", low=1, high=1300)


def load(*, split: str, data_dir: Path | None, options: Options, **_: Any) -> EventSet:
    """One part; it is read from its file, which is small, and not cached."""
    if data_dir is None:
        raise DataError(
            "qtdb: no folder was given; give data_dir (--data), the folder that holds QTDB_train.mat and QTDB_test.mat"
        )
    path = data_dir / f"QTDB_{split}.mat"
    fired, classes = (x[:, : options.n_steps] for x in _read(path))
    n_spikes = fired.sum(2)
    return EventSet(
        ids=np.nonzero(fired)[2].astype(np.uint16),
        n_spikes=smallest(n_spikes),
        labels=np.where(classes.any(2), classes.argmax(2), NO_LABEL).astype(np.int8),
        n_neurons=N_CHANNELS,
        n_classes=len(CLASSES),
        description={
            "name": "qtdb",
            "split": split,
            "n_steps": options.n_steps,
            "source": f"QTDB_{split}.mat",
            "dt_us": DT_US,
            "classes": list(CLASSES),
            "license": LICENSE,
        },
    )


def _read(path: Path) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Spikes bool[n, T, 4] and one-hot classes bool[n, T, 6] of a file; `DataError` if it is missing, damaged or of another form."""
    try:
        from scipy.io import loadmat, whosmat
    except ImportError as error:
        raise MissingDependencyError("scipy", "qtdb", "the data set 'qtdb'") from error
    if not path.is_file():
        raise DataError(f"{path}: is not a file; give the folder that holds it (--data)")
    check_regular(path, DataError)
    wanted = {"x": (N_STEPS + 1, N_CHANNELS), "y": (N_STEPS + 1, len(CLASSES))}
    try:
        shapes = {name: shape for name, shape, _ in whosmat(path)}
        for name, tail in wanted.items():
            shape = shapes.get(name, ())
            if len(shape) != 3 or shape[1:] != tail:
                raise DataError(
                    f"{path}: {name} has the shape {list(shape)}; it must be [segments, {tail[0]}, {tail[1]}]"
                )
            if math.prod(shape) > _MOST_FROM_ONE * path.stat().st_size:
                raise DataError(
                    f"{path}: {name} claims {math.prod(shape):,} numbers from {path.stat().st_size:,} bytes; it is damaged"
                )
        found = loadmat(path, variable_names=list(wanted))
        x, y = (np.asarray(found[name])[:, :N_STEPS] for name in wanted)
    except DataError:
        raise
    except Exception as error:  # SciPy raises many kinds for a damaged file
        raise DataError(
            f"{path}: is damaged or not a MATLAB 5 file ({type(error).__name__}: {error}); get a fresh copy"
        ) from error
    for name, array, most in (("x", x, None), ("y", y, 1)):
        if not np.isin(array, (0, 1)).all() or (most and int(array.sum(2).max(initial=0)) > most):
            raise DataError(
                f"{path}: {name} must hold 0 and 1{', one class for each step at most' if most else ''}; get a fresh copy"
            )
    if len(x) != len(y):
        raise DataError(f"{path}: has {len(x)} segments of spikes and {len(y)} of classes; get a fresh copy")
    return x.astype(bool), y.astype(bool)
