"""Predicted cost of a plan: cycles by phase, bytes through the exchange and the links, samples per second.

A *prediction*, never a measurement: instruction counts are read off the codelets' inner loops and published estimators,
sync costs are assumed. Each number is a named field of `CycleAssumptions`, so that a measurement can replace it.

An IPU runs supersteps: exchange, barrier, compute. Compute of a superstep costs what its slowest tile costs, and a tile
what its longest worker costs, times the six workers that take turns (a tile issues one bundle a cycle):

    superstep = barrier + max over tiles max(bytes in, bytes out) / 4 + max over tiles 6 · bundles of the longest worker
                + bytes over links / link bandwidth

    forward step   (local) → fetch the input's lists; then round by round
                   lists to the shards → deliver, step, select; masks to the collectors → compact
    backward step  (local) → fetch all lists; then round by round, last first
                   lists and buckets to the shards of post → list gradient, weight gradient
                   shares to the reducers → reduce; sums to the collectors → sum
                   lists and gradients to the shards → state gradient; at the end
                   the input's lists and buckets to the shards → weight gradient
    batch          loss; counts and regulariser of activity; all-reduce of replicas; norm of the gradient, optimiser; lists
                   and labels from the host

as the graph builder (host/src/ipu) lays them out. Populations joined by delay 0 take rounds one after another
(`Plan.stages`); with delay 1 all share one. A tile has one vertex a phase, whatever it holds. The counts are those of the emulated machine (host/src/emulator/work.h), under the
same names: on it, a prediction differs from what is counted only by the activity that was assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sparsesnn.layers import LI, CubaLIF, Input
from sparsesnn.partition.memory import PACKED_NEURONS, bucket_bytes, list_bytes, mask_words, padded, slots_bytes
from sparsesnn.partition.plan import Collector, Plan
from sparsesnn.partition.prediction import Prediction, Superstep
from sparsesnn.partition.vertices import MAX_DIRECT_SUMS, loops_rounds


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
        compact_list: counts, capacity and rotation of one list.
        compact_count: load a mask word, count its bits, add; each worker does so with all words. A word that holds both
            masks of up to 16 neurons takes as long to be found empty, and three times as long where it is not.
        compact_word: look for candidates in one mask word; compact_walks: the share of the words in which a worker looks:
            from the sixth of them where its first slot lies to its last slot, of spikes or of near-spikes; compact_id:
            find the bit, write the id.
        fetch_list, fetch_id: send a kept list once more: two ids; or put a spike into its bucket (id modulo 6).
        state_sample, state_pair: decay of ∂L/∂v, current gradient; state_search: finding the shard's part of the own
            list by bisection, per halving; state_id: σ', gradient of one listed neuron.
        share_list, share_id, share_pair: dot product of a row of weights and the current gradient; the id's part has
            the sum over lanes and the store.
        weight_list, weight_id, weight_pair: load, add and store two weight gradients. poplibs' scatter-add: 11 + 3 an
            element for scalars; here ids come in buckets, no bounds are searched.
        reduce_row, reduce_pair: one row of shares: load two, add two.
        adam_pair, sgd_pair: one update of two weights; Adam has a square root and a division each.
        norm_pair: two squares of the gradient's norm.
        loss_value: one potential or count: exponential, division.
        host_transfers: streams a batch between host and devices, each with a barrier over all.
        near_per_spike: near-spikes listed per spike. 0.64: measured by `sparsesnn bench step` at threshold 1,
            grad_threshold 0.9, activity 2 %.
        worker_spread: by how many standard deviations the busiest of six workers exceeds the mean, where neurons fire
            independently: 1.27 for six of a normal distribution. Samples of real data differ more.
        list_spread: the same for the longest list of a batch, which its collector waits for: 2.2 for the largest of 48.
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
    compact_count: int = 3
    compact_word: int = 5
    compact_walks: float = 1 / 3
    compact_id: int = 10
    fetch_list: int = 20
    fetch_id: int = 5
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
    norm_pair: int = 3
    loss_value: int = 20
    host_transfers: int = 6
    near_per_spike: float = 0.64
    worker_spread: float = 1.27
    list_spread: float = 2.2
    host_overlap: float = 0.0


ASSUMPTIONS = CycleAssumptions()

FORWARD = ("deliver", "step", "select", "compact")


# ---- lists ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lengths:
    """Expected ids in a list: all that fire, and all that are listed; `most`: its capacity."""

    spikes: float
    listed: float
    most: float = np.inf

    def busiest(self, mean: float, n_lists: float, deviations: float) -> float:
        """Ids a list of the busiest of several that hold `n_lists` lists of `mean` ids each; variance = mean."""
        return min(self.most, mean + deviations * float(np.sqrt(mean / n_lists)))


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
        found[name] = Lengths(spikes, min(float(p.capacity), listed), float(p.capacity))
    return found


# ---- what one tile computes ----------------------------------------------------------------------------------------


def _turns(bundles: float, a: CycleAssumptions, workers: int) -> float:
    """Cycles of a vertex whose longest worker takes `bundles`: the workers of a tile take turns."""
    return a.supervisor + workers * (a.vertex + bundles)


def shard_cycles(
    plan: Plan, name: str, n: int, lengths: Mapping[str, Lengths], a: CycleAssumptions = ASSUMPTIONS
) -> dict[str, float]:
    """Cycles a step, by phase, of a shard of `n` neurons; samples are dealt to the workers.

    "list gradient" and "weight gradient" are those of connections from spiking populations, "input gradient" the weight
    gradient of the input's connections, which has a superstep of its own.
    """
    population = plan.network.populations[name]
    workers = plan.target.workers_per_tile
    samples = -(-plan.n_samples // workers)
    pairs = padded(n, plan.weight_dtype) // 2
    spiking = not isinstance(population, LI)
    deliver: float = 0
    for c in plan.incoming(name):
        pre = lengths[c.pre]
        spikes = pre.busiest(pre.spikes, samples, a.worker_spread)
        deliver += a.deliver_list + spikes * (a.deliver_id + a.deliver_pair * pairs)
    step: float = a.step_sample + pairs * (a.step_pair + a.step_cuba * isinstance(population, CubaLIF))
    step += 0 if spiking else pairs * a.reduce_pair  # decoding
    cycles = {"deliver": _turns(samples * deliver, a, workers), "step": workers * samples * step}
    if spiking:
        cycles["select"] = workers * samples * a.select_word * mask_words(n)
    if not plan.trains:
        return cycles
    state: float = a.state_sample + pairs * a.state_pair
    if spiking:
        own = lengths[name]
        halvings = np.ceil(np.log2(1 + own.spikes)) + np.ceil(np.log2(1 + own.listed - own.spikes))
        state += float(a.state_search * halvings) + a.state_id * own.listed * n / population.n
    cycles["state gradient"] = _turns(samples * state, a, workers)
    inputs = plan.inputs
    from_spiking = [c.pre for c in plan.incoming(name) if c.pre not in inputs]
    cycles |= gradient_cycles(plan, n, from_spiking, lengths, a)
    from_input = [c.pre for c in plan.incoming(name) if c.pre in inputs]
    if from_input:
        cycles["input gradient"] = sum(gradient_cycles(plan, n, from_input, lengths, a).values())
    return cycles


def gradient_cycles(
    plan: Plan, n: int, senders: Sequence[str], lengths: Mapping[str, Lengths], a: CycleAssumptions = ASSUMPTIONS
) -> dict[str, float]:
    """Cycles a step that a shard of `n` neurons spends on what it received from `senders`, in one superstep."""
    workers = plan.target.workers_per_tile
    samples = -(-plan.n_samples // workers)
    pairs = padded(n, plan.weight_dtype) // 2
    share = weight = 0.0
    for pre in senders:
        length = lengths[pre]
        # buckets of ids: each worker walks its own bucket, of every sample
        bucket = length.busiest(length.spikes / workers, plan.n_samples, a.worker_spread)
        weight += a.weight_list + bucket * (a.weight_id + a.weight_pair * pairs)
        if pre not in plan.inputs:
            listed = length.busiest(length.listed, samples, a.worker_spread)
            share += a.share_list + listed * (a.share_id + a.share_pair * pairs)
    if not senders:
        return {}
    cycles = {"weight gradient": _turns(plan.n_samples * weight, a, workers)}
    return {"list gradient": workers * samples * share, **cycles} if share else cycles


def _longest(length: Lengths, n_samples: int, a: CycleAssumptions) -> Lengths:
    """The lists of the collector, or reducer, that has most to do."""
    spikes, listed = (length.busiest(mean, n_samples, a.list_spread) for mean in (length.spikes, length.listed))
    return Lengths(spikes, listed)


def collector_cycles(
    plan: Plan,
    name: str,
    n_samples: int,
    n_words: int,
    n_packed: int,
    n_sums: int,
    lengths: Mapping[str, Lengths],
    a: CycleAssumptions = ASSUMPTIONS,
) -> dict[str, float]:
    """Cycles a step of a collector that receives `n_words` mask words, `n_packed` of which hold both masks of a shard, and
    `n_sums` sums a sample; slots are dealt to the workers. "fetch" is that of the forward pass for an input, "refetch" that of the backward pass."""
    if isinstance(plan.network.populations[name], LI):
        return {}
    workers = plan.target.workers_per_tile
    length = _longest(lengths[name], n_samples, a)
    mine = np.ceil(np.ceil(length.listed / 2) / workers)  # pairs of slots of one worker
    sent = a.fetch_list + a.fetch_id * float(mine)
    lags = len({c.delay for c in plan.outgoing(name)})
    cycles = {}
    if name in plan.inputs:
        cycles["fetch"] = cycles["again"] = _turns(n_samples * max(1, lags) * sent, a, workers)
    else:
        cycles["again"] = _turns(n_samples * max(1, lags) * sent, a, workers)
        full = (
            n_packed * (1 - np.exp(-length.listed / n_packed)) if n_packed else 0.0
        )  # packed words that hold a candidate
        looks = a.compact_count * (n_words + 2 * float(full)) + a.compact_walks * a.compact_word * (n_words + n_packed)
        each = a.compact_list + looks + a.compact_id * 2 * float(mine)
        cycles["compact"] = _turns(n_samples * (each + max(0, lags - 1) * sent), a, workers)
    if plan.trains:
        cycles["refetch"] = _turns(n_samples * (sent + 2 * a.fetch_id * length.spikes), a, workers)
        if n_sums:
            cycles["sum"] = _turns(n_samples * _reduction(n_sums, length.listed, workers, a), a, workers)
    return cycles


def _reduction(rows: int, slots: float, workers: int, a: CycleAssumptions) -> float:
    """Bundles of the longest worker for adding `rows` rows of `slots` shares; slots are dealt in pairs."""
    return rows * (a.reduce_row + a.reduce_pair * float(np.ceil(np.ceil(slots / 2) / workers)))


def optimiser_cycles(plan: Plan, name: str, n: int, a: CycleAssumptions = ASSUMPTIONS) -> float:
    """Cycles a batch of the update of a shard's weights, and of its part of the gradient's norm."""
    if not plan.trains:
        return 0.0
    pair = {"adam": a.adam_pair, "sgd": a.sgd_pair}[plan.optimizer]
    workers = plan.target.workers_per_tile
    n_pairs = sum(plan.populations[c.pre].n for c in plan.incoming(name)) * padded(n, plan.weight_dtype) // 2
    mine = -(-n_pairs // workers)
    return _turns(mine * pair, a, workers) + _turns(mine * a.norm_pair, a, workers)


# ---- the whole machine ---------------------------------------------------------------------------------------------


#: phases under which two supersteps are shown as one
_PHASE_OF = {"refetch": "fetch", "again": "fetch"}


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
    stage = plan.stages
    machine = _Machine(plan, lengths, a)
    spiking = [k for k in plan.populations if k not in plan.inputs]
    rounds = sorted({stage[k] for k in spiking})
    loops = loops_rounds(plan)
    per_step = [machine.fetch()]
    for r in rounds:
        names = [k for k in spiking if stage[k] == r]
        moved = spiking if loops else names  # every turn of shared vertices moves all lists
        per_step += [machine.lists_forward(names, moved), machine.masks(names, moved)]
    if plan.trains:
        inputs = list(plan.network.inputs)
        per_step.append(machine.refetch())
        for r in reversed(rounds):
            names = [k for k in spiking if stage[k] == r]
            moved = spiking if loops else names
            per_step.append(machine.lists_backward(names, [*moved, *inputs] if loops else names))
            per_step += [machine.shares(names, moved), machine.sums(names, moved), machine.states(names, moved)]
        per_step.append(machine.lists_backward(inputs, [*spiking, *inputs] if loops else inputs))
    host_bytes = (
        plan.n_steps * plan.n_samples * sum(list_bytes(plan.populations[k].capacity) for k in plan.network.inputs)
    )
    host_bytes += 8 * plan.n_samples * plan.populations[plan.network.output].n  # targets, logits
    streaming = (1 - a.host_overlap) * host_bytes / (plan.target.host_bytes_per_s * plan.target.devices)
    update = (*machine.replicas(), *machine.norm(spiking), machine.optimiser(spiking))
    again = tuple(_times(s, plan.n_again) for s in machine.again(rounds)) if plan.n_again else ()
    per_batch = (machine.loss(), *machine.regulariser(), *again, *update)
    return Prediction(
        per_step=tuple(s for s in per_step if s.cycles),
        per_batch=tuple(s for s in per_batch if s.cycles),
        n_steps=plan.n_steps,
        n_samples=plan.replicas * plan.n_samples,
        clock_hz=plan.target.clock_hz,
        host_s=streaming + a.host_transfers * plan.target.links.latency_s,
        host_bytes=plan.replicas * host_bytes,
    )


class _Machine:
    """Adds up, tile by tile, what each superstep computes and moves."""

    def __init__(self, plan: Plan, lengths: Mapping[str, Lengths], a: CycleAssumptions) -> None:
        self.plan, self.lengths, self.a = plan, lengths, a
        self.start = _turns(0, a, plan.target.workers_per_tile)
        self.tiles = {k: np.array([s.tile for s in p.shards], np.int64) for k, p in plan.populations.items()}
        self.sizes = {k: np.array([s.n for s in p.shards], np.int64) for k, p in plan.populations.items()}
        self.words = {k: np.array([mask_words(n) for n in sizes], np.int64) for k, sizes in self.sizes.items()}
        self.by_size = {
            (k, n): shard_cycles(plan, k, n, lengths, a)
            for k, sizes in self.sizes.items()
            for n in {int(n) for n in sizes}
        }

    # -- forward --

    def fetch(self) -> Superstep:
        return self._superstep("nothing", self._traffic(), self._collectors(self.plan.network.inputs, "fetch"))

    def lists_forward(self, names: list[str], moved: list[str]) -> Superstep:
        traffic = self._traffic()
        for pre, p in self.plan.populations.items():
            readers = [self.tiles[c.post] for c in self.plan.outgoing(pre) if c.post in moved]
            self._broadcast(traffic, p.collectors, list_bytes(p.capacity), readers)
        return self._superstep("lists", traffic, self._shards(names, ("deliver", "step", "select")))

    def masks(self, names: list[str], moved: list[str]) -> Superstep:
        traffic = self._traffic()
        for name in self._firing(moved):
            collectors = self.plan.populations[name].collectors
            n_shards = len(self.tiles[name])
            sink = np.repeat([c.tile for c in collectors], n_shards)
            sizes = np.outer([4 * c.n for c in collectors], self.words[name]).ravel()
            traffic.send(np.tile(self.tiles[name], len(collectors)), sink, sizes)
        return self._superstep("masks", traffic, self._collectors(names, "compact"))

    def again(self, rounds: list[int]) -> tuple[Superstep, ...]:
        """A step that runs again, from lists that are kept."""
        found = []
        for r in rounds:
            names = [k for k in self.sizes if k not in self.plan.inputs and self.plan.stages[k] == r]
            before = (
                names
                if r == rounds[0]
                else [k for k in self._firing(list(self.sizes)) if self.plan.stages.get(k) == r - 1]
            )
            sends = list(self.plan.populations) if r == rounds[0] else before
            found.append(self._superstep("nothing", self._traffic(), self._collectors(sends, "again")))
            found.append(self.lists_forward(self._firing(names), names))
        return tuple(found)

    # -- backward --

    def refetch(self) -> Superstep:
        return self._superstep("nothing", self._traffic(), self._collectors(list(self.plan.populations), "refetch"))

    def lists_backward(self, senders: list[str], moved: list[str]) -> Superstep:
        """What the shards of post do with all they received from these populations."""
        traffic, work = self._traffic(), self._nothing()
        for pre in moved:
            p = self.plan.populations[pre]
            readers = [self.tiles[c.post] for c in self.plan.outgoing(pre)]
            self._broadcast(traffic, p.collectors, list_bytes(p.capacity) + bucket_bytes(p.capacity), readers)
        for post in self.plan.populations:
            chosen = [c.pre for c in self.plan.incoming(post) if c.pre in senders]
            for n in {int(n) for n in self.sizes[post]} if chosen else ():
                tiles = self.tiles[post][self.sizes[post] == n]
                for phase, cycles in gradient_cycles(self.plan, n, chosen, self.lengths, self.a).items():
                    work.add(phase, tiles, cycles, self.start if phase == "weight gradient" else 0.0)
        return self._superstep("lists and buckets", traffic, work)

    def shares(self, names: list[str], moved: list[str]) -> Superstep:
        """Shares of shards to reducers; where there are none, straight to the collectors, with the sums."""
        traffic, work = self._traffic(), self._nothing()
        for c in self.plan.connections:
            if c.pre not in moved or not c.reducers:
                continue
            slot_bytes = slots_bytes(self.plan.populations[c.pre].capacity)
            tile, first, n_shards, n_samples = np.array(
                [(r.tile, r.first_shard, r.n_shards, r.n_samples) for r in c.reducers], np.int64
            ).T
            # row k: what reducer `of[k]` gets from one of its shards
            of = np.repeat(np.arange(len(tile)), n_shards)
            shard = np.arange(len(of)) - np.repeat(np.cumsum(n_shards) - n_shards, n_shards) + first[of]
            traffic.send(self.tiles[c.post][shard], tile[of], slot_bytes * n_samples[of])
            if c.pre not in names:
                continue
            sizes = list(zip(n_shards.tolist(), n_samples.tolist(), strict=True))
            cycles = {size: self._reduce(c.pre, *size) for size in set(sizes)}
            work.add("reduce", tile, np.array([cycles[size] for size in sizes]), self.start)
        return self._superstep("shares", traffic, work)

    def _reduce(self, pre: str, n_shards: int, n_samples: int) -> float:
        workers = self.plan.target.workers_per_tile
        listed = _longest(self.lengths[pre], n_samples, self.a).listed
        return _turns(n_samples * _reduction(n_shards, listed, workers, self.a), self.a, workers)

    def sums(self, names: list[str], moved: list[str]) -> Superstep:
        traffic = self._traffic()
        for c in self.plan.connections:
            if c.pre not in moved:
                continue
            collectors = self.plan.populations[c.pre].collectors
            home = np.zeros(self.plan.n_samples, np.int64)  # sample → tile
            for k in collectors:
                home[k.first : k.first + k.n] = k.tile
            slot_bytes = slots_bytes(self.plan.populations[c.pre].capacity)
            if c.reducers:
                source = np.array([r.tile for r in c.reducers])
                sink = home[[r.first_sample for r in c.reducers]]
                traffic.send(source, sink, slot_bytes * np.array([r.n_samples for r in c.reducers]))
            else:
                for k in collectors:
                    source = self.tiles[c.post]
                    traffic.send(source, np.full_like(source, k.tile), np.full_like(source, slot_bytes * k.n))
        return self._superstep("sums", traffic, self._collectors(self._firing(names), "sum"))

    def states(self, names: list[str], moved: list[str]) -> Superstep:
        traffic = self._traffic()
        for name in self._firing(moved):
            p = self.plan.populations[name]
            self._broadcast(traffic, p.collectors, list_bytes(p.capacity) + slots_bytes(p.capacity), [self.tiles[name]])
        return self._superstep("lists and gradients", traffic, self._shards(names, ("state gradient",)))

    # -- the rest --

    def loss(self) -> Superstep:
        """Softmax cross-entropy over the output, samples dealt to workers: decoded potentials go to the collectors and
        gradients come back; of a spiking output the collectors count their own lists."""
        name = self.plan.network.output
        p = self.plan.populations[name]
        work, traffic = self._nothing(), self._traffic()
        counts = 0 if isinstance(self.plan.network.populations[name], LI) else self.plan.n_steps
        for c in p.collectors if self.plan.trains else ():
            if not counts:
                size = 4 * c.n * self.sizes[name]
                traffic.send(self.tiles[name], np.full_like(size, c.tile), size)
                traffic.send(np.full_like(size, c.tile), self.tiles[name], size)
            workers = self.plan.target.workers_per_tile
            work["loss"][c.tile] += _turns(-(-c.n // workers) * (p.n + counts) * self.a.loss_value, self.a, workers)
        return self._superstep("loss", traffic, work)

    def regulariser(self) -> tuple[Superstep, ...]:
        """Collectors count the spikes of all steps, a worker those of a whole collector; replicas add their counts; shards
        of the population get them all, and one worker a shard adds them up."""
        plan = self.plan
        names = self._firing([k for k in plan.populations if k not in plan.inputs])
        if not (plan.regularises and plan.trains and names):
            return ()
        workers = plan.target.workers_per_tile
        count, add, traffic = self._nothing(), self._nothing(), self._traffic()
        n_counts = 0
        for name in names:
            p = plan.populations[name]
            tiles = np.array([c.tile for c in p.collectors])
            n_counts += len(tiles) * padded(p.n + 1, "float32")
            each = [
                _turns(plan.n_steps * c.n * self.a.fetch_id * self.lengths[name].spikes, self.a, workers)
                for c in p.collectors
            ]
            count.add("loss", tiles, np.array(each), self.start)
            sizes = self.sizes[name]
            cycles = [_turns(self.a.reduce_pair * len(tiles) * int(n), self.a, workers) for n in sizes]
            add.add("loss", self.tiles[name], np.array(cycles), self.start)
            sink = np.tile(self.tiles[name], len(tiles))
            traffic.send(np.repeat(tiles, len(sizes)), sink, 4 * np.tile(sizes, len(tiles)))
            traffic.broadcast(p.collectors, np.full_like(tiles, 4), np.unique(self.tiles[name]))
        counted = self._superstep("nothing", self._traffic(), count)
        return counted, *self._all_reduce(4 * n_counts), self._superstep("counts", traffic, add)

    def replicas(self) -> tuple[Superstep, ...]:
        """Gradients of all weights, and of what else trains, over replicas."""
        plan = self.plan
        if not plan.trains:
            return ()
        n_bytes = 0
        for name, sizes in self.sizes.items():
            p = plan.network.populations[name]
            learnt = sum(bool(getattr(p, f"learn_{x}", False)) for x in ("alpha", "beta", "threshold"))
            rows = sum(plan.populations[c.pre].n for c in plan.incoming(name))
            if learnt or getattr(p, "bias", False):
                rows += 6 * (1 + learnt)
            n_bytes += 4 * rows * sum(padded(int(n), "float32") for n in sizes)
        return self._all_reduce(n_bytes)

    def _all_reduce(self, n_bytes: int) -> tuple[Superstep, ...]:
        """A ring over replicas: each device sends 2·(R - 1) parts of 1/R of what it holds. R = 1: nothing."""
        target, n = self.plan.target, self.plan.replicas
        if n == 1:
            return ()
        share = 2 * (n - 1) / n * n_bytes / target.devices
        return (
            Superstep(
                name="replicas",
                compute={},
                exchange=0.0,
                sync=2 * (n - 1) * target.links.latency_s * target.clock_hz,
                link=share / target.links.bytes_per_s * target.clock_hz,
                exchange_bytes=0,
                link_bytes=2 * (n - 1) * n_bytes,
                slowest_tile=0,
            ),
        )

    def norm(self, names: list[str]) -> tuple[Superstep, ...]:
        """Six sums of squares a tile go to one tile of each device, where workers add them; the devices' sums go to one,
        and the norm back to all. Where a device has few tiles in use, one worker adds all."""
        if not self.plan.trains:
            return ()
        target, workers = self.plan.target, self.plan.target.workers_per_tile
        used = np.unique(np.concatenate([self.tiles[k] for k in names]))
        traffic, work, last = self._traffic(), self._nothing(), self._nothing()
        n_sums = 0
        for device, n_used in enumerate(np.bincount(used // target.tiles, minlength=target.devices)):
            tiles = used[used // target.tiles == device]
            if n_used <= MAX_DIRECT_SUMS:
                n_sums += workers * int(n_used)
                continue
            n_sums += workers
            home = device * target.tiles
            traffic.send(tiles, np.full_like(tiles, home), np.full_like(tiles, 4 * workers))
            work["optimiser"][home] = _turns(self.a.norm_pair * (len(tiles) + 1), self.a, workers)
        last["optimiser"][0] = _turns(self.a.norm_pair * n_sums, self.a, workers)
        return self._superstep("squares", traffic, work), self._superstep("squares", self._traffic(), last)

    def optimiser(self, names: list[str]) -> Superstep:
        work = self._nothing()
        for name in names:
            for n in {int(n) for n in self.sizes[name]}:
                tiles = self.tiles[name][self.sizes[name] == n]
                # two vertices: sums of squares, update
                work.add("optimiser", tiles, optimiser_cycles(self.plan, name, n, self.a), 2 * self.start)
        return self._superstep("norm", self._traffic(), work)

    # -- helpers --

    def _firing(self, names: list[str]) -> list[str]:
        return [k for k in names if not isinstance(self.plan.network.populations[k], LI)]

    def _nothing(self) -> _Work:
        return _Work(self.plan.target.n_tiles)

    def _traffic(self) -> _Traffic:
        return _Traffic(self.plan)

    def _broadcast(
        self, traffic: _Traffic, collectors: Sequence[Collector], per_sample: int, readers: list[np.ndarray]
    ) -> None:
        """All that these collectors send goes to the tiles of all readers, once to each, whoever reads it there."""
        if readers:
            sizes = np.array([c.n * per_sample for c in collectors])
            traffic.broadcast(collectors, sizes, np.unique(np.concatenate(readers)))

    def _shards(self, names: list[str], phases: tuple[str, ...]) -> _Work:
        work = self._nothing()
        for name in names:
            for n in {int(n) for n in self.sizes[name]}:
                tiles = self.tiles[name][self.sizes[name] == n]
                for phase in phases:
                    starts = self.start if phase in ("deliver", "state gradient") else 0.0
                    work.add(phase, tiles, self.by_size[name, n].get(phase, 0.0), starts)
        return work

    def _collectors(self, names: Sequence[str], phase: str) -> _Work:
        work = self._nothing()
        for name in names:
            p = self.plan.populations[name]
            n_words, n_packed = int(self.words[name].sum()), int((self.sizes[name] <= PACKED_NEURONS).sum())
            n_sums = sum(
                len({r.first_shard for r in c.reducers}) or len(self.plan.populations[c.post].shards)
                for c in self.plan.outgoing(name)
            )
            cycles = {
                n: collector_cycles(self.plan, name, n, n_words, n_packed, n_sums, self.lengths, self.a).get(phase, 0.0)
                for n in {c.n for c in p.collectors}
            }
            if not any(cycles.values()):
                continue
            tiles = np.array([c.tile for c in p.collectors])
            work.add(_PHASE_OF.get(phase, phase), tiles, np.array([cycles[c.n] for c in p.collectors]), self.start)
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
        sync = target.links.latency_s * target.clock_hz if far else float(target.exchange.sync_cycles)
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


def _times(s: Superstep, n: int) -> Superstep:
    """A superstep that runs n times, as one."""
    return replace(
        s,
        compute={phase: n * cycles for phase, cycles in s.compute.items()},
        exchange=n * s.exchange,
        sync=n * s.sync,
        link=n * s.link,
        exchange_bytes=n * s.exchange_bytes,
        link_bytes=n * s.link_bytes,
    )


class _Work(dict[str, np.ndarray]):
    """Cycles per tile by phase; arrays are made when first asked for."""

    def __init__(self, n_tiles: int) -> None:
        super().__init__()
        self._n_tiles = n_tiles
        self._items = np.zeros(n_tiles, np.int64)

    def __missing__(self, phase: str) -> np.ndarray:
        self[phase] = np.zeros(self._n_tiles)
        return self[phase]

    def add(self, phase: str, tiles: np.ndarray, cycles: float | np.ndarray, start: float) -> None:
        """Items on tiles; each of `cycles` holds the start of a vertex, but a tile has one vertex for all its items."""
        np.add.at(self[phase], tiles, cycles)
        if start:
            items = self._items + np.bincount(tiles, minlength=self._n_tiles)
            self[phase] -= start * (np.maximum(items - 1, 0) - np.maximum(self._items - 1, 0))
            self._items = items
