"""From a network and a target to a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from sparsesnn.errors import ConfigError, PlanError
from sparsesnn.layers import LI, Input
from sparsesnn.network import Network
from sparsesnn.partition.memory import tile_totals
from sparsesnn.partition.plan import (
    Collector,
    ConnectionPlan,
    Plan,
    PopulationPlan,
    Reducer,
    Shard,
    cpu_shards,
)
from sparsesnn.partition.target import Target

#: of a population's neurons, the most that fit into a list: the "5 % maximum activity" of Finkbeiner et al. 2024
MAX_ACTIVITY = 0.05
#: no list is shorter than this, where the population has as many neurons
MIN_CAPACITY = 16
#: up to this many shards of post, their shares go to the collectors of pre directly
MAX_DIRECT_SHARDS = 8


def make_plan(
    network: Network,
    n_samples: int,
    n_steps: int,
    target: Target,
    *,
    activity: float | Mapping[str, float] = 0.02,
    max_activity: float = MAX_ACTIVITY,
    capacity: Mapping[str, int] | None = None,
    optimizer: str = "adam",
    weight_dtype: str = "float32",
) -> Plan:
    """Places every neuron of a network on a tile.

    Args:
        n_samples, n_steps: B and T.
        activity: expected spikes per neuron and step, for all populations or by name.
        max_activity: capacity of lists, as a share of the population; 1: no list can overflow. A population's own
            `capacity` goes before; where every neuron is listed (`grad_threshold=-inf`) capacity is the population.
        capacity: by population, goes before all of these.
        optimizer: "adam", "sgd" or "none".
        weight_dtype: "float32" or "half".

    Errors: `PlanError` where the target cannot hold it, with what would; `ConfigError` for values of no meaning.
    """
    skeleton = _skeleton(network, n_samples, n_steps, target, activity, max_activity, capacity, optimizer, weight_dtype)
    if target.kind == "cpu":
        return _plan_cpu(skeleton)
    return _plan_ipu(skeleton)


def _skeleton(
    network: Network,
    n_samples: int,
    n_steps: int,
    target: Target,
    activity: float | Mapping[str, float],
    max_activity: float,
    capacity: Mapping[str, int] | None,
    optimizer: str,
    weight_dtype: str,
) -> Plan:
    """The plan without shards: everything that does not depend on placement, checked."""
    for what, value in (("batch", n_samples), ("steps", n_steps)):
        if type(value) is not int or value < 1:
            raise ConfigError(f"plan: {what} is {value!r}; give a whole number, at least 1")
    for what, chosen, allowed in (
        ("optimizer", optimizer, ("adam", "sgd", "none")),
        ("weight_dtype", weight_dtype, ("float32", "half")),
    ):
        if chosen not in allowed:
            raise ConfigError(f"plan: {what} is {chosen!r}; allowed: {', '.join(allowed)}")
    if not 0 < max_activity <= 1:
        raise ConfigError(f"plan: max_activity is {max_activity!r}; allowed: above 0, at most 1")
    expected = _by_population(network, activity)
    given = dict(capacity or {})
    populations = {}
    for name, p in network.populations.items():
        most = given.pop(name, None)
        if most is not None and not 1 <= most <= p.n:
            raise ConfigError(f"plan: capacity of {name} is {most!r}; allowed: 1 to {p.n} (its neurons)")
        populations[name] = PopulationPlan(p.n, _capacity(p, most, max_activity), ())
    if given:
        raise ConfigError(f"plan: capacity of {sorted(given)}: no such population; there are {list(populations)}")
    connections = [
        *(ConnectionPlan(c.pre, c.post, c.delay) for c in network.connections),
        *(ConnectionPlan(k, k, 1) for k, p in network.populations.items() if getattr(p, "recurrent", False)),
    ]
    return Plan(
        network, target, n_samples, n_steps, optimizer, weight_dtype, expected, populations, tuple(connections), ""
    )


def _by_population(network: Network, activity: float | Mapping[str, float]) -> dict[str, float]:
    default = 0.02
    if not isinstance(activity, Mapping):
        default, activity = activity, {}
    if unknown := set(activity) - set(network.populations):
        raise ConfigError(
            f"plan: activity of {sorted(unknown)}: no such population; there are {list(network.populations)}"
        )
    found = {name: float(activity.get(name, default)) for name in network.populations}
    for name, value in found.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"plan: activity of {name} is {value!r}; allowed: 0 to 1 spikes per neuron and step")
    return found


def _capacity(population: object, given: int | None, max_activity: float) -> int:
    if isinstance(population, LI):
        return 0
    n = int(getattr(population, "n", 0))
    if given is not None:
        return given
    own = getattr(population, "capacity", None)
    if own is not None:
        return int(own)
    lists_all = getattr(population, "grad_threshold", 0.0) == -math.inf
    return n if lists_all else min(n, max(MIN_CAPACITY, math.ceil(max_activity * n)))


# ---- cpu -----------------------------------------------------------------------------------------------------------


def _plan_cpu(plan: Plan) -> Plan:
    """Slabs of the engine's own width, dealt to ranks and cores in ascending order."""
    target = plan.target
    populations = {}
    for name, p in plan.populations.items():
        if isinstance(plan.network.populations[name], Input):
            populations[name] = p
            continue
        slabs = cpu_shards(p.n, sum(plan.populations[c.pre].n for c in plan.incoming(name)))
        share = -(-len(slabs) // target.devices)
        populations[name] = replace(
            p,
            shards=tuple(
                replace(s, device=k // share, rank=k // share, worker=k % share % target.tiles)
                for k, s in enumerate(slabs)
            ),
        )
    return replace(plan, populations=populations, strategy="slabs of the engine's width")


# ---- ipu -----------------------------------------------------------------------------------------------------------


def _plan_ipu(plan: Plan) -> Plan:
    """One number of neurons per tile for all populations, raised until everything fits."""
    largest = max(p.n for p in plan.populations.values())
    per_tile = 2
    while True:
        sizes = {k: per_tile for k in plan.populations if not isinstance(plan.network.populations[k], Input)}
        n_shards = sum(-(-plan.populations[k].n // n) for k, n in sizes.items())
        if n_shards <= plan.target.n_tiles or per_tile >= largest:
            break
        per_tile += 2
    placed = replace(_place(plan, sizes), strategy=f"{per_tile} neurons a tile")
    total = tile_totals(placed)
    worst = int(total.argmax())
    if total[worst] > plan.target.bytes_per_tile:
        raise PlanError(
            f"plan: needs {total[worst]:,} bytes on tile {worst} but target '{plan.target.name}' has "
            f"{plan.target.bytes_per_tile:,}; use more devices, a smaller batch or fewer steps",
            needed=int(total[worst]),
            available=plan.target.bytes_per_tile,
        )
    return placed


def _place(plan: Plan, sizes: Mapping[str, int]) -> Plan:
    """Layer after layer on consecutive tiles; where there are more shards than tiles, round and round."""
    target, tile = plan.target, 0
    populations = dict(plan.populations)
    for name, n in sizes.items():
        shards = []
        for first in range(0, populations[name].n, n):
            place = tile % target.n_tiles
            shards.append(Shard(place, first, min(n, populations[name].n - first), target.device_of(place)))
            tile += 1
        populations[name] = replace(populations[name], shards=tuple(shards))
    return place_helpers(replace(plan, populations=populations))


def place_helpers(plan: Plan) -> Plan:
    """Collectors and reducers, dealt to tiles round and round, so that none has many."""
    target, b = plan.target, plan.n_samples
    turn = 0

    def next_tile() -> int:
        nonlocal turn
        turn += 1
        return (turn - 1) % target.n_tiles

    populations = {}
    for name, p in plan.populations.items():
        n_parts = min(b, max(1, target.n_tiles // len(plan.populations)))
        bounds = [k * b // n_parts for k in range(n_parts + 1)]
        tiles = [next_tile() for _ in range(n_parts)]
        populations[name] = replace(
            p,
            collectors=tuple(
                Collector(t, lo, hi - lo, target.device_of(t))
                for t, lo, hi in zip(tiles, bounds, bounds[1:], strict=False)
            ),
        )
    connections = []
    for c in plan.connections:
        reducers = []
        n_shards = len(populations[c.post].shards)
        if plan.trains and not isinstance(plan.network.populations[c.pre], Input) and n_shards > MAX_DIRECT_SHARDS:
            group = math.ceil(math.sqrt(n_shards))
            for first in range(0, n_shards, group):
                for collector in populations[c.pre].collectors:
                    t = next_tile()
                    n = min(group, n_shards - first)
                    reducers.append(Reducer(t, first, n, collector.first, collector.n, target.device_of(t)))
        connections.append(replace(c, reducers=tuple(reducers)))
    return replace(plan, populations=populations, connections=tuple(connections))
