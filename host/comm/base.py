"""Communication between ranks. Every message is the memory of a NumPy array."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sparsesnn import _core

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

#: messages of at least this many bytes are in memory that the engine keeps, and the engine polls them while they travel; MPIs send
#: smaller ones at once
LARGE = 1 << 16


def room(shape: tuple[int, ...], dtype: npt.DTypeLike, shared: bool = False) -> Array:
    """An uninitialized array; a large one in memory that the engine keeps, because new pages take longer than filling them.

    Args:
        shared: other processes on this host may read it (`shared_memory.py`).
    """
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if n_bytes < LARGE and not shared:
        return np.empty(shape, dtype)
    kept = np.asarray(_core.empty_matrix(1, -(-n_bytes // 4), shared=shared)).reshape(-1).view(np.uint8)
    return kept[:n_bytes].view(dtype).reshape(shape)


@dataclass
class Traffic:
    """Traffic of a rank so far, over all its communicators; reads of shared memory do not count.

    Args:
        bytes_sent, bytes_received: to and from other ranks.
        n_messages: sent; a collective operation counts one to each rank.
        seconds: spent in communication, most of it waiting.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    n_messages: int = 0
    seconds: float = 0.0

    def since(self, before: Traffic) -> Traffic:
        """The traffic after `before`, an earlier copy."""
        return Traffic(**{key: value - getattr(before, key) for key, value in asdict(self).items()})

    def copy(self) -> Traffic:
        return Traffic(**asdict(self))

    def timed(self) -> _Timer:
        """Counts the seconds of a `with` block."""
        return _Timer(self)

    def count(self, *, sent: int = 0, received: int = 0, n_messages: int = 0) -> None:
        self.bytes_sent += sent
        self.bytes_received += received
        self.n_messages += n_messages

    def add(self, sent: int, received: int, n_messages: int, seconds: float) -> None:
        """Adds the engine's own traffic."""
        self.count(sent=sent, received=received, n_messages=n_messages)
        self.seconds += seconds


class _Timer:
    """Like `contextmanager` in a third of the time: recurrent layers exchange thousands of messages per training step."""

    __slots__ = ("start", "traffic")

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic

    def __enter__(self) -> None:
        self.start = perf_counter()

    def __exit__(self, *error: object) -> None:
        self.traffic.seconds += perf_counter() - self.start


class Request(Protocol):
    """A message in transit; its array must not change until `wait` returns."""

    def wait(self) -> int:
        """Waits for completion; returns the bytes received, or for a send, the bytes sent."""


class Communicator(ABC):
    """The ranks 0 to R - 1 of a group, as one of them sees it.

    Collective operations must be called by all ranks of the group in the same order. Arrays are C-contiguous.

    Attributes:
        rank, size: r and R.
        traffic: counters, shared with groups from `split`.
        ranks_on_host: number of ranks that share this host and its cores.
        launcher: the program that starts such ranks.
        exchange: the engine's, from `exchange.py`, once a layer needs it.
    """

    rank: int
    size: int
    traffic: Traffic
    ranks_on_host: int = 1
    launcher: str = "mpirun"
    exchange: _core.Exchange | None = None

    @abstractmethod
    def send(self, array: Array, to: int, tag: int = 0) -> Request:
        """Starts to send; messages with the same tag to the same rank arrive in order."""

    @abstractmethod
    def receive(self, array: Array, source: int, tag: int = 0) -> Request:
        """Starts to receive into `array`, which must be large enough."""

    @abstractmethod
    def take(self, source: int, tag: int = 0) -> Bytes:
        """Waits for the next message, whatever its size."""

    def take_any(self, tag: int = 0) -> tuple[int, Bytes]:
        """Waits for the next message from any rank, whatever its size; returns the rank and the message."""
        raise NotImplementedError(f"take_any: {type(self).__name__} cannot wait for any rank; use MPI")

    @abstractmethod
    def all_gather(self, array: Array) -> list[Array]:
        """The arrays [n] of all ranks; one dtype, any lengths."""

    @abstractmethod
    def split(self, colors: Sequence[int]) -> Communicator:
        """The group of the ranks with this rank's color, in order; `colors` [R] are those of all ranks."""

    def gather_parts(self, own: Array, what: str, made_up: Callable[[int], Array]) -> list[Array]:
        """`all_gather` of parts whose lengths differ in a way known to all ranks. The result is read-only: it may contain
        `own` itself.

        Args:
            what: name of the parts.
            made_up: returns an array like a given rank's; for dry runs.
        """
        return self.all_gather(own)

    def expect(self, tag: int, made_up: Callable[[int], Array]) -> None:  # noqa: B027  # used by dry runs only
        """Describes, for dry runs, the next message with this tag from each other rank."""

    def by_the_engine(self) -> AbstractContextManager[None]:
        """Encloses work that a real rank's engine does by calling MPI itself, so that dry runs do not count Python's time for it."""
        return nullcontext()

    def engine_calls(self) -> tuple[list[int], int, int, int, bool, int] | None:
        """What `_core.MpiExchange` needs to send this group's messages without Python: the addresses of MPI's functions, the handles of
        the group and of MPI_BYTE, the tag of channel 0, whether waiting yields the core, and the bytes of the longest message; None
        if there is no MPI to call.
        """
        return None

    def barrier(self) -> None:
        """Returns once all ranks have called it."""
        self.all_gather(np.empty(0, np.uint8))

    def scan(self, own: Array) -> tuple[Array, Array]:
        """Sums [n] over all ranks, and over those before this one: in log2(R) rounds, each a message of n numbers.

        In round k ranks whose numbers differ in bit k alone exchange the sums of the aligned blocks of 2^k ranks that
        they know. If R is not a power of two, the first ranks form pairs, and one rank of each takes part.
        """
        power = 1 << (self.size.bit_length() - 1)
        extra = self.size - power
        known, before = own.copy(), np.zeros_like(own)
        paired = self.rank < 2 * extra
        if paired and self.rank % 2:
            self.send(known, self.rank - 1, SCAN).wait()
            both = self.take(self.rank - 1, SCAN).view(own.dtype).reshape(2, -1)
            return both[0], both[1]
        if paired:
            known = known + self.take(self.rank + 1, SCAN).view(own.dtype)
        place = self.rank // 2 if paired else self.rank - extra
        for k in range(power.bit_length() - 1):
            other = place ^ (1 << k)
            to = 2 * other if other < extra else other + extra
            sent = self.send(known, to, SCAN)
            theirs = self.take(to, SCAN).view(own.dtype)
            sent.wait()
            known = known + theirs
            if other < place:
                before += theirs
        if paired:
            self.send(np.concatenate([known, before + own]), self.rank + 1, SCAN).wait()
        return known, before

    # ---- convenience -------------------------------------------------------------------------------------------

    def all_texts(self, text: str) -> list[str]:
        """The texts of all ranks."""
        names = "surrogatepass"  # file names need not be UTF-8
        data = text.encode("utf-8", names)
        return [part.tobytes().decode("utf-8", names) for part in self.all_gather(np.frombuffer(data, np.uint8))]

    def sum_counts(self, counts: Sequence[int]) -> list[int]:
        """Sums of whole numbers over the ranks."""
        if self.size == 1 or not counts:
            return list(counts)
        return [int(n) for n in np.sum(self.all_gather(np.array(counts, np.int64)), axis=0)]


#: tags of messages: 0 to 3 are the channels of host/src/ranks/exchange.h, of which the last is for messages between layers; sums
#: sent to the replica that adds up their rows, and totals sent back; `scan`
LAYERS, FORTH, BACK, SCAN = 3, 4, 5, 6
