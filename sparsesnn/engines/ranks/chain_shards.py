"""Exchange of lists, potentials and list gradients between a chain's layers, among the ranks that share its neurons.

The messages and their order are the same whether a rank runs all layers in one chain or each in its own: the ranks of a replica may
differ in that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsesnn import _core
from sparsesnn.engines.ranks.shards import Shards, exchange_lists
from sparsesnn.host.comm import Communicator
from sparsesnn.host.comm.base import LIST_GRADIENTS, Array, Bytes

if TYPE_CHECKING:
    from sparsesnn.engines.ranks.layer import Part


class ChainShards:
    """Sends and receives for `_core.Chain` (host/src/ranks/chain_shards.h).

    Args:
        layers: all layers, with this rank's neurons.
        senders: the owners of the neurons of each input of the chain.

    Attributes:
        rank: this rank within its replica.
        first, inputs: by layer, and by input, the first neuron of each rank, then the number of neurons, [R + 1].
        folds: by layer, the folds of all owners' tile blocks, from `_core.tile_folds`.
        orders: by layer, see `Part.order`.
    """

    def __init__(self, layers: Sequence[Any], senders: Sequence[Shards], comm: Communicator | None = None) -> None:
        self.parts: list[Part] = [layer.part for layer in layers]
        self.senders = senders
        self.comm = comm or self.parts[0].grid.shards
        self.rank = self.comm.rank
        self.first = [list(part.shards.first) for part in self.parts]
        self.inputs = [list(shards.first) for shards in senders]
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
        """The messages of all ranks (`_core.merge_messages`) with the lists of layer k; this rank's part is `own`.

        Args:
            limited: whether the layer has a capacity.
            are_sorted: whether messages hold events for its readers.
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
        """Counts the traffic that the engine itself exchanged in a pass."""
        for part in self.parts:
            part.count_traffic()

    def to_owners(self, k: int, parts: Sequence[Sequence[Array] | None], n_own: Sequence[int]) -> list[list[Array]]:
        """Sends the gradients of list entries from the tiles of layer k to the entries' owners.

        Args:
            parts: for each list and rank, the gradients of that rank's entries, [K, entries] for K blocks of this rank's tiles; None:
                this rank has no tiles.
            n_own: for each list, the number of entries that this rank owns.

        Returns: for each list, the gradients of this rank's entries from every rank that has tiles, [K, n_own].
        """
        part = self.parts[k]
        nothing = [np.empty(0, np.float32)] * self.comm.size
        n_blocks = [len(part.tile_folds[r]) if part.shards.n_of(r) else 0 for r in range(self.comm.size)]
        shapes = [[(k, n) for k in n_blocks] for n in n_own]
        found = self.comm.swap_parts([nothing if own is None else own for own in parts], shapes, LIST_GRADIENTS)
        return [[blocks[r] for r in part.shards.owners] for blocks in found]
