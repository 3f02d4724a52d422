"""Batches out of an event set: on the host in one pass of C++, or on a device from lists that live there.

Both give what `EventSet.batch` gives, bit for bit; that one is the specification.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsesnn import _core
from sparsesnn.datasets import hashing
from sparsesnn.datasets.augment import Augment, rotations
from sparsesnn.datasets.event_set import EventSet
from sparsesnn.errors import ConfigError
from sparsesnn.spikes import SpikeBatch

Indices = npt.NDArray[np.int64]

#: spikes and labels: int64[B], one class a sample, or float32[B, C], shares of classes, where samples are mixed
Batch = tuple[SpikeBatch, Tensor]

#: makes the batch of the samples with these numbers
Make = Callable[[Indices], Batch]


class HostLists:
    """Batches from lists in main memory (or a file mapped into it), augmented where wanted.

    Args:
        event_set: where the samples come from.
        seed: of the augmentation.
        augment: how samples are changed; None leaves them as they are.
        partners: int64[n], samples that others are mixed with.

    Raises:
        ConfigError: a change that has no meaning for this data.
    """

    def __init__(self, event_set: EventSet, *, seed: int, augment: Augment | None, partners: Indices) -> None:
        self.event_set = event_set
        self.seed = seed
        self.augment = augment or None  # strengths that are all 0 change nothing
        self.partners = partners
        if self.augment:
            self.augment.check(event_set.sensor)

    def epoch(self, epoch: int) -> Make:
        """What makes the batches of that epoch."""
        spec = self._spec(epoch)

        def make(chosen: Indices) -> Batch:
            return self._lists(chosen, spec), self._labels(chosen, epoch)

        return make

    def _lists(self, chosen: Indices, spec: _core.Augment | None) -> SpikeBatch:
        source = self.event_set
        offsets, ids, n_spikes = _core.make_batch(
            source.ids, source.n_spikes, source.sample_starts, source.n_neurons, chosen, spec
        )
        return SpikeBatch(
            offsets=torch.from_numpy(offsets),
            ids=torch.from_numpy(ids),
            n_spikes=torch.from_numpy(n_spikes),
            n_steps=source.n_steps,
            n_samples=chosen.size,
            n_neurons=source.n_neurons,
        )

    def _labels(self, chosen: Indices, epoch: int) -> Tensor:
        if self.augment and self.augment.mix:
            return torch.from_numpy(
                self.event_set.targets(chosen, (self.seed, epoch), self.augment, partners=self.partners)
            )
        return torch.from_numpy(self.event_set.labels[chosen])

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
            n_cells=self.event_set.n_cells,
            quantiles=hashing.NORMAL,
            rotated=rotations(sensor.width, sensor.height, a.rotation) if sensor and a.rotation else None,
            partners=self.partners if a.mix else np.empty(0, np.int64),
            **strengths,
        )


class DeviceLists:
    """Batches from lists that live on a device: the cache is copied there once, and nothing but numbers of samples later.

    The cache takes 2 bytes a spike and 4 a list. Augmentation stays with `HostLists`: what it makes is as small as the
    cache, and made in a millisecond beside the training.

    Args:
        event_set: where the samples come from.
        device: such as "cuda"; any device of PyTorch will do.

    Raises:
        ConfigError: the cache does not fit the device.
    """

    def __init__(self, event_set: EventSet, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.n_steps, self.n_neurons = event_set.n_steps, event_set.n_neurons
        self.wide = event_set.ids.dtype == np.int32
        # few operations know uint16: the ids travel as int16, whose bits are the same
        ids = event_set.ids if self.wide else event_set.ids.view(np.int16)
        n_bytes = ids.nbytes + 4 * event_set.n_spikes.size
        try:
            self.ids = torch.tensor(ids, device=self.device)
            self.n_spikes = torch.tensor(event_set.n_spikes.astype(np.int32), device=self.device)
            self.sample_starts = torch.tensor(event_set.sample_starts[:-1], device=self.device)
            self.labels = torch.tensor(event_set.labels, device=self.device)
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"cache: {n_bytes:,} bytes of spike lists do not fit the device {self.device} ({error}); "
                "keep the cache on the host (cache='host')"
            ) from error

    def epoch(self, _epoch: int) -> Make:
        """What makes the batches of any epoch."""
        return self._make

    def _make(self, chosen: Indices) -> Batch:
        samples = torch.tensor(chosen, device=self.device)
        n_spikes = self.n_spikes[samples]  # [B, T]
        lengths = n_spikes.long()
        starts = (lengths.cumsum(1) - lengths + self.sample_starts[samples, None]).t().reshape(-1)
        lengths = lengths.t().reshape(-1)
        offsets = torch.zeros(lengths.numel() + 1, dtype=torch.int64, device=self.device)
        torch.cumsum(lengths, 0, out=offsets[1:])
        n_entries = int(offsets[-1])  # the one number that the host waits for
        shift = torch.repeat_interleave(starts - offsets[:-1], lengths, output_size=n_entries)
        ids = self.ids[torch.arange(n_entries, device=self.device) + shift]
        spikes = SpikeBatch(
            offsets=offsets,
            ids=ids if self.wide else ids.view(torch.uint16),
            n_spikes=n_spikes.t().reshape(-1),
            n_steps=self.n_steps,
            n_samples=chosen.size,
            n_neurons=self.n_neurons,
        )
        return spikes, self.labels[samples]
