"""Memory that ranks on one host share: they read one another's messages and sums in place, and replicas pack a weight once.

Each process has a file in memory, without a name (host/src/machine/memory.h), in which the engine lays what others are to see. The
others open it through /proc, where they may, and map it; ranks on other hosts, or on systems without such files, exchange
messages instead. The kernel frees the memory when the last of them has ended, however they end.
"""

from __future__ import annotations

import math
import mmap
import os
import weakref
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sparsesnn import _core
from sparsesnn.errors import NumericError
from sparsesnn.host.comm.base import Array, Bytes, Communicator, room


class HostMemory:
    """The memory of those ranks of a group that share this host.

    Args:
        comm: the group; all of its ranks make one at the same time.

    Attributes:
        ranks: of the group, those whose memory is at hand, this one among them; they agree on it.
        group: these ranks by themselves; the given one where it is all of them.
        is_shared: whether any of the group are at hand for one another.
    """

    def __init__(self, comm: Communicator) -> None:
        self.rank = comm.rank
        own = _own_file() if comm.ranks_on_host > 1 else ""
        texts = comm.all_texts(own)
        self._files = {r: opened for r, text in enumerate(texts) if (opened := _open(text))}
        sees = np.stack(comm.all_gather(np.array([r in self._files for r in range(comm.size)])))
        kinds = np.unique(sees, axis=0, return_inverse=True)[1].reshape(-1)
        alike = sees & (kinds[:, None] == kinds)  # [rank, rank]: both see the same ranks, one another among them
        first = np.where(alike.diagonal(), alike.argmax(1), np.arange(comm.size))
        self.ranks = tuple(np.flatnonzero(first == first[self.rank]).tolist())
        self.group = comm if len(self.ranks) == comm.size else comm.split(first.tolist())
        self.is_shared = len(np.unique(first)) < comm.size

    def place(self, array: Array) -> int:
        """Where others find the float32 array, which must lie in shared memory."""
        return int(_core.shared_place(array))

    def at(self, rank: int, place: int, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """A float32 array of a rank."""
        return np.frombuffer(self._files[rank], np.float32, math.prod(shape), place).reshape(shape)


def _own_file() -> str:
    """What the others need to find this process's memory: size, path, and what the path leads to."""
    memory = _core.shared_memory()
    if memory is None:
        return ""
    path = f"/proc/{os.getpid()}/fd/{memory[0]}"
    return f"{memory[1]} {path} {Path(path).readlink()}"


#: what is mapped, for all groups of this process
_opened: weakref.WeakValueDictionary[str, mmap.mmap] = weakref.WeakValueDictionary()


def _open(text: str) -> mmap.mmap | None:
    """The memory that `text` says, unless it is another host's: its name is drawn at random."""
    if not text:
        return None
    if (known := _opened.get(text)) is not None:
        return known
    size, path, target = text.split(" ", 2)
    try:
        if str(Path(path).readlink()) != target:
            return None
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            mapped = mmap.mmap(file, int(size))
        finally:
            os.close(file)
    except OSError:  # no such process here, or it must not be looked into
        return None
    _opened[text] = mapped
    return mapped


class CommonWeights:
    """Weights of layers that run sample by sample, as their forward passes read them, one copy for all replicas of a host.

    Each packs some of the rows, which takes as long as memory takes to hold still. They are read in an order that spikes
    decide, from a cache that is the host's: a copy for each rank would leave each a part of it.
    """

    #: bytes of a layer's weights from which on this is worth while: less stays in a core's own cache
    LEAST = 1 << 20

    def __init__(self, memory: HostMemory) -> None:
        self.memory = memory
        self.rooms: dict[tuple[str, str], Bytes] = {}

    def pack(
        self, layers: Mapping[str, tuple[_core.LayerSpec, Mapping[str, Array]]]
    ) -> Mapping[str, Mapping[str, Bytes]]:
        """The weights [M, n] of layers by name, packed; all ranks of the host call it together, with the same weights."""
        group, sizes = self.memory.group, dict[tuple[str, str], int]()
        for layer, (spec, weights) in layers.items():
            of_layer = {(layer, name): int(_core.packed_bytes(spec, len(weight))) for name, weight in weights.items()}
            if sum(of_layer.values()) >= self.LEAST:
                sizes.update(of_layer)
        if not sizes:
            return {}
        if {key: mine.nbytes for key, mine in self.rooms.items()} != sizes:
            self._make_rooms(sizes)
        found: dict[str, dict[str, Bytes]] = {}
        group.barrier()  # nobody reads what they held before
        for (layer, name), mine in self.rooms.items():
            spec, weights = layers[layer]
            begin, end = (len(weights[name]) * r // group.size for r in (group.rank, group.rank + 1))
            said = "recurrent_weight" if name.startswith("loop") else "weight"  # as where each packs for itself
            try:
                _core.pack_rows(spec, True, weights[name], begin, end, mine, said)
            except NumericError as error:
                raise NumericError(f"{layer}: {error}") from None
            found.setdefault(layer, {})[name] = mine
        group.barrier()
        return found

    def _make_rooms(self, sizes: Mapping[tuple[str, str], int]) -> None:
        """In the memory of the first rank."""
        rooms = {key: room((-(-n // 4),), np.float32, shared=True) for key, n in sizes.items()}
        first = self.memory.ranks[0]
        places = self.memory.group.all_gather(np.array([*map(self.memory.place, rooms.values())], np.int64))
        if self.memory.rank != first:
            rooms = {
                key: self.memory.at(first, int(p), rooms[key].shape) for key, p in zip(rooms, places[0], strict=True)
            }
        self.rooms = {key: mine.view(np.uint8)[: sizes[key]] for key, mine in rooms.items()}
