"""R ranks as threads of one process."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from sparsesnn.host.comm.base import Array, Bytes, Communicator, Traffic

T = TypeVar("T")

#: address of a message: group, source, destination, tag
Address = tuple[Any, int, int, int]
#: tag of collective operations
COLLECTIVE = -2


class BrokenGroupError(RuntimeError):
    """Another simulated rank failed, so this one's message never comes."""


def simulate(n_ranks: int, function: Callable[[Communicator], T]) -> list[T]:
    """Calls `function(communicator)` once per rank, at the same time; returns the results in order.

    Errors: that of the lowest rank that failed by itself; all other ranks are woken and end.
    """
    post = _Post()
    results: list[Any] = [None] * n_ranks
    errors: dict[int, BaseException] = {}

    def run(rank: int) -> None:
        try:
            results[rank] = function(Simulated(post, (), rank, n_ranks))
        except BaseException as error:  # after any error the other ranks must not wait for this one
            errors[rank] = error
            post.close()

    threads = [threading.Thread(target=run, args=(r,), name=f"sparsesnn-rank-{r}", daemon=True) for r in range(n_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for own in (False, True):
        for _, error in sorted(errors.items()):
            if isinstance(error, BrokenGroupError) == own:
                raise error
    return results


class _Post:
    """Messages in transit, copied when they are sent."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.messages: dict[Address, deque[Array]] = defaultdict(deque)
        self.closed = False

    def put(self, address: Address, array: Array) -> None:
        with self.changed:
            self.messages[address].append(np.array(array))
            self.changed.notify_all()

    def get(self, address: Address) -> Array:
        with self.changed:
            self.changed.wait_for(lambda: self.closed or self.messages[address])
            if not self.messages[address]:
                raise BrokenGroupError(f"rank {address[2]}: another rank failed while this one waited for it")
            return self.messages[address].popleft()

    def get_any(self, addresses: Sequence[Address]) -> tuple[Address, Array]:
        """The first message at any of several addresses."""
        with self.changed:
            while True:
                for address in addresses:
                    if self.messages[address]:
                        return address, self.messages[address].popleft()
                if self.closed:
                    raise BrokenGroupError(f"rank {addresses[0][2]}: another rank failed while this one waited for it")
                self.changed.wait()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()


class Simulated(Communicator):
    """A rank of `simulate`."""

    def __init__(self, post: _Post, group: Any, rank: int, size: int, traffic: Traffic | None = None) -> None:
        self.post, self.group, self.rank, self.size = post, group, rank, size
        self.traffic = traffic or Traffic()
        self.ranks_on_host = size
        self._splits = itertools.count()

    def send(self, array: Array, to: int, tag: int = 0) -> _Sent:
        self.post.put((self.group, self.rank, to, tag), array)
        self.traffic.count(sent=array.nbytes, n_messages=1)
        return _Sent(array.nbytes)

    def receive(self, array: Array, source: int, tag: int = 0) -> _Receiving:
        return _Receiving(self, array, source, tag)

    def take(self, source: int, tag: int = 0) -> Bytes:
        return self._get(source, tag).reshape(-1).view(np.uint8)

    def take_any(self, tag: int = 0) -> tuple[int, Bytes]:
        with self.traffic.timed():
            address, array = self.post.get_any(
                [(self.group, r, self.rank, tag) for r in range(self.size) if r != self.rank]
            )
        self.traffic.count(received=array.nbytes)
        return address[1], array.reshape(-1).view(np.uint8)

    def all_gather(self, array: Array) -> list[Array]:
        for r in range(self.size):
            if r != self.rank:
                self.send(array, r, COLLECTIVE)
        return [np.array(array) if r == self.rank else self._get(r, COLLECTIVE) for r in range(self.size)]

    def split(self, colors: Sequence[int]) -> Simulated:
        color = colors[self.rank]
        members = [r for r, c in enumerate(colors) if c == color]
        group = (self.group, next(self._splits), color)
        return Simulated(self.post, group, members.index(self.rank), len(members), self.traffic)

    def _get(self, source: int, tag: int) -> Array:
        with self.traffic.timed():
            array = self.post.get((self.group, source, self.rank, tag))
        self.traffic.count(received=array.nbytes)
        return array


class _Sent:
    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes

    def wait(self) -> int:
        return self.n_bytes


class _Receiving:
    def __init__(self, to: Simulated, array: Array, source: int, tag: int) -> None:
        self.to, self.array, self.source, self.tag = to, array, source, tag

    def wait(self) -> int:
        message = self.to.take(self.source, self.tag)
        if message.nbytes > self.array.nbytes:
            raise ValueError(f"receive: {message.nbytes} bytes arrived for an array of {self.array.nbytes}")
        self.array.reshape(-1).view(np.uint8)[: message.nbytes] = message
        return message.nbytes
