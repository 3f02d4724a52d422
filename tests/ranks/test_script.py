"""Scripts on ranks: MPI's count of ranks against the launcher's. Launchers are their variables here; tests/cluster starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparsesnn.errors import ConfigError
from sparsesnn.host.comm.mpi import WAIT_S, check_count, plugin_for

MPICH = "MPICH Version:      5.0.2\nMPICH Release date: Fri Sep 25\n"
OPEN_MPI = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4\0"
SLURM = {"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "0"}


def mpi(size: int, library: str = MPICH) -> SimpleNamespace:
    return SimpleNamespace(COMM_WORLD=SimpleNamespace(Get_size=lambda: size), Get_library_version=lambda: library)


def test_counts_that_agree() -> None:
    check_count(mpi(3), SLURM)
    check_count(mpi(1), {})
    check_count(mpi(4), {})  # a launcher that leaves no variable known here: MPI is right
    check_count(mpi(1), {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2"})


@pytest.mark.parametrize(
    ("library", "environ", "message"),
    [
        (MPICH, SLURM, r"^slurm started 3 ranks, but MPI counts 1: .*MPICH Version: 5.0.2\).*srun --mpi=pmi2$"),
        (OPEN_MPI, SLURM, r"Open MPI v4.1.4\).*srun --mpi=pmix$"),
        ("Somebody's MPI 1.0", SLURM, r"Somebody's MPI 1.0\).*your cluster's plugin .*srun --mpi=list"),
        (MPICH, {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}, "^openmpi started 2 ranks, .*--no-binary mpi4py"),
    ],
)  # fmt: skip
def test_counts_that_differ(library: str, environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_count(mpi(1, library), environ)


@pytest.mark.parametrize(
    ("library", "plugin"),
    [
        (MPICH, "pmi2"),
        ("MVAPICH2 Version      :\t2.3.7", "pmi2"),
        (OPEN_MPI, "pmix"),
        ("Intel(R) MPI Library 2021.9", None),
    ],
)
def test_plugins_of_srun(library: str, plugin: str | None) -> None:
    assert plugin_for(library) == plugin


# ---- scripts --------------------------------------------------------------------------------------------------------


@pytest.fixture
def script(tmp_path: Path) -> str:
    """Runs its first argument, then prints the others."""
    path = tmp_path / "mine.py"
    path.write_text("import sys\nexec(sys.argv[1])\nprint(__name__, sys.argv[2:], sys.path[0])\n")
    return str(path)


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sparsesnn.launch.script", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, **environ}
    )


IMPORTS = {
    "mpi4py": "from mpi4py import MPI",
    "a function of it": "from mpi4py.MPI import COMM_WORLD",
    "sparsesnn": "from sparsesnn.host.comm import mpi_world; mpi_world()",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", IMPORTS)
def test_ranks_that_mpi_does_not_know_of(what: str, script: str) -> None:
    pytest.importorskip("mpi4py", reason="needs mpi4py, in the extra 'mpi'")
    done = [run(script, IMPORTS[what], SLURM_STEP_NUM_TASKS="2", SLURM_PROCID=rank) for rank in "01"]
    assert [one.returncode for one in done] == [2, 2]
    assert [one.stdout for one in done] == ["", ""]
    assert all(one.stderr.startswith("sparsesnn: error: slurm started 2 ranks, but MPI counts 1: ") for one in done)
    assert all(one.stderr.count("\n") == 1 for one in done)


def test_the_first_rank_says_it_before_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    for rank in "012":
        with pytest.raises(ConfigError):
            check_count(mpi(1), {**SLURM, "SLURM_PROCID": rank})
    assert waited == [WAIT_S, WAIT_S]


@pytest.mark.slow
def test_a_script_runs_as_by_itself(script: str, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py", reason="needs mpi4py, in the extra 'mpi'")
    expected = f"__main__ ['--x', 'y z'] {tmp_path}\n"
    assert run(script, IMPORTS["mpi4py"], "--x", "y z").stdout == expected
    # one without MPI may be started in any way
    assert run(script, "pass", "--x", "y z", SLURM_STEP_NUM_TASKS="2", SLURM_PROCID="1").stdout == expected
    failed = run(script, "1 / 0")
    assert (failed.returncode, failed.stderr.splitlines()[-1]) == (1, "ZeroDivisionError: division by zero")
