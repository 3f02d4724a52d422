"""Description of a job: ranks of a program, their hosts and their threads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from sparsesnn.errors import ConfigError
from sparsesnn.wording import count, powers_of_two_near

MAX_RANKS, MAX_THREADS = 1_000_000, 1024
_HOST = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?::([1-9][0-9]{0,5}))?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Host:
    """A machine and its number of ranks."""

    name: str
    ranks: int


@dataclass(frozen=True)
class PopRun:
    """Settings for PopRun alone; a rank is one of its instances.

    Args:
        replicas: of the graph, over all instances; the same number in each.
        ipus_per_replica: IPUs that hold one graph.
        partition: of the V-IPU controller; None: PopRun's choice.
    """

    replicas: int = 1
    ipus_per_replica: int = 1
    partition: str | None = None


@dataclass(frozen=True)
class Job:
    """Ranks of one program.

    Args:
        program: its arguments, the executable first; never shell code.
        ranks: number of processes.
        hosts: in order of the ranks; empty: this machine, or the scheduler's allocation.
        ranks_per_host: most ranks on one host; None: as in `hosts`, or the launcher's choice.
        threads: worker threads per rank, and cores that it is bound to.
        bind: to cores; False if ranks share them.
        oversubscribe: allow more ranks than cores.
        environment: variables for every rank, in addition to `thread_variables`.
        pmi: srun's `--mpi`; None: the cluster's default.
        overlap: srun starts a step within another one and shares its CPUs.
        extra: arguments passed unchanged to the launcher.
        poprun: set if PopRun starts the job.

    Errors: `ConfigError`.
    """

    program: tuple[str, ...]
    ranks: int = 1
    hosts: tuple[Host, ...] = ()
    ranks_per_host: int | None = None
    threads: int = 1
    bind: bool = True
    oversubscribe: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    pmi: str | None = None
    overlap: bool = False
    extra: tuple[str, ...] = ()
    poprun: PopRun | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "environment", MappingProxyType(dict(self.environment)))
        if not self.program:
            raise ConfigError(
                "launch: the command is missing; give it after --, such as: sparsesnn launch --ranks 4 -- train digits"
            )
        _check("ranks", self.ranks, MAX_RANKS)
        _check("threads", self.threads, MAX_THREADS)
        if self.ranks_per_host is not None:
            _check("ranks-per-host", self.ranks_per_host, MAX_RANKS)
        placed = sum(host.ranks for host in self.hosts)
        if self.hosts and placed != self.ranks:
            raise ConfigError(
                f"--hosts: has room for {count(placed, 'rank')}, but --ranks is {self.ranks}; give --ranks {placed}"
            )
        if self.ranks_per_host is not None and (full := [h for h in self.hosts if h.ranks > self.ranks_per_host]):
            raise ConfigError(
                f"--ranks-per-host: is {self.ranks_per_host}, but --hosts puts {full[0].ranks} of {count(self.ranks, 'rank')} on "
                f"{full[0].name}; name more hosts, or leave --ranks-per-host out"
            )
        for name, value in self.environment.items():
            if not _NAME.fullmatch(name) or "\0" in value:
                raise ConfigError(f"--env: is {name}={value!r}; give NAME=VALUE, such as SPARSESNN_ISA=base")
        if self.poprun is not None:
            _check("num-replicas", self.poprun.replicas, MAX_RANKS)
            _check("ipus-per-replica", self.poprun.ipus_per_replica, MAX_RANKS)
            for name, n in (("ipus-per-replica", self.poprun.ipus_per_replica), ("num-replicas", self.poprun.replicas)):
                if near := powers_of_two_near(n):
                    raise ConfigError(f"--{name}: is {n}; IPUs come in powers of two: give {near}")
            if self.poprun.replicas % self.ranks:
                near = powers_of_two_near(self.ranks)
                raise ConfigError(
                    f"--num-replicas: is {self.poprun.replicas}, which {self.ranks} ranks (instances) cannot share evenly; "
                    + (f"give {near} ranks" if near else f"give {self.ranks} replicas or more")
                )

    @property
    def variables(self) -> dict[str, str]:
        """The environment of every rank: its threads, then `environment`."""
        return thread_variables(self.threads) | dict(self.environment)


def thread_variables(threads: int) -> dict[str, str]:
    """Variables for the engine and PyTorch's thread pools."""
    return {"SPARSESNN_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}


def _check(name: str, value: object, limit: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
        raise ConfigError(f"--{name}: is {value!r}; give a whole number from 1 to {limit:,}")


def parse_hosts(text: str, ranks: int | None, each: int = 1) -> tuple[Host, ...]:
    """`"a,b"` with 4 ranks → two each; `"a:3,b:1"` → three and one. The first hosts take the remainder.

    Args:
        ranks: of all hosts; None: the sum of `text`, or `each` per host.

    Errors: `ConfigError` for an invalid host name, hosts named twice, and numbers of ranks for some hosts only.
    """
    matches = [_HOST.fullmatch(part.strip()) for part in text.split(",")]
    if not all(matches) or len({match[1] for match in matches if match}) != len(matches):
        raise ConfigError(f"--hosts: is {text!r}; give different host names joined by commas, such as a,b or a:4,b:2")
    names = [(match[1], match[2]) for match in matches if match]
    counts = [n for _, n in names if n is not None]
    if counts and len(counts) < len(names):
        raise ConfigError(
            f"--hosts: is {text!r}; give the number of ranks for every host, such as a:4,b:2, or for none"
        )
    if counts:
        return tuple(Host(name, int(n or 0)) for name, n in names)
    if ranks is None:
        ranks = each * len(names)
    if ranks < len(names):
        raise ConfigError(
            f"--hosts: names {len(names)} hosts for {count(ranks, 'rank')}; give at most one host per rank"
        )
    share, left = divmod(ranks, len(names))
    return tuple(Host(name, share + (k < left)) for k, (name, _) in enumerate(names))
