"""The engine's messages to other ranks in passes (host/src/ranks/exchange.h), over a communicator."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence

import numpy as np

from sparsesnn import _core
from sparsesnn.host.comm.base import Array, Bytes, Communicator, Request, room


def make_exchange(comm: Communicator) -> _core.Exchange:
    """The exchange of a group, the same in every call. The engine sends its messages directly if it can."""
    if comm.exchange is None:
        calls = comm.engine_calls()
        if calls is None:
            comm.exchange = _core.PyExchange(PythonExchange(comm))
        else:
            comm.exchange = _core.MpiExchange(comm.rank, comm.size, *calls)
    return comm.exchange


def count_traffic(comm: Communicator) -> None:
    """Adds the messages that the engine has sent directly to the communicator's traffic."""
    if isinstance(comm.exchange, _core.MpiExchange):
        comm.traffic.add(*comm.exchange.traveled())


class PythonExchange:
    """The engine's calls, for ranks of a communicator. The channels are the communicator's tags."""

    def __init__(self, comm: Communicator) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self.others = [r for r in range(comm.size) if r != comm.rank]
        #: by channel, the messages under way: sends, and receives by rank, if the sizes are known
        self.sent: defaultdict[int, list[Request]] = defaultdict(list)
        self.posted: dict[int, dict[int, tuple[Request, Bytes]] | None] = {}
        #: early messages of later exchanges, by channel and rank
        self.early: defaultdict[tuple[int, int], deque[Bytes]] = defaultdict(deque)

    def scan(self, own: Array, total: Array, before: Array) -> None:
        """Fills `total` and `before` [n] with the sums over all ranks, and over those before this one."""
        with self.comm.by_the_engine():
            total[:], before[:] = self.comm.scan(own)

    def start(
        self, channel: int, parts: Sequence[Bytes], sizes: Sequence[int] | None, made_up: Callable[[int], Bytes]
    ) -> None:
        """Starts to send `parts[r]` to every other rank r; they must not change until `finish(channel)`.

        Args:
            sizes: bytes from each rank, if all ranks know them. Then empty messages are not sent.
            made_up: returns a message like that of a rank; for dry runs.
        """
        comm = self.comm
        with comm.by_the_engine():
            self.posted[channel] = None
            if sizes is None:
                comm.expect(channel, made_up)
            else:
                rooms = {r: room((sizes[r],), np.uint8) for r in self.others if sizes[r]}
                self.posted[channel] = {r: (comm.receive(part, r, channel), part) for r, part in rooms.items()}
            self.sent[channel] = [
                comm.send(parts[r], r, channel) for r in self.others if sizes is None or parts[r].size
            ]

    def finish(self, channel: int) -> list[Bytes]:
        """The other ranks' messages in this channel, taken in order of arrival; this rank's entry is empty."""
        with self.comm.by_the_engine():
            posted, received = self.posted[channel], [np.empty(0, np.uint8)] * self.size
            if posted is None:
                self._take(channel, received)
            else:
                for r, (request, part) in posted.items():
                    received[r] = part[: request.wait()]
            for request in self.sent[channel]:
                request.wait()
            return received

    def gather(self, own: Bytes, what: str, made_up: Callable[[int], Bytes]) -> list[Bytes]:
        """The messages of all ranks; `own` is this rank's."""
        with self.comm.by_the_engine():
            return self.comm.gather_parts(own, what, made_up)

    def _take(self, channel: int, received: list[Bytes]) -> None:
        """A fast rank's next message may arrive before a slow rank's: it is kept for the next call."""
        missing = set(self.others)
        for r in [r for r in missing if self.early[channel, r]]:
            received[r] = self.early[channel, r].popleft()
            missing.remove(r)
        while missing:
            r, message = self.comm.take_any(channel)
            if r in missing:
                received[r] = message
                missing.remove(r)
            else:
                self.early[channel, r].append(message)
