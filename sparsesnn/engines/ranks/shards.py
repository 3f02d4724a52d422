"""Which rank owns which neurons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparsesnn.network import Network
from sparsesnn.placement import CPU_TILE_WIDTHS, neurons_of_ranks, tile_width

#: how the owners of a population sort its lists for a reader: the reader's delay and `_core.chunk_plan`
Order = tuple[int, int, int]


@dataclass(frozen=True)
class Shards:
    """The neurons of one population over the ranks of a replica.

    Args:
        first: [R + 1], rank r owns neurons first[r] to first[r + 1] - 1, in whole tiles; some ranks own none.
        rank: this rank.
        tile_width: neurons per tile.
    """

    first: tuple[int, ...]
    rank: int
    tile_width: int = CPU_TILE_WIDTHS[0]

    @property
    def begin(self) -> int:
        return self.first[self.rank]

    @property
    def end(self) -> int:
        return self.first[self.rank + 1]

    def n_of(self, rank: int) -> int:
        """Neurons of a rank."""
        return self.first[rank + 1] - self.first[rank]

    @property
    def n(self) -> int:
        """Neurons of this rank."""
        return self.n_of(self.rank)

    @property
    def n_all(self) -> int:
        return self.first[-1]

    @property
    def owners(self) -> tuple[int, ...]:
        """The ranks that own neurons."""
        return tuple(r for r in range(len(self.first) - 1) if self.first[r + 1] > self.first[r])


def even_shards(n: int, n_ranks: int, rank: int) -> Shards:
    """An even split of a population that no rank owns, such as the input."""
    return Shards(tuple(n * r // n_ranks for r in range(n_ranks + 1)), rank)


def make_shards(network: Network, n_ranks: int, rank: int) -> Mapping[str, Shards]:
    """The shards of all populations except the input, over `n_ranks` ranks."""
    return {
        name: Shards(first, rank, tile_width(network, name))
        for name, first in neurons_of_ranks(network, n_ranks).items()
    }
