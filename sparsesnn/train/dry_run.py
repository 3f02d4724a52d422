"""Training steps of one rank without the others: its memory, its messages, and the time of a step.

The other ranks' messages are made up (`host/comm/dry_run.py`), so weights, loss and accuracy are meaningless, and nothing is written.
"""

from __future__ import annotations

import itertools
import resource
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median

from sparsesnn import _core, engines
from sparsesnn.config import Config
from sparsesnn.engines import Batch
from sparsesnn.engines.ranks.shards import make_shards
from sparsesnn.errors import ConfigError
from sparsesnn.host.comm.base import Traffic
from sparsesnn.host.comm.dry_run import DryRun
from sparsesnn.partition.cpu.memory import rank_bytes
from sparsesnn.partition.target import Links, parse_target
from sparsesnn.runtime import num_threads
from sparsesnn.train import prepare
from sparsesnn.train.start import scale_weights
from sparsesnn.wording import count

#: training steps before the measurement, and in it
WARM_UP, STEPS = 2, 7


@dataclass(frozen=True)
class DryRunResult:
    """The measurements of a rank's training step.

    Args:
        rank, ranks, replicas, shards: the simulated rank, which owns the most neurons, the number of ranks, and the grid.
        batch, rank_batch, n_steps: samples of all replicas and of this one, time steps.
        step_ms: median of the modeled time: computed_ms here, and waited_ms for messages.
        phases_ms: the engine's phases in computed_ms; `sort`: the time to sort all ranks' lists by sender.
        traffic: of a training step by kind of exchange, and in total: messages, bytes sent and received, seconds of waiting.
        peak_bytes: highest memory of the process, with data, Python and PyTorch; before_bytes: memory before the network was made.
        activity: spikes per neuron and step.
        links: bandwidth and latency of the modeled links.
        planned_bytes: memory of the same rank in a plan, with this activity.
    """

    rank: int
    ranks: int
    replicas: int
    shards: int
    batch: int
    rank_batch: int
    n_steps: int
    threads: int
    step_ms: float
    computed_ms: float
    waited_ms: float
    phases_ms: Mapping[str, float]
    traffic: Mapping[str, Mapping[str, float]]
    peak_bytes: int
    before_bytes: int
    activity: Mapping[str, float]
    links: Mapping[str, float]
    planned_bytes: int

    def table(self) -> str:
        """The result as a text table."""
        grid = f"{count(self.replicas, 'replica')} × {count(self.shards, 'shard')}"
        total = self.traffic["all"]
        lines = [
            f"dry run  rank {self.rank} of {self.ranks:,} ({grid}), {count(self.threads, 'thread')}, {self.rank_batch} of "
            f"{self.batch} samples, T = {self.n_steps}",
            "         one rank alone: the others' messages are made up, so the training is meaningless, and nothing is written",
            f"links    {self.links['bytes_per_s'] / 1e9:.3g} GB/s, {1e6 * self.links['latency_s']:.3g} µs a message",
            "activity " + ", ".join(f"{name} {value:.4f}" for name, value in self.activity.items()),
            "",
            "a training step",
        ]
        rows = [
            ("time, ms", self.step_ms),
            ("  computed", self.computed_ms),
            ("  waited for messages", self.waited_ms),
            ("messages sent", total["n_messages"]),
            ("MB sent", total["bytes_sent"] / 1e6),
            ("MB received", total["bytes_received"] / 1e6),
            ("memory above start, MB", (self.peak_bytes - self.before_bytes) / 1e6),
        ]
        lines += [f"{name:<24}{value:>12,.4g}" for name, value in rows]
        lines.append(
            f"the process held {self.peak_bytes / 1e6:,.0f} MB at most, {self.before_bytes / 1e6:,.0f} before the network; a plan counts "
            f"{self.planned_bytes / 1e6:,.0f} MB for the rank"
        )
        lines += ["", f"{'exchanged':<24}{'messages':>12}{'kB sent':>12}{'kB received':>12}{'waited, ms':>12}"]
        for what, of in self.traffic.items():
            lines.append(
                f"{what:<24}{of['n_messages']:>12,.0f}{of['bytes_sent'] / 1e3:>12,.1f}{of['bytes_received'] / 1e3:>12,.1f}"
                f"{1e3 * of['seconds']:>12,.3f}"
            )
        phases = ", ".join(f"{name} {ms:.2f}" for name, ms in self.phases_ms.items() if ms >= 0.005)
        return "\n".join([*lines, "", f"computed, ms: {phases}"])


def dry_run(config: Config, n_ranks: int, links: Links) -> DryRunResult:
    """Some training steps of the rank that owns the most neurons.

    Errors: `ConfigError` for an engine other than `cpu`, and if the grid does not fit; `DescriptionError` for networks that do
    not run over ranks.
    """
    t = config.train
    if not engines.engine_class(t.backend).takes_shards:
        raise ConfigError(f"--comm dry-run: train.backend is {t.backend!r}; allowed: cpu")
    parts = prepare.load_parts(config.data)
    network = prepare.make_network(config, parts)
    n_shards = engines.engine_grid(
        t.backend, DryRun(n_ranks), config.parallel.replicas, config.parallel.shards
    ).n_shards
    shards = make_shards(network, n_shards, 0)
    rank = max(range(n_shards), key=lambda r: sum(one.n_of(r) for one in shards.values()))
    world = DryRun(n_ranks, rank, links)
    grid = engines.engine_grid(t.backend, world, config.parallel.replicas, config.parallel.shards)
    engines.set_threads(t.backend, t.threads, t.engine_options(), 1)
    events = parts.train.event_set
    stream = prepare.train_stream(config, parts.train, grid.replicas)
    before = _peak_bytes()
    training = prepare.make_training(config, network, parts.n_outputs, parts.task, graded=events.values is not None)
    engine = engines.make_engine(t.backend, network, training, grid)
    scale_weights(config, parts, engine, only=[name for name, one in shards.items() if one.n_of(rank)])
    engine.start()
    seconds, waited, phases = [], [], []
    traffic: dict[str, Traffic] = {}
    activity: Mapping[str, float] = {}
    n_samples = 0
    places = ((epoch, k, batch) for epoch in itertools.count() for k, batch in enumerate(stream.epoch(epoch)))
    for step, (epoch, k, (spikes, labels)) in zip(range(WARM_UP + STEPS), places, strict=False):
        clock = world.clock
        if step == WARM_UP:
            clock.traffic.clear()
        _core.phase_seconds(reset=True)
        now, was = clock.now, clock.waited
        batch = Batch(spikes, labels, *stream.place(k), prepare.heard(config, stream, epoch, k))
        done = engine.step(batch, 0.0)  # the update takes its usual time, and the activity does not change
        clock.advance()
        if step >= WARM_UP:
            seconds.append(clock.now - now)
            waited.append(clock.waited - was)
            phases.append(_core.phase_seconds(reset=True))
            traffic = dict(clock.traffic)
            activity, n_samples = done.activity, max(n_samples, spikes.n_samples)
    peak = _peak_bytes()
    target = parse_target(f"mpi:{n_shards}x{num_threads()}")
    plan = prepare.make_rank_plan(config, network, events, target, grid.n_replicas, n_samples, activity)
    return DryRunResult(
        rank=rank,
        ranks=n_ranks,
        replicas=grid.n_replicas,
        shards=n_shards,
        batch=t.batch,
        rank_batch=n_samples,
        n_steps=events.n_steps,
        threads=num_threads(),
        step_ms=1e3 * median(seconds),
        computed_ms=1e3 * median(s - w for s, w in zip(seconds, waited, strict=True)),
        waited_ms=1e3 * median(waited),
        phases_ms={name: 1e3 * median(p[name] for p in phases) for name in phases[0]},
        traffic=_by_step(traffic),
        peak_bytes=peak,
        before_bytes=before,
        activity={network.inputs[0]: events.activity(), **activity},
        links=asdict(links),
        planned_bytes=sum(rank_bytes(plan)[rank].values()),
    )


def _by_step(traffic: Mapping[str, Traffic]) -> dict[str, dict[str, float]]:
    """The traffic of a training step, by kind of exchange and in total."""
    table: dict[str, dict[str, float]] = {}
    for what, counted in traffic.items():
        if counted.n_messages:
            table[what] = {key: value / STEPS for key, value in asdict(counted).items()}
    keys = asdict(Traffic())
    table["all"] = {key: sum(of[key] for of in table.values()) for key in keys}
    return table


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
