"""The points of a scaling series: what is asked for, checked, and what each point is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from sparsesnn.errors import ConfigError
from sparsesnn.layers import LI, LIF, Input
from sparsesnn.network import Network
from sparsesnn.wording import count, powers_of_two_near

if TYPE_CHECKING:
    from sparsesnn.partition.target import Target

KINDS = ("weak-scaling", "strong-scaling", "batch-size")
GROWTHS = ("layers", "width", "batch")
BACKENDS = ("cpu", "ipu", "ipu-model")
#: whose IPUs are taken if nothing else is asked for
MACHINE = "ipu-mk2"
#: how a row came about
MEASURED, EMULATED, DRY_RUN = "measured", "emulated", "dry run"
#: synaptic events that take as long as an update of a neuron, forward and backward (AMD EPYC with AVX-512): a part of the work of a row
EVENTS_OF_AN_UPDATE = 20.0
Row = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """One measurement.

    Args:
        replicas, shards: the grid; ranks are their product.
        n_layers, width: hidden LIF layers and neurons in each; recurrent: each feeds itself.
        batch, n_steps: B over all replicas, and T.
        n_classes: readout neurons.
        activity, max_activity: spikes per neuron and step of the random input, to which the weights of every layer are
            scaled too, and what lists have room for.
        repeats, warm_up: timed steps, and untimed ones before.
        seed: of input and labels.
        how: `MEASURED`, `EMULATED`: cycles counted on emulated IPUs, or `DRY_RUN`: one rank plays all alone.
    """

    replicas: int
    shards: int
    n_layers: int
    width: int
    batch: int
    recurrent: bool = False
    n_steps: int = 100
    n_classes: int = 20
    activity: float = 0.02
    max_activity: float = 0.05
    repeats: int = 9
    warm_up: int = 2
    seed: int = 0
    how: str = MEASURED

    @property
    def ranks(self) -> int:
        return self.replicas * self.shards


@dataclass(frozen=True)
class Settings:
    """A series of measurements; see `Point` for what has the same name.

    Args:
        kind: one of `KINDS`.
        ranks: how many; of batch-size the first is taken.
        grow: of weak-scaling, one of `GROWTHS`.
        split: who shares the work: "neurons" (shards) or "samples" (replicas).
        batches: of batch-size.
        threads: of a rank.
        dry_run_ranks: how many ranks the points have that a dry run plays.
        link: of these points, as `--link` says it; empty: the links that were measured last.
        backend: "cpu", "ipu" or "ipu-model"; of the last two a rank is an IPU.
        target: one of these IPUs.
        instances: of PopRun, which start the points on IPUs; 0: one process without PopRun.
    """

    kind: str = "weak-scaling"
    ranks: tuple[int, ...] = (1, 2)
    grow: str = "layers"
    split: str = "neurons"
    n_layers: int = 2
    width: int = 1024
    batch: int = 48
    batches: tuple[int, ...] = (8, 16, 32, 64, 128)
    threads: int = 1
    recurrent: bool = False
    n_steps: int = 100
    activity: float = 0.02
    max_activity: float = 0.05
    repeats: int = 9
    dry_run_ranks: tuple[int, ...] = ()
    link: str = ""
    backend: str = "cpu"
    target: str = MACHINE
    instances: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (
            ("kind", KINDS),
            ("grow", GROWTHS),
            ("split", ("neurons", "samples")),
            ("backend", BACKENDS),
        ):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"--{name}: is {getattr(self, name)!r}; allowed: {', '.join(allowed)}")
        for name in ("n_layers", "width", "batch", "threads", "n_steps", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.removeprefix('n_')}: is {getattr(self, name)}; give at least 1")
        if not self.ranks or list(self.ranks) != sorted(set(self.ranks)) or self.ranks[0] < 1:
            raise ConfigError(
                f"--ranks: are {list(self.ranks)}; give different numbers in ascending order, such as 1,2,4"
            )
        self._check_dry_runs()
        if self.on_ranks:
            for name, default in (("instances", 0), ("target", MACHINE)):
                if (value := getattr(self, name)) != default:
                    raise ConfigError(
                        f"--{name}: is {value!r} with --backend cpu; only ipu and ipu-model read it; leave it out, or change "
                        "the backend"
                    )
        else:
            self._check_ipus()
        if not 0 < self.activity <= self.max_activity <= 1:
            raise ConfigError(
                f"--activity: is {self.activity:g} with room for {self.max_activity:g}; give 0 < activity <= --max-activity <= 1"
            )
        deepest = max(point.n_layers for point in points(self))
        if self.n_steps < deepest + 1:
            raise ConfigError(
                f"--steps: are {self.n_steps} for {count(deepest, 'layer')}: spikes would not reach the last; give at least {deepest + 1}"
            )

    @property
    def on_ranks(self) -> bool:
        """Whether ranks of MPI share the work; else IPUs do."""
        from sparsesnn.engines import engine_class  # imports PyTorch

        return engine_class(self.backend).takes_shards

    @property
    def how(self) -> str:
        """How its points are timed, other than by dry runs."""
        from sparsesnn.ipu.backends import MACHINES

        return EMULATED if not self.on_ranks and MACHINES[self.backend].emulated else MEASURED

    def _check_ipus(self) -> None:
        target_of(self.backend, self.target)
        for n in self.ranks:
            if near := powers_of_two_near(n):
                raise ConfigError(
                    f"--ranks: are {list(self.ranks)} with --backend {self.backend}, which are IPUs, and IPUs come in powers of two; "
                    f"for {n} give {near}"
                )
        if self.dry_run_ranks:
            raise ConfigError(
                f"--dry-run-ranks: are {list(self.dry_run_ranks)} with --backend {self.backend}; only cpu plays ranks; leave "
                "them out"
            )
        if self.instances > 1 and self.how == EMULATED:
            raise ConfigError(
                f"--instances: is {self.instances} with --backend {self.backend}, which runs in one process; give 1, or 0 to "
                "start without PopRun"
            )
        uneven = [point for point in points(self) if self.instances and point.replicas % self.instances]
        if self.instances < 0 or uneven:
            raise ConfigError(
                f"--instances: is {self.instances}, but a point has {count(uneven[0].replicas if uneven else 1, 'replica')}, "
                "which they cannot share evenly; give 0, 1 or a divisor (--split samples, --grow batch)"
            )

    def _check_dry_runs(self) -> None:
        found = list(self.dry_run_ranks)
        if found != sorted(set(found)) or (found and found[0] < 2):
            raise ConfigError(
                f"--dry-run-ranks: are {found}; give different numbers from 2 up in ascending order, such as 64,1024"
            )
        if found and not self.link and self.ranks[-1] < 2:
            raise ConfigError(
                f"--dry-run-ranks: {found} need the links between ranks, which --ranks {self.ranks[-1]} does not measure; add "
                "--ranks 1,2 or --link GB/s,us"
            )
        if self.link and not found:
            raise ConfigError(f"--link: is {self.link!r}, but only --dry-run-ranks reads it; add them, or leave it out")


def points(settings: Settings) -> Iterator[Point]:
    """The points of a series, in order: those that are measured, then the dry runs."""
    samples = settings.split == "samples" or (settings.kind == "weak-scaling" and settings.grow == "batch")
    shared = {f.name: getattr(settings, f.name) for f in fields(Settings) if f.name in POINT_FIELDS}
    measured = [(n, settings.how) for n in (settings.ranks if settings.kind != "batch-size" else settings.ranks[:1])]
    for n, how in [*measured, *((n, DRY_RUN) for n in settings.dry_run_ranks)]:
        base = Point(**shared, replicas=n if samples else 1, shards=1 if samples else n, how=how)
        if settings.kind == "strong-scaling":
            yield base
        elif settings.kind == "batch-size":
            yield from (replace(base, batch=batch) for batch in settings.batches)
        elif settings.grow == "layers":
            yield replace(base, n_layers=settings.n_layers * n)
        elif settings.grow == "width":
            yield replace(base, width=round(settings.width * math.sqrt(n) / 64) * 64 if n > 1 else settings.width)
        else:
            yield replace(base, batch=settings.batch * n)


POINT_FIELDS = {f.name for f in fields(Point)}


def share_of(settings: Settings, point: Point) -> Point | None:
    """What each rank of a weak-scaling point has to do, as a network of its own; None where that is not a point to measure."""
    if settings.kind != "weak-scaling" or point.ranks == 1 or point.how == DRY_RUN or not settings.on_ranks:
        return None
    return replace(point, replicas=1, shards=1, n_layers=settings.n_layers, width=settings.width, batch=settings.batch)


def network_of(point: Point) -> Network:
    """Hidden layers with lists of `max_activity`, an input of their size, an LI readout; no delays."""
    capacity = max(1, math.ceil(point.max_activity * point.width))
    hidden = LIF(point.width, recurrent=point.recurrent, capacity=capacity)
    return Network.chain(Input(point.width), *[hidden] * point.n_layers, LI(point.n_classes))


def target_of(backend: str, target: str, shards: int = 1) -> Target:
    """`shards` of the IPUs that `target` describes, such as "ipu-mk2" or "ipu-mk2:1x64".

    Errors: `ConfigError` for a target of several IPUs, and those of `check_backend`.
    """
    from sparsesnn.bench.ipu_step import check_backend  # imports PyTorch

    one = check_backend(backend, target)
    if one.devices != 1:
        raise ConfigError(
            f"--target: is {target!r}, of {one.devices} IPUs; give one IPU, such as ipu-mk2 or ipu-mk2:1x64: --ranks says how many"
        )
    return replace(one, name=f"{one.name.partition(':')[0]}:{shards}x{one.tiles}", devices=shards)


def work_per_s(row: Row) -> float:
    """Synaptic events a second (`point_work.events_of`), and updates of neurons as the events that take as long."""
    updates_per_s = row["n_neurons"] * row["n_steps"] * row["samples_per_s"]
    return float(row["events_per_s"] + EVENTS_OF_AN_UPDATE * updates_per_s)
