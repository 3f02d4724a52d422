"""One superstep, tile by tile: bytes moved and cycles computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsesnn.partition.plan import Plan


@dataclass
class Traffic:
    """Bytes of one exchange: into and out of every tile, and into and out of every device."""

    plan: Plan
    tile_in: np.ndarray = field(init=False)
    tile_out: np.ndarray = field(init=False)
    link_in: np.ndarray = field(init=False)
    link_out: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        target = self.plan.target
        self.tile_in, self.tile_out = (np.zeros(target.all_tiles, np.int64) for _ in range(2))
        self.link_in, self.link_out = (np.zeros(target.devices, np.int64) for _ in range(2))

    def broadcast(self, sources: Any, sizes: np.ndarray, receivers: np.ndarray) -> None:
        """Every receiver gets all data of the sources. A source sends once to each device with receivers: tiles of
        a device may all receive the same word; between devices it travels once."""
        if not len(sources) or not len(receivers):
            return
        tiles = np.array([s.tile for s in sources])
        devices = np.array([s.device for s in sources])
        np.add.at(self.tile_in, receivers, sizes.sum())
        listening = np.unique(receivers // self.plan.target.stride)
        np.add.at(self.tile_out, tiles, sizes)
        for d in listening:
            away = sizes[devices != d]
            self.link_in[d] += away.sum()
            np.add.at(self.link_out, devices[devices != d], away)

    def send(self, source: np.ndarray, sink: np.ndarray, sizes: np.ndarray) -> None:
        """Row k moves sizes[k] bytes from tile source[k] to tile sink[k]; data that stays on its tile costs nothing."""
        away = source != sink
        source, sink, sizes = source[away], sink[away], sizes[away]
        np.add.at(self.tile_in, sink, sizes)
        np.add.at(self.tile_out, source, sizes)
        a, b = source // self.plan.target.stride, sink // self.plan.target.stride
        far = a != b
        np.add.at(self.link_out, a[far], sizes[far])
        np.add.at(self.link_in, b[far], sizes[far])


class Work(dict[str, np.ndarray]):
    """Cycles per tile by phase; arrays are made at the first access."""

    def __init__(self, n_tiles: int) -> None:
        super().__init__()
        self._n_tiles = n_tiles
        self._items = np.zeros(n_tiles, np.int64)

    def __missing__(self, phase: str) -> np.ndarray:
        self[phase] = np.zeros(self._n_tiles)
        return self[phase]

    def add(self, phase: str, tiles: np.ndarray, cycles: float | np.ndarray, start: float) -> None:
        """Items on tiles; each of `cycles` includes the start of a vertex, but a tile has one vertex for all its items."""
        np.add.at(self[phase], tiles, cycles)
        if start:
            items = self._items + np.bincount(tiles, minlength=self._n_tiles)
            self[phase] -= start * (np.maximum(items - 1, 0) - np.maximum(self._items - 1, 0))
            self._items = items
