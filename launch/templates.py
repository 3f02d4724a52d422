"""Batch scripts for clusters: text to save, review and submit.

| template | for |
|---|---|
| `slurm` | any cluster with Slurm and an MPI that srun starts |
| `jsc` | Jülich's machines (JURECA, JUWELS, JUSUF): account and partition are required, ParaStationMPI, whole nodes |
| `alcf` | the Graphcore machine of ALCF's AI Testbed: Slurm gives IPUs (`--ipus`) and names the partition after the job |
| `poprun` | a Graphcore machine without a scheduler |
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sparsesnn.errors import ConfigError
from sparsesnn.launch.command import command_line
from sparsesnn.launch.job import Job

TEMPLATES = ("slurm", "jsc", "alcf", "poprun")
#: seconds before the time limit at which Slurm signals `sparsesnn train` to write its checkpoint and end. Slurm may signal
#: up to 60 s earlier. With a short limit, at most this part of it.
GRACE_S, GRACE_PART = 120, 1 / 5


@dataclass(frozen=True)
class Batch:
    """Settings for the scheduler, in addition to the job.

    Args:
        name: of the job.
        time: limit, as Slurm writes it: minutes, H:M:S or D-H.
        account, partition: the budget and the kind of nodes; None: the cluster's default.
        modules: to load first.
        sdk: the enable script of the Poplar SDK.
    """

    name: str = "sparsesnn"
    time: str = "01:00:00"
    account: str | None = None
    partition: str | None = None
    modules: tuple[str, ...] = ()
    sdk: str | None = None

    def __post_init__(self) -> None:
        words = {"name": self.name, "account": self.account, "partition": self.partition, "time": self.time}
        for option, value in words.items():
            if value is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:,-]{0,99}", value):
                raise ConfigError(f"--{option}: is {value!r}; give letters, digits and . _ - : only")
        if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", self.time):
            raise ConfigError(f"--time: is {self.time!r}; give a limit such as 01:30:00 (hours) or 1-0 (a day)")

    @property
    def limit_s(self) -> int:
        """The limit in seconds; 0 for none."""
        days, _, rest = self.time.rpartition("-")
        parts = [int(part) for part in rest.split(":")]
        if days or len(parts) == 3:  # D-H, D-H:M, D-H:M:S, H:M:S
            hours, minutes, seconds = (*parts, 0, 0)[:3]
        else:  # M, M:S
            hours, (minutes, seconds) = 0, (*parts, 0)[:2]
        return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def batch_script(template: str, job: Job, batch: Batch) -> str:
    """The script that runs `job` under `template`.

    Errors: `ConfigError` for an unknown template or missing settings.
    """
    if template not in TEMPLATES:
        raise ConfigError(f"--template: is {template!r}; allowed: {', '.join(TEMPLATES)}")
    if template in ("slurm", "jsc"):
        return _slurm(template, job, batch)
    return _graphcore(template, job, batch)


def _slurm(template: str, job: Job, batch: Batch) -> str:
    if job.ranks_per_host is None:
        raise ConfigError(f"--template {template}: needs the ranks per node; give --ranks-per-host, such as 4")
    if job.hosts:
        raise ConfigError(f"--template {template}: Slurm chooses the hosts; leave --hosts out")
    if template == "jsc" and (batch.account is None or batch.partition is None):
        raise ConfigError("--template jsc: give --account (your budget) and --partition (such as dc-cpu or batch)")
    options = [
        *_options(batch),
        f"--nodes={math.ceil(job.ranks / job.ranks_per_host)}",
        f"--ntasks={job.ranks}",
        f"--ntasks-per-node={job.ranks_per_host}",
        f"--cpus-per-task={job.threads}",
        f"--signal=TERM@{min(GRACE_S, int(batch.limit_s * GRACE_PART)) or GRACE_S}",  # to the ranks
        "--requeue",
        "--open-mode=append",  # keep earlier output
    ]
    lines = []
    if batch.modules or template == "jsc":
        lines += ["module purge", "module load " + shlex.join(batch.modules or ("GCC", "ParaStationMPI"))]
    # Since Slurm 22.05 srun does not inherit this from sbatch.
    lines += ["export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK}"]
    return _script(options, lines, _lines(command_line("srun", "srun", job)))


def _graphcore(template: str, job: Job, batch: Batch) -> str:
    if job.poprun is None:
        raise ConfigError(f"--template {template}: needs --num-replicas, and --ipus-per-replica if not 1")
    options = []
    if template == "alcf":
        if job.poprun.partition is not None:
            raise ConfigError("--vipu-partition: Slurm names it after the job at ALCF; leave it out")
        options = [*_options(batch), f"--ipus={job.poprun.replicas * job.poprun.ipus_per_replica}"]
        job = replace(job, poprun=replace(job.poprun, partition=_PARTITION))
    elif batch.account or batch.partition:
        raise ConfigError("--account, --partition: are for a scheduler, and template poprun has none; leave them out")
    sdk = batch.sdk or ("/software/graphcore/poplar_sdk/3.3.0/enable" if template == "alcf" else None)
    lines = [] if sdk is None else [f"source {shlex.quote(sdk)}"]
    command = _lines(command_line("poprun", "poprun", job))
    return _script(options, lines, command.replace(_PARTITION, "slurm_${SLURM_JOBID}"))


#: placeholder for a value known only to the job's shell; needs no quotes, so that the shell's variable can replace it
_PARTITION = "SLURM-PARTITION-OF-THE-JOB"


def _options(batch: Batch) -> list[str]:
    options = [f"--job-name={batch.name}", f"--time={batch.time}", f"--output={batch.name}-%j.out"]
    options += [f"--account={batch.account}"] * (batch.account is not None)
    return options + [f"--partition={batch.partition}"] * (batch.partition is not None)


def _script(options: Sequence[str], lines: Sequence[str], command: str) -> str:
    head = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options), "set -euo pipefail"]
    return "\n".join([*head, *lines, "", f"exec {command}", ""])


def _lines(command: Sequence[str]) -> str:
    """The command for a shell, one option per line."""
    return " \\\n  ".join(shlex.quote(word) for word in command)
