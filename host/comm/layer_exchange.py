"""The engine's messages to other ranks while it runs a layer that spans them (host/src/ranks/sharded.h)."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np

from sparsesnn import _core
from sparsesnn.host.comm import made_up
from sparsesnn.host.comm.base import Array, Bytes, Communicator, Request


def make_exchange(comm: Communicator, first: Sequence[int], n_blocks: Sequence[int]) -> _core.Exchange:
    """The exchange for the passes of a layer: a `LayerExchange`, whose messages the engine sends directly if it can."""
    python, calls = LayerExchange(comm, first, n_blocks), comm.engine_calls()
    return _core.Exchange(python) if calls is None else _core.MpiExchange(python, *calls)


class LayerExchange:
    """The ranks that own neurons of one layer, in the order of the neurons.

    Args:
        comm: the group of these ranks.
        first: first neuron of each rank, and the number of neurons, [R + 1].
        n_blocks: sums over each rank's tiles per list entry, [R].
    """

    def __init__(self, comm: Communicator, first: Sequence[int], n_blocks: Sequence[int]) -> None:
        self.comm, self.first, self.n_blocks = comm, list(first), list(n_blocks)
        self.rank, self.size = comm.rank, comm.size
        self.others = [r for r in range(comm.size) if r != comm.rank]
        self.sent: list[list[Request]] = [[], []]
        #: early messages of later exchanges, by slot and rank
        self.early: list[dict[int, deque[Bytes]]] = [defaultdict(deque), defaultdict(deque)]

    def scan(self, own: Array, total: Array, before: Array) -> None:
        """Fills `total` and `before` [n] with the sums over all ranks, and over those before this one."""
        with self.comm.by_the_engine():
            total[:], before[:] = self.comm.scan(own)

    def start(self, slot: int, parts: Sequence[Bytes], n_lists: int, n_kinds: int) -> None:
        """Starts to send `parts[r]` to every other rank r; they must not change until `finish(slot)`.

        Args:
            parts: spikes, followed by n_kinds counts for each of n_lists lists; or sums, if n_lists is 0.
        """
        with self.comm.by_the_engine():
            self.sent[slot] = [self.comm.send(parts[r], r, slot) for r in self.others]
            own = parts[self.rank]
            if n_lists:
                self.comm.expect(slot, lambda r: made_up.spikes(own, n_lists, n_kinds, self.first, self.rank, r))
            else:
                self.comm.expect(slot, lambda r: made_up.sums(own, self.n_blocks, self.rank, r))

    def finish(self, slot: int) -> list[Bytes]:
        """The other ranks' messages in this slot, taken in order of arrival; this rank's entry is empty.

        A fast rank's next message may arrive before a slow rank's: it is kept for the next call.
        """
        with self.comm.by_the_engine():
            received = [np.empty(0, np.uint8)] * self.size
            early, missing = self.early[slot], set(self.others)
            for r in [r for r in missing if early[r]]:
                received[r] = early[r].popleft()
                missing.remove(r)
            while missing:
                r, message = self.comm.take_any(slot)
                if r in missing:
                    received[r] = message
                    missing.remove(r)
                else:
                    early[r].append(message)
            for request in self.sent[slot]:
                request.wait()
            return received
