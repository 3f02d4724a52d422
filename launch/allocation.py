"""The scheduler's allocation for the job of this process, read from the environment.

| scheduler | ranks | hosts | threads of a rank, CPUs of a host |
|---|---|---|---|
| Slurm | `SLURM_NTASKS`, else `SLURM_NTASKS_PER_NODE` (or 1) per node | `SLURM_JOB_NUM_NODES` | `SLURM_CPUS_PER_TASK`, `SLURM_CPUS_ON_NODE` |
| PBS | lines of `PBS_NODEFILE` | distinct lines | |
| LSF | numbers in `LSB_MCPU_HOSTS`, such as `a 4 b 4` | its names | |
| Grid Engine | `NSLOTS` | `NHOSTS` | |

This module is for starting ranks; `host/comm/environment.py` finds the rank of a process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparsesnn.errors import ConfigError


@dataclass(frozen=True)
class Allocation:
    """An allocation.

    Args:
        source: the variable or file it was read from, for messages.
        ranks, hosts: number of ranks and of machines.
        threads: of a rank; None if the scheduler does not set it.
        cpus: of this host, for all its ranks; None if the scheduler does not set it.
    """

    source: str
    ranks: int
    hosts: int
    threads: int | None = None
    cpus: int | None = None


def find_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """The job of `environ` (usually `os.environ`); None outside of one.

    Errors: `ConfigError` if a variable is not a number, or a file of hosts cannot be read.
    """
    if "SLURM_JOB_ID" in environ:
        return _slurm(environ)
    if "PBS_NODEFILE" in environ:
        return _pbs(environ["PBS_NODEFILE"])
    if "LSB_MCPU_HOSTS" in environ:
        return _lsf(environ["LSB_MCPU_HOSTS"])
    if "NSLOTS" in environ and "NHOSTS" in environ:
        return Allocation("NSLOTS", _number(environ, "NSLOTS"), _number(environ, "NHOSTS"))
    return None


def in_slurm_step(environ: Mapping[str, str]) -> bool:
    """Whether this process runs in a step that holds CPUs of its job, such as `srun --pty bash`: a nested step would wait for
    them. Batch scripts and salloc's shell hold none; their step numbers, if any, are above those of other steps."""
    number = environ.get("SLURM_STEP_ID", "")
    return number.isdecimal() and int(number) < 0xFFFF_FFF0


def _slurm(environ: Mapping[str, str]) -> Allocation:
    hosts = _number(environ, "SLURM_JOB_NUM_NODES") if "SLURM_JOB_NUM_NODES" in environ else 1
    threads = _number(environ, "SLURM_CPUS_PER_TASK") if "SLURM_CPUS_PER_TASK" in environ else None
    cpus = _number(environ, "SLURM_CPUS_ON_NODE") if "SLURM_CPUS_ON_NODE" in environ else None
    if "SLURM_NTASKS" in environ:
        source, ranks = "SLURM_NTASKS", _number(environ, "SLURM_NTASKS")
    elif "SLURM_NTASKS_PER_NODE" in environ:
        source, ranks = "SLURM_NTASKS_PER_NODE", hosts * _number(environ, "SLURM_NTASKS_PER_NODE")
    else:
        source, ranks = "SLURM_JOB_NUM_NODES", hosts
    return Allocation(source, ranks, hosts, threads, cpus)


def _pbs(path: str) -> Allocation:
    try:
        lines = Path(path).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"PBS_NODEFILE: {path} cannot be read: {error}; give --ranks and --hosts") from None
    if not lines:
        raise ConfigError(f"PBS_NODEFILE: {path} names no host; give --ranks and --hosts")
    return Allocation("PBS_NODEFILE", len(lines), len(set(lines)))


def _lsf(text: str) -> Allocation:
    words = text.split()
    slots = words[1::2]
    if not words or len(words) % 2 or not all(re.fullmatch(r"[1-9]\d{0,8}", n) for n in slots):
        raise ConfigError(f"LSB_MCPU_HOSTS: is {text!r}; LSF writes it as 'a 4 b 4'; give --ranks and --hosts")
    return Allocation("LSB_MCPU_HOSTS", sum(map(int, slots)), len(slots))


def _number(environ: Mapping[str, str], name: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", environ[name]):
        raise ConfigError(f"{name}: is {environ[name]!r}; a scheduler sets it to a whole number; give --ranks")
    return int(environ[name])
