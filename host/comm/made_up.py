"""Messages of the other ranks in a dry run (`dry_run.py`): as active as this rank's, scaled to the neurons that they own.

Their spikes are those of this rank's neurons, shifted by a few lists per rank, so that ranks do not fire in unison.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn.host.comm.base import Array, Bytes

#: spikes per neuron and step of populations without neurons on this rank
ACTIVITY = 0.02


def lists(
    of_rank: tuple[Array, Array, Array], first: Sequence[int], rank: int, other: int
) -> tuple[Array, Array, Array]:
    """The lists of rank `other`, which owns neurons: offsets, ids and numbers of spikes.

    Args:
        of_rank: those of `rank`; ids count from 0.
        first: first neuron of each rank, and the number of neurons of the population, [R + 1].
    """
    offsets, ids, n_spikes = of_rank
    n_own, n = first[rank + 1] - first[rank], first[other + 1] - first[other]
    runs = np.stack([n_spikes, np.diff(offsets) - n_spikes], 1).reshape(-1)
    if not n_own:
        ids, runs = _drawn(len(n_spikes), n, other)
    ids, runs = _moved(ids.astype(np.int64), runs, n_own or n, n, 2 * (other - rank))
    ends = np.cumsum(runs[::2] + runs[1::2], dtype=np.int64)
    return np.concatenate([[0], ends]), ids.astype(np.uint16 if n <= 65536 else np.int32), runs[::2].astype(np.int32)


def spikes(message: Bytes, n_lists: int, n_kinds: int, first: Sequence[int], rank: int, other: int) -> Bytes:
    """A recurrent layer's spikes from rank `other`, modeled on this rank's `message` (host/src/ranks/sharded_forward.cpp)."""
    n_own, n = first[rank + 1] - first[rank], first[other + 1] - first[other]
    count_type, id_type = _count_type(n_own), _id_type(first[-1])
    n_ids = message.size - n_lists * n_kinds * np.dtype(count_type).itemsize
    counts = message[n_ids:].copy().view(count_type).reshape(n_lists, n_kinds).astype(np.int64)
    own_ids = message[:n_ids].copy().view(id_type).astype(np.int64) - first[rank]
    ids, fired = _moved(own_ids, counts[:, 0], n_own, n, other - rank)
    counts = np.minimum(np.roll(counts, rank - other, axis=0), n)
    counts[:, 0] = fired
    parts = [(ids + first[other]).astype(id_type), counts.reshape(-1).astype(_count_type(n))]
    return np.concatenate([part.view(np.uint8) for part in parts])


def sums(own: Bytes, n_blocks: Sequence[int], rank: int, other: int) -> Bytes:
    """Sums for this rank's entries over the blocks of tiles of `other`; `own`: the sums over this rank's blocks."""
    return np.zeros(own.size // n_blocks[rank] * n_blocks[other], np.uint8)


def _moved(ids: Array, sizes: Array, n_own: int, n: int, by: int) -> tuple[Array, Array]:
    """Runs of ids with these sizes, each replaced by the run `by` later, for n neurons: some left out, or some doubled."""
    by %= max(1, len(sizes))
    start = int(sizes[:by].sum())
    ids, sizes = np.concatenate([ids[start:], ids[:start]]), np.roll(sizes, -by)
    if n == n_own:
        return ids, sizes
    run = np.tile(np.repeat(np.arange(len(sizes)), sizes), -(-n // n_own))
    ids = np.concatenate([ids + first for first in range(0, n, n_own)])
    kept = np.argsort(run, kind="stable")
    kept = kept[ids[kept] < n]
    return ids[kept], np.bincount(run[kept], minlength=len(sizes))


def _drawn(n_lists: int, n: int, seed: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Runs of spikes and of near-spikes, the latter empty."""
    fired = np.random.default_rng(seed).random((n_lists, n)) < ACTIVITY
    return np.nonzero(fired)[1], np.stack([fired.sum(1), np.zeros(n_lists, np.int64)], 1).reshape(-1)


def _count_type(most: int) -> type[np.unsignedinteger[Any]]:
    """The type of counts up to `most` in messages; `count_bytes` of host/src/ranks/shard_lists.h."""
    return np.uint8 if most < 256 else np.uint16 if most < 65536 else np.uint32


def _id_type(n: int) -> type[np.unsignedinteger[Any]]:
    return np.uint16 if n <= 65536 else np.uint32
