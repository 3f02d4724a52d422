"""The layout of arrays in the streams of the IPU program: by shard for neurons' data, by collector for lists.

Letters: T steps, B samples of the program, M senders, N neurons, n neurons of a shard, w = n rounded up to a pair, K
capacity, stride = 2 + K rounded up to a pair. A list is n_spikes, n_listed, then ids, all uint16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sparsesnn.errors import SpikeListError
from sparsesnn.partition.pieces import Collector, Shard
from sparsesnn.spikes import SpikeBatch

Array = np.ndarray[Any, Any]


def even(n: int) -> int:
    return n + n % 2


def list_stride(capacity: int) -> int:
    """uint16 words of one list."""
    return 2 + even(capacity)


def pack_columns(x: Array, shards: Sequence[Shard]) -> Array:
    """float32[rows, N] → flat: per shard [rows, w], padded with zeros."""
    parts = []
    for s in shards:
        part = np.zeros((len(x), even(s.n)), np.float32)
        part[:, : s.n] = x[:, s.first : s.first + s.n]
        parts.append(part.ravel())
    return np.concatenate(parts)


def unpack_columns(flat: Array, n_rows: int, shards: Sequence[Shard]) -> Array:
    """The inverse of `pack_columns`."""
    parts, at = [], 0
    for s in shards:
        size = n_rows * even(s.n)
        parts.append(flat[at : at + size].reshape(n_rows, even(s.n))[:, : s.n])
        at += size
    return np.concatenate(parts, axis=1)


def pack_lists(spikes: SpikeBatch, n_samples: int, capacity: int, collectors: Sequence[Collector]) -> Array:
    """Lists → flat uint16: per collector [T, its samples, stride]; missing samples have empty lists.

    Errors: `SpikeListError` if a list is longer than `capacity`, and for spikes with values.
    """
    if spikes.graded:
        raise SpikeListError(
            "input: spikes have values, but an IPU's lists hold only ids; give plain lists, or use backend cpu or dense"
        )
    n_listed = spikes.n_listed.numpy()
    if n_listed.size and n_listed.max() > capacity:
        worst = int(n_listed.argmax())
        raise SpikeListError(
            f"input: the list of sample {worst % spikes.n_samples} at step {worst // spikes.n_samples} has "
            f"{n_listed[worst]} ids but the program was built for {capacity}; raise the input's capacity"
        )
    rows = np.zeros((spikes.n_steps, n_samples, list_stride(capacity)), np.uint16)
    rows[:, : spikes.n_samples, 0] = spikes.n_spikes.numpy().reshape(spikes.n_steps, spikes.n_samples)
    rows[:, : spikes.n_samples, 1] = n_listed.reshape(spikes.n_steps, spikes.n_samples)
    index = np.repeat(np.arange(len(n_listed)), n_listed)
    place = np.arange(len(index)) - np.repeat(spikes.offsets.numpy()[:-1], n_listed)
    rows[index // max(1, spikes.n_samples), index % max(1, spikes.n_samples), 2 + place] = spikes.ids.numpy()
    return np.concatenate([rows[:, c.first : c.first + c.n].ravel() for c in collectors])


def by_sample(flat: Array, n_steps: int, collectors: Sequence[Collector]) -> Array:
    """Flat, per collector [T, its samples, …] → [T, B, …]."""
    n_samples = sum(c.n for c in collectors)
    width = flat.size // (n_steps * n_samples)
    parts, at = [], 0
    for c in collectors:
        size = n_steps * c.n * width
        parts.append(flat[at : at + size].reshape(n_steps, c.n, width))
        at += size
    return np.concatenate(parts, axis=1)


def unpack_lists(
    flat: Array, dropped: Array, n_steps: int, n_samples: int, n_neurons: int, collectors: Sequence[Collector]
) -> SpikeBatch:
    """The device's lists of the first `n_samples` samples as a `SpikeBatch`."""
    rows = by_sample(flat, n_steps, collectors)[:, :n_samples]
    rows = rows.reshape(n_steps * n_samples, rows.shape[2])  # even for no samples
    counts = by_sample(dropped, n_steps, collectors)[:, :n_samples, 0]
    n_listed = rows[:, 1].astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(n_listed)])
    inside = np.arange(rows.shape[1] - 2) < n_listed[:, None]
    return SpikeBatch(
        offsets=torch.from_numpy(offsets),
        ids=torch.from_numpy(rows[:, 2:][inside]),
        n_spikes=torch.from_numpy(rows[:, 0].astype(np.int32)),
        n_steps=n_steps,
        n_samples=n_samples,
        n_neurons=n_neurons,
        dropped=torch.from_numpy(counts.reshape(-1).astype(np.int32)),
    )
