"""Poisson patterns: each class has its own firing rates, in time and over the neurons; made by numbers alone.

The rate of neuron n at step t in class c is constant over blocks of steps:

    rate[c, t, n] = activity · ((1 - contrast) + contrast · g[c, block(t), n])        mean of g over its neurons = 1

with g exponentially distributed, as if each class drove each neuron by chance. A sample has at each place a spike with
probability 1 - exp(-rate), independently: what a Poisson process leaves after binning. For small rates the mean is
`activity`. Everything follows from `seed`; the train and the test part share the patterns and no sample.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sparsesnn.datasets import hashing
from sparsesnn.datasets.binning import check_window, length_dtype
from sparsesnn.datasets.event_set import EventSet
from sparsesnn.errors import ConfigError
from sparsesnn.spikes import MAX_UINT16_NEURONS

SPLITS = ("train", "test")
DEFAULTS = {
    "n_neurons": 100,
    "n_classes": 10,
    "n_steps": 50,
    "n_samples": 500,
    "activity": 0.02,
    "contrast": 0.8,
    "n_blocks": 5,
    "seed": 0,
}

LICENCE = "none: made here"
CITATION = "none: made here"

# what a random number is for
_PATTERN, _SAMPLE = range(2)


def load(
    *,
    split: str,
    data_dir: Path | None,
    cache_dir: Path | None,
    download: bool,
    n_workers: int | None,
    n_neurons: int,
    n_classes: int,
    n_steps: int,
    n_samples: int,
    activity: float,
    contrast: float,
    n_blocks: int,
    seed: int,
) -> EventSet:
    """`n_samples` samples of a split, the classes in turn; nothing is read from files or cached.

    Args:
        activity: wanted spikes per neuron and step, above 0 and below 1.
        contrast: how much the classes differ, 0 (not at all) to 1.
        n_blocks: parts of the window with their own rates; 1 means a pattern constant in time.
        seed: of the patterns and the samples.
    """
    counts = {"n_neurons": n_neurons, "n_classes": n_classes, "n_samples": n_samples, "n_blocks": n_blocks}
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"synthetic: {name} is {value!r}; give a whole number from 1")
    check_window(n_steps=n_steps, dt_us=1.0, pool=1, n_units=n_neurons)
    if not (0 < activity < 1 and 0 <= contrast <= 1):
        raise ConfigError(
            f"synthetic: activity is {activity}, contrast {contrast}; allowed: above 0 and below 1, and 0 to 1"
        )
    block = np.arange(n_steps) * n_blocks // n_steps
    labels = np.arange(n_samples) % n_classes
    ids, n_spikes = [], np.zeros((n_samples, n_steps), np.int64)
    place = np.arange(n_steps * n_neurons)
    chances: dict[int, np.ndarray] = {}
    for sample, label in enumerate(labels.tolist()):
        if label not in chances:
            key = hashing.keys(seed, _PATTERN, label)
            g = -np.log1p(-hashing.uniform(key, np.arange(n_blocks * n_neurons))).reshape(n_blocks, n_neurons)
            rate = activity * ((1.0 - contrast) + contrast * g / g.mean(axis=1, keepdims=True))
            chances[label] = -np.expm1(-rate)[block].reshape(-1)
        key = hashing.keys(seed, _SAMPLE, SPLITS.index(split), sample)
        step, neuron = np.divmod(np.flatnonzero(hashing.uniform(key, place) < chances[label]), n_neurons)
        ids.append(neuron.astype(np.uint16 if n_neurons <= MAX_UINT16_NEURONS else np.int32))
        n_spikes[sample] = np.bincount(step, minlength=n_steps)
    return EventSet(
        ids=np.concatenate(ids),
        n_spikes=n_spikes.astype(length_dtype(int(n_spikes.max()))),
        labels=labels.astype(np.int64),
        n_neurons=n_neurons,
        n_classes=n_classes,
        description={
            "name": "synthetic",
            "split": split,
            **counts,
            "n_steps": n_steps,
            "activity": activity,
            "contrast": contrast,
            "seed": seed,
        },
    )
