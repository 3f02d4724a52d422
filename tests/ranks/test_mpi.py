"""Over real MPI: mpirun starts processes, of which some are killed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparsesnn.train.checkpoint import CheckpointStore

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed"),
]

HERE = Path(__file__).parent
#: the one that came with mpi4py's MPI, if it did
MPIRUN = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun") or "mpirun"
OPTIONS = [
    "digits", "--no-plots", "--no-tensorboard", "--net", "auto-70r-auto", "--epochs", "2",
    "--set", "train.checkpoint_batches=2", "--set", "train.prefetch=1",
]  # fmt: skip


def mpirun(n_ranks: int, *program: str) -> list[str]:
    return [MPIRUN, "-n", str(n_ranks), sys.executable, *program]


def environment() -> dict[str, str]:
    return {**os.environ, "SPARSESNN_THREADS": "1", "OMP_NUM_THREADS": "1"}


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment())


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_communicator(n_ranks):
    done = run(mpirun(n_ranks, str(HERE / "mpi_programs.py"), "communicator"))
    assert (done.returncode, done.stdout) == (0, f"{n_ranks} ranks agree\n"), done.stderr


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_networks(n_ranks):
    done = run(mpirun(n_ranks, str(HERE / "mpi_programs.py"), "networks"))
    assert (done.returncode, done.stdout) == (0, "bit for bit\n"), done.stderr


def test_random_networks_on_many_ranks():
    """16 ranks share the cores of this machine."""
    done = run(mpirun(16, str(HERE.parents[1] / "benchmarks" / "ranks_random.py"), "8", "--first", "100"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 networks on 16 ranks in" in done.stdout


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("alone") / "run"
    done = run([sys.executable, "-m", "sparsesnn", "train", *OPTIONS, "--quiet", "--out", str(out)])
    assert done.returncode == 0, done.stderr
    return sha256(out)


def sha256(out: Path) -> str:
    return str(json.loads((out / "result.json").read_text())["weights_sha256"])


def test_a_rank_is_killed_and_the_run_goes_on(expected, tmp_path):
    out = tmp_path / "run"
    arguments = ["-m", "sparsesnn", "train", *OPTIONS, "--resume=auto", "--out", str(out), "--set", "parallel.shards=2"]
    with subprocess.Popen(mpirun(2, *arguments), stderr=subprocess.PIPE, text=True, env=environment()) as process:
        killed = kill_one(process, out)
        began = time.monotonic()
        _, said = process.communicate(timeout=600)
    assert process.returncode != 0
    assert time.monotonic() - began < 30  # two seconds; on a loaded machine a multiple of it
    assert f"rank {killed}/2: exited without an error message (killed" in said
    saved = CheckpointStore(out)
    assert all(saved.tensors([file]) for file in saved.read().tensors)  # it is whole
    again = run(mpirun(2, *arguments))
    assert again.returncode == 0, again.stderr
    assert "resume  after epoch " in again.stderr
    assert sha256(out) == expected
    once_more = run(mpirun(2, *arguments))
    assert "the run is finished; its result is kept" in once_more.stderr
    assert once_more.returncode == 0


def kill_one(process: subprocess.Popen[str], out: Path) -> int:
    """Kills the rank with the highest number once there is a checkpoint after some batches; returns its number."""
    limit = time.monotonic() + 300
    while not any(path.name[5:14] > "000000000" for path in out.glob("ckpt-*")):
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < limit
        time.sleep(0.01)
    ranks = {}
    for pid in descendants(process.pid):
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:  # a process that ranks start for a moment
            continue
        for variable in variables:
            if variable.startswith((b"PMI_RANK=", b"OMPI_COMM_WORLD_RANK=")) and b"sparsesnn\0train" in command:
                ranks[int(variable.split(b"=")[1])] = pid
    os.kill(ranks[max(ranks)], signal.SIGKILL)
    return max(ranks)


def descendants(pid: int) -> list[int]:
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            children += map(int, task.read_text().split())
    return [*children, *(below for child in children for below in descendants(child))]


def test_options_that_no_rank_likes_are_said_once(tmp_path):
    done = run(
        mpirun(2, "-m", "sparsesnn", "train", "digits", "--set", "parallel.shards=3", "--out", str(tmp_path / "x"))
    )
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    assert len(errors) == 1
    assert "any number of replicas × 3 shards do not make 2 ranks" in errors[0]


def test_one_rank_without_a_file(tmp_path):
    """Rank 1 looks for its data elsewhere, as on a host that misses a mount."""
    program = (
        "import os, sys; from sparsesnn.cli import main\n"
        "sys.exit(main(['train', 'shd', '--data', sys.argv[1 + (os.environ.get('PMI_RANK') == '1')], '--out', sys.argv[3]]))"
    )
    missing, also = tmp_path / "a", tmp_path / "b"
    done = run(mpirun(2, "-c", program, str(missing), str(also), str(tmp_path / "run")))
    assert done.returncode != 0
    assert "rank " in done.stderr
    assert str(missing) in done.stderr or str(also) in done.stderr
