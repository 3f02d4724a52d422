"""One rank of R that is alone: the other ranks' messages are made up, and their travel times are modeled.

The other ranks are assumed to do the same as this one at the same time. So numbers gathered from all are this rank's own, a mask of
rows is the one that this rank sent last, host/src/ranks/made_up.cpp makes the spikes of other neurons, and sums of gradients are 0:
the training is meaningless, but messages have their true sizes, and this rank has its true computation and memory.

The rank's clock counts the time outside this class as it passes, except for work that a real rank's engine does without Python
(`by_the_engine`), and models waiting for messages: one after the other, each takes `latency_s` plus its bytes over `bytes_per_s`,
starting when this rank sent its own. Collective operations take the latency 2·log2(R) times. Each rank is assumed to be on its
own host.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter

import numpy as np

from sparsesnn.host.comm.base import BACK, FORTH, LAYERS, Array, Bytes, Communicator, Request, Traffic
from sparsesnn.partition.target import Links

#: names of messages by tag
NAMES = {0: "loops", 1: "loops", LAYERS: "list gradients", FORTH: "weight gradients", BACK: "weight gradients"}


class Clock:
    """The time of the rank, over all its communicators.

    Attributes:
        now: seconds so far, including `waited`, the seconds spent waiting for messages.
        traffic: by name of the messages; its `seconds` are waiting time.
    """

    def __init__(self, links: Links) -> None:
        self.links, self.now, self.waited = links, 0.0, 0.0
        self.traffic: defaultdict[str, Traffic] = defaultdict(Traffic)
        self._link_is_free, self._left, self._depth = 0.0, perf_counter(), 0

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stops the clock, to make up other ranks' messages."""
        self.advance()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self._left = perf_counter()

    def advance(self) -> None:
        """Adds the time since it was last stopped."""
        now = perf_counter()
        if not self._depth:
            self.now += now - self._left
        self._left = now

    def wait(self, what: str, sent: float, n_bytes: int, latencies: int = 1) -> None:
        """Waits for messages sent at time `sent`."""
        links = self.links
        arrival = max(sent, self._link_is_free) + latencies * links.latency_s + n_bytes / links.bytes_per_s
        self._link_is_free = arrival
        waits = max(0.0, arrival - self.now)
        self.now += waits
        self.waited += waits
        self.traffic[what].seconds += waits


class DryRun(Communicator):
    """A rank of a dry run.

    Args:
        size, rank: R and r.
        links: between ranks.
    """

    def __init__(
        self, size: int, rank: int = 0, links: Links | None = None, *, clock: Clock | None = None, traffic: Traffic | None = None
    ) -> None:  # fmt: skip
        self.rank, self.size = rank, size
        self.clock, self.traffic = clock or Clock(links or Links()), traffic or Traffic()
        self.others = [r for r in range(size) if r != rank]
        self._hops = 2 * math.ceil(math.log2(size))  # there and back
        self._masks: dict[int, Array] = {}  # by tag
        self._sent: defaultdict[tuple[int, int], deque[float]] = defaultdict(deque)  # by rank and tag, when
        self._expected: dict[int, deque[tuple[int, float, Callable[[int], Array]]]] = {}  # by tag

    def send(self, array: Array, to: int, tag: int = 0) -> Request:
        with self.clock.stopped():
            if array.dtype == np.bool_:
                self._masks[tag] = array
            self._sent[to, tag].append(self.clock.now)
            self._count(NAMES.get(tag, "other"), sent=array.nbytes, n_messages=1)
        return _Message(lambda: array.nbytes)

    def receive(self, array: Array, source: int, tag: int = 0) -> Request:
        posted, mask = self.clock.now, self._masks.get(tag)
        rows = None if mask is None else np.resize(mask, len(array))

        def wait() -> int:
            is_mask = rows is not None and array.dtype == np.bool_
            n_bytes = array.nbytes if rows is None or is_mask else int(rows.sum()) * array[0].nbytes
            with self.clock.stopped():
                array[...] = rows if is_mask else 0
                self._arrives(source, tag, n_bytes, posted)
            return n_bytes

        return _Message(wait)

    def take(self, source: int, tag: int = 0) -> Bytes:
        raise NotImplementedError(f"take: a dry run does not know what rank {source} would send with tag {tag}")

    def expect(self, tag: int, made_up: Callable[[int], Array]) -> None:
        with self.clock.stopped():
            self._expected[tag] = deque((r, self.clock.now, made_up) for r in self.others)

    def take_any(self, tag: int = 0) -> tuple[int, Bytes]:
        with self.clock.stopped():
            source, sent, made_up = self._expected[tag].popleft()
            message = made_up(source).view(np.uint8)
            self._arrives(source, tag, message.nbytes, sent)
        return source, message

    def all_gather(self, array: Array) -> list[Array]:
        return self._gather(array, "numbers", lambda r: array.copy())

    def gather_parts(self, own: Array, what: str, made_up: Callable[[int], Array]) -> list[Array]:
        return self._gather(own, what, made_up)

    def by_the_engine(self) -> AbstractContextManager[None]:
        return self.clock.stopped()

    def barrier(self) -> None:
        with self.clock.stopped():
            if self.others:
                self.clock.wait("barrier", self.clock.now, 0, self._hops)

    def scan(self, own: Array) -> tuple[Array, Array]:
        with self.clock.stopped():
            power = 1 << (self.size.bit_length() - 1)
            paired, hops = self.rank < 2 * (self.size - power), power.bit_length() - 1
            n_sent, n_received = (hops, hops) if not paired else (1, 2) if self.rank % 2 else (hops + 2, hops + 1)
            n_messages = 1 if paired and self.rank % 2 else hops + paired
            n_bytes = n_received * own.nbytes
            self._count("counts", sent=n_sent * own.nbytes, received=n_bytes, n_messages=n_messages)
            self.clock.wait("counts", self.clock.now, n_bytes, hops + 2 * (power < self.size))
        return own * self.size, own * self.rank

    def split(self, colors: Sequence[int]) -> DryRun:
        members = [r for r, color in enumerate(colors) if color == colors[self.rank]]
        return DryRun(len(members), members.index(self.rank), clock=self.clock, traffic=self.traffic)

    def _gather(self, own: Array, what: str, made_up: Callable[[int], Array]) -> list[Array]:
        with self.clock.stopped():
            parts = [own.reshape(-1).copy() if r == self.rank else made_up(r) for r in range(self.size)]
            n, received = len(self.others), sum(part.nbytes for part in parts) - own.nbytes
            self._count(what, sent=n * own.nbytes, received=received, n_messages=n)
            if n:
                self.clock.wait(what, self.clock.now, received, self._hops)
        return parts

    def _arrives(self, source: int, tag: int, n_bytes: int, posted: float) -> None:
        """A message arrives, sent when this rank sent its own; if it sent none, when it started to receive."""
        sent = self._sent[source, tag]
        what = NAMES.get(tag, "other")
        self._count(what, received=n_bytes)
        self.clock.wait(what, sent.popleft() if sent else posted, n_bytes)

    def _count(self, what: str, *, sent: int = 0, received: int = 0, n_messages: int = 0) -> None:
        for counters in (self.traffic, self.clock.traffic[what]):
            counters.count(sent=sent, received=received, n_messages=n_messages)


class _Message:
    def __init__(self, wait: Callable[[], int]) -> None:
        self.wait = wait
