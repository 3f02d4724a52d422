"""The exchange of lists, potentials and list gradients between a chain's layers, among the ranks that share its neurons.

The messages and their order are the same whether a rank runs all layers in one chain or each in its own: the ranks of a replica may
differ in that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparsesnn.engines.ranks.shards import Shards
from sparsesnn.host.comm import Communicator
from sparsesnn.host.comm.exchange import count_traffic, make_exchange

if TYPE_CHECKING:
    from sparsesnn.engines.ranks.layer import Part


class ChainShards:
    """What `_core.Chain` needs to exchange messages between its layers (host/src/ranks/chain_shards.h).

    Args:
        layers: all layers, with this rank's neurons.
        senders: the owners of the neurons of each input of the chain.

    Attributes:
        exchange: that of the replica's ranks.
        first, inputs: by layer, and by input, the first neuron of each rank, then the number of neurons, [R + 1].
        n_blocks: by layer, the number of blocks of each rank's tiles, [R].
        folds: by layer, the folds of all owners' tile blocks, from `_core.tile_folds`.
        orders: by layer, see `Part.order`.
    """

    def __init__(self, layers: Sequence[Any], senders: Sequence[Shards], comm: Communicator | None = None) -> None:
        self.parts: list[Part] = [layer.part for layer in layers]
        self.senders = senders
        self.comm = comm or self.parts[0].grid.shards
        self.exchange = make_exchange(self.comm)
        self.first = [list(part.shards.first) for part in self.parts]
        self.inputs = [list(shards.first) for shards in senders]
        self.n_blocks = [
            [len(p.tile_folds[r]) if p.shards.n_of(r) else 0 for r in range(self.comm.size)] for p in self.parts
        ]
        self.folds = [[fold for r in part.shards.owners for fold in part.tile_folds[r]] for part in self.parts]
        self.orders = [part.order for part in self.parts]

    def count_traffic(self) -> None:
        """Counts the traffic that the engine itself exchanged in a pass."""
        count_traffic(self.comm)
        for part in self.parts:
            part.count_traffic()
