"""What ranks can do with one another. Everything that travels is the memory of a NumPy array."""

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

#: bytes of a message from which on it lies in memory that the engine keeps, and the engine looks at it while it travels; MPIs send
#: smaller ones in one go
LARGE = 1 << 16


def room(shape: tuple[int, ...], dtype: npt.DTypeLike, shared: bool = False) -> Array:
    """An array, not initialized; a large one in memory that the engine keeps, as new pages take longer than what comes into them.

    Args:
        shared: others on this host may read it (`shared_memory.py`).
    """
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if n_bytes < LARGE and not shared:
        return np.empty(shape, dtype)
    kept = np.asarray(_core.empty_matrix(1, -(-n_bytes // 4), shared=shared)).reshape(-1).view(np.uint8)
    return kept[:n_bytes].view(dtype).reshape(shape)


@dataclass
class Traffic:
    """What a rank has exchanged so far, over all its communicators; not what it read of another's sums in their place.

    Args:
        bytes_sent, bytes_received: to and from other ranks.
        n_messages: sent, of collective operations one to each rank.
        seconds: spent in communication, most of it waiting.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    n_messages: int = 0
    seconds: float = 0.0

    def since(self, before: Traffic) -> Traffic:
        """What was exchanged after `before`, a copy made earlier."""
        return Traffic(**{key: value - getattr(before, key) for key, value in asdict(self).items()})

    def copy(self) -> Traffic:
        return Traffic(**asdict(self))

    def timed(self) -> _Timer:
        """Counts the seconds of a `with`."""
        return _Timer(self)

    def count(self, *, sent: int = 0, received: int = 0, n_messages: int = 0) -> None:
        self.bytes_sent += sent
        self.bytes_received += received
        self.n_messages += n_messages

    def add(self, sent: int, received: int, n_messages: int, seconds: float) -> None:
        """What the engine exchanged by itself."""
        self.count(sent=sent, received=received, n_messages=n_messages)
        self.seconds += seconds


class _Timer:
    """As of `contextmanager`, in a third of the time: recurrent layers exchange thousands of messages a training step."""

    __slots__ = ("start", "traffic")

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic

    def __enter__(self) -> None:
        self.start = perf_counter()

    def __exit__(self, *error: object) -> None:
        self.traffic.seconds += perf_counter() - self.start


class Request(Protocol):
    """A message under way; its array must stay as it is until `wait` returns."""

    def wait(self) -> int:
        """Waits for the end; returns bytes received (sent, of a sending)."""


class Communicator(ABC):
    """The ranks 0 to R - 1 of a group, as one of them sees it.

    Collective operations must be called by all ranks of the group in the same order. Arrays are C-contiguous.

    Attributes:
        rank, size: r and R.
        traffic: counters, shared with the groups that were split off.
        ranks_on_host: how many of them share this host, and its cores.
        launcher: what starts such ranks.
    """

    rank: int
    size: int
    traffic: Traffic
    ranks_on_host: int = 1
    launcher: str = "mpirun"

    @abstractmethod
    def send(self, array: Array, to: int, tag: int = 0) -> Request:
        """Starts to send; messages of one tag to one rank arrive in order."""

    @abstractmethod
    def receive(self, array: Array, source: int, tag: int = 0) -> Request:
        """Starts to receive into `array`, which must be large enough."""

    @abstractmethod
    def take(self, source: int, tag: int = 0) -> Bytes:
        """Waits for the next message, whatever its size."""

    def take_any(self, tag: int = 0) -> tuple[int, Bytes]:
        """Waits for the next message of any rank, whatever its size; returns whose it is, and the message."""
        raise NotImplementedError(f"take_any: {type(self).__name__} cannot wait for any rank; use MPI")

    @abstractmethod
    def all_gather(self, array: Array) -> list[Array]:
        """The arrays [n] of all ranks; one dtype, any lengths."""

    @abstractmethod
    def split(self, colors: Sequence[int]) -> Communicator:
        """The group of the ranks of this one's color, in their order; `colors` [R] are those of all ranks."""

    def gather_parts(self, own: Array, what: str, made_up: Callable[[int], Array]) -> list[Array]:
        """`all_gather` of parts whose lengths differ in a way that all ranks know. The result must not be written to: it may hold `own`
        itself.

        Args:
            what: the parts are.
            made_up: of a rank, an array as it would give; for dry runs.
        """
        return self.all_gather(own)

    def swap_parts(
        self, given: Sequence[Sequence[Array]], shapes: Sequence[Sequence[tuple[int, ...]]], tag: int
    ) -> list[list[Array]]:
        """Gives `given[k][r]` to rank r; returns by k and r what the ranks gave to this one, of `shapes[k][r]`. As many k and one
        dtype on all ranks; the result must not be written to. Empty parts do not travel.
        """
        found: list[list[Array]] = []
        under_way: list[tuple[Request, Array]] = []
        for parts, sizes in zip(given, shapes, strict=True):
            here = [part if r == self.rank else room(sizes[r], part.dtype) for r, part in enumerate(parts)]
            under_way += [(self.receive(x, r, tag), x) for r, x in enumerate(here) if r != self.rank and x.size]
            for r, part in enumerate(map(np.ascontiguousarray, parts)):
                if r != self.rank and part.size:
                    under_way.append((self.send(part, r, tag), part))
            found.append(here)
        for request, _ in under_way:
            request.wait()
        return found

    def expect(self, tag: int, made_up: Callable[[int], Array]) -> None:  # noqa: B027  # of use to dry runs alone
        """Says, for dry runs, what the next message with this tag of each other rank is like."""

    def by_the_engine(self) -> AbstractContextManager[None]:
        """Around what the engine does by itself where it calls MPI, so that dry runs need not count Python's time for it."""
        return nullcontext()

    def engine_calls(self) -> tuple[list[int], int, int, int, bool] | None:
        """What `_core.MpiExchange` sends messages of this group with, without Python: the addresses of MPI's functions, the handles of
        the group and of MPI_BYTE, the tag of slot 0, and whether waiting yields the core; None where there is no MPI to call.
        """
        return None

    def barrier(self) -> None:
        """Returns once all ranks have called it."""
        self.all_gather(np.empty(0, np.uint8))

    def scan(self, own: Array) -> tuple[Array, Array]:
        """Sums [n] over all ranks, and over those before this one: in log2(R) rounds, each a message of n numbers.

        In round k ranks whose numbers differ in bit k alone exchange the sums of the aligned blocks of 2^k ranks that
        they know. Where R is no power of two the first ranks go in pairs, of which one takes part.
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

    # ---- small things, on top ----------------------------------------------------------------------------------

    def all_texts(self, text: str) -> list[str]:
        """The texts of all ranks."""
        names = "surrogatepass"  # of files may be other bytes than UTF-8
        data = text.encode("utf-8", names)
        return [part.tobytes().decode("utf-8", names) for part in self.all_gather(np.frombuffer(data, np.uint8))]

    def sum_counts(self, counts: Sequence[int]) -> list[int]:
        """Sums of whole numbers over the ranks."""
        if self.size == 1 or not counts:
            return list(counts)
        return [int(n) for n in np.sum(self.all_gather(np.array(counts, np.int64)), axis=0)]


#: tags of messages: that of `scan`; 0 and 1 are the halves of the samples of a recurrent layer; list gradients on
#: their way to the owners of the neurons; sums on their way to the replica that adds up their rows, and totals on their way back
LIST_GRADIENTS, FORTH, BACK, SCAN = 3, 4, 5, 6
