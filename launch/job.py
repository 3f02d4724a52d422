"""What is to be started: so many ranks of a program, where, with how many threads."""

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
    """A machine and how many ranks go there."""

    name: str
    ranks: int


@dataclass(frozen=True)
class PopRun:
    """What only PopRun is told; a rank is one of its instances.

    Args:
        replicas: of the graph, over all instances; as many in each.
        ipus_per_replica: IPUs that hold one graph.
        partition: of the V-IPU controller; None: PopRun's own choice.
    """

    replicas: int = 1
    ipus_per_replica: int = 1
    partition: str | None = None


@dataclass(frozen=True)
class Job:
    """Ranks of one program.

    Args:
        program: its arguments, the executable first; never a shell's text.
        ranks: processes.
        hosts: where they go, in order; empty: this machine, or what the scheduler gave.
        ranks_per_host: at most so many on one host; None: what `hosts` says, or the launcher's choice.
        threads: worker threads of a rank, and cores it is bound to.
        bind: to cores; False where ranks share them.
        oversubscribe: more ranks than cores are wanted.
        environment: variables for every rank, beside those of `thread_variables`.
        pmi: srun's `--mpi`; None: the cluster's default.
        overlap: srun starts a step within another one, and shares its CPUs.
        extra: arguments for the launcher itself, as they are.
        poprun: set where PopRun starts the job.

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
                "launch: which command? give it after --, such as: sparsesnn launch --ranks 4 -- train digits"
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
        """The environment of every rank: its threads, then what was asked for."""
        return thread_variables(self.threads) | dict(self.environment)


def thread_variables(threads: int) -> dict[str, str]:
    """What the engine and PyTorch's thread pools read."""
    return {"SPARSESNN_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}


def _check(name: str, value: object, limit: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
        raise ConfigError(f"--{name}: is {value!r}; give a whole number from 1 to {limit:,}")


def parse_hosts(text: str, ranks: int | None, each: int = 1) -> tuple[Host, ...]:
    """`"a,b"` with 4 ranks → two each; `"a:3,b:1"` → three and one. The first hosts take what does not divide.

    Args:
        ranks: of all hosts; None: what `text` says, or `each` a host.

    Errors: `ConfigError` for anything that is no host name, hosts named twice, and ranks said for some only.
    """
    found = [_HOST.fullmatch(part.strip()) for part in text.split(",")]
    if not all(found) or len({match[1] for match in found if match}) != len(found):
        raise ConfigError(f"--hosts: is {text!r}; give different host names joined by commas, such as a,b or a:4,b:2")
    names = [(match[1], match[2]) for match in found if match]
    said = [n for _, n in names if n is not None]
    if said and len(said) < len(names):
        raise ConfigError(f"--hosts: is {text!r}; say how many ranks for every host, such as a:4,b:2, or for none")
    if said:
        return tuple(Host(name, int(n or 0)) for name, n in names)
    if ranks is None:
        ranks = each * len(names)
    if ranks < len(names):
        raise ConfigError(f"--hosts: names {len(names)} hosts for {count(ranks, 'rank')}; give at most one host a rank")
    share, left = divmod(ranks, len(names))
    return tuple(Host(name, share + (k < left)) for k, (name, _) in enumerate(names))
