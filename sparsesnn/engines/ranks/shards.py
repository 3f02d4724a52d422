"""Which rank owns which neurons, and the exchange of a population's lists among its owners."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from sparsesnn import _core
from sparsesnn.host.comm import Communicator, made_up
from sparsesnn.host.comm.base import Array, Bytes
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


def exchange_lists(
    message: Bytes,
    own: Callable[[], tuple[Array, Array, Array]],
    shards: Shards,
    comm: Communicator,
    *,
    limited: bool,
    n_samples: int,
    order: Order | None,
) -> list[Bytes]:
    """Gathers the messages of all shards with their lists.

    Args:
        message: this shard's message; empty if it has no neurons.
        own: makes offsets, ids and spike counts of its lists, for dry runs.
        limited: whether the population has a capacity.
        order: how each rank sorts its part; None: it does not.
    """

    def like_own(r: int) -> Bytes:
        n = shards.n_of(r)
        if not n:
            return np.empty(0, np.uint8)
        offsets, ids, n_spikes = made_up.lists(own(), shards.first, comm.rank, r)
        lists = _core.Lists(offsets, ids, n_spikes, None)
        events = _core.OwnEvents(lists, n, n_samples, order) if order else None
        dropped = np.zeros(len(n_spikes), np.int32) if limited and r == shards.owners[0] else None
        return np.asarray(_core.shard_message(lists, n, dropped, events))

    return comm.gather_parts(message, "lists", like_own)
