"""Predicted speed over a range of networks and machines: the experiments of Finkbeiner et al. 2024, in the cost model.

    activity       one IPU, 2,942 neurons in 2 to 5 hidden layers, T=100, batch 48: samples/s against activity
    weak-scaling   1 to 64 IPUs, each with the same number of neurons, or of weights
    sensitivity    the change of samples/s when an assumption is wrong by a factor of 2

The networks are those that `sparsesnn plan` and `sparsesnn train` make of the same text, with delay 0 or 1 between
populations; layers on several IPUs need delay 1. All rows are predictions. Natural activity: hidden neurons fire
`NATURAL` of the time, limited by the capacity of their lists; fixed: every list is full, at every step. Input lists
hold 48 of 700 channels, of which 1.5 % fire.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

from sparsesnn.layers import LIF, Input
from sparsesnn.network import Connection, Network
from sparsesnn.partition.ipu.cost import predict
from sparsesnn.partition.ipu.work import ASSUMPTIONS, CycleAssumptions
from sparsesnn.partition.plan import Plan
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.prediction import Prediction
from sparsesnn.partition.target import Target, parse_target

#: spikes per neuron and step of hidden layers, and of SHD's input, in `sparsesnn bench step`
NATURAL, NATURAL_INPUT = 0.02, 0.015
#: channels, list capacity and classes of SHD as in the experiments
N_INPUT, INPUT_CAPACITY, N_CLASSES = 700, 48, 20
N_STEPS = 100
MAX_ACTIVITIES = (0.005, 0.01, 0.02, 0.025, 0.05, 0.1, 0.2, 0.25, 0.5)


@dataclass(frozen=True)
class Row:
    """One predicted point of a sweep.

    Args:
        series: the curve that it belongs to.
        x: the varied number: activity, or IPUs.
        n_neurons, n_weights, n_layers: of the network, hidden and output.
        n_samples, n_steps: batch and sequence.
        neurons_per_tile: of most shards.
        samples_per_s, cycles_per_step: predicted.
        exchange_share, link_share: parts of a step spent moving data on a device, and between devices with its barriers.
        bytes_share: the fullest tile's bytes, as a share of a tile's memory.
        reached: share of layers that a spike can reach within the sequence.
    """

    series: str
    x: float
    n_neurons: int
    n_weights: int
    n_layers: int
    n_samples: int
    n_steps: int
    neurons_per_tile: int
    samples_per_s: float
    cycles_per_step: float
    exchange_share: float
    link_share: float
    bytes_share: float
    reached: float


def spiking_chain(hidden: Sequence[int], max_activity: float, delay: int, *, fixed: bool = False) -> Network:
    """SHD's input, hidden LIF layers whose lists hold a share `max_activity` of their neurons, a spiking output."""
    layers: dict[str, Input | LIF] = {"input": Input(N_INPUT)}
    for k, n in enumerate(hidden):
        capacity = max(2, math.ceil(max_activity * n))
        layers[f"hidden{k + 1}"] = LIF(n, capacity=capacity, activity="fixed" if fixed else "natural")
    layers["output"] = LIF(N_CLASSES, grad_threshold=-math.inf)
    names = list(layers)
    return Network(layers, tuple(Connection(a, b, delay) for a, b in pairwise(names)))


def equal_layers(n_neurons: int, n_layers: int) -> list[int]:
    """Sizes of `n_layers` layers that differ by at most one and add up to `n_neurons`."""
    return [n_neurons * (k + 1) // n_layers - n_neurons * k // n_layers for k in range(n_layers)]


def activity_sweep(target: str = "ipu-mk2", delay: int = 0) -> Iterator[Row]:
    """Samples/s of 2,942 neurons on one IPU against the largest activity that fits in lists."""
    machine = parse_target(target)
    for n_layers in (2, 3, 4, 5):
        hidden = equal_layers(2942 - N_CLASSES, n_layers)
        for fixed in (False, True):
            series = f"{n_layers} hidden layers, {'fixed' if fixed else 'natural'}"
            for x in MAX_ACTIVITIES:
                network = spiking_chain(hidden, x, delay, fixed=fixed)
                yield _row(series, x, network, 48, machine, activity=min(NATURAL, x))


#: hidden layers an IPU and their width, which fill its tiles with 2, 4 or 8 neurons each
LAYERS_PER_IPU = ((3, 974), (6, 976), (12, 976))


def weak_scaling(
    ipus: Sequence[int] = (1, 2, 4, 8, 16), target: str = "ipu-mk2", batches: Sequence[int] = (24, 48)
) -> Iterator[Row]:
    """1 to 16 IPUs, each with the same number of neurons: deeper, up to 187,412 neurons; or wider, with the same number of weights each."""
    for per_ipu, width in LAYERS_PER_IPU:
        for n_samples in batches:
            for n in ipus:
                network = spiking_chain([width] * (per_ipu * n), 0.05, 1)
                series = f"deeper, {per_ipu} layers an IPU, batch {n_samples}"
                yield _row(series, n, network, n_samples, parse_target(f"{target}:{n}"))
    for n in ipus:
        per_ipu, width = LAYERS_PER_IPU[-1]
        network = spiking_chain([round(width * math.sqrt(n) / 8) * 8] * per_ipu, 0.05, 1)
        yield _row("wider, 12 layers, batch 48", n, network, 48, parse_target(f"{target}:{n}"))


def _row(series: str, x: float, network: Network, n_samples: int, target: Target, *, activity: float = NATURAL) -> Row:
    plan = _planned(network, n_samples, target, activity)
    p = predict(plan)
    return _summary(series, x, plan, p)


def _planned(network: Network, n_samples: int, target: Target, activity: float) -> Plan:
    by_name = dict.fromkeys(network.populations, activity) | {"input": NATURAL_INPUT}
    return make_plan(
        network, n_samples, N_STEPS, target, activity=by_name, capacity={"input": INPUT_CAPACITY}, optimizer="adam"
    )


def _summary(series: str, x: float, plan: Plan, p: Prediction) -> Row:
    from sparsesnn.partition.ipu.memory import tile_totals

    phases = p.phases()
    total = sum(phases.values())
    barrier = plan.target.links.latency_s * plan.target.clock_hz
    far = sum(s.link + barrier for s in p.per_step if s.link_bytes)
    shards = [s for q in plan.populations.values() for s in q.shards]
    n_layers = len(plan.populations) - 1
    return Row(
        series=series,
        x=x,
        n_neurons=sum(s.n for s in shards),
        n_weights=plan.network.n_weights(),
        n_layers=n_layers,
        n_samples=plan.n_samples,
        n_steps=plan.n_steps,
        neurons_per_tile=Counter(s.n for s in shards).most_common(1)[0][0],
        samples_per_s=p.samples_per_s,
        cycles_per_step=p.cycles_per_step,
        exchange_share=phases["exchange"] / total,
        link_share=far / total,
        bytes_share=int(tile_totals(plan).max()) / plan.target.bytes_per_tile,
        reached=min(n_layers, plan.n_steps) / n_layers,
    )


@dataclass(frozen=True)
class Sensitivity:
    """Samples/s after a group of assumptions is halved, and doubled."""

    what: str
    halved: float
    doubled: float


#: assumptions that are varied together
GROUPS: dict[str, tuple[str, ...]] = {
    "all instruction counts": tuple(
        f.name
        for f in fields(CycleAssumptions)
        if f.name
        not in ("near_per_spike", "worker_spread", "list_spread", "host_overlap", "host_transfers", "compact_walks")
    ),
    "deliver (deliver_id, deliver_pair)": ("deliver_id", "deliver_pair"),
    "list gradient (share_id, share_pair)": ("share_id", "share_pair"),
    "weight gradient (weight_id, weight_pair)": ("weight_id", "weight_pair"),
    "compaction (compact_count, compact_word)": ("compact_count", "compact_word"),
    "near-spikes per spike (near_per_spike)": ("near_per_spike",),
}


def sensitivity(target: str = "ipu-mk2", delay: int = 0) -> tuple[float, list[Sensitivity]]:
    """Samples/s of three hidden layers at natural activity and 5 % capacity, and with halved and doubled assumptions."""
    machine = parse_target(target)
    network = spiking_chain(equal_layers(2942 - N_CLASSES, 3), 0.05, delay)
    plan = _planned(network, 48, machine, NATURAL)

    def speed(assumptions: CycleAssumptions = ASSUMPTIONS, **changes: float) -> float:
        exchange = replace(machine.exchange, **changes)  # type: ignore[arg-type]
        return predict(replace(plan, target=replace(machine, exchange=exchange)), assumptions).samples_per_s

    rows = [
        Sensitivity(what, *(speed(_scaled(names, factor)) for factor in (0.5, 2.0))) for what, names in GROUPS.items()
    ]
    for what, name in (
        ("exchange bandwidth (4 B a cycle)", "bytes_per_cycle"),
        ("barrier (200 cycles)", "sync_cycles"),
    ):
        value = getattr(machine.exchange, name)
        rows.append(Sensitivity(what, speed(**{name: value / 2}), speed(**{name: 2 * value})))
    return speed(), rows


def _scaled(names: Sequence[str], factor: float) -> CycleAssumptions:
    changes = {name: factor * getattr(ASSUMPTIONS, name) for name in names}
    return replace(ASSUMPTIONS, **changes)
