"""MNIST: 70,000 handwritten digits of 28 x 28 pixels, from the files that torchvision saves.

Files: DIR/MNIST/raw/{train,t10k}-images-idx3-ubyte and …-labels-idx1-ubyte, with or without .gz; no download
(`torchvision.datasets.MNIST(DIR, download=True)` leaves them there). Unit order: id = x + 28·y.

Encoding "direct": the value of a pixel at every step is its brightness / 255. Encoding "latency": a pixel
fires once, at step round((1 - brightness / 255)·(n_steps - 1)); black ones never do.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn.datasets import direct
from sparsesnn.datasets.event_set import EventSet
from sparsesnn.datasets.images import load_images
from sparsesnn.datasets.sensor import KEY, Sensor
from sparsesnn.errors import ConfigError
from sparsesnn.options import option

SPLITS = ("train", "test")
LICENSE = "CC BY-SA 3.0"
CITATION = "Y. LeCun, C. Cortes, C. J. C. Burges, The MNIST database of handwritten digits"
RECIPE = {"net": {"text": "auto-1000-auto"}, "optim": {"lr": 5e-4}, "train": {"batch": 128, "epochs": 2}}

_BRIGHTEST = 255


@dataclass(frozen=True)
class Options:
    """How images become numbers or spikes."""

    n_steps: int = option(25, "steps of a sample", low=2, high=1_000_000)
    encoding: str = option("direct", direct.HELP, choices=direct.ENCODINGS)


def load(
    *, split: str, options: Options, data_dir: Path | None = None, download: bool = False, **files: Any
) -> EventSet:
    """60,000 samples (train) or 10,000 (test); nothing is cached.

    Errors: `ConfigError` without a folder, and for a download; `DataError` for files that are missing or damaged.
    """
    if data_dir is None or download:
        raise ConfigError(
            f"mnist: data.dir is {None if data_dir is None else str(data_dir)!r}, data.download {download}; give the folder that holds "
            "MNIST/raw, as torchvision.datasets.MNIST(DIR, download=True) leaves it, and no download"
        )
    images = load_images("mnist", data_dir, split)
    pixels = images.pixels.reshape(len(images), -1)
    side = images.pixels.shape[-1]
    sensor = Sensor(side, images.pixels.shape[-2], 1)
    is_direct = options.encoding == "direct"
    lists = direct.lists_of(pixels) if is_direct else latencies(pixels, options.n_steps)
    return EventSet(
        **lists,
        labels=images.labels,
        n_neurons=pixels.shape[1],
        n_classes=images.n_classes,
        description={
            "name": "mnist",
            "split": split,
            "n_steps": options.n_steps,
            "encoding": options.encoding,
            "license": LICENSE,
            KEY: sensor.entry(),
            **({"direct": {"n_steps": options.n_steps, "unit": 1 / _BRIGHTEST}} if is_direct else {}),
        },
    )


def latencies(pixels: npt.NDArray[np.uint8], n_steps: int) -> dict[str, Any]:
    """ids and n_spikes of an `EventSet` from uint8[n, N]: one spike for each pixel that is not black, earlier for brighter ones."""
    sample, pixel = np.nonzero(pixels)
    step = np.rint((1 - pixels[sample, pixel] / _BRIGHTEST) * (n_steps - 1)).astype(np.int64)
    row = sample * n_steps + step
    order = np.argsort(row, kind="stable")  # pixels ascend within a sample already
    n_spikes = np.bincount(row, minlength=len(pixels) * n_steps).astype(np.int32)
    return {"ids": pixel[order].astype(np.uint16), "n_spikes": n_spikes.reshape(len(pixels), n_steps)}
