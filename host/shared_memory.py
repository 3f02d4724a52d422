"""Memory shared by ranks on one host: they read one another's messages and sums in place, and replicas pack a weight once.

Each process has an unnamed file in memory (host/src/machine/memory.h), in which the engine places data for other ranks.
They open it through /proc, if permitted, and map it; ranks on other hosts, or on systems without such files, exchange
messages instead. The kernel frees the memory when the last process ends, however it ends.
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
    """The memory of the ranks of a group that share this host.

    Args:
        comm: the group; the constructor is collective.

    Attributes:
        ranks: the ranks of the group with accessible memory, including this one; they agree on it.
        group: the group of these ranks; the given one if it is all of them.
        is_shared: whether any ranks of the group can access one another's memory.
    """

    def __init__(self, comm: Communicator) -> None:
        self.rank = comm.rank
        own = _own_file() if comm.ranks_on_host > 1 else ""
        texts = comm.all_texts(own)
        self._files = {r: opened for r, text in enumerate(texts) if (opened := _open(text))}
        sees = np.stack(comm.all_gather(np.array([r in self._files for r in range(comm.size)])))
        kinds = np.unique(sees, axis=0, return_inverse=True)[1].reshape(-1)
        alike = sees & (kinds[:, None] == kinds)  # [rank, rank]: both see the same ranks, including each other
        first = np.where(alike.diagonal(), alike.argmax(1), np.arange(comm.size))
        self.ranks = tuple(np.flatnonzero(first == first[self.rank]).tolist())
        self.group = comm if len(self.ranks) == comm.size else comm.split(first.tolist())
        self.is_shared = len(np.unique(first)) < comm.size

    def place(self, array: Array) -> int:
        """The place at which others find a float32 array, which must be in shared memory."""
        return int(_core.shared_place(array))

    def at(self, rank: int, place: int, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """A float32 array of a rank."""
        return np.frombuffer(self._files[rank], np.float32, math.prod(shape), place).reshape(shape)


def _own_file() -> str:
    """Information for others to find this process's memory: size, path, and the path's target."""
    memory = _core.shared_memory()
    if memory is None:
        return ""
    path = f"/proc/{os.getpid()}/fd/{memory[0]}"
    return f"{memory[1]} {path} {Path(path).readlink()}"


#: mapped memory, for all groups of this process
_opened: weakref.WeakValueDictionary[str, mmap.mmap] = weakref.WeakValueDictionary()


def _open(text: str) -> mmap.mmap | None:
    """The memory described by `text`, unless it belongs to another host, which its random name shows."""
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
    except OSError:  # no such process here, or no permission
        return None
    _opened[text] = mapped
    return mapped


class CommonWeights:
    """Packed weights for the forward passes of layers that run sample by sample, one copy for all replicas of a host.

    Each replica packs some of the rows. Spikes decide the order in which rows are read, from a cache that the host's
    ranks share: with a copy per rank, each copy would get only a part of it.
    """

    #: least bytes of a layer's weights for which sharing pays: smaller ones stay in a core's own cache
    LEAST = 1 << 20

    def __init__(self, memory: HostMemory) -> None:
        self.memory = memory
        self.rooms: dict[tuple[str, str], Bytes] = {}

    def pack(
        self, layers: Mapping[str, tuple[_core.LayerSpec, Mapping[str, Array]]]
    ) -> Mapping[str, Mapping[str, Bytes]]:
        """Packs the weights [M, n] of layers by name; all ranks of the host call it together, with the same weights."""
        group, sizes = self.memory.group, dict[tuple[str, str], int]()
        for layer, (spec, weights) in layers.items():
            of_layer = {(layer, name): int(_core.packed_bytes(spec, len(weight))) for name, weight in weights.items()}
            if sum(of_layer.values()) >= self.LEAST:
                sizes.update(of_layer)
        if not sizes:
            return {}
        if {key: mine.nbytes for key, mine in self.rooms.items()} != sizes:
            self._make_rooms(sizes)
        packed: dict[str, dict[str, Bytes]] = {}
        group.barrier()  # no rank still reads the old weights
        for (layer, name), mine in self.rooms.items():
            spec, weights = layers[layer]
            begin, end = (len(weights[name]) * r // group.size for r in (group.rank, group.rank + 1))
            title = "recurrent_weight" if name.startswith("loop") else "weight"  # the names used without sharing
            try:
                _core.pack_rows(spec, True, weights[name], begin, end, mine, title)
            except NumericError as error:
                raise NumericError(f"{layer}: {error}") from None
            packed.setdefault(layer, {})[name] = mine
        group.barrier()
        return packed

    def _make_rooms(self, sizes: Mapping[tuple[str, str], int]) -> None:
        """Makes the copies' rooms, in the memory of the first rank."""
        rooms = {key: room((-(-n // 4),), np.float32, shared=True) for key, n in sizes.items()}
        first = self.memory.ranks[0]
        places = self.memory.group.all_gather(np.array([*map(self.memory.place, rooms.values())], np.int64))
        if self.memory.rank != first:
            rooms = {
                key: self.memory.at(first, int(p), rooms[key].shape) for key, p in zip(rooms, places[0], strict=True)
            }
        self.rooms = {key: mine.view(np.uint8)[: sizes[key]] for key, mine in rooms.items()}
