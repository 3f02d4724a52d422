"""Who owns which neurons, and the lists of a population that several ranks own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsesnn import _core
from sparsesnn.engines.cpu import layer as engine
from sparsesnn.host.comm import Communicator, made_up
from sparsesnn.host.comm.base import Array, Bytes
from sparsesnn.network import Network
from sparsesnn.placement import CPU_TILE_WIDTHS, neurons_of_ranks, tile_width
from sparsesnn.spikes import SpikeBatch

Places = npt.NDArray[np.int64]

#: for whom the owners of a population sort its lists: delay, and `_core.chunk_plan`, of a layer that reads them
Order = tuple[int, int, int]


@dataclass(frozen=True)
class Shards:
    """The neurons of one population over the ranks of a replica.

    Args:
        first: [R + 1], rank r owns neurons first[r] to first[r + 1] - 1, whole tiles; some ranks own none.
        rank: this one.
        tile_width: neurons of a tile.
    """

    first: tuple[int, ...]
    rank: int
    tile_width: int = CPU_TILE_WIDTHS[0]

    @property
    def begin(self) -> int:
        return self.first[self.rank]

    @property
    def end(self) -> int:
        return self.first[self.rank + 1]

    def n_of(self, rank: int) -> int:
        """Neurons of a rank."""
        return self.first[rank + 1] - self.first[rank]

    @property
    def n(self) -> int:
        """Neurons of this rank."""
        return self.n_of(self.rank)

    @property
    def n_all(self) -> int:
        return self.first[-1]

    @property
    def owners(self) -> tuple[int, ...]:
        """The ranks that own neurons."""
        return tuple(r for r in range(len(self.first) - 1) if self.first[r + 1] > self.first[r])


def make_shards(network: Network, n_ranks: int, rank: int) -> Mapping[str, Shards]:
    """The shards of all populations but the input, over `n_ranks` ranks."""
    return {
        name: Shards(first, rank, tile_width(network, name))
        for name, first in neurons_of_ranks(network, n_ranks).items()
    }


@dataclass(eq=False)
class ShardedSpikes(SpikeBatch):
    """The lists of a whole population, which every rank has, and the values of the neurons that this rank owns.

    Args:
        own_values: float32[s], the values of this rank's entries, a node of its autograd graph; `values` is None.
        shards: who owns which of them.

    Attributes:
        own_events: this rank's entries sorted for readers, if their owners did that; lists that are made of these have none.
        sorted_lists: those of all ranks.
    """

    own_values: Tensor | None = None
    shards: Shards = Shards((0,), 0)
    own_events: _core.OwnEvents | None = field(default=None, init=False)
    sorted_lists: _core.SortedLists | None = field(default=None, init=False)

    @property
    def own_places(self) -> Places:
        """Where this rank's entries lie in the lists, in their order: ids say who owns an entry."""
        ids = self.ids.numpy()
        return np.flatnonzero((ids >= self.shards.begin) & (ids < self.shards.end))

    def split(self, values: npt.NDArray[np.float32], *, by_event: bool = False) -> list[npt.NDArray[np.float32]]:
        """Values [K, entries], for the rank that owns each entry, in the order in which its owner wants them.

        Args:
            by_event: they come in the order of `sorted_lists`.
        """
        if self.sorted_lists is None:
            return list(_core.split_values(engine.engine_lists(self), values, list(self.shards.first)))
        if not by_event:
            values = np.asarray(self.sorted_lists.from_slots(engine.engine_lists(self), values))
        return [values[:, a:b] for a, b in itertools.pairwise(self.sorted_lists.edges)]

    @property
    def n_own(self) -> int:
        """How many values come back for this rank's entries."""
        assert self.own_values is not None
        return self.own_values.numel() if self.sorted_lists is None else len(self.own_events or ())

    def own_slots(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Values that came back, in the order of this rank's entries."""
        if self.own_events is None:
            return values
        assert self.own_values is not None
        return np.asarray(self.own_events.to_slots(values, self.own_values.numel()))


def gather_lists(
    own: SpikeBatch, shards: Shards, comm: Communicator, *, limited: bool, order: Order | None = None
) -> ShardedSpikes:
    """The lists of the population from those of all shards, whose ids count from 0; `own.values` become `own_values`.

    Args:
        limited: the population has a capacity.
        order: for whom each rank sorts its part.
    """
    if comm.size == 1:
        plain = {f.name: getattr(own, f.name) for f in fields(SpikeBatch)}
        return ShardedSpikes(**{**plain, "values": None}, own_values=own.values, shards=shards)
    n_lists = own.n_steps * own.n_samples
    message, events = np.empty(0, np.uint8), None  # of a shard without neurons
    if shards.n:
        tells = limited and comm.rank == shards.owners[0]
        own_dropped = own.dropped.numpy() if tells and own.dropped is not None else None
        lists = engine.engine_lists(own)
        events = _core.OwnEvents(lists, shards.n, own.n_samples, order) if order else None
        message = np.asarray(_core.shard_message(lists, shards.n, own_dropped, events))

    def arrays() -> tuple[Array, Array, Array]:
        return own.offsets.numpy(), own.ids.numpy(), own.n_spikes.numpy()

    messages = exchange_lists(message, arrays, shards, comm, limited=limited, n_samples=own.n_samples, order=order)
    first, sorted_lists = list(shards.first), None
    if order:
        sorted_lists = _core.SortedLists(messages, first, own.n_steps, own.n_samples, order)
        messages = [message[end:] for message, end in zip(messages, sorted_lists.ends, strict=True)]
    offsets, ids, n_spikes, dropped = _core.merge_messages(messages, n_lists, limited, first)
    whole = ShardedSpikes(
        offsets=torch.from_numpy(offsets),
        ids=torch.from_numpy(ids),
        n_spikes=torch.from_numpy(n_spikes),
        n_steps=own.n_steps,
        n_samples=own.n_samples,
        n_neurons=shards.n_all,
        dropped=None if dropped is None else torch.from_numpy(dropped),
        own_values=own.values,
        shards=shards,
    )
    whole.own_events, whole.sorted_lists = events, sorted_lists
    return whole


def exchange_lists(
    message: Bytes,
    own: Callable[[], tuple[Array, Array, Array]],
    shards: Shards,
    comm: Communicator,
    *,
    limited: bool,
    n_samples: int,
    order: Order | None,
) -> list[Bytes]:
    """The messages of all shards on their lists.

    Args:
        message: of this one; empty where it has no neurons.
        own: makes offsets, ids and numbers of spikes of its lists, for dry runs.
        limited: the population has a capacity.
        order: as of `gather_lists`.
    """

    def like_own(r: int) -> Bytes:
        n = shards.n_of(r)
        if not n:
            return np.empty(0, np.uint8)
        offsets, ids, n_spikes = made_up.lists(own(), shards.first, comm.rank, r)
        lists = _core.Lists(offsets, ids, n_spikes, None)
        events = _core.OwnEvents(lists, n, n_samples, order) if order else None
        dropped = np.zeros(len(n_spikes), np.int32) if limited and r == shards.owners[0] else None
        return np.asarray(_core.shard_message(lists, n, dropped, events))

    return comm.gather_parts(message, "lists", like_own)


def whole_values(spikes: ShardedSpikes) -> SpikeBatch:
    """The same lists with the values of all entries; their gradient goes to those that this rank owns.

    For losses, which every rank computes alike from the lists of the whole population.
    """
    values = None if spikes.own_values is None else _WholeValues.apply(spikes.own_values, spikes)
    plain: dict[str, Any] = {f.name: getattr(spikes, f.name) for f in fields(SpikeBatch)}
    return SpikeBatch(**{**plain, "values": values})


class _WholeValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, spikes: ShardedSpikes) -> Tensor:
        ctx.places = spikes.own_places
        return spikes.fired().float()

    @staticmethod
    def backward(ctx: Any, d_values: Tensor) -> tuple[Tensor, None]:
        return d_values[torch.from_numpy(ctx.places)], None
