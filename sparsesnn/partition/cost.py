"""Predicted cost of a plan: cycles by phase, bytes through the exchange and the links, samples per second.

A *prediction*, never a measurement: instruction counts are read off the codelets' inner loops and published estimators,
sync costs are assumed. Each number is a named field of `CycleAssumptions`, so that a measurement can replace it.

An IPU runs supersteps: exchange, barrier, compute. Compute of a superstep costs what its slowest tile costs, and a tile
what its longest worker costs, times the six workers that take turns (a tile issues one bundle a cycle):

    superstep = barrier + max over tiles max(bytes in, bytes out) / 4 + max over tiles 6 · bundles of the longest worker
                + bytes over links / link bandwidth

    forward step   lists out to the shards  → deliver, step, select      masks to the collectors → compact
    backward step  lists and gradients out  → state grad, list grad      (local)                 → weight grad
                   shares to the reducers   → reduce                     sums to the collectors  → sum
    batch          optimiser, loss; lists and labels from the host

Populations joined by delay 0 take these supersteps one after another (`stages`); with delay 1 all share them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsesnn.layers import LI, CubaLIF, Input
from sparsesnn.partition.memory import list_bytes, mask_words, padded
from sparsesnn.partition.plan import Plan
from sparsesnn.partition.prediction import Prediction, Superstep


@dataclass(frozen=True)
class CycleAssumptions:
    """What the prediction rests on. Bundles are issue slots of one worker: one load or store beside one float operation.

    Args:
        vertex: start of a worker: fetch state, pointers, loop bounds. 30: poplibs' estimators charge 25 to 33.
        supervisor: start of a vertex on its tile, in cycles. 25: poplibs charges 11, and 6 to 20 of set-up.
        deliver_list: one list of one sample: its counts and pointers.
        deliver_id: load id, address, loop. With `deliver_pair` an id of a two-neuron shard costs 6: 4 to 6 are
            expected of compiled code.
        deliver_pair: load two weights, add them to two currents.
        step_sample, step_pair: decay, reset, add, two comparisons, masks and the history, for two neurons;
            step_cuba: the synaptic current on top.
        select_word: both mask words of a sample.
        compact_list: counts, capacity and rotation of one list, and joining what six workers found.
        compact_word: look at one mask word; compact_id: find the bit, write the id and its bucket.
        state_sample, state_pair: decay of ∂L/∂v, current gradient; state_search: finding the shard's part of the own
            list by bisection, per halving; state_id: σ', gradient of one listed neuron.
        share_list, share_id, share_pair: dot product of a row of weights and the current gradient; the id's part has
            the sum over lanes and the store.
        weight_list, weight_id, weight_pair: load, add and store two weight gradients. poplibs' scatter-add: 11 + 3 an
            element for scalars; here ids come in buckets, no bounds are searched.
        reduce_row, reduce_pair: one row of shares: load two, add two.
        adam_pair, sgd_pair: one update of two weights; Adam has a square root and a division each.
        loss_value: one potential or count: exponential, division.
        loop_supersteps: barriers of the loop itself in a step: counter, offsets.
        near_per_spike: near-spikes listed per spike. 0.64: measured by `sparsesnn bench step` at threshold 1,
            grad_threshold 0.9, activity 2 %.
        worker_imbalance: the longest of six workers over their mean: samples differ in their spikes.
        host_overlap: share of the host's streaming that computing hides.
    """

    vertex: int = 30
    supervisor: int = 25
    deliver_list: int = 15
    deliver_id: int = 4
    deliver_pair: int = 2
    step_sample: int = 10
    step_pair: int = 20
    step_cuba: int = 5
    select_word: int = 4
    compact_list: int = 90
    compact_word: int = 5
    compact_id: int = 10
    state_sample: int = 15
    state_pair: int = 8
    state_search: int = 8
    state_id: int = 20
    share_list: int = 15
    share_id: int = 8
    share_pair: int = 2
    weight_list: int = 12
    weight_id: int = 5
    weight_pair: int = 3
    reduce_row: int = 6
    reduce_pair: int = 2
    adam_pair: int = 40
    sgd_pair: int = 4
    loss_value: int = 20
    loop_supersteps: int = 2
    near_per_spike: float = 0.64
    worker_imbalance: float = 1.15
    host_overlap: float = 0.0


ASSUMPTIONS = CycleAssumptions()

FORWARD = ("deliver", "step", "select", "compact")


# ---- lists ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lengths:
    """Expected ids in a list: all that fire, and all that are listed."""

    spikes: float
    listed: float


def expected_lengths(plan: Plan, a: CycleAssumptions = ASSUMPTIONS) -> dict[str, Lengths]:
    """By population; with fixed activity lists are full, and all of it is sent."""
    found = {}
    for name, p in plan.populations.items():
        population = plan.network.populations[name]
        spikes = min(float(p.capacity), plan.activity[name] * p.n)
        listed = spikes if isinstance(population, Input) else spikes * (1 + a.near_per_spike)
        if getattr(population, "grad_threshold", 0.0) == -np.inf:
            listed = p.n
        if getattr(population, "activity", "natural") == "fixed":
            spikes = listed = p.capacity
        found[name] = Lengths(spikes, min(float(p.capacity), listed))
    return found


def stages(plan: Plan) -> dict[str, int]:
    """In which of a step's rounds a population runs: the longest chain of delay-0 connections that leads to it."""
    found: dict[str, int] = {}
    for name in plan.populations:
        feeds = [c.pre for c in plan.incoming(name) if c.delay == 0 and c.pre not in plan.network.inputs]
        found[name] = 1 + max((found[pre] for pre in feeds), default=-1)
    return found


# ---- what one tile computes ----------------------------------------------------------------------------------------


def _turns(bundles: float, a: CycleAssumptions, workers: int) -> float:
    """Cycles of a vertex whose longest worker takes `bundles`: the workers of a tile take turns."""
    return a.supervisor + workers * (a.vertex + bundles)


def shard_cycles(
    plan: Plan, name: str, n: int, lengths: Mapping[str, Lengths], a: CycleAssumptions = ASSUMPTIONS
) -> dict[str, float]:
    """Cycles a step, by phase, of a shard of `n` neurons; samples are dealt to the workers."""
    population = plan.network.populations[name]
    workers = plan.target.workers_per_tile
    samples = -(-plan.n_samples // workers)
    uneven = a.worker_imbalance if plan.n_samples > workers else 1.0
    weight_pairs = padded(n, plan.weight_dtype) // 2
    pairs = -(-n // 2)
    spiking = not isinstance(population, LI)
    incoming = plan.incoming(name)
    deliver = share = weight = 0.0
    for c in incoming:
        pre = lengths[c.pre]
        deliver += a.deliver_list + uneven * pre.spikes * (a.deliver_id + a.deliver_pair * weight_pairs)
        # buckets of ids: each worker walks one bucket of every sample
        weight += a.weight_list + uneven * pre.spikes / workers * (a.weight_id + a.weight_pair * weight_pairs)
        if c.pre not in plan.network.inputs:
            share += a.share_list + uneven * pre.listed * (a.share_id + a.share_pair * weight_pairs)
    step = a.step_sample + pairs * (a.step_pair + a.step_cuba * isinstance(population, CubaLIF))
    cycles = {"deliver": _turns(samples * deliver, a, workers), "step": workers * samples * step}
    if spiking:
        cycles["select"] = workers * samples * a.select_word * mask_words(n)
    if not plan.trains:
        return cycles
    state = a.state_sample + pairs * a.state_pair
    if spiking:
        own = lengths[name]
        state += 2 * a.state_search * np.log2(1 + own.listed) + a.state_id * own.listed * n / population.n
    cycles["state gradient"] = _turns(samples * state, a, workers)
    cycles["list gradient"] = workers * samples * share
    cycles["weight gradient"] = _turns(plan.n_samples * weight, a, workers)
    return cycles


def collector_cycles(
    plan: Plan,
    name: str,
    n_samples: int,
    n_words: int,
    n_sums: int,
    lengths: Mapping[str, Lengths],
    a: CycleAssumptions = ASSUMPTIONS,
) -> dict[str, float]:
    """Cycles a step of a collector that receives `n_words` mask words and `n_sums` sums a sample; words and slots are
    dealt to the workers."""
    if isinstance(plan.network.populations[name], (Input, LI)):
        return {}
    workers = plan.target.workers_per_tile
    listed = lengths[name].listed
    each = a.compact_list + (a.compact_word * n_words + a.compact_id * listed) / workers
    cycles = {"compact": _turns(n_samples * each, a, workers)}
    if plan.trains and n_sums:
        cycles["sum"] = _turns(n_samples * _reduction(n_sums, listed, workers, a), a, workers)
    return cycles


def _reduction(rows: int, slots: float, workers: int, a: CycleAssumptions) -> float:
    """Bundles of the longest worker for adding `rows` rows of `slots` shares; slots are dealt in pairs."""
    return rows * (a.reduce_row + a.reduce_pair * float(np.ceil(np.ceil(slots / 2) / workers)))


def optimiser_cycles(plan: Plan, name: str, n: int, a: CycleAssumptions = ASSUMPTIONS) -> float:
    """Cycles a batch; rows are dealt to the workers."""
    pair = {"adam": a.adam_pair, "sgd": a.sgd_pair, "none": 0}[plan.optimizer]
    rows = sum(plan.populations[c.pre].n for c in plan.incoming(name))
    workers = plan.target.workers_per_tile
    return _turns(-(-rows // workers) * padded(n, plan.weight_dtype) // 2 * pair, a, workers) if pair else 0.0


# ---- the whole machine ---------------------------------------------------------------------------------------------


@dataclass
class _Traffic:
    """Bytes of one exchange: into and out of every tile, and into and out of every device."""

    plan: Plan
    tile_in: np.ndarray = field(init=False)
    tile_out: np.ndarray = field(init=False)
    link_in: np.ndarray = field(init=False)
    link_out: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        target = self.plan.target
        self.tile_in, self.tile_out = (np.zeros(target.n_tiles, np.int64) for _ in range(2))
        self.link_in, self.link_out = (np.zeros(target.devices, np.int64) for _ in range(2))

    def broadcast(self, sources: Any, sizes: np.ndarray, receivers: np.ndarray) -> None:
        """Every receiver gets all that the sources hold. A source sends once a device, whoever listens there: tiles of
        a device may all receive the same word; between devices it travels once."""
        if not len(sources) or not len(receivers):
            return
        tiles = np.array([s.tile for s in sources])
        devices = np.array([s.device for s in sources])
        np.add.at(self.tile_in, receivers, sizes.sum())
        listening = np.unique(receivers // self.plan.target.tiles)
        np.add.at(self.tile_out, tiles, sizes)
        for d in listening:
            away = sizes[devices != d]
            self.link_in[d] += away.sum()
            np.add.at(self.link_out, devices[devices != d], away)

    def send(self, source: np.ndarray, sink: np.ndarray, sizes: np.ndarray) -> None:
        """Row k moves sizes[k] bytes from tile source[k] to tile sink[k]; what stays on its tile costs nothing."""
        away = source != sink
        source, sink, sizes = source[away], sink[away], sizes[away]
        np.add.at(self.tile_in, sink, sizes)
        np.add.at(self.tile_out, source, sizes)
        a, b = source // self.plan.target.tiles, sink // self.plan.target.tiles
        far = a != b
        np.add.at(self.link_out, a[far], sizes[far])
        np.add.at(self.link_in, b[far], sizes[far])


def predict_ipu(plan: Plan, a: CycleAssumptions = ASSUMPTIONS) -> Prediction:
    """Cost of a plan for IPUs."""
    lengths = expected_lengths(plan, a)
    stage = stages(plan)
    machine = _Machine(plan, lengths, a)
    spiking = [k for k in plan.populations if k not in plan.network.inputs]
    rounds = sorted({stage[k] for k in spiking})
    per_step: list[Superstep] = []
    for r in rounds:
        names = [k for k in spiking if stage[k] == r]
        per_step += [machine.lists_forward(names), machine.masks(names)]
    if plan.trains:
        for r in reversed(rounds):
            names = [k for k in spiking if stage[k] == r]
            per_step += [machine.lists_backward(names), machine.local(names)]
            per_step += [machine.shares(names), machine.sums(names)]
    per_step.append(machine.loop())
    host_bytes = (
        plan.n_steps * plan.n_samples * sum(list_bytes(plan.populations[k].capacity) for k in plan.network.inputs)
    )
    return Prediction(
        per_step=tuple(s for s in per_step if s.cycles),
        per_batch=tuple(s for s in (machine.optimiser(spiking), machine.loss()) if s.cycles),
        n_steps=plan.n_steps,
        n_samples=plan.n_samples,
        clock_hz=plan.target.clock_hz,
        host_s=(1 - a.host_overlap) * host_bytes / (plan.target.host_bytes_per_s * plan.target.devices),
        host_bytes=host_bytes,
    )


class _Machine:
    """Adds up, tile by tile, what each superstep computes and moves."""

    def __init__(self, plan: Plan, lengths: Mapping[str, Lengths], a: CycleAssumptions) -> None:
        self.plan, self.lengths, self.a = plan, lengths, a
        self.tiles = {k: np.array([s.tile for s in p.shards], np.int64) for k, p in plan.populations.items()}
        self.sizes = {k: np.array([s.n for s in p.shards], np.int64) for k, p in plan.populations.items()}
        self.words = {k: np.array([mask_words(n) for n in sizes], np.int64) for k, sizes in self.sizes.items()}
        self.by_size = {
            (k, n): shard_cycles(plan, k, n, lengths, a)
            for k, sizes in self.sizes.items()
            for n in {int(n) for n in sizes}
        }

    # -- forward --

    def lists_forward(self, names: list[str]) -> Superstep:
        return self._superstep("lists", self._lists(names), self._shards(names, ("deliver", "step", "select")))

    def masks(self, names: list[str]) -> Superstep:
        traffic = _Traffic(self.plan)
        for name in self._firing(names):
            collectors = self.plan.populations[name].collectors
            n_shards = len(self.tiles[name])
            sink = np.repeat([c.tile for c in collectors], n_shards)
            sizes = np.outer([4 * c.n for c in collectors], self.words[name]).ravel()
            traffic.send(np.tile(self.tiles[name], len(collectors)), sink, sizes)
        return self._superstep("masks", traffic, self._collectors(names, "compact"))

    # -- backward --

    def lists_backward(self, names: list[str]) -> Superstep:
        traffic = self._lists(names)
        for name in self._firing(names):
            p = self.plan.populations[name]
            size = list_bytes(p.capacity) + 4 * p.capacity
            traffic.broadcast(p.collectors, np.array([c.n * size for c in p.collectors]), self.tiles[name])
        return self._superstep("lists and gradients", traffic, self._shards(names, ("state gradient", "list gradient")))

    def local(self, names: list[str]) -> Superstep:
        return self._superstep("nothing", _Traffic(self.plan), self._shards(names, ("weight gradient",)))

    def shares(self, names: list[str]) -> Superstep:
        """Shares of shards to reducers; where there are none, straight to the collectors, with the sums."""
        traffic = _Traffic(self.plan)
        work = self._nothing()
        for c in self.plan.connections:
            if c.post not in names:
                continue
            slot_bytes = 4 * self.plan.populations[c.pre].capacity
            if not c.reducers:
                continue
            tile, first, n_shards, n_samples = np.array(
                [(r.tile, r.first_shard, r.n_shards, r.n_samples) for r in c.reducers], np.int64
            ).T
            # row k: what reducer `of[k]` gets from one of its shards
            of = np.repeat(np.arange(len(tile)), n_shards)
            shard = np.arange(len(of)) - np.repeat(np.cumsum(n_shards) - n_shards, n_shards) + first[of]
            traffic.send(self.tiles[c.post][shard], tile[of], slot_bytes * n_samples[of])
            workers, listed = self.plan.target.workers_per_tile, self.lengths[c.pre].listed
            rows = {n: _reduction(n, listed, workers, self.a) for n in set(n_shards.tolist())}
            cycles = [_turns(s * rows[n], self.a, workers) for n, s in zip(n_shards.tolist(), n_samples, strict=True)]
            np.add.at(work["reduce"], tile, cycles)
        return self._superstep("shares", traffic, work)

    def sums(self, names: list[str]) -> Superstep:
        traffic = _Traffic(self.plan)
        for c in self.plan.connections:
            if c.post not in names or c.pre in self.plan.network.inputs:
                continue
            collectors = self.plan.populations[c.pre].collectors
            home = np.zeros(self.plan.n_samples, np.int64)  # sample → tile
            for k in collectors:
                home[k.first : k.first + k.n] = k.tile
            slot_bytes = 4 * self.plan.populations[c.pre].capacity
            if c.reducers:
                source = np.array([r.tile for r in c.reducers])
                sink = home[[r.first_sample for r in c.reducers]]
                traffic.send(source, sink, slot_bytes * np.array([r.n_samples for r in c.reducers]))
            else:
                for k in collectors:
                    source = self.tiles[c.post]
                    traffic.send(source, np.full_like(source, k.tile), np.full_like(source, slot_bytes * k.n))
        senders = {c.pre for c in self.plan.connections if c.post in names}
        return self._superstep(
            "sums", traffic, self._collectors([k for k in self.plan.populations if k in senders], "sum")
        )

    # -- the rest --

    def loop(self) -> Superstep:
        sync = self.a.loop_supersteps * (2 if self.plan.trains else 1) * self.plan.target.exchange.sync_cycles
        return Superstep("loop", {}, 0.0, float(sync), 0.0, 0, 0, 0)

    def optimiser(self, names: list[str]) -> Superstep:
        work = self._nothing()
        for name in names:
            for n in {int(n) for n in self.sizes[name]}:
                tiles = self.tiles[name][self.sizes[name] == n]
                np.add.at(work["optimiser"], tiles, optimiser_cycles(self.plan, name, n, self.a))
        return self._superstep("optimiser", _Traffic(self.plan), work)

    def loss(self) -> Superstep:
        """Softmax cross-entropy over the output: values of all steps go to the collectors, gradients come back."""
        name = self.plan.network.output
        p = self.plan.populations[name]
        work, traffic = self._nothing(), _Traffic(self.plan)
        for c in p.collectors if self.plan.trains else ():
            size = 4 * c.n * self.sizes[name]
            traffic.send(self.tiles[name], np.full_like(size, c.tile), size)
            traffic.send(np.full_like(size, c.tile), self.tiles[name], size)
            work["loss"][c.tile] += _turns(c.n * p.n * self.a.loss_value, self.a, self.plan.target.workers_per_tile)
        return self._superstep("loss", traffic, work)

    # -- helpers --

    def _firing(self, names: list[str]) -> list[str]:
        return [k for k in names if not isinstance(self.plan.network.populations[k], LI)]

    def _nothing(self) -> dict[str, np.ndarray]:
        return _Zeros(self.plan.target.n_tiles)

    def _lists(self, names: list[str]) -> _Traffic:
        """Each shard receives the lists of all it reads; a tile gets a population's lists once, whoever reads them."""
        traffic = _Traffic(self.plan)
        for pre, p in self.plan.populations.items():
            readers = [self.tiles[c.post] for c in self.plan.outgoing(pre) if c.post in names]
            if readers:
                sizes = np.array([c.n * list_bytes(p.capacity) for c in p.collectors])
                traffic.broadcast(p.collectors, sizes, np.unique(np.concatenate(readers)))
        return traffic

    def _shards(self, names: list[str], phases: tuple[str, ...]) -> dict[str, np.ndarray]:
        work = self._nothing()
        for name in names:
            for n in {int(n) for n in self.sizes[name]}:
                tiles = self.tiles[name][self.sizes[name] == n]
                for phase in phases:
                    np.add.at(work[phase], tiles, self.by_size[name, n].get(phase, 0.0))
        return work

    def _collectors(self, names: list[str], phase: str) -> dict[str, np.ndarray]:
        work = self._nothing()
        for name in names:
            p = self.plan.populations[name]
            n_words = int(self.words[name].sum())
            n_sums = sum(
                len({r.first_shard for r in c.reducers}) or len(self.plan.populations[c.post].shards)
                for c in self.plan.outgoing(name)
            )
            cycles = {
                n: collector_cycles(self.plan, name, n, n_words, n_sums, self.lengths, self.a).get(phase, 0.0)
                for n in {c.n for c in p.collectors}
            }
            for c in p.collectors:
                work[phase][c.tile] += cycles[c.n]
        return work

    def _superstep(self, name: str, traffic: _Traffic, work: Mapping[str, np.ndarray]) -> Superstep:
        target = self.plan.target
        total = sum(work.values(), np.zeros(target.n_tiles))
        slowest = int(total.argmax())
        compute = {phase: float(cycles[slowest]) for phase, cycles in work.items() if cycles[slowest]}
        busiest = np.maximum(traffic.tile_in, traffic.tile_out).max()
        moved = busiest > 0
        far = np.maximum(traffic.link_in, traffic.link_out).max()
        if not compute and not moved:
            return Superstep(name, {}, 0.0, 0.0, 0.0, 0, 0, slowest)
        sync = float(target.exchange.sync_cycles)
        if far:
            sync += target.links.latency_s * target.clock_hz
        return Superstep(
            name=name,
            compute=compute,
            exchange=float(busiest) / target.exchange.bytes_per_cycle,
            sync=sync,
            link=float(far) / target.links.bytes_per_s * target.clock_hz,
            exchange_bytes=int(traffic.tile_in.sum()),
            link_bytes=int(traffic.link_in.sum()),
            slowest_tile=slowest,
        )


class _Zeros(dict[str, np.ndarray]):
    """Arrays of cycles per tile, made when first asked for."""

    def __init__(self, n_tiles: int) -> None:
        super().__init__()
        self._n_tiles = n_tiles

    def __missing__(self, phase: str) -> np.ndarray:
        self[phase] = np.zeros(self._n_tiles)
        return self[phase]
