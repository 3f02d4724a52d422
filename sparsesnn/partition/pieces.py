"""The pieces of a plan: shards, collectors and reducers; `plan.py` explains them."""

from __future__ import annotations

from dataclasses import dataclass

#: limits of a plan: samples of a batch, and steps, the same as for data sets
MAX_SAMPLES, MAX_STEPS = 1_000_000, 1_000_000


@dataclass(frozen=True)
class Shard:
    """The neurons `first` to `first + n - 1` of one population, on one tile.

    Args:
        tile: numbered over all devices; on a CPU the index of the slab within its population.
        first, n: gids.
        device: IPU; 0 on a CPU.
        rank: process; 0 on IPUs, which one process drives.
        worker: on a CPU the core of the rank expected to run it; 0 on IPUs, where all workers of a tile share
            each shard.
    """

    tile: int
    first: int
    n: int
    device: int = 0
    rank: int = 0
    worker: int = 0


@dataclass(frozen=True)
class Collector:
    """A tile that owns the lists of samples `first` to `first + n - 1` of one population, for all steps.

    For an `Input` it holds the lists from the host; for a spiking population it decodes the shards' masks into lists and
    adds up their gradients; for an `LI` readout it computes the loss of its samples.
    """

    tile: int
    first: int
    n: int
    device: int = 0


@dataclass(frozen=True)
class Reducer:
    """A tile that adds the list gradients sent by shards `first_shard` … of post, for samples `first_sample` …."""

    tile: int
    first_shard: int
    n_shards: int
    first_sample: int
    n_samples: int
    device: int = 0


@dataclass(frozen=True)
class PopulationPlan:
    """The placement of one population.

    Args:
        n: neurons.
        capacity: slots K of each of its lists, fired and near-spikes together; 0 for a readout, which has no lists.
        shards: ascending in gid; empty for an `Input`, whose spikes come from the host.
        collectors: ascending in sample, each sample once; empty on a CPU, where lists are ragged and shared.
    """

    n: int
    capacity: int
    shards: tuple[Shard, ...]
    collectors: tuple[Collector, ...] = ()


@dataclass(frozen=True)
class ConnectionPlan:
    """One connection; recurrent weights are a connection from a population to itself, delivered one or more steps later.

    Args:
        reducers: stage 1 of the sum of list gradients; empty if pre is an `Input` (its gradient is unused), or if
            post has few enough shards for the collectors of pre to add them directly.
    """

    pre: str
    post: str
    delay: int
    reducers: tuple[Reducer, ...] = ()

    @property
    def recurrent(self) -> bool:
        return self.pre == self.post
