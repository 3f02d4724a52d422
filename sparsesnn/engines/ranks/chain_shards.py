"""What ranks that share the neurons of a network tell one another between its layers, where these run in one call of the engine.

The messages, and their order, are those of layers that run one by one (`layer.py`): a replica's ranks may go either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsesnn import _core
from sparsesnn.engines.ranks.layer import Part, lists_to_owners
from sparsesnn.engines.ranks.shards import exchange_lists
from sparsesnn.host.comm.base import Array, Bytes


class ChainShards:
    """Sends and receives for `_core.Chain` (host/src/ranks/chain_shards.h).

    Args:
        layers: all, with this rank's neurons.

    Attributes:
        rank: this one, of its replica.
        first: by layer, the first neuron of each rank, and the number of neurons, [R + 1].
        folds: by layer, of the blocks of tiles of all owners, as `_core.tile_folds`.
        orders: by layer, see `Part.order`.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self.parts: list[Part] = [layer.part for layer in layers]
        self.comm = self.parts[0].grid.shards
        self.rank = self.comm.rank
        self.first = [list(part.shards.first) for part in self.parts]
        self.folds = [[fold for r in part.shards.owners for fold in part.tile_folds[r]] for part in self.parts]
        self.orders = [part.order for part in self.parts]

    def lists(
        self,
        k: int,
        own: _core.Run | None,
        n_samples: int,
        n_lists: int,
        message: Bytes | None,
        limited: bool,
        are_sorted: bool,
    ) -> list[Bytes]:
        """The messages of all ranks (`_core.merge_messages`) on the lists of layer k, of which this rank has `own`.

        Args:
            limited: it has a capacity.
            are_sorted: messages hold events for its readers.
        """
        part = self.parts[k]

        def arrays() -> tuple[Array, Array, Array]:
            if own is None:
                return np.zeros(n_lists + 1, np.int64), np.empty(0, np.int64), np.zeros(n_lists, np.int32)
            return np.asarray(own.offsets), np.asarray(own.ids), np.asarray(own.n_spikes)

        sent = np.empty(0, np.uint8) if message is None else message
        order = part.order if are_sorted else None
        return exchange_lists(sent, arrays, part.shards, self.comm, limited=limited, n_samples=n_samples, order=order)

    def potentials(self, k: int, own: _core.Run | None, n_lists: int) -> list[Array]:
        """The potentials of all ranks' neurons, [T·B·n] each."""
        part = self.parts[k]
        numbers = np.empty(0, np.float32) if own is None else np.asarray(own.potentials).reshape(-1)
        return self.comm.gather_parts(
            numbers, "potentials", lambda r: np.zeros(n_lists * part.shards.n_of(r), np.float32)
        )

    def count_traffic(self) -> None:
        """Adds what the engine exchanged in a pass by itself."""
        for part in self.parts:
            part.count_traffic()

    def to_owners(self, k: int, parts: Sequence[Sequence[Array] | None], n_own: Sequence[int]) -> list[list[Array]]:
        """See `lists_to_owners`."""
        return lists_to_owners(self.parts[k], parts, n_own)
