"""Spiking Heidelberg Digits: spoken digits in German and English, 20 classes, 12 speakers.

Sensor: 700 channels of an artificial cochlea. Unit order: 0 is the highest tone; neuron = unit // pool. Format: HDF5
with spikes/times, spikes/units and labels.
"""

from __future__ import annotations

from typing import Any

from sparsesnn.datasets import heidelberg
from sparsesnn.datasets.event_set import EventSet
from sparsesnn.datasets.heidelberg import Options

__all__ = ["CITATION", "LICENSE", "RECIPE", "SPLITS", "Options", "load"]

SPLITS = ("train", "test")
LICENSE, CITATION = heidelberg.LICENSE, heidelberg.CITATION
RECIPE = {"data": {"valid": "speakers:0,1"}, "net": {"text": "auto-256r-auto"}, "train": {"epochs": 50}}


def load(*, split: str, options: Options, **files: Any) -> EventSet:
    """One split of SHD (8,156 train, 2,264 test samples), or of a folder in its format with other samples."""

    def make(dataset: Any, save_to: str) -> Any:
        return dataset(save_to, train=split == "train")

    return heidelberg.load("SHD", make, f"shd_{split}.h5", split=split, options=options, **files)
