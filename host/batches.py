"""Batches from an event set, in one pass of C++; bit for bit the same as the specification, `EventSet.batch`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsesnn import _core
from sparsesnn.datasets import direct, hashing
from sparsesnn.datasets.augment import Augment, classmates, rotations
from sparsesnn.datasets.event_set import EventSet
from sparsesnn.spikes import SpikeBatch

Indices = npt.NDArray[np.int64]

#: spikes and labels: int64[B], one class per sample, or float32[B, C], shares of classes, if samples are mixed; for other tasks see
#: `sparsesnn.task.Task`
Batch = tuple[SpikeBatch, Tensor]

#: makes a batch from sample numbers
Make = Callable[[Indices], Batch]


class Batches:
    """Batches from lists in main memory (or a mapped file), with optional augmentation.

    Args:
        event_set: the source of the samples.
        seed: of the augmentation.
        augment: changes to the samples; None: no changes.
        partners: int64[n], samples that others are blended or mixed with.

    Raises:
        ConfigError: a change that does not apply to this data.
    """

    def __init__(self, event_set: EventSet, *, seed: int, augment: Augment | None, partners: Indices) -> None:
        self.event_set = event_set
        self.seed = seed
        self.augment = augment or None  # strengths that are all 0 change nothing
        self.partners = partners
        self._mates: tuple[Indices, Indices] | tuple[None, None] = (None, None)
        if self.augment:
            self.augment.check(event_set.sensor, event_set.task, event_set.description)
            if self.augment.blend:
                self._mates = classmates(event_set.labels, partners)

    def epoch(self, epoch: int) -> Make:
        """A function that makes the batches of an epoch."""
        spec = self._spec(epoch)

        def make(chosen: Indices) -> Batch:
            return self._lists(chosen, spec), self._labels(chosen, epoch)

        return make

    def _lists(self, chosen: Indices, spec: _core.Augment | None) -> SpikeBatch:
        source = self.event_set
        offsets, ids, n_spikes, values = _core.make_batch(
            source.ids, source.n_spikes, source.sample_starts, source.n_neurons, chosen, spec, source.values
        )
        return SpikeBatch(
            offsets=torch.from_numpy(offsets),
            ids=torch.from_numpy(ids),
            n_spikes=torch.from_numpy(n_spikes),
            n_steps=source.n_steps,
            n_samples=chosen.size,
            n_neurons=source.n_neurons,
            values=None
            if values is None
            else torch.from_numpy(values if source.unit == 1 else values * np.float32(source.unit)),
            graded=values is not None,
            repeats=direct.steps_of(source.description) is not None,
        )

    def _labels(self, chosen: Indices, epoch: int) -> Tensor:
        return torch.from_numpy(
            self.event_set.batch_labels(chosen, (self.seed, epoch), self.augment, partners=self.partners)
        )

    def _spec(self, epoch: int) -> _core.Augment | None:
        if not self.augment:
            return None
        a, sensor = self.augment, self.event_set.sensor
        strengths: dict[str, Any] = {field.name: getattr(a, field.name) for field in fields(a)}
        return _core.Augment(
            seed=self.seed & 0xFFFF_FFFF_FFFF_FFFF,
            epoch=epoch,
            width=sensor.width if sensor else 0,
            height=sensor.height if sensor else 0,
            quantiles=hashing.NORMAL,
            rotated=rotations(sensor.width, sensor.height, a.rotation) if sensor and a.rotation else None,
            partners=self.partners if a.mix else np.empty(0, np.int64),
            by_class=self._mates[0],
            spans=self._mates[1],
            **strengths,
        )
