"""For whom ranks that share a population sort its lists."""

from __future__ import annotations

from sparsesnn.connection import Connection
from sparsesnn.layers import LI
from sparsesnn.network import Network


def first_reader(network: Network, name: str) -> Connection | None:
    """The connection by which the lists of a population are first heard, if that gathers them by sender on its way back; None: each
    rank sorts for itself what it needs."""

    def is_readout(c: Connection) -> bool:
        return isinstance(network.populations[c.post], LI)

    readers = [c for c in network.connections if c.pre == name]
    first = min(readers, key=lambda c: (c.delay, is_readout(c)), default=None)
    if first is None or is_readout(first) or not first.synapses.is_matrix or first.axonal:
        return None
    return first
