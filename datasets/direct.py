"""Direct encoding of data: each sample is numbers that the first layer reads unchanged at every step.

A set of such data stores one list for each sample, n_spikes [n, 1], and counts in `values`; its description has the number of steps for
which the list holds, and the number that a count of 1 stands for:

    description["direct"] = {"n_steps": 25, "unit": 1 / 255}         pixels 0 to 255 are the currents 0 to 1 of an input neuron

Batches of it have lists that repeat, see `sparsesnn.SpikeBatch.constant`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

#: the encodings of images, and the help of the option
ENCODINGS = ("latency", "direct")
HELP = (
    "latency: a pixel fires once, earlier if it is brighter; direct: its brightness, 0 to 1, is the value of its spike at every step, whose "
    "current is computed once for each sample"
)


def steps_of(description: Mapping[str, Any]) -> int | None:
    """The steps for which the list of each sample holds; None for other data."""
    direct = description.get("direct")
    return None if direct is None else int(direct["n_steps"])


def unit_of(description: Mapping[str, Any]) -> float:
    """The number that a count of 1 stands for; 1 for other data."""
    direct = description.get("direct")
    return 1.0 if direct is None else float(direct["unit"])


def lists_of(images: npt.NDArray[Any]) -> dict[str, Any]:
    """ids, n_spikes and values of an `EventSet` from uint8[n, N], the brightness of every pixel; 0 makes no spike."""
    sample, pixel = np.nonzero(images)
    n_spikes = np.bincount(sample, minlength=len(images)).astype(np.int32)
    return {
        "ids": pixel.astype(np.uint16),
        "n_spikes": n_spikes[:, None],
        "values": images[sample, pixel].astype(np.uint8),
    }
