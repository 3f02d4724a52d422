"""The neurons, lists and sums of one op on each tile; see `sparsesnn.partition.plan` for the terms.

An op shares its IPU with the rest of a PopTorch model, so there is nothing to optimize: neurons are spread evenly over
all tiles, in pairs (a tile adds two floats at once), each population beginning where the one before ended. A map from
`sparsesnn.partition.make_plan` can be used instead (`from_plan`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, List, Tuple  # noqa: UP035

from sparsesnn.errors import PlanError
from sparsesnn.network import Network

Rows = List[Tuple[int, ...]]  # noqa: UP006  evaluated under Python 3.8

#: a collector adds the shares of up to this many tiles itself; for more, reducers add groups of tiles first
MAX_DIRECT_SHARDS = 16


@dataclass(frozen=True)
class TileMap:
    """Records of the op's description, without the record names; host/src/popart/description.h explains them."""

    shards: Rows
    collectors: Rows
    reducers: Rows

    def n_history(self, population: int, n_steps: int, n_samples: int) -> int:
        """Floats of the potentials that are saved for the backward pass: T·B·w a shard, w rounded up to a pair."""
        return sum(n_steps * n_samples * (n + n % 2) for p, _, _, n in self.shards if p == population)


def connections(network: Network) -> list[tuple[int, int, int]]:
    """(pre, post, delay) in the order in which currents are summed, populations by position."""
    position = {name: k for k, name in enumerate(network.populations)}
    return [(position[c.pre], position[c.post], c.delay) for c in network.connections]


def spread(network: Network, n_samples: int, tiles: int, input_gradient: bool) -> TileMap:
    """Spreads neurons over all tiles, samples over collectors, sums over groups of about √shards.

    Args:
        network: with one `Input`, its first population.
        n_samples: B of the op, the micro-batch of one replica.
        tiles: number of tiles of the IPU.
        input_gradient: whether the input's lists have a gradient too.
    """
    tile = 0
    shards: Rows = []
    collectors: Rows = []
    reducers: Rows = []
    n_collectors = min(n_samples, tiles)
    bounds = [k * n_samples // n_collectors for k in range(n_collectors + 1)]
    samples = [(bounds[k], bounds[k + 1] - bounds[k]) for k in range(n_collectors)]

    def next_tile() -> int:
        nonlocal tile
        tile += 1
        return (tile - 1) % tiles

    for index, p in enumerate(network.populations.values()):
        if index:
            share = -(-p.n // tiles)
            share += share % 2
            shards += [(index, next_tile(), first, min(share, p.n - first)) for first in range(0, p.n, share)]
    for index in range(len(network.populations)):
        collectors += [(index, next_tile(), first, n) for first, n in samples]
    for index, (pre, post, _) in enumerate(connections(network)):
        n_shards = sum(row[0] == post for row in shards)
        if n_shards <= MAX_DIRECT_SHARDS or not (pre or input_gradient):
            continue
        n_groups = max(1, min(round(math.sqrt(n_shards)), tiles // n_collectors))
        for g in range(n_groups):
            low, high = g * n_shards // n_groups, (g + 1) * n_shards // n_groups
            reducers += [(index, next_tile(), low, high - low, first, n) for first, n in samples]
    return TileMap(shards, collectors, reducers)


def from_plan(plan: Any, n_samples: int, n_steps: int) -> TileMap:
    """The map of a `sparsesnn.partition.plan.Plan` for one IPU, made for the same network, B and T."""
    if (plan.n_samples, plan.n_steps) != (n_samples, n_steps) or plan.target.devices != 1:
        raise PlanError(
            f"the plan is for B={plan.n_samples}, T={plan.n_steps} on {plan.target.devices} IPUs; the op has "
            f"B={n_samples}, T={n_steps} on one; plan for these",
            needed=1,
            available=plan.target.devices,
        )
    shards: Rows = []
    collectors: Rows = []
    for index, p in enumerate(plan.populations.values()):
        shards += [(index, s.tile, s.first, s.n) for s in p.shards]
        collectors += [(index, c.tile, c.first, c.n) for c in p.collectors]
    reducers: Rows = [
        (index, r.tile, r.first_shard, r.n_shards, r.first_sample, r.n_samples)
        for index, c in enumerate(plan.connections)
        for r in c.reducers
    ]
    return TileMap(shards, collectors, reducers)
