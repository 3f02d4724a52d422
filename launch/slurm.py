"""Chooses the MPI plugin of this cluster's srun that fits the library loaded by mpi4py."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

from sparsesnn.host.comm.mpi import plugin_for

TIMEOUT_S = 20
#: cluster defaults that are replaced if they do not fit; any other default is specific to the cluster's MPI
COMMON = ("none", "pmi2", "pmix")


def choose_plugin(srun: str, environ: Mapping[str, str]) -> str | None:
    """The `--mpi` that ranks need to find one another; None if the cluster's default is right, or nothing better is known.

    Args:
        srun: the program.
        environ: of the ranks: it may select mpi4py's MPI, and `SLURM_MPI_TYPE` takes precedence.
    """
    if "SLURM_MPI_TYPE" in environ:
        return None
    listed = _ask([srun, "--mpi=list"], environ)
    library = _ask([sys.executable, "-m", "mpi4py", "--mpi-lib-version"], environ) if listed else ""
    config = _ask(["scontrol", "show", "config"], environ) if library else ""
    default = re.search(r"^MpiDefault\s*=\s*(\S+)", config, re.MULTILINE)
    return fitting_plugin(library, re.findall(r"[\w.]+", listed), default[1] if default else "none")


def fitting_plugin(library: str, listed: Sequence[str], default: str) -> str | None:
    """As `choose_plugin`, from `MPI_Get_library_version`, srun's plugins, and the cluster's default."""
    wanted = plugin_for(library)
    common = default.partition("_v")[0]  # pmix_v4 is a pmix
    if wanted is None or wanted not in listed or common == wanted or common not in COMMON:
        return None
    return wanted


def _ask(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """The output of a command; empty if it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=dict(environ), stdin=subprocess.DEVNULL
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout + done.stderr
