"""What the engine asks of the other ranks while it runs a layer that spans them (host/src/sharded.h)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsesnn.host.comm.base import Array, Bytes, Communicator, Request


class LayerExchange:
    """The ranks that own neurons of one layer, in the order of the neurons.

    Args:
        comm: the group of these ranks alone.
    """

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.rank, self.size = comm.rank, comm.size
        self.others = [r for r in range(comm.size) if r != comm.rank]
        self.sent: list[list[Request]] = [[], []]

    def all_gather(self, own: Array, all_ranks: Array) -> None:
        """Fills `all_ranks` [R·n] with the arrays [n] of all ranks."""
        all_ranks[:] = np.concatenate(self.comm.all_gather(own))

    def start(self, slot: int, parts: Sequence[Bytes]) -> None:
        """Starts to send `parts[r]` to every other rank r; they stay as they are until `finish(slot)`."""
        self.sent[slot] = [self.comm.send(parts[r], r, slot) for r in self.others]

    def finish(self, slot: int) -> list[Bytes]:
        """What the other ranks sent in this slot; of this rank nothing."""
        received = [self.comm.take(r, slot) if r != self.rank else np.empty(0, np.uint8) for r in range(self.comm.size)]
        for request in self.sent[slot]:
            request.wait()
        return received
