"""Ranks as replicas × shards: replicas have different samples, shards own different neurons."""

from __future__ import annotations

from dataclasses import dataclass

from sparsesnn.errors import ConfigError
from sparsesnn.host.comm.base import Communicator
from sparsesnn.host.comm.local import Local
from sparsesnn.wording import count


@dataclass(frozen=True)
class Grid:
    """The place of this rank. Rank r is shard r mod S of replica r div S, so that shards are neighbors.

    Args:
        world: all ranks.
        shards: the ranks of this replica, in the order of the neurons that they own.
        replicas: the ranks that own the same neurons, in the order of their samples.
    """

    world: Communicator
    shards: Communicator
    replicas: Communicator

    @property
    def n_shards(self) -> int:
        return self.shards.size

    @property
    def n_replicas(self) -> int:
        return self.replicas.size

    @property
    def is_first(self) -> bool:
        """Whether this rank writes shared output, such as files and logs."""
        return self.world.rank == 0

    @classmethod
    def alone(cls) -> Grid:
        local = Local()
        return cls(local, local, local)


def make_grid(world: Communicator, n_replicas: int = 0, n_shards: int = 0) -> Grid:
    """The grid of all ranks; 0: as many as the ranks allow (replicas, if both are 0).

    Errors: `ConfigError` if replicas × shards is not the number of ranks.
    """
    replicas, shards = n_replicas, n_shards
    if not shards:
        shards = world.size // replicas if replicas else 1
    if not replicas:
        replicas = world.size // shards
    if replicas * shards != world.size or min(replicas, shards) < 1:
        raise ConfigError(
            f"parallel: {n_replicas or 'any number of'} replicas × {n_shards or 'any number of'} shards do not make "
            f"{count(world.size, 'rank')}; set parallel.replicas and parallel.shards to a product of {world.size}, "
            f"or start {count(max(1, n_replicas) * max(1, n_shards), 'rank')}"
        )
    if world.size == 1:
        return Grid(world, world, world)
    ranks = range(world.size)
    return Grid(world, world.split([r // shards for r in ranks]), world.split([r % shards for r in ranks]))
