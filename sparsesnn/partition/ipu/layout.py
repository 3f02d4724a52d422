"""The tiles of shards of known sizes, and of their helpers: collectors and reducers.

| layout | shards | good for |
|---|---|---|
| contiguous | population after population on consecutive tiles, over all devices | lists go to the next device only |
| split | every population in equal parts on all devices | layers too large for one device, and even load |
| shared | every tile holds a shard of every population | delays of 0, with which layers run one after another; few tiles |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from sparsesnn.layers import Input
from sparsesnn.partition.ipu.memory import shard_items
from sparsesnn.partition.pieces import Collector, PopulationPlan, Reducer, Shard
from sparsesnn.partition.plan import Plan

LAYOUTS = ("contiguous", "split", "shared")
#: up to this many shards of post, their shares go to the collectors of pre directly
MAX_DIRECT_SHARDS = 8


def place(plan: Plan, sizes: Mapping[str, int], layout: str) -> Plan | None:
    """The plan with shards of these sizes, collectors and reducers; None if the layout has no room for them."""
    target = plan.target
    if layout == "contiguous":
        tiles = _contiguous(plan, sizes)
    elif layout == "split":
        tiles = _split(plan, sizes)
    else:
        tiles = _shared(plan, sizes)
    if tiles is None:
        return None
    populations = dict(plan.populations)
    for name, starts in tiles.items():
        populations[name] = replace(
            populations[name], shards=tuple(Shard(tile, first, n, target.device_of(tile)) for tile, first, n in starts)
        )
    return place_helpers(replace(plan, populations=populations))


def crossing(plan: Plan) -> tuple[str, str] | None:
    """A connection with delay 0 between devices, which no superstep can serve; the host serves the input's."""
    devices = {name: {s.device for s in p.shards} for name, p in plan.populations.items()}
    for c in plan.connections:
        if c.delay == 0 and devices[c.pre] and len(devices[c.pre] | devices[c.post]) > 1:
            return c.pre, c.post
    return None


# ---- shards: (tile, first gid, neurons) ------------------------------------------------------------------------------

Starts = dict[str, list[tuple[int, int, int]]]


def _cut(n: int, size: int) -> list[tuple[int, int]]:
    return [(first, min(size, n - first)) for first in range(0, n, size)]


def _contiguous(plan: Plan, sizes: Mapping[str, int]) -> Starts | None:
    """Populations joined by delay 0 stay on one device, so a group may begin on the next one."""
    target, tile, starts = plan.target, 0, Starts()
    for group in _groups(plan):
        n_shards = sum(-(-plan.populations[k].n // sizes[k]) for k in group)
        left = -tile % target.tiles
        if len(group) > 1 and left < n_shards <= target.tiles:
            tile += left
        for name in group:
            cuts = _cut(plan.populations[name].n, sizes[name])
            starts[name] = [(target.tile_number(tile + k), first, n) for k, (first, n) in enumerate(cuts)]
            tile += len(cuts)
    return starts if tile <= target.n_tiles else None


def _groups(plan: Plan) -> list[list[str]]:
    """Populations in order, in runs joined by delays of 0."""
    names = [k for k in plan.populations if k not in plan.inputs]
    position = {k: i for i, k in enumerate(names)}
    joined = [False] * len(names)  # joined[i]: names[i] belongs to the group of names[i - 1]
    for c in plan.connections:
        if c.delay == 0 and c.pre in position:
            for i in range(position[c.pre] + 1, position[c.post] + 1):
                joined[i] = True
    groups: list[list[str]] = []
    for name, with_last in zip(names, joined, strict=True):
        if with_last:
            groups[-1].append(name)
        else:
            groups.append([name])
    return groups


def _split(plan: Plan, sizes: Mapping[str, int]) -> Starts | None:
    target, starts = plan.target, Starts()
    if sum(-(-plan.populations[k].n // size) for k, size in sizes.items()) > target.n_tiles:
        return None
    used = [0] * target.devices
    for name, size in sizes.items():
        n = plan.populations[name].n
        n_shards = -(-n // size)
        starts[name] = []
        for d in range(target.devices):
            # full-sized shards on every device, so that only the very last one is smaller
            low, high = (k * n_shards // target.devices for k in (d, d + 1))
            for k in range(low, high):
                starts[name].append((d * target.stride + used[d], k * size, min(size, n - k * size)))
                used[d] += 1
    return starts if max(used) <= target.tiles else None


def _shared(plan: Plan, sizes: Mapping[str, int]) -> Starts:
    """Each population begins where the last one ended, so that remainders do not meet on the first tiles."""
    target, tile, starts = plan.target, 0, Starts()
    for name, size in sizes.items():
        cuts = _cut(plan.populations[name].n, size)
        # ascending tiles, as everywhere; the first tile rotates
        starts[name] = [
            (target.tile_number((tile + k) % target.n_tiles), first, n) for k, (first, n) in enumerate(cuts)
        ]
        tile += len(cuts)
    return starts


# ---- helpers -------------------------------------------------------------------------------------------------------


class _Turns:
    """Deals out tiles of each device in turn, those with the most room first."""

    def __init__(self, plan: Plan) -> None:
        self.target = plan.target
        held = np.zeros(plan.target.all_tiles, np.int64)
        for name, p in plan.populations.items():
            by_size = {n: sum(shard_items(plan, name, n).values()) for n in {s.n for s in p.shards}}
            for s in p.shards:
                held[s.tile] += by_size[s.n]
        per_device = held.reshape(plan.target.devices, -1)[:, : plan.target.tiles]
        self.order = np.argsort(per_device, axis=1, kind="stable")
        self.next = [0] * plan.target.devices

    def tile(self, device: int) -> int:
        turn = self.next[device]
        self.next[device] += 1
        return device * self.target.stride + int(self.order[device, turn % self.target.tiles])


def place_helpers(plan: Plan) -> Plan:
    """Collectors and reducers on the devices of their shards, spread evenly."""
    turns = _Turns(plan)
    populations = {name: replace(p, collectors=_collectors(plan, name, turns)) for name, p in plan.populations.items()}
    plan = replace(plan, populations=populations)
    n_reduced = [0] * plan.target.devices  # connections whose shares are added on each device
    for c in plan.connections:
        if _needs_reducers(plan, c.pre, c.post):
            for d in {s.device for s in plan.populations[c.post].shards}:
                n_reduced[d] += 1
    connections = tuple(
        replace(c, reducers=_reducers(plan, c.pre, c.post, n_reduced, turns))
        if _needs_reducers(plan, c.pre, c.post)
        else replace(c, reducers=())
        for c in plan.connections
    )
    return replace(plan, connections=connections)


def _collectors(plan: Plan, name: str, turns: _Turns) -> tuple[Collector, ...]:
    """One sample a collector if there are enough tiles; samples are dealt to the population's devices in order."""
    p, b = plan.populations[name], plan.n_samples
    homes = _devices(p)
    if not homes:  # an input's lists are kept on the devices that read them
        homes = sorted({d for c in plan.outgoing(name) for d in _devices(plan.populations[c.post])}) or [0]
    collectors = []
    for k, device in enumerate(homes):
        low, high = (i * b // len(homes) for i in (k, k + 1))
        n_parts = min(high - low, plan.target.tiles)
        bounds = [low + i * (high - low) // n_parts for i in range(n_parts + 1)] if n_parts else []
        collectors += [Collector(turns.tile(device), lo, hi - lo, device) for lo, hi in pairwise(bounds)]
    return tuple(collectors)


def _devices(p: PopulationPlan) -> list[int]:
    return sorted({s.device for s in p.shards})


def _needs_reducers(plan: Plan, pre: str, post: str) -> bool:
    fed_back = not isinstance(plan.network.populations[pre], Input)
    return plan.trains and fed_back and len(plan.populations[post].shards) > MAX_DIRECT_SHARDS


def _reducers(plan: Plan, pre: str, post: str, n_reduced: list[int], turns: _Turns) -> tuple[Reducer, ...]:
    """Groups of about √shards, each on one device: receiving a group and receiving all groups' sums then cost the same.

    At most one group, and so one reducer, for every tile of the device.
    """
    shards, collectors = plan.populations[post].shards, plan.populations[pre].collectors
    reducers = []
    first = 0
    while first < len(shards):
        device = shards[first].device
        last = first
        while last < len(shards) and shards[last].device == device:
            last += 1
        share = (last - first) / len(shards)
        wanted = round(math.sqrt(len(shards)) * share)
        room = plan.target.tiles // (n_reduced[device] * len(collectors))
        n_groups = max(1, min(wanted, room, last - first))
        for g in range(n_groups):
            low, high = (first + k * (last - first) // n_groups for k in (g, g + 1))
            for c in collectors:
                reducers.append(Reducer(turns.tile(device), low, high - low, c.first, c.n, device))
        first = last
    return tuple(reducers)
