"""Predicted cost of a plan: cycles by phase, bytes through the exchange and the links, samples per second.

A *prediction*, never a measurement: instruction counts are read off the codelets' inner loops and published estimators,
sync costs are assumed. Each number is a named field of `CycleAssumptions`, so that a measurement can replace it.

An IPU runs supersteps: exchange, barrier, compute. The compute time of a superstep is that of its slowest tile, and a tile's
is that of its longest worker, times the six workers that take turns (a tile issues one bundle a cycle):

    superstep = barrier + max over tiles max(bytes in, bytes out) / 4 + max over tiles 6 · bundles of the longest worker
                + bytes over links / link bandwidth

    forward step   (local) → fetch the input's lists; then round by round
                   lists to the shards → deliver, step, select; masks to the collectors → compact
    backward step  (local) → fetch all lists; then round by round, last first
                   lists and buckets to the shards of post → list gradient, weight gradient
                   shares to the reducers → reduce; sums to the collectors → sum
                   lists and gradients to the shards → state gradient; at the end
                   the input's lists and buckets to the shards → weight gradient
    batch          loss; counts and regularizer of activity; all-reduce of replicas; norm of the gradient, optimizer; input
                   lists and labels from the host, losses and counts of spikes to it (other lists only when they are read)

as the graph builder (host/src/ipu) lays them out. Populations joined by delay 0 take rounds one after another
(`Plan.stages`); with delay 1 all share one. A tile has one vertex a phase, whatever it holds. The counts are those of
the emulated machine (host/src/emulator/work.h), under the same names: its counts differ from a prediction only because
of the assumed activity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from sparsesnn.errors import ConfigError
from sparsesnn.layers.declaration import fires, n_learnt
from sparsesnn.partition.ipu.memory import PACKED_NEURONS, bucket_bytes, list_bytes, mask_words, padded, slots_bytes
from sparsesnn.partition.ipu.traffic import Traffic, Work
from sparsesnn.partition.ipu.vertices import MAX_DIRECT_SUMS, loops_rounds
from sparsesnn.partition.ipu.work import (
    ASSUMPTIONS,
    CycleAssumptions,
    collector_cycles,
    gradient_cycles,
    optimizer_cycles,
    reduction,
    shard_cycles,
    turns,
)
from sparsesnn.partition.lengths import Lengths, expected_lengths
from sparsesnn.partition.pieces import Collector
from sparsesnn.partition.plan import Plan
from sparsesnn.partition.prediction import Prediction, Superstep

#: the phase under which a superstep is shown, if not under its name
_PHASE_OF = {"refetch": "fetch", "again": "fetch"}


def predict(
    plan: Plan, a: CycleAssumptions = ASSUMPTIONS, steps: Sequence[Mapping[str, Lengths]] | None = None
) -> Prediction:
    """Cost of a plan for IPUs.

    Args:
        a: the assumptions of `work.py`.
        steps: for every time step the lists of each population, if a batch is known; None: all steps as expected.

    Errors: `ConfigError` for cores and ranks, whose speed is measured.
    """
    if plan.target.kind != "ipu":
        raise ConfigError(
            f"predict: the target is '{plan.target.name}'; speed is predicted for IPUs only; measure it: `sparsesnn bench step`, or "
            "for one rank of many `sparsesnn train --comm dry-run:R`"
        )
    machine = _Machine(plan, expected_lengths(plan, a.near_per_spike), a)
    spiking = [k for k in plan.populations if k not in plan.inputs]
    rounds = sorted({plan.stages[k] for k in spiking})
    if steps is None:
        per_step = _step(machine, spiking, rounds)
    else:
        per_step = _mean(
            [_step(_Machine(plan, steps[t], a, _arrivals(steps, t)), spiking, rounds) for t in range(len(steps))]
        )
    into = plan.n_steps * plan.n_samples * sum(list_bytes(plan.populations[k].capacity) for k in plan.network.inputs)
    into += 4 * plan.n_samples * plan.populations[plan.network.output].n  # targets
    firing = [plan.populations[k] for k in spiking if fires(plan.network.populations[k])]
    out = plan.n_samples * (4 * plan.populations[plan.network.output].n + 4 + 8 * len(firing))  # logits, losses, counts
    streaming = (1 - a.host_overlap) * (into + out) / (plan.target.host_bytes_per_s * plan.target.devices)
    lists = plan.n_steps * plan.n_samples * sum(list_bytes(p.capacity) + 4 for p in firing)  # with dropped candidates
    formulas = machine.formulas(spiking)  # the gradients of neurons' parameters, and after the update their arrays
    update = (formulas, *machine.replicas(), *machine.norm(spiking), machine.optimizer(spiking), formulas)
    again = tuple(_times(s, plan.n_again) for s in machine.again(rounds)) if plan.n_again else ()
    per_batch = (machine.loss(), *machine.regularizer(), *again, *update)
    return Prediction(
        per_step=tuple(s for s in per_step if s.cycles),
        per_batch=tuple(s for s in per_batch if s.cycles),
        n_steps=plan.n_steps,
        n_samples=plan.replicas * plan.n_samples,
        clock_hz=plan.target.clock_hz,
        host_s=streaming + a.host_transfers * plan.target.links.latency_s,
        host_bytes=plan.replicas * (into + out),
        lists_bytes=plan.replicas * lists,
    )


def _step(machine: _Machine, spiking: list[str], rounds: list[int]) -> list[Superstep]:
    """The supersteps of one time step, forward then backward."""
    plan = machine.plan
    stage, loops = plan.stages, loops_rounds(plan)
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
    return per_step


def _arrivals(steps: Sequence[Mapping[str, Lengths]], t: int) -> Callable[[str, int], Lengths]:
    """The lists that arrive in step t after a delay; empty before the first step."""
    return lambda name, delay: steps[t - delay][name] if t >= delay else Lengths(0.0, 0.0)


def _mean(steps: list[list[Superstep]]) -> list[Superstep]:
    """The mean of time steps, superstep by superstep."""
    n = len(steps)
    means = []
    for same in zip(*steps, strict=True):
        phases = dict.fromkeys(phase for s in same for phase in s.compute)
        means.append(
            replace(
                same[0],
                compute={phase: sum(s.compute.get(phase, 0.0) for s in same) / n for phase in phases},
                exchange=sum(s.exchange for s in same) / n,
                sync=sum(s.sync for s in same) / n,
                link=sum(s.link for s in same) / n,
            )
        )
    return means


class _Machine:
    """Adds up, tile by tile, the cycles and bytes of each superstep."""

    def __init__(
        self,
        plan: Plan,
        lengths: Mapping[str, Lengths],
        a: CycleAssumptions,
        arrivals: Callable[[str, int], Lengths] | None = None,
    ) -> None:
        self.plan, self.lengths, self.a = plan, lengths, a
        self.start = turns(0, a, plan.target.workers_per_tile)
        self.tiles = {k: np.array([s.tile for s in p.shards], np.int64) for k, p in plan.populations.items()}
        self.sizes = {k: np.array([s.n for s in p.shards], np.int64) for k, p in plan.populations.items()}
        self.words = {k: np.array([mask_words(n) for n in sizes], np.int64) for k, sizes in self.sizes.items()}
        self.by_size = {
            (k, n): shard_cycles(plan, k, n, lengths, a, arrivals)
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
        """The supersteps of a step that runs again, from kept lists."""
        supersteps = []
        for r in rounds:
            names = [k for k in self.sizes if k not in self.plan.inputs and self.plan.stages[k] == r]
            before = (
                names
                if r == rounds[0]
                else [k for k in self._firing(list(self.sizes)) if self.plan.stages.get(k) == r - 1]
            )
            sends = list(self.plan.populations) if r == rounds[0] else before
            supersteps.append(self._superstep("nothing", self._traffic(), self._collectors(sends, "again")))
            supersteps.append(self.lists_forward(self._firing(names), names))
        return tuple(supersteps)

    # -- backward --

    def refetch(self) -> Superstep:
        return self._superstep("nothing", self._traffic(), self._collectors(list(self.plan.populations), "refetch"))

    def lists_backward(self, senders: list[str], moved: list[str]) -> Superstep:
        """The work of the shards of post on all lists received from these populations."""
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
        """Shares of shards to reducers; without reducers, straight to the collectors, with the sums."""
        traffic, work = self._traffic(), self._nothing()
        for c in self.plan.connections:
            if c.pre not in moved or not c.reducers:
                continue
            slot_bytes = slots_bytes(self.plan.populations[c.pre].capacity)
            tile, first, n_shards, n_samples = np.array(
                [(r.tile, r.first_shard, r.n_shards, r.n_samples) for r in c.reducers], np.int64
            ).T
            # row k: the bytes that reducer `of[k]` gets from one of its shards
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
        listed = self.lengths[pre].longest(n_samples, self.a.list_spread).listed
        return turns(n_samples * reduction(n_shards, listed, workers, self.a), self.a, workers)

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
        gradients come back; for a spiking output the collectors count their own lists."""
        name = self.plan.network.output
        p = self.plan.populations[name]
        work, traffic = self._nothing(), self._traffic()
        counts = self.plan.n_steps if fires(self.plan.network.populations[name]) else 0
        for c in p.collectors if self.plan.trains else ():
            if not counts:
                size = 4 * c.n * self.sizes[name]
                traffic.send(self.tiles[name], np.full_like(size, c.tile), size)
                traffic.send(np.full_like(size, c.tile), self.tiles[name], size)
            workers = self.plan.target.workers_per_tile
            work["loss"][c.tile] += turns(-(-c.n // workers) * (p.n + counts) * self.a.loss_value, self.a, workers)
        return self._superstep("loss", traffic, work)

    def regularizer(self) -> tuple[Superstep, ...]:
        """Collectors count the spikes of all steps, a worker those of a whole collector; replicas add their counts; shards
        of the population get them all, and one worker a shard adds them up."""
        plan = self.plan
        names = self._firing([k for k in plan.populations if k not in plan.inputs])
        if not (plan.regularizes and plan.trains and names):
            return ()
        workers = plan.target.workers_per_tile
        count, add, traffic = self._nothing(), self._nothing(), self._traffic()
        n_counts = 0
        for name in names:
            p = plan.populations[name]
            tiles = np.array([c.tile for c in p.collectors])
            n_counts += len(tiles) * padded(p.n + 1, "float32")
            each = [
                turns(plan.n_steps * c.n * self.a.fetch_id * self.lengths[name].spikes, self.a, workers)
                for c in p.collectors
            ]
            count.add("loss", tiles, np.array(each), self.start)
            sizes = self.sizes[name]
            cycles = [turns(self.a.reduce_pair * len(tiles) * int(n), self.a, workers) for n in sizes]
            add.add("loss", self.tiles[name], np.array(cycles), self.start)
            sink = np.tile(self.tiles[name], len(tiles))
            traffic.send(np.repeat(tiles, len(sizes)), sink, 4 * np.tile(sizes, len(tiles)))
            traffic.broadcast(p.collectors, np.full_like(tiles, 4), np.unique(self.tiles[name]))
        counted = self._superstep("nothing", self._traffic(), count)
        return counted, *self._all_reduce(4 * n_counts), self._superstep("counts", traffic, add)

    def replicas(self) -> tuple[Superstep, ...]:
        """Gradients of all weights and other trained parameters, over replicas."""
        plan = self.plan
        if not plan.trains:
            return ()
        n_bytes = 0
        for name, sizes in self.sizes.items():
            p = plan.network.populations[name]
            rows = sum(plan.populations[c.pre].n for c in plan.incoming(name))
            rows += 6 * getattr(p, "bias", False) + n_learnt(p)
            n_bytes += 4 * rows * sum(padded(int(n), "float32") for n in sizes)
        return self._all_reduce(n_bytes)

    def _all_reduce(self, n_bytes: int) -> tuple[Superstep, ...]:
        """A ring over replicas: each device sends 2·(R - 1) parts, each 1/R of its data. R = 1: nothing."""
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

    def formulas(self, names: list[str]) -> Superstep:
        """The start of the vertices that evaluate the formulas of trained parameters; their few operations are not counted."""
        work = self._nothing()
        for name in names if self.plan.trains else ():
            if n_learnt(self.plan.network.populations[name]):
                work.add("optimizer", self.tiles[name], np.zeros(len(self.tiles[name])), self.start)
        return self._superstep("formulas", self._traffic(), work)

    def norm(self, names: list[str]) -> tuple[Superstep, ...]:
        """Six sums of squares a tile go to one tile of each device, where workers add them; the devices' sums go to one,
        and the norm back to all. If a device has few tiles in use, one worker adds all."""
        if not self.plan.trains:
            return ()
        target, workers = self.plan.target, self.plan.target.workers_per_tile
        used = np.unique(np.concatenate([self.tiles[k] for k in names]))
        traffic, work, last = self._traffic(), self._nothing(), self._nothing()
        n_sums = 0
        for device, n_used in enumerate(np.bincount(used // target.stride, minlength=target.devices)):
            tiles = used[used // target.stride == device]
            if n_used <= MAX_DIRECT_SUMS:
                n_sums += workers * int(n_used)
                continue
            n_sums += workers
            home = device * target.stride
            traffic.send(tiles, np.full_like(tiles, home), np.full_like(tiles, 4 * workers))
            work["optimizer"][home] = turns(self.a.norm_pair * (len(tiles) + 1), self.a, workers)
        last["optimizer"][0] = turns(self.a.norm_pair * n_sums, self.a, workers)
        return self._superstep("squares", traffic, work), self._superstep("squares", self._traffic(), last)

    def optimizer(self, names: list[str]) -> Superstep:
        work = self._nothing()
        for name in names:
            for n in {int(n) for n in self.sizes[name]}:
                tiles = self.tiles[name][self.sizes[name] == n]
                # two vertices: sums of squares, update
                work.add("optimizer", tiles, optimizer_cycles(self.plan, name, n, self.a), 2 * self.start)
        return self._superstep("norm", self._traffic(), work)

    # -- helpers --

    def _firing(self, names: list[str]) -> list[str]:
        return [k for k in names if k in self.plan.inputs or fires(self.plan.network.populations[k])]

    def _nothing(self) -> Work:
        return Work(self.plan.target.all_tiles)

    def _traffic(self) -> Traffic:
        return Traffic(self.plan)

    def _broadcast(
        self, traffic: Traffic, collectors: Sequence[Collector], per_sample: int, readers: list[np.ndarray]
    ) -> None:
        """These collectors' lists go to the tiles of all readers, once to each tile."""
        if readers:
            sizes = np.array([c.n * per_sample for c in collectors])
            traffic.broadcast(collectors, sizes, np.unique(np.concatenate(readers)))

    def _shards(self, names: list[str], phases: tuple[str, ...]) -> Work:
        work = self._nothing()
        for name in names:
            for n in {int(n) for n in self.sizes[name]}:
                tiles = self.tiles[name][self.sizes[name] == n]
                for phase in phases:
                    starts = self.start if phase in ("deliver", "state gradient") else 0.0
                    work.add(phase, tiles, self.by_size[name, n].get(phase, 0.0), starts)
        return work

    def _collectors(self, names: Sequence[str], phase: str) -> Work:
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

    def _superstep(self, name: str, traffic: Traffic, work: Mapping[str, np.ndarray]) -> Superstep:
        target = self.plan.target
        total = sum(work.values(), np.zeros(target.all_tiles))
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
