"""A network over several ranks: each rank's part of the parameters, and how to gather the whole."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsesnn import _core
from sparsesnn.connection import Connection
from sparsesnn.engines.cpu.wiring import Wiring, matrices
from sparsesnn.engines.ranks.chain_shards import ChainShards
from sparsesnn.engines.ranks.layer import Part
from sparsesnn.engines.ranks.reduction import Reduction
from sparsesnn.engines.ranks.shards import Order, Shards, even_shards, make_shards
from sparsesnn.host.comm import Grid
from sparsesnn.host.shared_memory import CommonWeights
from sparsesnn.layers import is_readout
from sparsesnn.network import Network, gives_currents
from sparsesnn.parameters import DELAYS, NEURONS, cuts

#: most numbers of a layer that are drawn or gathered at once
AT_ONCE = 1 << 17
#: tag of rows on their way to the first rank
ROWS = 8


def first_reader(network: Network, name: str) -> Connection | None:
    """The connection that reads a population's lists first, if its backward pass gathers them by sender; None: each rank sorts the
    lists that it needs itself."""

    def into_readout(c: Connection) -> bool:
        return is_readout(network.populations[c.post])

    readers = [c for c in network.connections if c.pre == name]
    first = min(readers, key=lambda c: (c.delay, into_readout(c)), default=None)
    if first is None or into_readout(first) or not first.synapses.is_matrix or first.axonal:
        return None
    return first


class Parts:
    """How a network is divided over the ranks of a grid: each rank of a replica owns whole tiles of every population (`layer.py`);
    a population with maps as input is on one rank; replicas own groups of samples (`reduction.py`).
    """

    def __init__(self, network: Network, grid: Grid) -> None:
        self.grid, self.cuts = grid, cuts(network)
        self.of_maps = {f"layers.{c.post}.{c.name}" for c in network.connections if not c.synapses.is_matrix}
        self.network = network
        self.shards = make_shards(network, grid.n_shards, grid.shards.rank)
        self.reduction = Reduction(grid.replicas) if grid.n_replicas > 1 else None
        self.common = CommonWeights(self.reduction.memory) if self.reduction and self.reduction.beside else None
        self.orders = self._orders(network) if grid.n_shards > 1 else {}
        self._places: dict[tuple[str, ...], tuple[list[int], npt.NDArray[np.int64], list[int]]] = {}

    def part(self, name: str) -> Part:
        """Makes this rank's part of a population; all ranks call it together."""
        senders = [self.owners(c.pre) for c in self.network.senders(name) if not c.synapses.gives_currents]
        return Part(self.shards[name], senders, self.grid, self.reduction, self.orders.get(name))

    def owners(self, name: str) -> Shards:
        """The owners of a population's neurons; for the input, an even split."""
        if name in self.shards:
            return self.shards[name]
        return even_shards(self.network.populations[name].n, self.grid.n_shards, self.grid.shards.rank)

    def _orders(self, network: Network) -> dict[str, Order]:
        """For each population that several ranks own, how they sort its lists for its first reader; all use the first rank's chunks."""
        found: dict[str, Order] = {}
        for name, shards in self.shards.items():
            first = first_reader(network, name)
            if first is None or len(shards.owners) < 2:
                continue
            post = self.shards[first.post]
            found[name] = (first.delay, *_core.chunk_plan(-(-post.n_of(0) // post.tile_width)))
        first_rank = self.grid.shards.all_gather(np.array(list(found.values()), np.int64).reshape(-1))[0]
        return {
            name: (int(delay), int(n_rows), int(n_groups))
            for name, (delay, n_rows, n_groups) in zip(found, first_rank.reshape(-1, 3), strict=True)
        }

    @contextmanager
    def packed(self, layers: Mapping[str, Any]) -> Iterator[None]:
        """Context for the forward part of a training pass: replicas on this host share one copy of the weights of layers that run
        sample by sample. All replicas call it together."""
        if self.common is None or not torch.is_grad_enabled():
            yield
            return
        weights = {}
        for name, layer in layers.items():
            wiring = Wiring.of(layer)
            if wiring.by_sample and layer.part.shards.n:
                weights[name] = wiring.spec(layer, True, ()), matrices(layer)
        found = self.common.pack(weights)
        for name, of_layer in found.items():
            layers[name].part.packed = of_layer
        try:
            yield
        finally:
            for name in found:
                layers[name].part.packed = {}

    def between(self, layers: Iterable[Any]) -> ChainShards | None:
        """The exchange between a replica's ranks for all layers of the network; None: they share no neurons."""
        if self.grid.n_shards == 1:
            return None
        inputs = [] if gives_currents(self.network) else self.network.inputs
        return ChainShards(list(layers), [self.owners(name) for name in inputs])

    def around(self, name: str) -> ChainShards | None:
        """The same for a transform of a population's lists."""
        return ChainShards([], [self.owners(name)], self.grid.shards) if self.grid.n_shards > 1 else None

    @property
    def columns(self) -> dict[str, tuple[int, int]]:
        """For each population, first and last + 1 of this rank's neurons."""
        return {name: (shards.begin, shards.end) for name, shards in self.shards.items()}

    def shards_of(self, name: str) -> Shards:
        """The shards of the population that a parameter, `layers.<population>.…`, belongs to."""
        return self.shards[name.split(".")[1]]

    def edges(self, name: str) -> tuple[int, list[int]]:
        """The axis along which shards cut a parameter or buffer, and the edges: [R + 1]."""
        axis, edge = self.cuts.get(name, NEURONS)
        return axis, [edge(n) for n in self.shards_of(name).first]

    def whole_shape(self, name: str, tensor: Tensor) -> list[int]:
        """The shape of the whole parameter or buffer, as on a single rank."""
        shape = list(tensor.shape)
        if shape:
            axis, edges = self.edges(name)
            shape[axis] = edges[-1]
        return shape

    def whole_rows(self, name: str, tensor: Tensor) -> Iterator[npt.NDArray[Any]]:
        """A parameter or buffer of the whole network, in blocks of rows, on the first rank of a replica; other ranks yield nothing.

        All ranks must iterate together: each sends its part of the current block, so no rank holds more than one block.
        """
        array = tensor.detach().numpy()
        if not array.ndim or self.grid.n_shards == 1:
            yield np.ascontiguousarray(array)
            return
        axis, edges = self.edges(name)
        inner = math.prod(array.shape[axis:][1:])
        sizes = inner * np.diff(edges)
        rows = array.reshape(math.prod(array.shape[:axis]), sizes[self.grid.shards.rank])
        step = max(1, AT_ONCE // max(1, int(sizes.sum())))
        comm = self.grid.shards
        for row in range(0, len(rows), step):
            own = np.ascontiguousarray(rows[row : row + step]).reshape(-1)
            if comm.rank:
                comm.send(own, 0, ROWS).wait()
                continue
            parts = [own, *(comm.take(r, ROWS).view(own.dtype) for r in range(1, comm.size))]
            height = min(step, len(rows) - row)
            yield np.concatenate([p.reshape(height, n) for p, n in zip(parts, sizes, strict=True)], axis=1)

    def whole_neurons(self, named: Mapping[str, npt.NDArray[np.float64]]) -> dict[str, npt.NDArray[np.float64]]:
        """Gathers numbers of all ranks, [N] by parameter, from those of this rank's neurons, [n] (for maps: of channels; for axonal
        delays: of senders)."""
        if self.grid.n_shards == 1 or not named:
            return dict(named)
        names = tuple(named)
        if names not in self._places:
            self._places[names] = self._places_of(names)
        sizes, places, ends = self._places[names]
        own = np.concatenate(list(named.values()))
        parts = self.grid.shards.gather_parts(own, "numbers", lambda r: np.zeros(sizes[r]))
        whole = np.concatenate(parts)[places]
        return {name: whole[begin:end] for name, (begin, end) in zip(names, itertools.pairwise(ends), strict=True)}

    def _places_of(self, names: Sequence[str]) -> tuple[list[int], npt.NDArray[np.int64], list[int]]:
        """The layout of numbers that ranks send for these parameters, one parameter after another: how many each rank sends; the
        positions, in the concatenation over ranks, of each parameter's numbers; and how many there are up to each parameter."""
        edges = np.array([self.edges(x)[1] if self._is_cut_apart(x) else self.shards_of(x).first for x in names])
        n = np.diff(edges)  # [parameter, rank]
        begin = n.sum(0).cumsum() - n.sum(0) + n.cumsum(0) - n
        runs = [np.arange(a, a + size) for a, size in zip(begin.reshape(-1), n.reshape(-1), strict=True)]
        return n.sum(0).tolist(), np.concatenate(runs), [0, *n.sum(1).cumsum().tolist()]

    def _is_cut_apart(self, name: str) -> bool:
        """Whether a parameter is cut at other edges than those of the neurons."""
        return name in self.of_maps or name.endswith(DELAYS)
