"""One population over several ranks: what each rank of a replica runs of it, forward and backward.

Each rank owns whole tiles, with their weight columns and gradients. Forward, every rank gets the lists of the whole
population; backward, the gradients of the lists that a layer read are sums over its tiles, of which the owners of those
neurons get the parts of every rank. A recurrent layer does both once a step (host/src/ranks/sharded.h).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn import _core
from sparsesnn.engines.cpu.layer import Pass, engine_lists
from sparsesnn.engines.cpu.pooling import Pooled
from sparsesnn.engines.cpu.wiring import Wiring
from sparsesnn.engines.ranks.reduction import Reduction
from sparsesnn.engines.ranks.rows import Rows
from sparsesnn.engines.ranks.shards import Order, ShardedSpikes, Shards, gather_lists
from sparsesnn.first_order import first_order
from sparsesnn.host.comm import Communicator, Grid
from sparsesnn.host.comm.base import LIST_GRADIENTS, Array, Bytes
from sparsesnn.host.comm.layer_exchange import make_exchange
from sparsesnn.output import LayerState
from sparsesnn.parameters import DELAYS, delays_edge
from sparsesnn.spikes import SpikeBatch


class Part:
    """This rank's part of a population, and how a `Layer` runs it together with the other ranks.

    Args:
        shards: who owns which neurons.
        grid: the ranks.
        reduction: sums the gradients over replicas; None: there is one.
        order: for whom its ranks sort the population's lists where it learns; None: they do not.

    Attributes:
        packed: weights by the engine's names, in its order, during a pass that learns; see `Parts.packed`.
    """

    def __init__(self, shards: Shards, grid: Grid, reduction: Reduction | None, order: Order | None = None) -> None:
        self.shards, self.grid, self.reduction, self.order = shards, grid, reduction, order
        owners = shards.owners
        spans_ranks = len(owners) > 1
        self.tile_folds = (
            _core.tile_folds([-(-first // shards.tile_width) for first in shards.first])
            if spans_ranks
            else [[0]] * grid.n_shards
        )
        of_owners = grid.shards.split([int(shards.n_of(r) > 0) for r in range(grid.n_shards)])
        first = [*(shards.first[r] for r in owners), shards.n_all]
        n_blocks = [len(self.tile_folds[r]) for r in owners]
        self.exchange = make_exchange(of_owners, first, n_blocks) if spans_ranks and shards.n else None
        self.packed: Mapping[str, Bytes] = {}

    def run_layer(
        self, layer: Any, sources: Sequence[SpikeBatch], training_step: int, first_sample: int
    ) -> tuple[ShardedSpikes | Tensor, LayerState]:
        """All steps of a sequence: the lists of the whole population, or its potentials [T, B, N].

        Args:
            sources: lists of whole populations.
            first_sample: samples of the batch that other replicas run before these.
        """
        return _ShardPass(self, layer, sources, training_step, first_sample).output()

    def count_traffic(self) -> None:
        """Adds what a pass exchanged by itself to what this rank has exchanged."""
        if isinstance(self.exchange, _core.MpiExchange):
            self.grid.shards.traffic.add(*self.exchange.traveled())

    @property
    def is_shared(self) -> bool:
        return self.grid.n_shards > 1

    def own_neurons(self, value: Tensor) -> Tensor:
        """This rank's part [n] of one number for all neurons; the gradient is summed over all neurons, as on one rank."""
        whole = value.expand(self.shards.n_all)
        own: Tensor = _OwnNeurons.apply(whole, self.shards, self.grid.shards) if self.is_shared else whole
        return own

    def whole_delays(self, own: Tensor, n_pre: int) -> Tensor:
        """The axonal delays [M] of a connection's senders from this rank's part; the gradient of the whole is that of each rank."""
        if not self.is_shared:
            return own
        edges = [delays_edge(n, n_pre, self.shards.n_all) for n in self.shards.first]
        whole: Tensor = _WholeNumbers.apply(own, Shards(tuple(edges), self.shards.rank), self.grid.shards)
        return whole

    def shared(self, spikes: SpikeBatch) -> ShardedSpikes:
        """Lists that every rank has, of neurons that nobody owns, such as the input's: each gets some."""
        if isinstance(spikes, ShardedSpikes):
            return spikes
        n_ranks, n = self.grid.n_shards, spikes.n_neurons
        first = tuple(n * r // n_ranks for r in range(n_ranks + 1))
        given = {f.name: getattr(spikes, f.name) for f in fields(SpikeBatch)}
        return ShardedSpikes(**given, shards=Shards(first, self.grid.shards.rank))

    def sum_groups(self, groups: Any, senders: Shards) -> np.ndarray:
        """[M], a gradient of one number for each sender, from those of this replica's groups [G, M], in which this rank's senders
        are whole."""
        own = self.sum_own(np.ascontiguousarray(groups[:, senders.begin : senders.end]))
        return _whole(torch.from_numpy(own), senders, self.grid.shards).numpy() if self.is_shared else own

    def sum_own(self, groups: Any) -> np.ndarray:
        """The sum over the groups of all replicas."""
        return np.asarray(self.reduction.fold(groups) if self.reduction else _core.add_groups(groups))

    def whole_neurons(self, own: Tensor) -> Tensor:
        """Numbers [..., N] from those [..., n] of all shards."""
        return _whole(own, self.shards, self.grid.shards) if self.is_shared else own


class _ShardPass(Pass):
    """One pass of a layer over this rank's neurons.

    Attributes:
        heard: the lists of whole populations; `sources` are what pools make of them.
        whole: the lists of the population; without values, whose graph holds the pass: a circle would keep all arrays until
            Python looks for circles.
        own: the same for the engine, of a layer with loops that spans ranks; None of others.
    """

    def __init__(
        self, part: Part, layer: Any, sources: Sequence[SpikeBatch], training_step: int, first_sample: int
    ) -> None:
        self.heard = tuple(sources)
        self.pools = [Pooled(x, pools) for x, pools in zip(sources, Wiring.of(layer).pools_before, strict=True)]
        super().__init__(layer, [x.lists for x in self.pools], None, training_step)
        self.part, self.first_sample = part, first_sample
        self.whole: ShardedSpikes | None = None
        self.own: _core.Lists | None = None

    def values_of(self, source: int) -> Tensor | None:
        heard = self.heard[source]
        return heard.own_values if isinstance(heard, ShardedSpikes) else None

    def sorted_lists(self, source: int) -> _core.SortedLists | None:
        heard = self.heard[source]
        return heard.sorted_lists if isinstance(heard, ShardedSpikes) and heard is self.sources[source] else None

    def output(self) -> tuple[Any, LayerState]:
        part = self.part
        own = self.run_in_graph()
        if self.is_readout:
            return _WholeNumbers.apply(own, part.shards, part.grid.shards) if part.is_shared else own, LayerState()
        lists = self.lists(own if self.save else None)
        limited, order = bool(self.layer.population.capacity), part.order if self.save else None
        whole = gather_lists(lists, part.shards, part.grid.shards, limited=limited, order=order)
        self.whole = replace(whole, own_values=None)
        if self.save and self.layer.loops and part.exchange is not None:  # the backward pass must find them unchanged
            self.own = engine_lists(self.whole)
            self.own.hold(self.whole.n_neurons)
        return whole, LayerState()

    def run(self) -> Tensor:
        shards = self.part.shards
        self.lists_read = [engine_lists(source) for source in self.sources]
        if not shards.n:
            shape = (self.n_steps, self.n_samples, 0) if self.is_readout else (0,)
            return torch.empty(shape, dtype=torch.float32, device="cpu")
        out = super().run()
        self.part.count_traffic()
        return out

    def pack(self) -> None:
        self.packed = self.part.packed or self.packed

    def lists(self, values: Tensor | None) -> SpikeBatch:
        if self.result is not None:
            return super().lists(values)
        silent = np.zeros(self.n_steps * self.n_samples, np.int32)
        lists = SpikeBatch._from_flat(np.empty(0, np.int64), silent, self.n_steps, self.n_samples, 1)
        return replace(lists, values=values)

    def gradients(self, d_out: np.ndarray, wanted_values: list[bool]) -> tuple[dict[str, Any], list[Any]]:
        """Of this rank's parameters, and of the values that this rank owns of every source's lists."""
        part, reduction = self.part, self.part.reduction
        n_batch = reduction.n_batch(self.n_samples, self.first_sample) if reduction and part.shards.n else 0
        d_values: list[Any] = [None] * len(self.sources)
        if not part.shards.n:  # empty ones: the other ranks count on this one where they sum over all neurons
            found: dict[str, Any] = {name: np.zeros(x.shape, np.float32) for name, x in self.learnt.items()}
        else:
            found, d_values = self.run_backward(d_out, wanted_values, n_batch, self.own)
            part.count_traffic()
        d_values = [d if d is None else pools.pull(d) for d, pools in zip(d_values, self.pools, strict=True)]
        if part.is_shared:
            d_values = self._to_owners(d_values, wanted_values)
        if reduction and part.shards.n:
            found = reduction.add_layer(self.layer, self.learnt, found, self._listed)
        for name in (loop + DELAYS for loop in self.wiring.loops):
            if name in self.learnt:  # every rank has the delays of all neurons
                own = torch.from_numpy(found[name][: part.shards.n])
                found[name] = part.whole_neurons(own).numpy()
        return found, d_values

    def _to_owners(self, d_values: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
        """From gradients of whole lists, [K, entries] for K blocks of this rank's tiles, to those of every rank's own entries."""
        part, rank = self.part, self.part.grid.shards.rank
        owns = rank in part.shards.owners
        found: list[Any] = [None] * len(wanted)
        asked: list[tuple[int, ShardedSpikes]] = []
        parts: list[Sequence[Any] | None] = []
        for k, (source, d) in itertools.compress(enumerate(zip(self.heard, d_values, strict=True)), wanted):
            assert isinstance(source, ShardedSpikes)
            asked.append((k, source))
            by_event = self.sorted_lists(k) is not None
            parts.append(source.split(d.reshape(len(part.tile_folds[rank]), -1), by_event=by_event) if owns else None)
        sums = lists_to_owners(part, parts, [source.n_own for _, source in asked])
        for (k, source), blocks in zip(asked, sums, strict=True):
            found[k] = source.own_slots(_sum([row for block in blocks for row in block], part.tile_folds))
        return found

    def _listed(self, weight: str) -> Rows:
        """Who may stand in the lists of a weight's sender."""
        if weight in self.wiring.senders:
            k = self.wiring.senders.index(weight)
            return np.asarray(self.lists_read[k].perhaps_listed(self.wiring.n_pre[k]))
        assert self.whole is not None
        return np.asarray(
            self.result.perhaps_listed() if self.own is None else self.own.perhaps_listed(self.whole.n_neurons)
        )


def lists_to_owners(part: Part, parts: Sequence[Sequence[Array] | None], n_own: Sequence[int]) -> list[list[Array]]:
    """Gives the owners of list entries what a population's tiles have for them.

    Args:
        part: this rank's of the population.
        parts: of each list, for every rank those for its entries, [K, entries] for K blocks of this rank's tiles; None: this rank has
            none.
        n_own: of each list, how many entries are this rank's.

    Returns: of each list, what this rank's entries got from every rank that has tiles, [K, n_own].
    """
    comm, owners = part.grid.shards, part.shards.owners
    nothing = [np.empty(0, np.float32)] * comm.size
    n_blocks = [len(part.tile_folds[r]) if part.shards.n_of(r) else 0 for r in range(comm.size)]
    shapes = [[(k, n) for k in n_blocks] for n in n_own]
    found = comm.swap_parts([nothing if own is None else own for own in parts], shapes, LIST_GRADIENTS)
    return [[blocks[r] for r in owners] for blocks in found]


def _sum(rows: list[Any], tile_folds: Sequence[Sequence[int]]) -> Any:
    """Over blocks of tiles, in the order in which one process adds them."""
    if len(rows) == 1:
        return rows[0].copy()
    total = np.empty_like(rows[0])
    _core.add_branches(rows, [fold for folds in tile_folds for fold in folds], total)
    return total


class _OwnNeurons(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, shards: Shards, comm: Communicator) -> Tensor:
        ctx.comm, ctx.first = comm, shards.first
        return whole[shards.begin : shards.end].clone()

    @staticmethod
    @first_order("a layer over ranks")
    def backward(ctx: Any, d_own: Tensor) -> tuple[Tensor, None, None]:
        first, own = ctx.first, d_own.contiguous().numpy()
        parts = ctx.comm.gather_parts(own, "numbers", lambda r: np.zeros(first[r + 1] - first[r], own.dtype))
        return torch.from_numpy(np.concatenate(parts)), None, None


def _whole(own: Tensor, shards: Shards, comm: Communicator) -> Tensor:
    """Numbers [..., N] from those [..., n] of all shards; of maps n may be the channels."""
    shape, sizes = own.shape[:-1], np.diff(shards.first)
    numbers = own.contiguous().numpy().reshape(-1)
    parts = comm.gather_parts(numbers, "potentials", lambda r: np.zeros(math.prod(shape) * sizes[r], numbers.dtype))
    if n_rows := math.prod(shape):
        sizes = np.array([p.size // n_rows for p in parts])
    return torch.cat([torch.from_numpy(p).reshape(*shape, int(n)) for p, n in zip(parts, sizes, strict=True)], -1)


class _WholeNumbers(torch.autograd.Function):
    """Numbers [..., N], such as potentials, from those of all shards."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, shards: Shards, comm: Communicator) -> Tensor:
        ctx.shards = shards
        return _whole(own, shards, comm)

    @staticmethod
    @first_order("a layer over ranks")
    def backward(ctx: Any, d_whole: Tensor) -> tuple[Tensor, None, None]:
        return d_whole[..., ctx.shards.begin : ctx.shards.end].contiguous(), None, None
