"""A plan as JSON: the format for graph builders and other programs.

    {
      "format": "sparsesnn-plan", "version": 2,
      "target": {"name", "kind", "devices", "tiles", "bytes_per_tile", "workers_per_tile", "clock_hz",
                 "exchange": {"bytes_per_cycle", "sync_cycles"}, "links": {"bytes_per_s", "latency_s"},
                 "host_bytes_per_s", "bytes_per_device", "tiles_per_device"},
      "n_samples": B, "n_steps": T, "optimizer": "adam" | "sgd" | "none", "weight_dtype": "float32" | "half",
      "strategy": "…", "replicas": copies with other samples (1), "regularizes": whether activity is (false),
      "keep_every": steps of a segment of potentials (1: all are kept),
      "populations": [                              in the network's order
        {"name", "model": its name, such as "LIF", "n", "capacity": K, "activity",
         "shards":     [[tile, first, n, device, rank, worker], …],          ascending in gid, no gaps
         "collectors": [[tile, first_sample, n_samples, device], …]}],       ascending in sample, no gaps
      "connections": [                              in the order in which currents are summed
        {"pre", "post", "delay",
         "reducers":   [[tile, first_shard, n_shards, first_sample, n_samples, device], …]}],
      "network": {…}                                `Network.to_dict()`: every argument of every population
    }

All numbers in the lists of lists are whole and not negative; names refer to "populations". A recurrent population has a
connection from itself with delay 1. A reader must refuse another "version"; new keys may be added within one. In version 1
device d began at tile d·tiles, independently of the hardware.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from sparsesnn.errors import ConfigError
from sparsesnn.network import Network
from sparsesnn.partition.pieces import (
    MAX_SAMPLES,
    MAX_STEPS,
    Collector,
    ConnectionPlan,
    PopulationPlan,
    Reducer,
    Shard,
)
from sparsesnn.partition.target import MAX_DEVICES, Target
from sparsesnn.wording import count

if TYPE_CHECKING:
    from sparsesnn.partition.plan import Plan

#: limit of every whole number in a plan: neurons, tiles, samples
MAX_NUMBER = (1 << 31) - 1
FORMAT = "sparsesnn-plan"
VERSION = 2


def to_json(plan: Plan) -> str:
    """The plan as JSON text; equal plans give equal text."""
    data = {
        "format": FORMAT,
        "version": VERSION,
        "target": plan.target.to_dict(),
        "n_samples": plan.n_samples,
        "n_steps": plan.n_steps,
        "optimizer": plan.optimizer,
        "weight_dtype": plan.weight_dtype,
        "strategy": plan.strategy,
        "replicas": plan.replicas,
        "regularizes": plan.regularizes,
        "keep_every": plan.keep_every,
        "populations": [
            {
                "name": name,
                "model": type(plan.network.populations[name]).__name__,
                "n": p.n,
                "capacity": p.capacity,
                "activity": plan.activity[name],
                "shards": [astuple(s) for s in p.shards],
                "collectors": [astuple(c) for c in p.collectors],
            }
            for name, p in plan.populations.items()
        ],
        "connections": [
            {"pre": c.pre, "post": c.post, "delay": c.delay, "reducers": [astuple(r) for r in c.reducers]}
            for c in plan.connections
        ],
        "network": plan.network.to_dict(),
    }
    return json.dumps(data, allow_nan=False)


def from_json(text: str, cls: type[Plan]) -> Plan:
    """The plan, of class `cls`, from a JSON text, fully checked.

    Errors: `ConfigError` for another format or version, missing keys, gaps between shards; `DescriptionError` for an
    invalid network.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits too
        raise ConfigError(f"plan: not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ConfigError(f"plan: the file is not a plan; its \"format\" must be '{FORMAT}'")
    version = data.get("version")
    if version != VERSION:
        why = " (version 1 numbers the tiles of IPUs differently)" if version == 1 else ""
        raise ConfigError(
            f"plan: version is {version!r}; this version of sparsesnn reads {VERSION}: make the plan again with `sparsesnn plan`{why}"
        )
    try:
        plan = cls(
            network=Network.from_dict(data["network"]),
            target=Target.from_dict(data["target"]),
            n_samples=_whole(data["n_samples"], "n_samples", 1, MAX_SAMPLES),
            n_steps=_whole(data["n_steps"], "n_steps", 1, MAX_STEPS),
            optimizer=_choice(data["optimizer"], "optimizer", ("adam", "sgd", "none")),
            weight_dtype=_choice(data["weight_dtype"], "weight_dtype", ("float32", "half")),
            activity={p["name"]: _fraction(p["activity"], p["name"]) for p in data["populations"]},
            populations={
                p["name"]: PopulationPlan(
                    n=_whole(p["n"], f"{p['name']}: n", 1),
                    capacity=_whole(p["capacity"], f"{p['name']}: capacity", 0),
                    shards=_rows(Shard, p["shards"], f"{p['name']}: shards"),
                    collectors=_rows(Collector, p["collectors"], f"{p['name']}: collectors"),
                )
                for p in data["populations"]
            },
            connections=tuple(
                ConnectionPlan(
                    c["pre"],
                    c["post"],
                    _whole(c["delay"], f"{c['pre']}->{c['post']}: delay", 0),
                    _rows(Reducer, c["reducers"], f"{c['pre']}->{c['post']}: reducers"),
                )
                for c in data["connections"]
            ),
            strategy=str(data["strategy"]),
            replicas=_whole(data.get("replicas", 1), "replicas", 1, MAX_DEVICES),
            regularizes=bool(data.get("regularizes", False)),
            keep_every=_whole(data.get("keep_every", 1), "keep_every", 1, MAX_STEPS),
        )
    except KeyError as error:
        raise ConfigError(f"plan: key {error} is missing; make the plan again") from None
    except (TypeError, AttributeError, IndexError, ArithmeticError) as error:
        raise ConfigError(f"plan: a value has the wrong type: {error}; make the plan again") from None
    check_plan(plan)
    return plan


def check_plan(plan: Plan) -> None:
    """The invariants of a plan: shards and collectors cover each neuron and sample once, tiles exist, names agree.

    Errors: `ConfigError` that names the population and its first violation.
    """
    described = {name: p.n for name, p in plan.network.populations.items()}
    planned = {name: p.n for name, p in plan.populations.items()}
    if described != planned:
        raise ConfigError(f"plan: populations are {planned}, but the network has {described}; make the plan again")
    for name, p in plan.populations.items():
        if p.shards:
            _covers([(s.first, s.n) for s in p.shards], p.n, f"{name}: shards", "neurons")
        if p.collectors:
            _covers([(c.first, c.n) for c in p.collectors], plan.n_samples, f"{name}: collectors", "samples")
        if not 0 <= p.capacity <= p.n:
            raise ConfigError(f"plan: {name}: capacity is {p.capacity}; allowed: 0 to {p.n}")
    if plan.target.kind == "ipu":
        for what, row in _placed(plan):
            target = plan.target
            in_use = 0 <= row.tile < target.all_tiles and row.tile % target.stride < target.tiles
            if not in_use or row.device != target.device_of(row.tile):
                raise ConfigError(
                    f"plan: {what}: tile {row.tile}, device {row.device}; '{target.name}' has "
                    f"{count(target.devices, 'device')} of {count(target.tiles, 'tile')}; device d begins at tile {target.stride}·d"
                )


def _placed(plan: Plan) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, p in plan.populations.items():
        rows += [(name, row) for row in (*p.shards, *p.collectors)]
    for c in plan.connections:
        rows += [(f"{c.pre}->{c.post}", row) for row in c.reducers]
    return rows


def _covers(ranges: Sequence[tuple[int, int]], total: int, what: str, of: str) -> None:
    ends = [first + n for first, n in ranges]
    whole = ranges[0][0] == 0 and ends[-1] == total and min(n for _, n in ranges) > 0
    gaps = [(end, first) for end, (first, _) in zip(ends, ranges[1:], strict=False) if end != first]
    if not whole or gaps:
        raise ConfigError(f"plan: {what} must cover {of} 0 to {total - 1} in order, each once; they are {ranges[:4]}…")


def _rows(cls: Any, rows: Any, what: str) -> tuple[Any, ...]:
    try:
        made = tuple(cls(*row) for row in rows)
    except TypeError:
        raise ConfigError(f"plan: {what}: a row does not fit {cls.__name__}; make the plan again") from None
    if any(type(x) is not int or not 0 <= x <= MAX_NUMBER for row in made for x in astuple(row)):
        raise ConfigError(f"plan: {what}: all numbers must be whole, from 0 to {MAX_NUMBER:,}; make the plan again")
    return made


def _whole(value: Any, what: str, low: int, high: int = MAX_NUMBER) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ConfigError(f"plan: {what} is {value!r}; allowed: whole numbers from {low} to {high:,}")
    return value


def _fraction(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ConfigError(f"plan: {what}: activity is {value!r}; allowed: 0 to 1")
    return float(value)


def _choice(value: Any, what: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ConfigError(f"plan: {what} is {value!r}; allowed: {', '.join(allowed)}")
    return str(value)
