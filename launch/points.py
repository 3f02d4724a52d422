"""The points of a scaling series, and its settings with their checks."""

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
#: default target for IPUs
MACHINE = "ipu-mk2"
#: origins of a row
MEASURED, EMULATED, DRY_RUN = "measured", "emulated", "dry run"
#: synaptic events that cost as much as an update of a neuron, forward and backward (AMD EPYC with AVX-512); for the work of a row
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
        activity, max_activity: spikes per neuron and step of the random input and, by scaled weights, of every layer; and
            the most that fit into lists.
        repeats, warm_up: timed steps, and untimed ones before.
        seed: of input and labels.
        how: `MEASURED`, `EMULATED`: cycles counted on emulated IPUs, or `DRY_RUN`: one rank simulates the others.
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
    """A series of measurements; see `Point` for attributes with the same names.

    Args:
        kind: one of `KINDS`.
        ranks: numbers of ranks; batch-size uses the first.
        grow: for weak-scaling, one of `GROWTHS`.
        split: ranks share "neurons" (shards) or "samples" (replicas).
        batches: for batch-size.
        threads: of a rank.
        dry_run_ranks: numbers of ranks for points by dry run.
        link: for dry runs, in the form of `--link`; empty: the links measured last.
        backend: "cpu", "ipu" or "ipu-model"; on the last two a rank is an IPU.
        target: a single IPU.
        instances: of PopRun, which run the points on IPUs; 0: one process without PopRun.
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
                f"--ranks: is {list(self.ranks)}; give different numbers in ascending order, such as 1,2,4"
            )
        self._check_dry_runs()
        if self.on_ranks:
            for name, default in (("instances", 0), ("target", MACHINE)):
                if (value := getattr(self, name)) != default:
                    raise ConfigError(
                        f"--{name}: is {value!r} with --backend cpu; it applies only to ipu and ipu-model; leave it out, or change "
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
                f"--steps: is {self.n_steps} for {count(deepest, 'layer')}: spikes would not reach the last layer; give at least {deepest + 1}"
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
                    f"--ranks: is {list(self.ranks)} with --backend {self.backend}; ranks are IPUs, and IPUs come in powers of two; "
                    f"for {n} give {near}"
                )
        if self.dry_run_ranks:
            raise ConfigError(
                f"--dry-run-ranks: is {list(self.dry_run_ranks)} with --backend {self.backend}; only cpu supports dry runs; leave "
                "it out"
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
        numbers = list(self.dry_run_ranks)
        if numbers != sorted(set(numbers)) or (numbers and numbers[0] < 2):
            raise ConfigError(
                f"--dry-run-ranks: is {numbers}; give different numbers from 2 up in ascending order, such as 64,1024"
            )
        if numbers and not self.link and self.ranks[-1] < 2:
            raise ConfigError(
                f"--dry-run-ranks: {numbers} needs the links between ranks, which --ranks {self.ranks[-1]} does not measure; add "
                "--ranks 1,2 or --link GB/s,us"
            )
        if self.link and not numbers:
            raise ConfigError(
                f"--link: is {self.link!r}, but it applies only with --dry-run-ranks; add that, or leave it out"
            )


def points(settings: Settings) -> Iterator[Point]:
    """The points of a series, in order: measured ones, then dry runs."""
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
    """The share of one rank of a weak-scaling point, as a point on one rank; None if it is not to be measured."""
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
            f"--target: is {target!r}, of {one.devices} IPUs; give one IPU, such as ipu-mk2 or ipu-mk2:1x64: --ranks sets their number"
        )
    return replace(one, name=f"{one.name.partition(':')[0]}:{shards}x{one.tiles}", devices=shards)


def work_per_s(row: Row) -> float:
    """Synaptic events per second (`point_work.events_of`), plus updates of neurons in events of equal cost."""
    updates_per_s = row["n_neurons"] * row["n_steps"] * row["samples_per_s"]
    return float(row["events_per_s"] + EVENTS_OF_AN_UPDATE * updates_per_s)
