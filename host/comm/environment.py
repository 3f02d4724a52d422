"""The rank of this process, from the environment set by its launcher; no MPI call.

| launcher | variables |
|---|---|
| PopRun | `POPDIST_*`; an instance is a rank |
| Open MPI's mpirun | `OMPI_COMM_WORLD_*` |
| MPICH's, Intel's, Cray's mpiexec | `PMI_RANK`, `PMI_SIZE`, with `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` or `PMI_LOCAL_*` |
| Slurm's srun | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS`, `SLURM_LOCALID`, `SLURM_STEP_TASKS_PER_NODE` |
| torchrun | `TORCHELASTIC_RUN_ID`, `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE` |

They are tried in this order: PopRun runs over Open MPI, and an mpirun inside a Slurm job sees Slurm's variables too.
`SLURM_NTASKS` alone proves nothing: a batch script has it but is a single process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sparsesnn.errors import ConfigError


@dataclass(frozen=True)
class Place:
    """The place of a process in its run.

    Args:
        launcher: "popdist", "openmpi", "pmi", "slurm", "torchrun", or "none" if no launcher started this process.
        rank, size: among all processes.
        local_rank, local_size: among those on this host; None if the launcher does not set them.
    """

    launcher: str = "none"
    rank: int = 0
    size: int = 1
    local_rank: int | None = 0
    local_size: int | None = 1


def find_place(environ: Mapping[str, str]) -> Place:
    """The place of this process according to `environ` (usually `os.environ`); by default one process of one.

    Errors: `ConfigError` if variables contradict one another, are incomplete, or are not whole numbers.
    """
    if (replicas := find_replicas(environ)) is not None:
        return _popdist(environ, replicas)
    if "OMPI_COMM_WORLD_SIZE" in environ:
        return _place(environ, "openmpi", "OMPI_COMM_WORLD_", ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
    if "PMI_RANK" in environ:
        local = ("MPI_LOCALRANKID", "MPI_LOCALNRANKS") if "MPI_LOCALRANKID" in environ else _CRAY
        if "PMI_LOCAL_RANK" not in environ and local is _CRAY and "SLURM_STEP_NUM_TASKS" in environ:
            return _slurm(environ)  # srun with its PMI plugin, which does not describe hosts
        return _place(environ, "pmi", "", ("PMI_RANK", "PMI_SIZE", *local))
    if "SLURM_STEP_NUM_TASKS" in environ:
        return _slurm(environ)
    if "TORCHELASTIC_RUN_ID" in environ:
        return _place(environ, "torchrun", "", ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    return Place()


_CRAY = ("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE")


def _place(environ: Mapping[str, str], launcher: str, prefix: str, names: tuple[str, ...]) -> Place:
    rank, size = (_number(environ, prefix + name) for name in names[:2])
    local_rank, local_size = (
        _number(environ, prefix + name) if prefix + name in environ else None for name in names[2:]
    )
    return _checked(Place(launcher, rank, size, local_rank, local_size), prefix + names[0])


@dataclass(frozen=True)
class Replicas:
    """The replicas that PopRun assigns to this process, which PopRun calls an instance.

    Args:
        total: replicas of all instances together.
        own: replicas of this instance; every instance has the same number.
        first: number of this instance's first replica.
        ipus: IPUs of each replica.
    """

    total: int
    own: int
    first: int
    ipus: int

    @property
    def instance(self) -> int:
        """Number of this instance, from 0."""
        return self.first // self.own

    @property
    def n_instances(self) -> int:
        return self.total // self.own


def find_replicas(environ: Mapping[str, str]) -> Replicas | None:
    """The replicas of this process according to `environ` (usually `os.environ`); None if PopRun did not start it.

    Errors: `ConfigError` if variables contradict one another, are missing, or are not whole numbers.
    """
    if "POPDIST_NUM_TOTAL_REPLICAS" not in environ:
        return None
    total = _number(environ, "POPDIST_NUM_TOTAL_REPLICAS")
    own = _number(environ, "POPDIST_NUM_LOCAL_REPLICAS")
    first = _number(environ, "POPDIST_REPLICA_INDEX_OFFSET")
    # PopDist assumes one IPU per replica if PopRun does not set it.
    ipus = _number(environ, "POPDIST_NUM_IPUS_PER_REPLICA") if "POPDIST_NUM_IPUS_PER_REPLICA" in environ else 1
    uniform = environ.get("POPDIST_UNIFORM_REPLICAS_PER_INSTANCE", "1") != "0"
    if own < 1 or total % own or first % own or not uniform:
        raise ConfigError(
            f"POPDIST_*: {total} replicas, {own} in this process, starting at {first}; every process must "
            "have the same number: give poprun a --num-instances that divides --num-replicas"
        )
    if ipus < 1:
        raise ConfigError(
            f"POPDIST_NUM_IPUS_PER_REPLICA: is {ipus}; a replica has at least 1 IPU: give poprun --ipus-per-replica"
        )
    return Replicas(total, own, first, ipus)


def _popdist(environ: Mapping[str, str], replicas: Replicas) -> Place:
    """PopRun distributes replicas evenly, in order."""
    local_rank = _number(environ, "POPDIST_LOCAL_INSTANCE_INDEX") if "POPDIST_LOCAL_INSTANCE_INDEX" in environ else None
    mpi = "OMPI_COMM_WORLD_LOCAL_SIZE"
    local_size = _number(environ, mpi) if mpi in environ else None
    place = Place("popdist", replicas.instance, replicas.n_instances, local_rank, local_size)
    return _checked(place, "POPDIST_REPLICA_INDEX_OFFSET")


def _slurm(environ: Mapping[str, str]) -> Place:
    local_rank = _number(environ, "SLURM_LOCALID") if "SLURM_LOCALID" in environ else None
    local_size = None
    if "SLURM_STEP_TASKS_PER_NODE" in environ and "SLURM_NODEID" in environ:
        local_size = _tasks_of_node(environ["SLURM_STEP_TASKS_PER_NODE"], _number(environ, "SLURM_NODEID"))
    rank, size = _number(environ, "SLURM_PROCID"), _number(environ, "SLURM_STEP_NUM_TASKS")
    return _checked(Place("slurm", rank, size, local_rank, local_size), "SLURM_PROCID")


def _tasks_of_node(text: str, node: int) -> int:
    """The number of tasks on `node`; `"4(x2),3"` means four on nodes 0 and 1 and three on node 2."""
    left = node
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,9})\))?", part)
        if match is None:
            raise ConfigError(f"SLURM_STEP_TASKS_PER_NODE: is {text!r}; srun writes it as '4(x2),3'; unset it")
        repeats = int(match[2] or 1)
        if left < repeats:
            return int(match[1])
        left -= repeats
    raise ConfigError(f"SLURM_NODEID: is {node}, but SLURM_STEP_TASKS_PER_NODE={text} names fewer nodes; unset it")


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name)
    if text is None:
        raise ConfigError(
            f"{name}: is not set, but related variables are; start with `sparsesnn launch`, or unset them"
        )
    if not re.fullmatch(r"\d{1,9}", text):
        raise ConfigError(f"{name}: is {text!r}; a launcher sets it to a whole number; unset it to run alone")
    return int(text)


def _checked(place: Place, source: str) -> Place:
    local_rank, local_size = place.local_rank, place.local_size
    fits = place.rank < place.size and (local_size is None or local_size <= place.size)
    if local_rank is not None:
        # ranks on a host have their own order
        fits = fits and local_rank < (place.size if local_size is None else local_size)
    if not fits:
        known = [str(x) for x in (local_rank, local_size) if x is not None]
        here = f", on its host {' of '.join(known)}" if known else ""
        raise ConfigError(
            f"{source}: the launcher ({place.launcher}) says rank {place.rank} of {place.size}{here}; ranks go from 0 "
            "to their number minus 1: unset variables left by an outer job"
        )
    return place
