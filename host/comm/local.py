"""A single rank, with nothing to exchange."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsesnn.host.comm.base import Array, Bytes, Communicator, Request, Traffic


class Local(Communicator):
    """The group of a single process."""

    def __init__(self) -> None:
        self.rank, self.size, self.traffic = 0, 1, Traffic()

    def send(self, array: Array, to: int, tag: int = 0) -> Request:
        raise IndexError(f"send: to rank {to} of 1; there is no other")

    def receive(self, array: Array, source: int, tag: int = 0) -> Request:
        raise IndexError(f"receive: from rank {source} of 1; there is no other")

    def take(self, source: int, tag: int = 0) -> Bytes:
        raise IndexError(f"take: from rank {source} of 1; there is no other")

    def all_gather(self, array: Array) -> list[Array]:
        return [np.array(array)]

    def split(self, colors: Sequence[int]) -> Local:
        return self
