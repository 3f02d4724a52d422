"""What srun of this cluster offers for MPI, and which of it the library that mpi4py loads needs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

from sparsesnn.host.comm.mpi import plugin_for

TIMEOUT_S = 20
#: defaults of a cluster that are replaced where they do not fit; any other one is the cluster's own, for its own MPI
COMMON = ("none", "pmi2", "pmix")


def choose_plugin(srun: str, environ: Mapping[str, str]) -> str | None:
    """The `--mpi` that ranks need to find one another; None where the cluster's default is right, or nothing better is known.

    Args:
        srun: the program.
        environ: of the ranks: it may say which MPI mpi4py loads, and `SLURM_MPI_TYPE` is an answer already.
    """
    if "SLURM_MPI_TYPE" in environ:
        return None
    listed = _ask([srun, "--mpi=list"], environ)
    library = _ask([sys.executable, "-m", "mpi4py", "--mpi-lib-version"], environ) if listed else ""
    config = _ask(["scontrol", "show", "config"], environ) if library else ""
    default = re.search(r"^MpiDefault\s*=\s*(\S+)", config, re.MULTILINE)
    return fitting_plugin(library, re.findall(r"[\w.]+", listed), default[1] if default else "none")


def fitting_plugin(library: str, listed: Sequence[str], default: str) -> str | None:
    """As `choose_plugin`, from what `MPI_Get_library_version` says, the plugins of srun, and the cluster's default."""
    wanted = plugin_for(library)
    common = default.partition("_v")[0]  # pmix_v4 is a pmix
    if wanted is None or wanted not in listed or common == wanted or common not in COMMON:
        return None
    return wanted


def _ask(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """What a command says; nothing where it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=dict(environ), stdin=subprocess.DEVNULL
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout + done.stderr
