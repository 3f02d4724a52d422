"""Synthetic Poisson patterns: each class has its own firing rates, in time and over the neurons.

The rate of neuron n at step t in class c is constant over blocks of steps:

    rate[c, t, n] = activity · ((1 - contrast) + contrast · g[c, block(t), n])        mean of g over its neurons = 1

with g exponentially distributed, as if each class drove neurons at random. Each place of a sample has a spike with
probability 1 - exp(-rate), independently, as in a binned Poisson process. For small rates the mean is `activity`.
Everything follows from `seed`; the train and test parts share the patterns but no samples.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sparsesnn.datasets import hashing
from sparsesnn.datasets.binning import check_window, smallest
from sparsesnn.datasets.event_set import EventSet
from sparsesnn.ids import MAX_UINT16_NEURONS
from sparsesnn.options import option

SPLITS = ("train", "test")
LICENSE = "none: made here"
CITATION = "none: made here"
RECIPE = {"optim": {"lr": 5e-3}, "train": {"epochs": 5}}

# purposes of random numbers
_PATTERN, _SAMPLE = range(2)


@dataclass(frozen=True)
class Options:
    """Size and statistics of the data."""

    n_neurons: int = option(100, "neurons", low=1, high=100_000_000)
    n_classes: int = option(10, "classes, each with its own rates", low=1, high=100_000)
    n_steps: int = option(50, "steps of a sample", low=1, high=1_000_000)
    n_samples: int = option(500, "samples per part, with classes in turn", low=1, high=10_000_000)
    activity: float = option(0.02, "spikes per neuron and step", above=0, below=1)
    contrast: float = option(0.8, "how much the classes differ; 0: not at all", low=0, high=1)
    n_blocks: int = option(
        5, "parts of the window, each with its own rates; 1: constant in time", low=1, high=1_000_000
    )
    seed: int = option(0, "seed of the patterns and the samples")


def load(*, split: str, options: Options, **files: Any) -> EventSet:
    """One split; no files are read and nothing is cached."""
    o = options
    n_neurons, n_steps, seed = o.n_neurons, o.n_steps, o.seed
    check_window(n_steps=n_steps, dt_us=1.0, pool=1, n_units=n_neurons)
    block = np.arange(n_steps) * o.n_blocks // n_steps
    labels = np.arange(o.n_samples) % o.n_classes
    ids, n_spikes = [], np.zeros((o.n_samples, n_steps), np.int64)
    place = np.arange(n_steps * n_neurons)
    chances: dict[int, np.ndarray] = {}
    for sample, label in enumerate(labels.tolist()):
        if label not in chances:
            key = hashing.keys(seed, _PATTERN, label)
            g = -np.log1p(-hashing.uniform(key, np.arange(o.n_blocks * n_neurons))).reshape(o.n_blocks, n_neurons)
            rate = o.activity * ((1.0 - o.contrast) + o.contrast * g / g.mean(axis=1, keepdims=True))
            chances[label] = -np.expm1(-rate)[block].reshape(-1)
        key = hashing.keys(seed, _SAMPLE, SPLITS.index(split), sample)
        step, neuron = np.divmod(np.flatnonzero(hashing.uniform(key, place) < chances[label]), n_neurons)
        ids.append(neuron.astype(np.uint16 if n_neurons <= MAX_UINT16_NEURONS else np.int32))
        n_spikes[sample] = np.bincount(step, minlength=n_steps)
    return EventSet(
        ids=np.concatenate(ids),
        n_spikes=smallest(n_spikes),
        labels=labels.astype(np.int64),
        n_neurons=n_neurons,
        n_classes=o.n_classes,
        description={"name": "synthetic", "split": split, **asdict(o)},
    )
