"""From a network and a target to a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sparsesnn.errors import ConfigError, PlanError
from sparsesnn.layers import LI, Input
from sparsesnn.network import AnyPopulation, Network
from sparsesnn.partition.cost import ASSUMPTIONS, CycleAssumptions, predict_ipu
from sparsesnn.partition.layout import LAYOUTS, crossing, place
from sparsesnn.partition.memory import padded, tile_bytes, tile_totals
from sparsesnn.partition.memory_cpu import rank_bytes
from sparsesnn.partition.plan import ConnectionPlan, Plan, PopulationPlan, Shard, cpu_shards
from sparsesnn.partition.strategies import STRATEGIES, Sizing
from sparsesnn.partition.target import Target
from sparsesnn.partition.vertices import loops_rounds

#: of a population's neurons, the most that fit into a list: the "5 % maximum activity" of Finkbeiner et al. 2024
MAX_ACTIVITY = 0.05
#: standard deviations above the mean that a list has room for, where capacity comes from measured activity
N_DEVIATIONS = 4.0
#: no list is shorter than this, where the population has as many neurons
MIN_CAPACITY = 16


def make_plan(
    network: Network,
    n_samples: int,
    n_steps: int,
    target: Target,
    *,
    activity: float | Mapping[str, float] = 0.02,
    max_activity: float | None = MAX_ACTIVITY,
    capacity: Mapping[str, int] | None = None,
    optimizer: str = "adam",
    weight_dtype: str = "float32",
    strategy: str = "search",
    layout: str = "auto",
    replicas: int = 1,
    regularises: bool = False,
    keep_every: int = 1,
    assumptions: CycleAssumptions = ASSUMPTIONS,
) -> Plan:
    """Places every neuron of a network on a tile.

    Args:
        n_samples, n_steps: B, of one replica, and T.
        activity: expected spikes per neuron and step, for all populations or by name.
        max_activity: capacity of lists, as a share of the population; 1: no list can overflow; None: from `activity`,
            what is listed on average and four standard deviations. A population's own `capacity` goes before; where
            every neuron is listed (`grad_threshold=-inf`) capacity is the population.
        capacity: by population, goes before all of these.
        optimizer: "adam", "sgd" or "none".
        weight_dtype: "float32" or "half".
        strategy: sizes of shards, see `sparsesnn.partition.strategies`: "even", "bytes", "work" or "search". IPUs only.
        layout: their places, see `sparsesnn.partition.layout`: "contiguous", "split", "shared", or "auto": the fastest
            by prediction. IPUs only.
        replicas: copies of the plan on as many times the target's devices, each with `n_samples` samples. IPUs only.
        regularises: activity is regularised.
        keep_every: potentials are kept of segments of so many steps and of their ends; the rest runs again: about the root
            of the steps needs least memory. 1: all are kept. IPUs only.
        assumptions: of the prediction that sizes and layout are chosen by.

    Errors: `PlanError` where the target cannot hold it, with what would; `ConfigError` for values of no meaning.
    """
    skeleton = _skeleton(network, n_samples, n_steps, target, activity, max_activity, capacity, optimizer, weight_dtype)
    if type(replicas) is not int or replicas < 1 or (replicas > 1 and target.kind != "ipu"):
        raise ConfigError(
            f"plan: replicas is {replicas!r} on '{target.name}'; give a whole number, at least 1, on IPUs; ranks of mpirun "
            "are dealt to replicas when they run: parallel.replicas of sparsesnn train"
        )
    if (
        type(keep_every) is not int
        or not (keep_every == 1 or 1 < keep_every < n_steps)
        or (keep_every > 1 and (target.kind != "ipu" or optimizer == "none"))
    ):
        raise ConfigError(
            f"plan: keep_every is {keep_every!r}; allowed: 1, or 2 to {n_steps - 1} where a network trains on IPUs"
        )
    skeleton = replace(skeleton, replicas=replicas, regularises=regularises, keep_every=keep_every)
    if target.kind == "cpu":
        return _plan_cpu(skeleton)
    for what, chosen, allowed in (
        ("strategy", strategy, STRATEGIES),
        ("layout", layout, ("auto", *LAYOUTS)),
    ):
        if chosen not in allowed:
            raise ConfigError(f"plan: {what} is {chosen!r}; allowed: {', '.join(allowed)}")
    return _plan_ipu(skeleton, strategy, layout, assumptions)


def _skeleton(
    network: Network,
    n_samples: int,
    n_steps: int,
    target: Target,
    activity: float | Mapping[str, float],
    max_activity: float | None,
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
    if max_activity is not None and not 0 < max_activity <= 1:
        raise ConfigError(f"plan: max_activity is {max_activity!r}; allowed: above 0, at most 1; None: from activity")
    expected = _by_population(network, activity)
    given = dict(capacity or {})
    populations = {}
    for name, p in network.populations.items():
        most = given.pop(name, None)
        if most is not None and not 1 <= most <= p.n:
            raise ConfigError(f"plan: capacity of {name} is {most!r}; allowed: 1 to {p.n} (its neurons)")
        populations[name] = PopulationPlan(p.n, _capacity(p, most, max_activity, expected[name]), ())
    if given:
        raise ConfigError(f"plan: capacity of {sorted(given)}: no such population; there are {list(populations)}")
    connections = [ConnectionPlan(c.pre, c.post, c.delay) for c in network.connections]
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


def _capacity(population: AnyPopulation, given: int | None, max_activity: float | None, activity: float) -> int:
    if isinstance(population, LI):
        return 0
    n = population.n
    if given is not None:
        return given
    own = getattr(population, "capacity", None)
    if own is not None:
        return int(own)
    lists_all = getattr(population, "grad_threshold", 0.0) == -math.inf
    if lists_all:
        return n
    if max_activity is None:
        listed = activity * n * (1 if isinstance(population, Input) else 1 + ASSUMPTIONS.near_per_spike)
        wanted = listed + N_DEVIATIONS * math.sqrt(listed)  # of independent neurons, rare spikes: variance = mean
    else:
        wanted = max_activity * n
    return min(n, max(MIN_CAPACITY, math.ceil(wanted)))


# ---- cpu -----------------------------------------------------------------------------------------------------------


def _plan_cpu(plan: Plan) -> Plan:
    """Slabs of the engine's own width. Layers run one after another, so each is dealt to all ranks, in contiguous runs;
    who gets a slab more is who holds the fewest weights so far."""
    target = plan.target
    populations = {}
    held = [0] * target.devices
    for name, p in plan.populations.items():
        populations[name] = p
        if isinstance(plan.network.populations[name], Input):
            continue
        n_pre = sum(plan.populations[c.pre].n for c in plan.incoming(name))
        slabs = cpu_shards(p.n, n_pre)
        each, left = divmod(len(slabs), target.devices)
        more = set(sorted(range(target.devices), key=held.__getitem__)[:left])
        shards: list[Shard] = []
        for rank in range(target.devices):
            mine = slabs[len(shards) : len(shards) + each + (rank in more)]
            held[rank] += n_pre * sum(s.n for s in mine)
            shards += [
                replace(s, device=rank, rank=rank, worker=k * target.tiles // len(mine)) for k, s in enumerate(mine)
            ]
        populations[name] = replace(p, shards=tuple(shards))
    plan = replace(plan, populations=populations, strategy="slabs of the engine's width, each layer over all ranks")
    ranks = [sum(items.values()) for items in rank_bytes(plan)]
    worst = max(range(target.devices), key=ranks.__getitem__)
    if target.bytes_per_device is not None and ranks[worst] > target.bytes_per_device:
        needed = -(-sum(ranks) // target.bytes_per_device)
        raise PlanError(
            f"plan: needs {ranks[worst]:,} bytes on rank {worst} but target '{target.name}' has "
            f"{target.bytes_per_device:,}; use {max(needed, target.devices + 1)} ranks or more, or a smaller batch",
            needed=ranks[worst],
            available=target.bytes_per_device,
        )
    return plan


# ---- ipu -----------------------------------------------------------------------------------------------------------

#: shards are sized anew with less room, at most so often, where collectors and reducers did not fit beside them
MAX_TRIES = 8


def _plan_ipu(plan: Plan, strategy: str, layout: str, a: CycleAssumptions) -> Plan:
    """The fastest of the layouts asked for, by prediction."""
    found = [p for name in _layouts(plan, layout) if (p := _laid_out(plan, strategy, name, a)) is not None]
    if not found:
        emptiest = _emptiest(plan, layout, a)
        if emptiest is None or tile_totals(emptiest).max() > plan.target.bytes_per_tile:
            raise _refusal(plan, emptiest, layout, a)
        found = [emptiest]
    if plan.keep_every > 1 and (deep := [p for p in found if loops_rounds(p)]):
        found = [p for p in found if p not in deep]
        if not found:
            raise ConfigError(
                f"plan: keep_every is {plan.keep_every}, but populations joined by delay 0 run in {1 + max(plan.stages.values())} "
                f"rounds, which share their vertices on {plan.target.n_tiles} tiles; give delay=1, more tiles, or keep_every=1"
            )
    legal = [p for p in found if crossing(p) is None]
    if not legal:
        pre, post = crossing(found[0]) or ("", "")
        devices = sorted({s.device for name in (pre, post) for s in found[0].populations[name].shards})
        raise ConfigError(
            f"plan: connection {pre}->{post} has delay 0, but its neurons are on devices {_few(devices)} of "
            f"'{plan.target.name}'; connections that cross devices need delay 1, so that all layers of all devices "
            "work at once: give delay=1, or plan for one device"
        )
    return min(legal, key=lambda p: predict_ipu(p, a).batch_s)


def _layouts(plan: Plan, layout: str) -> tuple[str, ...]:
    if layout != "auto":
        return (layout,)
    return tuple(k for k in LAYOUTS if k != "split" or plan.target.devices > 1)


def _laid_out(plan: Plan, strategy: str, layout: str, a: CycleAssumptions) -> Plan | None:
    """Shards, collectors and reducers within the memory of every tile; None where they do not fit."""
    target = plan.target
    room = target.bytes_per_tile
    for _ in range(MAX_TRIES):
        sizes = _sizes(plan, strategy, layout, room, a)
        placed = None if sizes is None else place(plan, sizes, layout)
        if placed is None:
            return None
        excess = int(tile_totals(placed).max()) - target.bytes_per_tile
        if excess <= 0:
            return replace(placed, strategy=f"{strategy}, {layout}")
        if layout == "shared":  # its sizes follow from the number of tiles, not from room
            return None
        room -= max(excess, 256)
    return None


def _sizes(plan: Plan, strategy: str, layout: str, room: int, a: CycleAssumptions) -> dict[str, int] | None:
    if layout == "shared":
        return {
            name: padded(-(-p.n // plan.target.n_tiles), plan.weight_dtype)
            for name, p in plan.populations.items()
            if name not in plan.network.inputs
        }
    return Sizing(plan, room, plan.target.n_tiles, a).sizes(strategy)


def _few(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) if len(numbers) <= 4 else f"{numbers[0]} to {numbers[-1]}"


# ---- refusal -------------------------------------------------------------------------------------------------------


def _emptiest(plan: Plan, layout: str, a: CycleAssumptions) -> Plan | None:
    """Whatever the tiles have: of the layouts that delays allow, or of all if they allow none, the plan whose fullest tile
    holds least; None where there are too few tiles at all."""
    found = []
    for name in _layouts(plan, layout):
        sizes = _sizes(plan, "bytes", name, 1 << 62, a)
        placed = None if sizes is None else place(plan, sizes, name)
        if placed is not None:
            found.append(replace(placed, strategy=f"bytes, {name}"))
    return min(found, key=lambda p: (crossing(p) is not None, int(tile_totals(p).max())), default=None)


def _refusal(plan: Plan, best: Plan | None, layout: str, a: CycleAssumptions) -> PlanError:
    """Says how full the fullest tile would be at best, with what, and which changes would make it fit."""
    target = plan.target
    if best is None:
        n_populations = len(plan.populations) - len(plan.network.inputs)
        return PlanError(
            f"plan: {n_populations} populations do not fit '{target.name}' with layout {layout!r}; "
            "use layout 'shared' or more tiles",
            needed=n_populations,
            available=target.n_tiles,
        )
    totals = tile_totals(best)
    worst = int(totals.argmax())
    items = {k: int(v[worst]) for k, v in tile_bytes(best).items()}
    largest = sorted(items, key=lambda k: -items[k])[:3]
    shards = best.tile_to_shards().get(worst, [])
    who = ", ".join(f"{name} ({_neurons(best.populations[name].shards[k].n)})" for name, k in shards) or "collectors"
    return PlanError(
        f"{who}: needs {totals[worst]:,} bytes on tile {worst} but target '{target.name}' has "
        f"{target.bytes_per_tile:,}; most of it {', '.join(f'{k} {items[k]:,}' for k in largest)}; "
        f"{_proposal(plan, layout, a)}",
        needed=int(totals[worst]),
        available=target.bytes_per_tile,
    )


def _neurons(n: int) -> str:
    return f"{n} neuron{'s' * (n > 1)}"


def _proposal(plan: Plan, layout: str, a: CycleAssumptions) -> str:
    """Changes that, one by one, make the plan fit; each was tried."""

    def fits(changed: Plan) -> bool:
        emptiest = _emptiest(changed, layout, a)
        if emptiest is None or crossing(emptiest) is not None:
            return False
        return bool(tile_totals(emptiest).max() <= changed.target.bytes_per_tile)

    found = []
    for devices in (2, 4, 8, 16, 32, 64):
        if devices > plan.target.devices:
            more = plan.target.with_devices(devices)
            if fits(replace(plan, target=more)):
                found.append(f"use {more.name}")
                break
    for what, value, change in (
        ("batch", plan.n_samples, lambda n: replace(plan, n_samples=n)),
        ("steps", plan.n_steps, lambda n: replace(plan, n_steps=n)),
    ):
        tried = value // 2
        while tried >= 1 and not fits(change(tried)):
            tried //= 2
        if tried >= 1:
            found.append(f"lower {what} to {tried} ({value})")
    segment = round(math.sqrt(plan.n_steps))
    if plan.trains and plan.keep_every == 1 and 1 < segment < plan.n_steps and fits(replace(plan, keep_every=segment)):
        found.append(f"keep every {segment}th potential (keep_every, 1)")
    if plan.optimizer == "adam" and fits(replace(plan, optimizer="sgd")):
        found.append("use optimizer sgd (adam)")
    if plan.weight_dtype == "float32" and fits(replace(plan, weight_dtype="half")):
        found.append("use half-precision weights (float32)")
    halved = _with_capacities(plan, 2)
    if halved != plan and fits(halved):
        sizes = {k: p.capacity for k, p in halved.populations.items() if p.capacity != plan.populations[k].capacity}
        name, slots = max(sizes.items(), key=lambda item: item[1])
        found.append(f"halve capacities ({name}: {slots} instead of {plan.populations[name].capacity})")
    return " or ".join(found) if found else "no single change of devices, batch, steps or optimiser is enough"


def _with_capacities(plan: Plan, divisor: int) -> Plan:
    return replace(
        plan, populations={k: replace(p, capacity=-(-p.capacity // divisor)) for k, p in plan.populations.items()}
    )
