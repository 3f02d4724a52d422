"""A plan: the tile of every neuron, and the tiles that assemble their lists, as plain data.

A population is cut into *shards*, contiguous ranges of gids, one a tile. Its lists are assembled and kept, for all T
steps, by *collectors*, each for some samples. Gradients of lists are added up over the tiles of the next population in
two stages: *reducers* add the shares of a group of tiles, the collectors add the groups.

    shard      weight columns, state, history, gradient          owner of neurons
    collector  masks of all shards → lists; groups' sums → ∂L/∂s  owner of samples of one population
    reducer    shares of a group of shards → one sum              owner of (group, samples) of one connection

Tiles are numbered over all devices, as in the hardware: device d owns tiles [d·stride, (d+1)·stride), where `stride` is the
number of its tiles, and a plan uses the first `tiles` of them. Shards ascend in gid without gaps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from sparsesnn.delays import Delays
from sparsesnn.errors import ConfigError
from sparsesnn.network import Connection, Network
from sparsesnn.partition.pieces import ConnectionPlan, PopulationPlan, Shard
from sparsesnn.partition.plan_json import from_json, to_json
from sparsesnn.partition.target import Target
from sparsesnn.synapses import Synapses
from sparsesnn.synapses.base import InLists
from sparsesnn.wording import count, powers_of_two_near


@dataclass(frozen=True)
class Plan:
    """A network on a target: the partitioner's result, complete for an engine.

    Args:
        network, target: the planned network and its target.
        n_samples, n_steps: B, of one replica, and T.
        optimizer: "adam", "sgd", or "none": inference only, which needs no gradient and no history.
        weight_dtype: "float32", or "half", with float32 masters if the network trains.
        activity: expected spikes per neuron and step, by population; only predictions and bytes of lists depend on it.
        populations: by name, in the network's order.
        connections: in the order in which currents are summed; recurrent ones after those from other populations.
        strategy: how the plan was made, as text.
        replicas: copies, each on its own set of the target's devices and with its own `n_samples` samples; their gradients
            are added before the update.
        regularizes: whether activity is regularized (`sparsesnn.loss.activity_regularizer`). Relevant for IPUs only.
        keep_every: potentials are kept for one segment of this many steps, and for the ends of the others, which are run
            again before their backward pass; 1: for all steps. Less memory, more cycles, the same numbers. IPUs only.
    """

    network: Network
    target: Target
    n_samples: int
    n_steps: int
    optimizer: str
    weight_dtype: str
    activity: Mapping[str, float]
    populations: Mapping[str, PopulationPlan]
    connections: tuple[ConnectionPlan, ...]
    strategy: str
    replicas: int = 1
    regularizes: bool = False
    keep_every: int = 1

    @property
    def n_again(self) -> int:
        """The number of steps that run a second time: all but those of the last segment."""
        if self.keep_every == 1 or not self.trains:
            return 0
        return (self.n_steps - 1) // self.keep_every * self.keep_every

    @property
    def n_kept(self) -> int:
        """The rows of potentials that a shard keeps in training."""
        return self.n_steps if self.keep_every == 1 else self.keep_every + self.n_again // self.keep_every

    def __post_init__(self) -> None:
        object.__setattr__(self, "activity", MappingProxyType(dict(self.activity)))
        object.__setattr__(self, "populations", MappingProxyType(dict(self.populations)))
        if self.target.kind == "ipu" and (near := powers_of_two_near(self.replicas)):
            n = self.target.devices
            raise ConfigError(
                f"plan: {self.replicas} replicas of {count(n, 'IPU')} make {self.replicas * n} IPUs; IPUs come in powers of two: "
                f"give {near} replicas"
            )

    @property
    def trains(self) -> bool:
        return self.optimizer != "none"

    def incoming(self, name: str) -> tuple[ConnectionPlan, ...]:
        """Connections into a population, in the order in which its currents are summed."""
        return self._by_end["post"].get(name, ())

    def outgoing(self, name: str) -> tuple[ConnectionPlan, ...]:
        return self._by_end["pre"].get(name, ())

    def synapses(self, c: ConnectionPlan) -> Synapses:
        """The kind of a connection's synapses."""
        return self._connections[c.pre, c.post, c.delay].synapses

    def axonal(self, c: ConnectionPlan) -> Delays | None:
        """The axonal delays of a connection."""
        return self._connections[c.pre, c.post, c.delay].axonal

    def reach(self, c: ConnectionPlan) -> int:
        """The number of steps after which the last of a step's spikes arrives."""
        return self._connections[c.pre, c.post, c.delay].reach

    @cached_property
    def _connections(self) -> dict[tuple[str, str, int], Connection]:
        return {(c.pre, c.post, c.delay): c for c in self.network.connections}

    def n_weights(self, c: ConnectionPlan, begin: int = 0, end: int | None = None) -> int:
        """The number of weights of a connection, of the receivers `begin` to `end` - 1."""
        return self.synapses(c).n_weights(self.populations[c.pre].n, self.populations[c.post].n, begin, end)

    def shards_of_ranks(self, name: str) -> list[list[Shard]]:
        """The shards of a population that lie on each rank, in ascending order."""
        shards: list[list[Shard]] = [[] for _ in range(self.target.devices)]
        for shard in self.populations[name].shards:
            shards[shard.rank].append(shard)
        return shards

    @cached_property
    def n_owners(self) -> dict[str, int]:
        """The number of ranks that own neurons of each population; every rank reads it."""
        return {name: len({shard.rank for shard in p.shards}) for name, p in self.populations.items()}

    def in_lists(self, c: ConnectionPlan) -> InLists:
        """How the CPU engine processes a connection's lists."""
        in_lists = self.synapses(c).in_lists(self.populations[c.pre].n)
        assert in_lists is not None, "other kinds are refused before a plan is made"
        return in_lists

    def is_windows(self, c: ConnectionPlan) -> bool:
        """Whether the CPU engine uses the windows of a convolution (host/src/maps/windows.h)."""
        return bool(self.in_lists(c).kind.window_shape())

    def runs_by_row(self, name: str) -> bool:
        """Whether the CPU engine runs a population row by row of its maps."""
        natural = getattr(self.network.populations[name], "activity", "") == "natural"
        return natural and all(self.is_windows(c) for c in self.incoming(name))

    def is_compressed(self, c: ConnectionPlan) -> bool:
        """Whether the CPU engine reads compressed rows of a connection."""
        return self.synapses(c).is_compressed(self.populations[c.pre].n, self.populations[c.post].n)

    @cached_property
    def inputs(self) -> frozenset[str]:
        """Names of the `Input` populations."""
        return frozenset(self.network.inputs)

    @cached_property
    def stages(self) -> Mapping[str, int]:
        """The round of a step in which a population runs: the longest chain of delay-0 connections that leads to it."""
        rounds: dict[str, int] = {}
        for name in self.populations:
            feeds = [c.pre for c in self.incoming(name) if c.delay == 0 and c.pre not in self.inputs]
            rounds[name] = 1 + max((rounds[pre] for pre in feeds), default=-1)
        return rounds

    @cached_property
    def _by_end(self) -> dict[str, dict[str, tuple[ConnectionPlan, ...]]]:
        """Connections by either end, because networks of hundreds of layers query them often."""
        by_end: dict[str, dict[str, tuple[ConnectionPlan, ...]]] = {"pre": {}, "post": {}}
        for c in self.connections:
            for end, name in (("pre", c.pre), ("post", c.post)):
                by_end[end][name] = (*by_end[end].get(name, ()), c)
        return by_end

    # ---- maps both ways ----------------------------------------------------------------------------------------

    def gid_to_shard(self, name: str) -> np.ndarray:
        """int32[N]: the index, in `populations[name].shards`, of the shard that owns each neuron."""
        shards = self.populations[name].shards
        return np.repeat(np.arange(len(shards), dtype=np.int32), [s.n for s in shards])

    def gid_to_lid(self, name: str) -> np.ndarray:
        """int32[N]: the index of each neuron within its shard."""
        shards = self.populations[name].shards
        if not shards:
            return np.zeros(0, np.int32)
        return np.concatenate([np.arange(s.n, dtype=np.int32) for s in shards])

    def gid_to_tile(self, name: str) -> np.ndarray:
        """int32[N]: the tile of each neuron."""
        shards = self.populations[name].shards
        return np.repeat(np.array([s.tile for s in shards], np.int32), [s.n for s in shards])

    def tile_to_shards(self) -> dict[int, list[tuple[str, int]]]:
        """Tile → (population, index of the shard), in the network's order; the inverse of the maps above."""
        shards: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for name, population in self.populations.items():
            for k, shard in enumerate(population.shards):
                shards[shard.tile].append((name, k))
        return dict(shards)

    # ---- JSON --------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """JSON text; its format is described in `sparsesnn.partition.plan_json`."""
        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The inverse of `to_json`. Errors: `ConfigError`, `DescriptionError`."""
        return from_json(text, cls)
