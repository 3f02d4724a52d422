"""Runs under real Slurm, over two virtual nodes, with MPICH and with Open MPI: `./dev cluster-tests`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("mpi4py", reason="needs mpi4py, in the extra 'mpi'")

#: Debian's and Ubuntu's, which mpi4py from pip loads too
LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/libmpi.so.40"))), Path("libmpi.so.40"))
OPEN_MPI = ["--env", f"MPI4PY_LIBMPI={LIBRARY}"]
TRAIN = [
    "train", "digits", "--no-plots", "--no-tensorboard", "--net", "auto-70r-auto", "--resume=auto",
    "--set", "train.checkpoint_batches=2", "--set", "train.prefetch=1", "--threads", "1",
]  # fmt: skip
#: more than a fast machine trains before a signal that is sent at the first checkpoint arrives
SOME = ["--epochs", "20"]
LONG = ["--epochs", "1000"]
NODES = "--launcher-args=--nodes=2"


def launch(*arguments: str, launcher: str = "srun") -> list[str]:
    return [sys.executable, "-m", "sparsesnn", "launch", "--launcher", launcher, "--threads", "1", *arguments]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, stdin=subprocess.DEVNULL)


def say(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def wait_for(what: Callable[[], object], seconds: float = 240) -> None:
    limit = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < limit
        time.sleep(0.1)


def has_checkpoint(out: Path) -> bool:
    return any(path.name[5:14] > "000000000" for path in out.glob("ckpt-*"))


def sha256(out: Path) -> str:
    return str(json.loads((out / "result.json").read_text())["weights_sha256"])


def batch(tmp_path: Path, command: list[str], *options: str) -> tuple[str, Path]:
    """Submits a job of two ranks on two nodes; its number, and the file with its output."""
    script, output = tmp_path / "job.sh", tmp_path / "job.out"
    script.write_text("#!/bin/bash\nexec " + " ".join(f"'{word}'" for word in command) + "\n")
    arguments = ["--nodes=2", "--ntasks=2", "--ntasks-per-node=1", f"--output={output}", "--open-mode=append", *options]
    return say("sbatch", "--parsable", *arguments, str(script)).strip(), output


def state(job: str) -> str:
    """Such as FAILED 143:0."""
    text = say("scontrol", "show", "job", "-o", job)
    return " ".join(re.findall(r" (?:JobState|ExitCode)=(\S+)", text))


def over(job: str) -> bool:
    return not state(job).startswith(("PENDING", "RUNNING", "COMPLETING"))


@pytest.fixture(autouse=True)
def no_job_is_left() -> object:
    yield
    for job in say("squeue", "-h", "-o", "%i").split():
        subprocess.run(["scancel", job], check=False, timeout=60)
    wait_for(lambda: say("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("alone") / "run"
    done = run([sys.executable, "-m", "sparsesnn", *TRAIN, *SOME, "--out", str(out)])
    assert done.returncode == 0, done.stderr
    return sha256(out)


@pytest.mark.parametrize("grid", ["shards", "replicas"])
@pytest.mark.parametrize("mpi", ["MPICH", "Open MPI"])
def test_two_nodes_train_the_weights_of_one_process(mpi: str, grid: str, expected: str, tmp_path: Path) -> None:
    """Launch chooses the plugin of srun that this MPI needs."""
    environ = OPEN_MPI if mpi == "Open MPI" else []
    program = [*TRAIN, *SOME, "--set", f"parallel.{grid}=2", "--out", str(tmp_path / "run")]
    done = run(launch("--ranks", "2", NODES, *environ, "--", *program))
    assert done.returncode == 0, done.stderr
    assert sha256(tmp_path / "run") == expected


def test_open_mpis_own_launcher(expected: str, tmp_path: Path) -> None:
    mpirun = shutil.which("mpirun", path="/usr/bin") or "mpirun"
    program = [*TRAIN, *SOME, "--set", "parallel.shards=2", "--out", str(tmp_path / "run")]
    arguments = ["--ranks", "2", "--bind", "none", "--oversubscribe", *OPEN_MPI]
    refused = run(launch(*arguments, "--", *program, launcher=mpirun))
    assert refused.returncode != 0
    assert "give --launcher-args=--allow-run-as-root" in refused.stderr
    done = run(launch(*arguments, "--launcher-args=--allow-run-as-root", "--", *program, launcher=mpirun))
    assert done.returncode == 0, done.stderr
    assert sha256(tmp_path / "run") == expected


def test_a_cancelled_job_writes_its_checkpoint_and_resumes(expected: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    program = launch("--", *TRAIN, *SOME, "--set", "parallel.shards=2", "--out", str(out))
    job, output = batch(tmp_path, program)
    wait_for(lambda: has_checkpoint(out) or over(job))
    say("scancel", "--signal=TERM", job)  # as --signal of a batch script does
    wait_for(lambda: over(job))
    assert state(job) == "FAILED 143:0", output.read_text()
    assert "stopped by SIGTERM after epoch" in output.read_text()
    job, output = batch(tmp_path, program)
    wait_for(lambda: over(job))
    assert state(job) == "COMPLETED 0:0", output.read_text()
    assert sha256(out) == expected


def test_a_time_limit(tmp_path: Path) -> None:
    """Without --signal Slurm sends SIGTERM twice, at once."""
    out = tmp_path / "run"
    job, output = batch(tmp_path, launch("--", *TRAIN, *LONG, "--out", str(out)), "--time=1")
    wait_for(lambda: over(job))
    assert state(job).startswith("TIMEOUT"), output.read_text()
    assert "stopped by SIGTERM after epoch" in output.read_text()
    assert has_checkpoint(out)


def test_a_job_that_is_put_back_in_the_queue(expected: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    program = launch("--", *TRAIN, *SOME, "--set", "parallel.replicas=2", "--out", str(out))
    job, output = batch(tmp_path, program, "--requeue")
    wait_for(lambda: has_checkpoint(out) or over(job))
    say("scontrol", "requeue", job)
    wait_for(lambda: over(job), 400)
    assert state(job) == "COMPLETED 0:0", output.read_text()
    assert "stopped by SIGTERM after epoch" in output.read_text()
    assert "resume  after epoch " in output.read_text()
    assert sha256(out) == expected


def test_a_run_that_goes_on_with_other_ranks(expected: str, tmp_path: Path) -> None:
    """Jobs of 2, 1 and 2 ranks, of which a signal ends two: the weights are those of an undisturbed run."""
    out = tmp_path / "run"
    program = launch("--", *TRAIN, *SOME, "--out", str(out))
    for n in (2, 1):
        before = newest(out)
        job, output = batch(tmp_path, program, f"--nodes={n}", f"--ntasks={n}")
        wait_for(lambda job=job, before=before: over(job) or newest(out) > before)  # type: ignore[misc]
        say("scancel", "--signal=TERM", job)
        wait_for(lambda job=job: over(job))  # type: ignore[misc]
    job, output = batch(tmp_path, program)
    wait_for(lambda: over(job))
    said = output.read_text()
    assert state(job) == "COMPLETED 0:0", said
    assert said.count("stopped by SIGTERM after epoch") == said.count("resume  after epoch ") == 2
    assert re.findall(r"launch: (\d) rank", said) == ["2", "1", "2"]
    assert sha256(out) == expected


def newest(out: Path) -> int:
    """Batches before the newest checkpoint."""
    return max((int(path.name[5:14]) for path in out.glob("ckpt-*")), default=0)


def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    """The one on the other node; the message names it."""
    out = tmp_path / "run"
    command = launch("--ranks", "2", NODES, "--", *TRAIN, *LONG, "--out", str(out))
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        wait_for(lambda: has_checkpoint(out) or process.poll() is not None)
        os.kill(pid_of(rank=1), signal.SIGKILL)
        _, said = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "rank 1/2: exited without an error message (killed" in said


def pid_of(rank: int) -> int:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            variables = (process / "environ").read_bytes().split(b"\0")
            if b"SLURM_PROCID=%d" % rank in variables and b"sparsesnn\0train" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return min(found)


@pytest.mark.parametrize("program", ["command", "script", "module"])
def test_ranks_without_a_plugin_are_no_jobs_of_one_rank(program: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from mpi4py import MPI\nprint('ran')\n")
    words = {
        "command": [*TRAIN, *SOME, "--out", str(tmp_path / "run")],
        "script": [str(tmp_path / "mine.py")],
        "module": ["-m", "mpi4py.bench", "helloworld"],
    }
    done = run(launch("--ranks", "2", NODES, "--mpi", "none", "--", *words[program]))
    assert done.returncode != 0
    assert "slurm started 2 ranks, but MPI counts 1: " in done.stderr
    assert "srun --mpi=pmi2" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("launcher", ["srun", "mpich"])
def test_within_a_step(launcher: str, tmp_path: Path) -> None:
    """As in the shell of `srun --pty bash`, which holds all CPUs of its job."""
    script = tmp_path / "mine.py"
    script.write_text("from sparsesnn.host.comm import mpi_world\nworld = mpi_world()\nworld.barrier()\n"
                      "if world.rank == 0: print(world.size, 'ranks')\n")  # fmt: skip
    inner = launch("--ranks", "2", "--", str(script), launcher=launcher)
    done = run(["srun", "--quiet", "--nodes=1", "--ntasks=1", "--cpus-per-task=2", *inner])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 ranks\n"
