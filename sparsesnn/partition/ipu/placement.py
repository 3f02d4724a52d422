"""A plan for IPUs: the fastest of the layouts that fit, or an error that proposes changes, which were tried."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sparsesnn.errors import ConfigError, PlanError
from sparsesnn.partition.ipu.cost import predict
from sparsesnn.partition.ipu.layout import LAYOUTS, crossing, place
from sparsesnn.partition.ipu.memory import code_bytes, padded, shard_items, tile_bytes, tile_totals
from sparsesnn.partition.ipu.strategies import Sizing
from sparsesnn.partition.ipu.vertices import loops_rounds
from sparsesnn.partition.ipu.work import CycleAssumptions
from sparsesnn.partition.plan import Plan
from sparsesnn.synapses.dense import check_dense

#: how often shards are sized again with less room, if collectors and reducers do not fit next to them
MAX_TRIES = 8


def place_shards(plan: Plan, strategy: str, layout: str, a: CycleAssumptions) -> Plan:
    """The fastest of the requested layouts, by prediction."""
    check_dense(plan.network.connections, "the IPU program")
    plans = [p for name in _layouts(plan, layout) if (p := _laid_out(plan, strategy, name, a)) is not None]
    if not plans:
        emptiest = _emptiest(plan, layout, a)
        if emptiest is None or tile_totals(emptiest).max() > plan.target.bytes_per_tile:
            raise _refusal(plan, emptiest, layout, a)
        plans = [emptiest]
    if plan.keep_every > 1 and (deep := [p for p in plans if loops_rounds(p)]):
        plans = [p for p in plans if p not in deep]
        if not plans:
            raise ConfigError(
                f"plan: keep_every is {plan.keep_every}, but populations joined by delay 0 run in {1 + max(plan.stages.values())} "
                f"rounds, which share vertices on {plan.target.n_tiles} tiles; give delay=1, more tiles, or keep_every=1"
            )
    legal = [p for p in plans if crossing(p) is None]
    if not legal:
        pre, post = crossing(plans[0]) or ("", "")
        devices = sorted({s.device for name in (pre, post) for s in plans[0].populations[name].shards})
        raise ConfigError(
            f"plan: connection {pre}->{post} has delay 0, but its neurons are on devices {_few(devices)} of "
            f"'{plan.target.name}'; connections that cross devices need delay 1, so that all layers of all devices "
            "work at once: give delay=1, or plan for one device"
        )
    return min(legal, key=lambda p: predict(p, a).batch_s)


def _layouts(plan: Plan, layout: str) -> tuple[str, ...]:
    if layout != "auto":
        return (layout,)
    return tuple(k for k in LAYOUTS if k != "split" or plan.target.devices > 1)


def _laid_out(plan: Plan, strategy: str, layout: str, a: CycleAssumptions) -> Plan | None:
    """Shards, collectors and reducers within the memory of every tile; None if they do not fit."""
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
    """Ignores the memory of tiles: of the layouts that delays allow, or of all if they allow none, the plan whose
    fullest tile holds least; None if there are too few tiles at all."""
    plans = _flattest(plan, layout, a, fitting=False)
    return min(plans, key=lambda p: (crossing(p) is not None, int(tile_totals(p).max())), default=None)


def _flattest(plan: Plan, layout: str, a: CycleAssumptions, *, fitting: bool) -> Iterator[Plan]:
    """By layout, the plan with the most even bytes on tiles; `fitting`: only plans that may fit."""
    for name in _layouts(plan, layout):
        sizes = _sizes(plan, "bytes", name, 1 << 62, a)
        if sizes is None or (fitting and _overflows(plan, sizes)):
            continue
        placed = place(plan, sizes, name)
        if placed is not None:
            yield replace(placed, strategy=f"bytes, {name}")


def _overflows(plan: Plan, sizes: Mapping[str, int]) -> bool:
    """Whether shards alone, wherever placed, exceed the memory of tiles: collectors then need no placement."""
    room, total = plan.target.bytes_per_tile, 0
    for name, n in sizes.items():
        items = shard_items(plan, name, n)
        if sum(items.values()) + code_bytes(plan) > room:
            return True
        # a tile shares its buffers
        total += plan.populations[name].n // n * (sum(items.values()) - items["buffers"])
    return total > room * plan.target.n_tiles


def _refusal(plan: Plan, best: Plan | None, layout: str, a: CycleAssumptions) -> PlanError:
    """An error with the fullest tile at best, its largest items, and changes that would make the plan fit."""
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
    """Changes each of which alone makes the plan fit; each was tried."""

    def fits(changed: Plan) -> bool:
        room = changed.target.bytes_per_tile
        return any(
            crossing(p) is None and tile_totals(p).max() <= room for p in _flattest(changed, layout, a, fitting=True)
        )

    changes = []
    late = _with_delay(plan)
    if late is not None and fits(late):
        changes.append("give delay 1 (0)")
    for devices in (2, 4, 8, 16, 32, 64):
        if devices > plan.target.devices:
            more = plan.target.with_devices(devices)
            if fits(replace(plan, target=more)):
                changes.append(f"use {more.name}")
                break
            if late is not None and fits(replace(late, target=more)):
                changes.append(f"use {more.name} with delay 1 (0)")
                break
    for what, value, change in (
        ("batch", plan.n_samples, lambda n: replace(plan, n_samples=n)),
        ("steps", plan.n_steps, lambda n: replace(plan, n_steps=n)),
    ):
        tried = value // 2
        while tried >= 1 and not fits(change(tried)):
            tried //= 2
        if tried >= 1:
            changes.append(f"lower {what} to {tried} ({value})")
    segment = round(math.sqrt(plan.n_steps))
    if plan.trains and plan.keep_every == 1 and 1 < segment < plan.n_steps and fits(replace(plan, keep_every=segment)):
        changes.append(f"keep every {segment}th potential (keep_every, 1)")
    if plan.optimizer == "adam" and fits(replace(plan, optimizer="sgd")):
        changes.append("use optimizer sgd (adam)")
    if plan.weight_dtype == "float32" and fits(replace(plan, weight_dtype="half")):
        changes.append("use half-precision weights (float32)")
    halved = _with_capacities(plan, 2)
    if halved != plan and fits(halved):
        sizes = {k: p.capacity for k, p in halved.populations.items() if p.capacity != plan.populations[k].capacity}
        name, slots = max(sizes.items(), key=lambda item: item[1])
        changes.append(f"halve capacities ({name}: {slots} instead of {plan.populations[name].capacity})")
    return " or ".join(changes) if changes else "no single change of devices, batch, steps or optimizer is enough"


def _with_delay(plan: Plan) -> Plan | None:
    """The plan with delay 1 between populations, so that layers may be on several devices; None if it has no delay of 0."""
    inputs = plan.network.inputs
    if all(c.delay or c.pre in inputs for c in plan.connections):
        return None
    network = plan.network.with_delay(1)
    return replace(
        plan, network=network, connections=tuple(replace(c, delay=max(1, c.delay)) for c in plan.connections)
    )


def _with_capacities(plan: Plan, divisor: int) -> Plan:
    return replace(
        plan, populations={k: replace(p, capacity=-(-p.capacity // divisor)) for k, p in plan.populations.items()}
    )
