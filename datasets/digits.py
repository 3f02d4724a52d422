"""Handwritten digits as spikes: a data set that needs no download.

The 1,797 images of 8 x 8 pixels, brightness 0 to 16, that scikit-learn ships: the test part of "Optical Recognition of
Handwritten Digits" (E. Alpaydin, C. Kaynak, UCI Machine Learning Repository, 1998, doi 10.24432/C50P49, CC BY 4.0).

Encoding: latency. Each pixel has two neurons: ON neuron p encodes its brightness x / 16, OFF neuron 64 + p its
darkness 1 - x / 16. A neuron fires once, earlier for a stronger value, at the step

    t = round((1 - strength)·(n_steps - 1 - tail))        tail = n_steps // 4

and not at all at strength 0. The last `tail` steps are empty and give the network time to answer. So every image makes
at most 128 spikes, always in the same places: nothing here is random.

With `encoding = "direct"` there are 64 neurons instead, one for each pixel, whose value at every step is x / 16.

Split: a quarter of each class is the test part, chosen by a fixed hash, the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn.datasets import direct, hashing
from sparsesnn.datasets.binning import bin_events
from sparsesnn.datasets.event_set import EventSet
from sparsesnn.errors import MissingDependencyError
from sparsesnn.options import option

SPLITS = ("train", "test")
LICENSE = "CC BY 4.0"
CITATION = (
    "E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998, "
    "doi 10.24432/C50P49"
)

RECIPE = {"data": {"valid": "random:0.2"}, "optim": {"lr": 1e-2}, "train": {"epochs": 30}}

_N_PIXELS = 64
_BRIGHTEST = 16
#: seed of the split; every published figure depends on it, so it never changes
_SPLIT_SEED = 1797


@dataclass(frozen=True)
class Options:
    """How images become spikes."""

    n_steps: int = option(24, "steps of a sample; brightness becomes time", low=8, high=1_000_000)
    encoding: str = option("latency", direct.HELP, choices=direct.ENCODINGS)


def load(*, split: str, options: Options, **files: Any) -> EventSet:
    """The digits of one split; no files are read and nothing is cached."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingDependencyError("scikit-learn", "digits", "the data set 'digits'") from error
    n_steps = options.n_steps
    images, labels = load_digits(return_X_y=True)
    chosen = np.flatnonzero(_is_test(labels) == (split == "test"))
    description = {
        "name": "digits",
        "split": split,
        "n_steps": n_steps,
        "source": "UCI Optical Recognition of Handwritten Digits, test part, as shipped by scikit-learn",
        "license": LICENSE,
        "classes": [str(digit) for digit in range(10)],
    }
    if options.encoding == "direct":
        return EventSet(
            **direct.lists_of(images[chosen].astype(np.uint8)),
            labels=labels[chosen].astype(np.int64),
            n_neurons=_N_PIXELS,
            n_classes=10,
            description={**description, "direct": {"n_steps": n_steps, "unit": 1 / _BRIGHTEST}},
        )
    binned = bin_events(
        [encode(image, n_steps) for image in images[chosen]],
        n_neurons=2 * _N_PIXELS,
        n_steps=n_steps,
        dt_us=1.0,
        source="digits",
    )
    return EventSet(
        ids=binned.ids,
        n_spikes=binned.n_spikes,
        labels=labels[chosen].astype(np.int64),
        n_neurons=binned.n_neurons,
        n_classes=10,
        description=description,
    )


def encode(image: npt.ArrayLike, n_steps: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Steps and neurons of the spikes of one image, float[64] from 0 to 16."""
    on = np.asarray(image, dtype=np.float64).reshape(-1) / _BRIGHTEST
    strength = np.concatenate([on, 1.0 - on])
    neuron = np.flatnonzero(strength > 0)
    last = n_steps - 1 - n_steps // 4
    return np.rint((1.0 - strength[neuron]) * last), neuron


def _is_test(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    is_test = np.zeros(labels.size, bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        order = hashing.permutation(members.size, hashing.keys(_SPLIT_SEED, int(label)))
        is_test[members[order[: round(members.size / 4)]]] = True
    return is_test
