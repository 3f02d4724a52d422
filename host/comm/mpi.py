"""MPI through mpi4py's buffer calls (those with a capital letter), which pickle nothing.

Every operation is a non-blocking one and a wait. MPI waits by spinning, which is fastest if every rank has its own core;
if the ranks of a host outnumber its cores, they yield between polls, or they would block the rank that they wait for. A
large message travels only while its ranks are inside MPI: the engine polls it while it computes.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sparsesnn import _core
from sparsesnn.errors import ConfigError, MissingDependencyError
from sparsesnn.host.comm.base import LARGE, Array, Bytes, Communicator, Traffic, room
from sparsesnn.host.comm.environment import find_place, find_replicas
from sparsesnn.host.comm.watch import open_many_files
from sparsesnn.wording import count

#: groups up to this size gather by messages between all pairs
FEW = 4
#: functions that the engine calls (host/src/ranks/mpi_exchange.h)
ENGINE_CALLS = ("Isend", "Mprobe", "Improbe", "Imrecv", "Wait", "Test", "Get_count", "Iallgather", "Iallgatherv")
#: bytes of the longest message that the engine sends in one piece: MPI counts them with an int
LONGEST = 1 << 30
#: seconds within which a launcher ends all ranks when one has ended
WAIT_S = 3.0
#: tag of messages that gather
GATHER = -2
#: MPI's tags begin at 0; ours at GATHER
_TAG_SHIFT = -GATHER


def mpi_world() -> Mpi:
    """All ranks started by mpirun or another launcher.

    Errors: `MissingDependencyError` without mpi4py; `ConfigError` if MPI and the launcher count different numbers of ranks.
    """
    open_many_files()  # over TCP some MPIs connect all pairs of ranks
    try:
        import mpi4py

        mpi4py.rc.thread_level = "serialized"  # no other thread of ours calls MPI, and locks would cost time
        from mpi4py import MPI
    except ImportError:
        raise MissingDependencyError("mpi4py", "mpi", "running on several ranks") from None
    except RuntimeError as error:
        raise MissingDependencyError("mpi4py", "mpi", f"running on several ranks ({error})") from None
    check_count(MPI, os.environ)
    local = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    cores = len(os.sched_getaffinity(0))
    crowded = local.Get_size() > max(cores, os.cpu_count() or 1)
    world = Mpi(MPI, MPI.COMM_WORLD, Traffic(), [], yields=crowded, ranks_on_host=local.Get_size())
    if find_replicas(os.environ) is not None:
        world.launcher = "poprun"
    return world


def check_count(mpi: Any, environ: Mapping[str, str]) -> None:
    """Checks that MPI and the launcher agree: otherwise ranks would run as separate jobs of one rank, without an error.

    Every rank detects it. The first one reports it at once: launchers then end the others, which wait for that.

    Args:
        mpi: the module mpi4py.MPI.
        environ: of the process.

    Errors: `ConfigError` if MPI counts another number of ranks than the launcher that set `environ`.
    """
    place = find_place(environ)
    counted = mpi.COMM_WORLD.Get_size()
    if place.launcher in ("none", "torchrun") or counted == place.size:
        return
    if place.rank:
        time.sleep(WAIT_S)
    library = mpi.Get_library_version()
    name = " ".join(library.partition("\n")[0].partition(",")[0].strip("\0").split())
    wrong = f"{place.launcher} started {count(place.size, 'rank')}, but MPI counts {counted}: "
    if place.launcher == "slurm":
        plugin = plugin_for(library)
        cure = f"srun --mpi={plugin}" if plugin else "your cluster's plugin for this MPI (srun --mpi=list)"
        raise ConfigError(
            f"{wrong}srun's --mpi does not fit the library that mpi4py loads ({name}); start with `sparsesnn launch`, "
            f"which chooses one, or with {cure}"
        )
    raise ConfigError(
        f"{wrong}mpi4py loads a different MPI ({name}) from the launcher's; start with the mpirun of that MPI, or build mpi4py "
        "against yours (pip install --no-binary mpi4py mpi4py)"
    )


def plugin_for(library: str) -> str | None:
    """srun's `--mpi` option for a library, from its `MPI_Get_library_version`; None for unknown ones."""
    if library.startswith("Open MPI"):
        return "pmix"
    if library.startswith(("MPICH", "MVAPICH")):
        return "pmi2"
    return None


class Mpi(Communicator):
    """A group of MPI ranks.

    Args:
        large: large messages in transit, of all groups; while there are any, the engine calls `look`.
    """

    def __init__(
        self, mpi: Any, comm: Any, traffic: Traffic, large: list[_MpiRequest], *, yields: bool, ranks_on_host: int
    ) -> None:
        self.mpi, self.comm, self.traffic, self.large, self.yields = mpi, comm, traffic, large, yields
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.ranks_on_host = ranks_on_host

    def send(self, array: Array, to: int, tag: int = 0) -> _MpiRequest:
        with self.traffic.timed():
            request = self.comm.Isend([array, self.mpi.BYTE], to, tag + _TAG_SHIFT)
        self.traffic.count(sent=array.nbytes, n_messages=1)
        return self._under_way(_MpiRequest(self, request, array.nbytes), array.nbytes)

    def receive(self, array: Array, source: int, tag: int = 0) -> _MpiRequest:
        with self.traffic.timed():
            request = self.comm.Irecv([array, self.mpi.BYTE], source, tag + _TAG_SHIFT)
        return self._under_way(_MpiRequest(self, request, None), array.nbytes)

    def _under_way(self, message: _MpiRequest, n_bytes: int) -> _MpiRequest:
        if n_bytes >= LARGE:
            if not self.large:
                _core.look_meanwhile(self.look)
            self.large.append(message)
        return message

    def look(self) -> bool:
        """Lets messages progress; whether a large one is in transit."""
        with self.traffic.timed():
            self.large[:] = [message for message in self.large if not message.has_ended()]
        return bool(self.large)

    def take(self, source: int, tag: int = 0) -> Bytes:
        return self._take(source, tag)[1]

    def take_any(self, tag: int = 0) -> tuple[int, Bytes]:
        return self._take(self.mpi.ANY_SOURCE, tag)

    def _take(self, source: int, tag: int) -> tuple[int, Bytes]:
        status = self.mpi.Status()
        with self.traffic.timed():
            if self.yields:
                while (message := self.comm.Improbe(source, tag + _TAG_SHIFT, status)) is None:
                    os.sched_yield()
            else:
                message = self.comm.Mprobe(source, tag + _TAG_SHIFT, status)
            array = room((status.Get_count(self.mpi.BYTE),), np.uint8)
            self.wait(message.Irecv([array, self.mpi.BYTE]))
        self.traffic.count(received=array.nbytes)
        return status.Get_source(), array

    def all_gather(self, array: Array) -> list[Array]:
        return self._gather(array.copy())  # the caller may change its array

    def gather_parts(self, own: Array, what: str, made_up: Callable[[int], Array]) -> list[Array]:
        return self._gather(own)

    def _gather(self, own: Array) -> list[Array]:
        own = np.ascontiguousarray(own).reshape(-1)
        if self.size <= FEW:  # one message each way, which carries its length
            requests = [self.send(own, r, GATHER) for r in range(self.size) if r != self.rank]
            parts = [own if r == self.rank else self.take(r, GATHER).view(own.dtype) for r in range(self.size)]
            for request in requests:
                request.wait()
            return parts
        with self.traffic.timed():
            sizes = np.empty(self.size, np.int64)
            self.wait(self.comm.Iallgather(np.array([own.nbytes], np.int64), sizes))
            starts = np.concatenate([[0], np.cumsum(-(-sizes // 8) * 8)])  # aligned for any type
            out = np.empty(int(starts[-1]), np.uint8)
            self.wait(self.comm.Iallgatherv([own, self.mpi.BYTE], [out, sizes, starts[:-1], self.mpi.BYTE]))
        self._count_collective(own.nbytes * (self.size - 1), int(sizes.sum()) - own.nbytes)
        return [out[starts[r] : starts[r] + sizes[r]].view(own.dtype) for r in range(self.size)]

    def barrier(self) -> None:
        with self.traffic.timed():
            self.wait(self.comm.Ibarrier())

    def split(self, colors: Sequence[int]) -> Mpi:
        comm = self.comm.Split(colors[self.rank], self.rank)
        return Mpi(self.mpi, comm, self.traffic, self.large, yields=self.yields, ranks_on_host=self.ranks_on_host)

    def wait(self, request: Any, status: Any = None) -> None:
        if self.yields:
            while not request.Test(status):
                os.sched_yield()
        else:
            request.Wait(status)

    def engine_calls(self) -> tuple[list[int], int, int, int, bool, int] | None:
        try:
            library = ctypes.CDLL(self.mpi.__file__)  # loaded already; also finds symbols of the libraries it links
            functions = [getattr(library, f"MPI_{name}") for name in ENGINE_CALLS]
        except (OSError, AttributeError):  # an MPI inside mpi4py that exports no functions
            return None
        addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions]
        comm, byte = self.mpi._handleof(self.comm), self.mpi._handleof(self.mpi.BYTE)
        return addresses, comm, byte, _TAG_SHIFT, self.yields, LONGEST

    def _count_collective(self, sent: int, received: int) -> None:
        self.traffic.count(sent=sent, received=received, n_messages=self.size - 1)


class _MpiRequest:
    def __init__(self, comm: Mpi, request: Any, sent: int | None) -> None:
        self.comm, self.request, self.sent = comm, request, sent
        self.status = comm.mpi.Status()

    def has_ended(self) -> bool:
        return not self.request or bool(self.request.Test(self.status))

    def wait(self) -> int:
        with self.comm.traffic.timed():
            if self.request:
                self.comm.wait(self.request, self.status)
        if self.sent is not None:
            return self.sent
        n_bytes = int(self.status.Get_count(self.comm.mpi.BYTE))
        self.comm.traffic.count(received=n_bytes)
        return n_bytes
