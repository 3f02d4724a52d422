"""How weights and batches lie in the device's memory: see codelets/gpu/layout.h."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

#: half a warp
LANES = 16
#: samples whose gradients are summed before they are added to others (`group_samples` of the engine `cpu`)
GROUP = 8
#: groups whose sums are added one after the other (host/src/training/group_tree.h)
LEAF_GROUPS = 8


def pack(weight: npt.NDArray[np.float32], width: int) -> npt.NDArray[np.float32]:
    """A weight [M, N] as [M, tiles, 16, columns], padded with zeros."""
    n_pre, n = weight.shape
    n_tiles = -(-n // width)
    padded = np.zeros((n_pre, n_tiles * width), np.float32)
    padded[:, :n] = weight
    return np.ascontiguousarray(padded.reshape(n_pre, n_tiles, width // LANES, LANES).swapaxes(2, 3))


def unpack(packed: npt.NDArray[np.float32], n: int) -> npt.NDArray[np.float32]:
    """The inverse of `pack`: [M, N]."""
    n_pre = packed.shape[0]
    return np.ascontiguousarray(packed.swapaxes(2, 3).reshape(n_pre, -1)[:, :n])


def pad(numbers: npt.ArrayLike, n: int, n_padded: int, fill: float) -> npt.NDArray[np.float32]:
    """Numbers per neuron, or one for all, for whole tiles."""
    padded = np.full(n_padded, fill, np.float32)
    padded[:n] = numbers
    return padded


def leaves(n_groups: int) -> tuple[list[int], list[tuple[int, int]]]:
    """The leaves of the tree of groups: the first group of each and the end; and the pairs of leaves to add, in order."""
    firsts: list[int] = []
    pairs: list[tuple[int, int]] = []

    def divide(low: int, high: int) -> int:
        if high - low <= LEAF_GROUPS:
            firsts.append(low)
            return len(firsts) - 1
        middle = low + (high - low + 1) // 2
        to, added = divide(low, middle), divide(middle, high)
        pairs.append((to, added))
        return to

    divide(0, n_groups)
    return [*firsts, n_groups], pairs


def add_groups(groups: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Sums of groups [G, N], added up in order from zero."""
    total = np.zeros(groups.shape[1:], np.float32)
    for group in groups:
        total += group
    return total


def add_samples(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Numbers of samples [B, N]: summed in double precision within each group, then group by group."""
    groups = []
    for first in range(0, len(samples), GROUP):
        total = np.zeros(samples.shape[1:], np.float64)
        for sample in samples[first : first + GROUP]:
            total += sample
        groups.append(total.astype(np.float32))
    return add_groups(np.stack(groups)) if groups else np.zeros(samples.shape[1:], np.float32)


def places(begin: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """The places of all entries of lists, one list after the other."""
    ends = np.cumsum(lengths, dtype=np.int64)
    found: npt.NDArray[np.int64] = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begin - (ends - lengths), lengths)
    return found
