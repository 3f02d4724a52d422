"""This rank's part of a population that several ranks share.

Each rank owns whole tiles, with their weight columns and gradients. Forward, every rank gets the lists of the whole
population. Backward, the gradients of a layer's input lists are sums over its tiles; every rank sends its part to the
owners of those neurons (host/src/ranks/chain_shards.h). A recurrent layer does both in every step
(host/src/ranks/sharded.h).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn import _core
from sparsesnn.engines.ranks.chain_shards import ChainShards
from sparsesnn.engines.ranks.reduction import Reduction
from sparsesnn.engines.ranks.shards import Order, Shards
from sparsesnn.first_order import first_order
from sparsesnn.host.comm import Communicator, Grid
from sparsesnn.host.comm.base import Bytes
from sparsesnn.host.comm.exchange import count_traffic, make_exchange
from sparsesnn.parameters import delays_edge


class Part:
    """This rank's part of a population.

    Args:
        shards: which rank owns which neurons.
        senders: the same for every sender's population.
        grid: the ranks.
        reduction: sums the gradients over replicas; None: there is only one.
        order: the reader for which the ranks sort the population's lists in training; None: they do not sort.

    Attributes:
        owners: the ranks that own neurons, or, on any other rank, those that own none.
        ranks: the exchange of the owners within the layer; None: this rank owns none, or all.
        packed: weights by the engine's names, in its order, during a training pass; see `Parts.packed`.
    """

    def __init__(
        self,
        shards: Shards,
        senders: Sequence[Shards],
        grid: Grid,
        reduction: Reduction | None,
        order: Order | None = None,
    ) -> None:
        self.senders = senders
        self._alone: ChainShards | None = None
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
        self.owners = of_owners
        self.ranks = _core.LayerRanks(make_exchange(of_owners), first) if spans_ranks and shards.n else None
        self.packed: Mapping[str, Bytes] = {}

    def count_traffic(self) -> None:
        """Adds the traffic of the engine's own exchange within the layer to this rank's total."""
        count_traffic(self.owners)

    @property
    def is_shared(self) -> bool:
        return self.grid.n_shards > 1

    def own_neurons(self, value: Tensor) -> Tensor:
        """This rank's part [n] of a parameter, [] or [N]; the gradient is summed over all neurons, as on one rank."""
        whole = value.expand(self.shards.n_all)
        own: Tensor = _OwnNeurons.apply(whole, self.shards, self.grid.shards) if self.is_shared else whole
        return own

    def whole_delays(self, own: Tensor, n_pre: int) -> Tensor:
        """The axonal delays [M] of a connection's senders, gathered from all ranks; each rank's gradient is its part of the whole's."""
        if not self.is_shared:
            return own
        edges = [delays_edge(n, n_pre, self.shards.n_all) for n in self.shards.first]
        whole: Tensor = _WholeNumbers.apply(own, Shards(tuple(edges), self.shards.rank), self.grid.shards)
        return whole

    def alone(self, layer: Any) -> ChainShards | None:
        """The exchange between ranks for this layer alone; None: they share no neurons."""
        if self.is_shared and self._alone is None:
            self._alone = ChainShards([layer], self.senders)
        return self._alone

    def sum_groups(self, groups: Any, senders: Shards | None) -> np.ndarray:
        """The gradient of one number per sender, [M], from those of this replica's groups, [G, M], which are complete only for this
        rank's senders; `senders` None: for all."""
        if senders is None:
            return self.sum_own(groups)
        own = self.sum_own(np.ascontiguousarray(groups[:, senders.begin : senders.end]))
        return _whole(torch.from_numpy(own), senders, self.grid.shards).numpy()

    def sum_own(self, groups: Any) -> np.ndarray:
        """The sum over the groups of all replicas."""
        return np.asarray(self.reduction.fold(groups) if self.reduction else _core.add_groups(groups))

    def whole_neurons(self, own: Tensor) -> Tensor:
        """Numbers [..., N] from those [..., n] of all shards."""
        return _whole(own, self.shards, self.grid.shards) if self.is_shared else own


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
    """Numbers [..., N] from those [..., n] of all shards; for maps, n may be the channels."""
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
