"""Spiking Speech Commands: spoken English words, 35 classes.

Sensor: 700 channels of an artificial cochlea. Unit order: 0 is the highest tone; neuron = unit // pool. Format: HDF5
with spikes/times, spikes/units and labels.
"""

from __future__ import annotations

from typing import Any

from sparsesnn.datasets import heidelberg
from sparsesnn.datasets.event_set import EventSet
from sparsesnn.datasets.heidelberg import Options

__all__ = ["CITATION", "LICENSE", "RECIPE", "SPLITS", "Options", "load"]

SPLITS = ("train", "valid", "test")
LICENSE, CITATION = heidelberg.LICENSE, heidelberg.CITATION
RECIPE = {"net": {"text": "auto-256r-auto"}, "train": {"epochs": 30}}


def load(*, split: str, options: Options, **files: Any) -> EventSet:
    """One split of SSC (75,466 train, 9,981 valid, 20,382 test samples), or of a folder in its format."""

    def make(dataset: Any, save_to: str) -> Any:
        return dataset(save_to, split=split)

    return heidelberg.load("SSC", make, f"ssc_{split}.h5", split=split, options=options, **files)
