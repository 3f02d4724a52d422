"""Random networks for the IPU program, each with random settings of all its options; `ipu_random.py` trains them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from sparsesnn.errors import ConfigError, PlanError
from sparsesnn.ipu import Optimizer, Regularizer
from sparsesnn.layers import LI, LIF, AdLIF, CubaLIF, Input, Resonator
from sparsesnn.layers.ad_lif import ORDERS
from sparsesnn.layers.catalog import AnyPopulation
from sparsesnn.network import Connection, Network
from sparsesnn.partition.ipu.layout import crossing, place_helpers
from sparsesnn.partition.ipu.memory import tile_totals
from sparsesnn.partition.ipu.vertices import loops_rounds
from sparsesnn.partition.pieces import Shard
from sparsesnn.partition.plan import Plan
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.target import parse_target
from sparsesnn.surrogate import Surrogate


@dataclass(frozen=True)
class Case:
    """A network with all settings of the program.

    Args:
        seed: the seed of the case.
        plan: the plan, with `plan.n_samples` samples a replica.
        n_classes: classes, each an output neuron or a group of them.
        rate: input spikes per neuron and step.
        scale: factor on the initial weights.
    """

    seed: int
    plan: Plan
    decoding: str
    n_classes: int
    optimizer: Optimizer
    label_smoothing: float
    regularizer: Regularizer | None
    rate: float
    scale: float

    @property
    def network(self) -> Network:
        return self.plan.network

    @property
    def n_samples(self) -> int:
        return self.plan.replicas * self.plan.n_samples

    def describe(self) -> str:
        o, p = self.optimizer, self.plan
        return (
            f"seed {self.seed}: {self.network.populations} {self.network.connections} on {p.target.name} ({p.strategy}), "
            f"B={p.n_samples}x{p.replicas} T={p.n_steps}, {p.weight_dtype}, keep every {p.keep_every}, {self.decoding} of {self.n_classes}, {o}, "
            f"smoothing {self.label_smoothing}, {self.regularizer}, rate {self.rate:.2f}, scale {self.scale:.2f}"
        )


def random_case(seed: int) -> Case:
    """The case of a seed."""
    r = random.Random(seed)
    while True:
        try:
            return _draw(r, seed)
        except (PlanError, ConfigError):  # does not fit, or crosses devices without a delay: draw again
            continue


def _draw(r: random.Random, seed: int) -> Case:
    counts = r.random() < 0.25
    n_classes = r.randint(2, 5)
    per_class = r.choice((1, 1, 2, 3))
    network = random_network(r, n_classes * per_class, counts)
    n_samples, n_steps = r.choice((1, 2, 5, 7, 8, 11, 13)), r.choice((1, 2, 5, 9, 12))
    replicas = r.choice((1, 1, 1, 1, 2, 4))
    kind = r.choice(("sgd", "adam", "adam", "adamw"))
    devices = r.choice((1, 1, 2, 4))
    tiles = r.choice((2, 5, 16, 16, 64))
    plan = make_plan(
        network,
        n_samples,
        n_steps,
        parse_target(f"{r.choice(('ipu-mk2', 'ipu-bow'))}:{devices}x{tiles}"),
        max_activity=1.0,
        optimizer="adam" if kind == "adamw" else kind,
        weight_dtype=r.choice(("float32",) * 4 + ("half",)),
        strategy=r.choice(("search", "even", "bytes", "work")),
        layout=r.choice(("auto", "contiguous", "split", "shared")) if devices > 1 else "auto",
    )
    if r.random() < 0.5:
        plan = with_shards_of(plan, r.choice((1, 3, 5))) or plan
    optimizer = Optimizer(
        kind,
        lr=r.choice((1e-3, 1e-2)) if kind != "sgd" else r.choice((0.02, 0.1)),
        weight_decay=r.choice((0.0, 0.0, 0.01, 0.1)),
        momentum=r.choice((0.0, 0.9)) if kind == "sgd" else 0.0,
        clip_norm=r.choice((0.0, 0.0, 0.5)),
    )
    bounds = r.choice(((0.0, 0.0),) * 3 + ((0.3, 0.0), (0.0, 0.1), (0.3, 0.1)))
    regularizer = Regularizer(*bounds, 20.0, 10.0) if any(bounds) else None
    plan = replace(plan, replicas=replicas, regularizes=regularizer is not None)
    decoding = "count" if counts else r.choice(("mean", "sum", "last", "max"))
    case = Case(
        seed,
        plan,
        decoding,
        n_classes,
        optimizer,
        r.choice((0.0, 0.1)),
        regularizer,
        rate=r.uniform(0.05, 0.4),
        scale=r.uniform(1.0, 4.0),
    )
    kept = replace(plan, keep_every=r.choice((1, 1, 2, 3)))
    return replace(case, plan=kept) if kept.keep_every < n_steps and not loops_rounds(kept) else case


def random_network(r: random.Random, n_out: int, counts: bool) -> Network:
    n_hidden = r.randint(0 if counts else 1, 3)
    names = [f"hidden{k}" for k in range(n_hidden)]
    populations: dict[str, AnyPopulation] = {"input": Input(r.randint(3, 23))}
    for name in names:
        populations[name] = _population(r, r.randint(1, 40), may_drop=True)
    populations["output"] = _population(r, n_out, may_drop=False) if counts else _readout(r, n_out)
    chain = ["input", *names, "output"]
    joined = [(chain[k], chain[k + 1]) for k in range(len(chain) - 1)]
    for pre in range(len(chain) - 2):
        for post in range(pre + 2, len(chain)):
            if r.random() < 0.2:
                joined.append((chain[pre], chain[post]))
    delays = r.choice(((0,), (1,), (0, 1), (0, 1, 2, 3)))
    return Network(populations, tuple(Connection(pre, post, r.choice(delays)) for pre, post in joined))


def _per_neuron(r: random.Random, n: int, low: float, high: float) -> float | tuple[float, ...]:
    if r.random() < 0.5:
        return r.uniform(low, high)
    return tuple(r.uniform(low, high) for _ in range(n))


def _population(r: random.Random, n: int, *, may_drop: bool) -> AnyPopulation:
    reset = r.choice(("subtract", "subtract", "zero", "none"))
    limited = may_drop and r.random() < 0.25
    kind = r.choice(("fast_sigmoid", "fast_sigmoid", "straight_through", "sigmoid", "atan", "triangle", "boxcar"))
    learns = r.random() < 0.3
    common = {
        "beta": _per_neuron(r, n, 0.5, 1.0),
        "threshold": _per_neuron(r, n, 0.5, 1.5),
        "grad_threshold": r.choice((-math.inf, 0.0, 0.3, 0.5)),
        "reset": reset,
        "reset_decays": reset == "subtract" and r.random() < 0.3,
        "detach_reset": r.random() < 0.6,
        "surrogate": Surrogate(kind, 1.0 if kind == "straight_through" else r.uniform(1.0, 8.0)),
        "recurrent": r.random() < 0.4,
        "bias": r.random() < 0.4,
        "gain": r.choice((1.0, 1.0, 0.7)),
        "capacity": r.randint(1, n) if limited else None,
        "activity": "fixed" if limited and r.random() < 0.4 else "natural",
        "learn_beta": learns and r.random() < 0.7,
        "learn_threshold": learns and r.random() < 0.7,
    }
    model = r.choice((LIF, LIF, CubaLIF, AdLIF, Resonator))
    if model is CubaLIF:
        common |= {"alpha": _per_neuron(r, n, 0.3, 0.95), "learn_alpha": learns and r.random() < 0.7}
    if model is AdLIF:
        order = r.choice(ORDERS)
        common |= {
            "order": order,
            "reset": "subtract" if reset == "none" or order == "sparch" else reset,
            "beta": _per_neuron(r, n, 0.3, 0.9),  # the model scales currents by 1 - beta
            "rho": _per_neuron(r, n, 0.5, 0.98),
            "a": _per_neuron(r, n, 0.0, 1.0),
            "b": _per_neuron(r, n, 0.0, 2.0),
            "q": r.choice((1.0, 5.0)),
            "gain": r.choice((2.0, 5.0)),
            **{f"learn_{name}": learns and r.random() < 0.7 for name in ("rho", "a", "b")},
        }
    if model is Resonator:
        common |= {
            "reset": "subtract",
            "turn": _per_neuron(r, n, 0.0, 1.0),
            "learn_turn": learns and r.random() < 0.7,
        }
    if model in (AdLIF, Resonator):
        common["reset_decays"] = False  # both always let the reset decay
    return model(n, **common)  # type: ignore[arg-type]


def _readout(r: random.Random, n: int) -> LI:
    return LI(
        n,
        beta=_per_neuron(r, n, 0.5, 1.0),
        learn_beta=r.random() < 0.3,
        bias=r.random() < 0.4,
        gain=r.choice((1.0, 2.0)),
    )


def with_shards_of(plan: Plan, n: int) -> Plan | None:
    """The same plan with `n` neurons a shard, one shard a tile; None if it has too few tiles, or may not cross
    devices."""
    tile, target = 0, plan.target
    populations = dict(plan.populations)
    for name, p in plan.populations.items():
        if not p.shards:
            continue
        firsts = range(0, p.n, n)
        shards = []
        for k, first in enumerate(firsts):
            number = target.tile_number(tile + k)
            shards.append(Shard(number, first, min(n, p.n - first), target.device_of(number)))
        populations[name] = replace(p, shards=tuple(shards))
        tile += len(firsts)
    if tile > target.n_tiles:
        return None
    cut = place_helpers(replace(plan, populations=populations, strategy=f"{n} neurons a tile"))
    return cut if crossing(cut) is None and tile_totals(cut).max() <= plan.target.bytes_per_tile else None
