"""How weights and batches lie in the device's memory: see codelets/gpu/layout.h."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

#: half a warp
LANES = 16
#: samples whose gradients are summed before they are added to others (`group_samples` of the engine `cpu`)
GROUP = 8
#: groups whose sums are added one after the other (host/src/training/group_tree.h)
LEAF_GROUPS = 8
#: leaves whose backward pass runs at a time, 64 samples each: their ∂L/∂i stays in the L2 cache of a GPU
WAVE_LEAVES = 2


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


@dataclass(frozen=True)
class Wave:
    """Samples whose backward pass runs at a time.

    Args:
        first_sample, n_samples: they are whole groups.
        leaves: of the tree of groups; of each the first group within the wave, the end, and the slot of its sum.
        pairs: slots to add then, in order: the first one gets the second one added. In the end slot 0 holds the sum of all.
    """

    first_sample: int
    n_samples: int
    leaves: tuple[tuple[int, int, int], ...]
    pairs: tuple[tuple[int, int], ...]

    @property
    def n_groups(self) -> int:
        return -(-self.n_samples // GROUP)


def find_leaves(n_groups: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The leaves of the tree of groups, from group to group; and the pairs of leaves to add, in order."""
    found: list[tuple[int, int]] = []
    pairs: list[tuple[int, int]] = []

    def divide(low: int, high: int) -> int:
        if high - low <= LEAF_GROUPS:
            found.append((low, high))
            return len(found) - 1
        middle = low + (high - low + 1) // 2
        to, added = divide(low, middle), divide(middle, high)
        pairs.append((to, added))
        return to

    divide(0, n_groups)
    return found, pairs


def make_waves(n_samples: int) -> list[Wave]:
    """The waves of a batch."""
    all_leaves, all_pairs = find_leaves(-(-n_samples // GROUP))
    waves: list[Wave] = []
    slots: dict[int, int] = {}  # of the leaves whose sums are kept
    for k in range(0, len(all_leaves), WAVE_LEAVES):
        own = all_leaves[k : k + WAVE_LEAVES]
        for j in range(len(own)):
            slots[k + j] = next(slot for slot in range(len(slots) + 1) if slot not in slots.values())
        first, end = own[0][0], own[-1][1]
        placed = tuple((low - first, high - first, slots[k + j]) for j, (low, high) in enumerate(own))
        pairs = []
        while all_pairs and max(all_pairs[0]) < k + len(own):
            to, added = all_pairs.pop(0)
            pairs.append((slots[to], slots.pop(added)))
        waves.append(Wave(first * GROUP, min(n_samples, end * GROUP) - first * GROUP, placed, tuple(pairs)))
    return waves


def count_slots(waves: Sequence[Wave]) -> int:
    """Slots for the sums of leaves."""
    return 1 + max(slot for wave in waves for _, _, slot in wave.leaves)


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
    found: npt.NDArray[np.int64] = np.arange(ends[-1] if len(ends) else 0) + np.repeat(
        begin - (ends - lengths), lengths
    )
    return found
