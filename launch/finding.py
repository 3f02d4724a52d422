"""Finds the launcher of this machine and its kind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparsesnn.errors import ConfigError
from sparsesnn.launch.command import KINDS

#: programs searched for next to this Python, then on PATH
MPI_PROGRAMS = ("mpirun", "mpiexec", "mpiexec.hydra")
VERSION_TIMEOUT_S = 20


@dataclass(frozen=True)
class Launcher:
    """A program that starts ranks: its kind (a key of `command.KINDS`) and its path."""

    kind: str
    executable: str


def kind_of(version: str) -> str | None:
    """The kind of an mpirun or mpiexec, from the output of `--version`; None if unknown."""
    if re.search(r"Open ?MPI|OpenRTE|PRRTE", version, re.IGNORECASE):
        return "openmpi"
    if re.search(r"HYDRA|MPICH|Intel\(R\) MPI|MVAPICH", version, re.IGNORECASE):
        return "mpich"
    return None


def find_launcher(
    asked: str = "auto", environ: Mapping[str, str] | None = None, *, elsewhere: bool = False
) -> Launcher:
    """The launcher to use.

    Args:
        asked: "auto", a kind ("openmpi", "mpich", "srun", "poprun"), or the path of an mpirun. With "auto": srun inside a
            Slurm job, else the mpirun next to this Python (`pip install 'sparsesnn[mpi]'` installs it there, and mpi4py
            uses its library), else the one on PATH.
        environ: default `os.environ`.
        elsewhere: the command line is for another machine: a kind not installed here gets the usual name of its program.

    Errors: `ConfigError` if there is none, or only an unknown one.
    """
    environ = os.environ if environ is None else environ
    path = environ.get("PATH", os.defpath)
    if asked in ("srun", "poprun") or (
        asked == "auto" and "SLURM_JOB_ID" in environ and shutil.which("srun", path=path)
    ):
        kind = "srun" if asked == "auto" else asked
        executable = shutil.which(kind, path=path) or (kind if elsewhere else None)
        if executable is None:
            raise ConfigError(f"--launcher {kind}: there is no {kind} on PATH; {_HINTS[kind]}")
        return Launcher(kind, executable)
    if asked not in ("auto", *KINDS):
        executable = shutil.which(asked, path=path)
        if executable is None:
            raise ConfigError(
                f"--launcher: is {asked!r}, which is not an executable file; give its path, or one of: auto, {', '.join(KINDS)}"
            )
        return Launcher(_ask(executable), executable)
    beside = str(Path(sys.executable).parent)
    programs = [shutil.which(name, path=folder) for folder in (beside, path) for name in MPI_PROGRAMS]
    for executable in dict.fromkeys(filter(None, programs)):
        kind = kind_of(_version(executable)) or ""
        if kind and asked in ("auto", kind):
            return Launcher(kind, executable)
    if elsewhere and asked != "auto":
        return Launcher(asked, MPI_PROGRAMS[0])
    what = "mpirun" if asked == "auto" else f"mpirun of {asked}"
    raise ConfigError(f"launch: found no {what} next to {sys.executable} or on PATH; run: pip install 'sparsesnn[mpi]'")


_HINTS = {"srun": "are you on a machine with Slurm?", "poprun": "source the enable script of the Poplar SDK first"}


def _ask(executable: str) -> str:
    version = _version(executable)
    kind = kind_of(version)
    if kind is None:
        line = version.strip().splitlines()[0][:100] if version.strip() else "nothing"
        raise ConfigError(
            f"--launcher: {executable} --version prints {line!r}, which is neither Open MPI nor a Hydra (MPICH, Intel); "
            "start the ranks with your own command: every rank runs `sparsesnn train …`"
        )
    return kind


def _version(executable: str) -> str:
    try:
        done = subprocess.run(
            [executable, "--version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr
