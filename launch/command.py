"""The command line to start a job, for each kind of launcher: pure functions from a description to arguments.

| kind | program | binds with | passes variables with |
|---|---|---|---|
| `openmpi` | mpirun of Open MPI 4 and 5 | `--map-by slot:PE=n --bind-to core` | `-x` |
| `mpich` | mpiexec of MPICH, MVAPICH and Intel (Hydra) | `-bind-to core:n` | `-genv` |
| `srun` | Slurm | `--cpus-per-task --cpu-bind=cores` | `--export` |
| `poprun` | Graphcore's PopRun, over Open MPI | `--numa-aware` | `--mpi-local-args` |
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sparsesnn.errors import ConfigError
from sparsesnn.launch.job import Job


def command_line(kind: str, executable: str, job: Job) -> list[str]:
    """The arguments that start `job`, with `executable` first. They bypass the shell.

    Args:
        kind: a key of `KINDS`.
        executable: of the launcher, such as "mpirun".

    Errors: `ConfigError` if this kind of launcher does not support the job.
    """
    if kind not in KINDS:
        raise ConfigError(f"--launcher: is {kind!r}; allowed: {', '.join(KINDS)}")
    if job.poprun is not None and kind != "poprun":
        raise ConfigError(
            f"--num-replicas, --ipus-per-replica, --vipu-partition: are options for PopRun, not for {kind}"
        )
    if job.pmi is not None and kind != "srun":
        raise ConfigError(f"--mpi: is {job.pmi!r}, a plugin for srun, not for {kind}; leave it out")
    return [executable, *KINDS[kind](job), *job.program]


def _openmpi(job: Job) -> list[str]:
    arguments = ["-np", str(job.ranks)]
    if job.hosts:
        arguments += ["--host", ",".join(f"{host.name}:{host.ranks}" for host in job.hosts)]
    # By slot, a rank with n cores would take n slots of its host; the intended count is ranks per node.
    counts = {host.ranks for host in job.hosts}
    per_host = job.ranks_per_host or (counts.pop() if len(counts) == 1 else None)
    unit = "slot" if per_host is None else f"ppr:{per_host}:node"
    modifiers = [f"PE={job.threads}"] * job.bind + ["OVERSUBSCRIBE"] * job.oversubscribe
    arguments += ["--map-by", ":".join([unit, *([",".join(modifiers)] if modifiers else [])])]
    arguments += ["--bind-to", "core" if job.bind else "none"]
    for name, value in job.variables.items():
        arguments += ["-x", f"{name}={value}"]
    return [*arguments, *job.extra]


def _mpich(job: Job) -> list[str]:
    arguments = ["-n", str(job.ranks)]
    if job.hosts:
        arguments += ["-hosts", ",".join(f"{host.name}:{host.ranks}" for host in job.hosts)]
    if job.ranks_per_host is not None:
        arguments += ["-ppn", str(job.ranks_per_host)]
    arguments += ["-bind-to", f"core:{job.threads}" if job.bind else "none"]
    for name, value in job.variables.items():
        arguments += ["-genv", name, value]
    return [*arguments, *job.extra]


def _srun(job: Job) -> list[str]:
    arguments = [f"--ntasks={job.ranks}", f"--cpus-per-task={job.threads}"]
    per_host = job.ranks_per_host
    if job.hosts:
        arguments += [f"--nodes={len(job.hosts)}", f"--nodelist={','.join(host.name for host in job.hosts)}"]
        counts = [host.ranks for host in job.hosts]
        if sorted(counts, reverse=True) != counts or counts[0] - counts[-1] > 1:
            raise ConfigError(
                f"--hosts: {', '.join(f'{h.name}:{h.ranks}' for h in job.hosts)}; srun spreads ranks evenly: "
                "give the hosts without numbers of ranks"
            )
        per_host = per_host or counts[0]
    if per_host is not None:
        arguments.append(f"--ntasks-per-node={per_host}")
    # Neighboring ranks exchange most: block keeps them on one node. One failed rank ends the step before the time limit.
    arguments += ["--distribution=block:block", "--kill-on-bad-exit=1", f"--cpu-bind={'cores' if job.bind else 'none'}"]
    if job.oversubscribe:
        arguments.append("--overcommit")
    if job.overlap:
        arguments.append("--overlap")
    if job.pmi is not None:
        arguments.append(f"--mpi={job.pmi}")
    for name, value in job.variables.items():
        if "," in value:
            raise ConfigError(
                f"--env: {name} is {value!r}; srun --export splits at commas: export it before the launch"
            )
    arguments.append("--export=" + ",".join(["ALL", *(f"{name}={value}" for name, value in job.variables.items())]))
    return [*arguments, *job.extra]


def _poprun(job: Job) -> list[str]:
    if job.poprun is None:
        raise ConfigError("--launcher poprun: needs --num-replicas, and --ipus-per-replica if not 1")
    if job.oversubscribe:
        raise ConfigError("--oversubscribe: PopRun gives every instance its own cores; leave it out")
    arguments = [
        f"--num-instances={job.ranks}",
        f"--num-replicas={job.poprun.replicas}",
        f"--ipus-per-replica={job.poprun.ipus_per_replica}",
    ]
    if job.poprun.partition is not None:
        arguments.append(f"--vipu-partition={job.poprun.partition}")
    if job.hosts:
        if len({host.ranks for host in job.hosts}) > 1:
            raise ConfigError(
                "--hosts: PopRun puts the same number of instances on each host; give --ranks that divides evenly"
            )
        arguments.append("--host=" + ",".join(host.name for host in job.hosts))
    if job.bind:
        arguments.append("--numa-aware=yes")  # binds each instance to the cores of its NUMA node
    for name, value in job.variables.items():
        if re.search(r"\s", value):
            raise ConfigError(f"--env: {name} is {value!r}; PopRun splits at spaces: export it before the launch")
    local = " ".join(f"-x {name}={value}" for name, value in job.variables.items())
    return [*arguments, f"--mpi-local-args={local}", *job.extra]


KINDS: dict[str, Callable[[Job], list[str]]] = {
    "openmpi": _openmpi,
    "mpich": _mpich,
    "srun": _srun,
    "poprun": _poprun,
}
