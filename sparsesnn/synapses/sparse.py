"""Fixed sparse synapses: weights for some pairs of neurons, drawn once or given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsesnn.arguments import named
from sparsesnn.errors import DescriptionError
from sparsesnn.options import plain
from sparsesnn.synapses.base import Columns, Synapses

#: receivers drawn at a time: a shard draws only the blocks that it needs
BLOCK = 64
#: least density at which the CPU engine adds whole rows with zeros: vectors are faster than single additions
DENSEST = 1 / 80
#: with more pairs of neurons it does not, to save memory
MOST_PAIRS = 2**26


@named
@dataclass(frozen=True)
class Sparse(Synapses):
    """A weight for some pairs: float32[synapses], receiver by receiver, the senders of each ascending.

    i[n] += Σ_{m that fired, m → n exists} weight[m → n]

    Args:
        density: share of the senders connected to each receiver, above 0, at most 1; every receiver has the same number, at
            least one. The choice follows from (seed, sizes of the populations).
        mask: the existing pairs, instead of density: an array or tensor [n_pre, n_post] of 0 and 1, dense or sparse, or a list
            with the ids of the receivers of each sender, ascending.
        seed: of the draw. Connections between populations of the same sizes need different seeds to differ.

    Training changes the weights of existing synapses and never adds any. Errors: `DescriptionError`.
    """

    density: float = 0.1
    mask: Any = None
    seed: int = 0

    def __post_init__(self) -> None:
        density, seed = plain(self.density), plain(self.seed)
        if isinstance(density, bool) or not isinstance(density, (int, float)) or not 0 < density <= 1:
            raise DescriptionError(f"Sparse: density is {self.density!r}; allowed: above 0, at most 1")
        if type(seed) is not int or not 0 <= seed < 2**63:
            raise DescriptionError(f"Sparse: seed is {self.seed!r}; allowed: whole numbers from 0 to 2^63 - 1")
        object.__setattr__(self, "density", float(density))
        object.__setattr__(self, "seed", seed)
        object.__setattr__(self, "mask", None if self.mask is None else _rows(self.mask))

    def check(self, where: str, n_pre: int, n_post: int) -> None:
        if self.mask is None:
            return
        largest = max((row[-1] for row in self.mask if row), default=0)
        if len(self.mask) != n_pre or largest >= n_post:
            raise DescriptionError(
                f"{where}: Sparse: mask has {len(self.mask)} senders and receivers up to {largest}; the populations have "
                f"{n_pre} and {n_post} neurons; give a mask of [{n_pre}, {n_post}]"
            )

    def weight_shape(self, n_pre: int, n_post: int) -> tuple[int, ...]:
        if self.mask is None:
            return (n_post * self.fan_in(n_pre, n_post),)
        return (sum(len(row) for row in self.mask),)

    def fan_in(self, n_pre: int, n_post: int) -> int:
        """For a mask, the mean, rounded up."""
        if self.mask is None:
            return max(1, round(self.density * n_pre))
        return max(1, -(-sum(len(row) for row in self.mask) // n_post))

    def cut(self, n_pre: int, n_post: int, begin: int, end: int) -> tuple[int, int]:
        if self.mask is None:
            fan_in = self.fan_in(n_pre, n_post)
            return begin * fan_in, end * fan_in
        receivers = np.array([n for row in self.mask for n in row], np.int64)
        return int((receivers < begin).sum()), int((receivers < end).sum())

    def columns(self, n_pre: int, n_post: int, begin: int, end: int) -> Columns | None:
        if self.mask is None:
            fan_in = self.fan_in(n_pre, n_post)
            drawn = [self._drawn(n_pre, fan_in, block) for block in range(begin // BLOCK, -(-end // BLOCK))]
            first = begin // BLOCK * BLOCK
            senders = np.concatenate([np.empty((0, fan_in), np.int32), *drawn])[begin - first : end - first]
            return np.arange(end - begin + 1, dtype=np.int64) * fan_in, senders.reshape(-1)
        receivers = np.array([n for row in self.mask for n in row], np.int64)
        senders = np.repeat(np.arange(n_pre, dtype=np.int32), [len(row) for row in self.mask])
        mine = np.flatnonzero((receivers >= begin) & (receivers < end))
        order = mine[np.argsort(receivers[mine], kind="stable")]
        counts = np.bincount(receivers[order] - begin, minlength=end - begin)
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), senders[order]

    def is_compressed(self, n_pre: int, n_post: int) -> bool:
        return self.fan_in(n_pre, n_post) < DENSEST * n_pre or n_pre * n_post > MOST_PAIRS

    def _drawn(self, n_pre: int, k: int, block: int) -> np.ndarray:
        """int32[BLOCK, k]: k different senders for each receiver of a block, with all choices equally likely.

        For few, duplicates are drawn again. For many, the senders with the k smallest of random numbers, one per sender.
        """
        source = np.random.PCG64(np.random.SeedSequence([self.seed, n_pre, k, block]))
        if 4 * k > n_pre:
            keys = source.random_raw(BLOCK * n_pre).reshape(BLOCK, n_pre)
            return np.sort(np.argpartition(keys, k - 1, axis=1)[:, :k], axis=1).astype(np.int32)
        chosen = np.full((BLOCK, k), -1, np.int64)
        again = chosen < 0
        while again.any():
            chosen[again] = source.random_raw(int(again.sum())) % np.uint64(n_pre)
            chosen.sort(axis=1)
            again[:, 1:] = chosen[:, 1:] == chosen[:, :-1]
            again[:, 0] = False
        return chosen.astype(np.int32)


def _rows(mask: Any) -> tuple[tuple[int, ...], ...]:
    """For each sender the ids of its receivers."""
    array = mask.detach().cpu().to_dense().numpy() if hasattr(mask, "detach") else mask
    array = array.toarray() if hasattr(array, "toarray") else array  # SciPy's sparse arrays
    if isinstance(array, np.ndarray):
        if array.ndim != 2 or not np.isin(array, (0, 1)).all():
            raise DescriptionError(f"Sparse: mask is an array of shape {array.shape}; give 0 and 1 in [n_pre, n_post]")
        return tuple(tuple(int(n) for n in np.flatnonzero(row)) for row in array)
    try:
        rows = tuple(tuple(plain(n) for n in row) for row in array)
    except TypeError:
        rows = ((-1,),)
    good = (type(n) is int and n >= 0 for row in rows for n in row)
    if not all(good) or any(b <= a for row in rows for a, b in zip(row, row[1:])):  # noqa: B905, RUF007  Python 3.8
        raise DescriptionError(
            f"Sparse: mask is {str(mask)[:60]!r}; give an array [n_pre, n_post] of 0 and 1, or for each sender the ids of its "
            "receivers, ascending"
        )
    return rows
