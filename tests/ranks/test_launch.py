"""`sparsesnn launch`: dry runs, and ranks that really start, under the mpirun of this machine and under a fake PopRun."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparsesnn.cli import main
from sparsesnn.errors import ConfigError
from sparsesnn.launch.cores import usable_cores
from sparsesnn.launch.finding import find_launcher
from sparsesnn.launch.slurm import fitting_plugin
from sparsesnn.wording import count

FAKES = Path(__file__).parents[1] / "fakes"

#: what starts the tests may itself be a job of one of these
SCHEDULERS = ("SLURM_", "PBS_", "LSB_", "NSLOTS", "NHOSTS")
SLURM_JOB = {"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "6", "SLURM_CPUS_PER_TASK": "16"}

#: a rank that prints its place, its cores, its threads, a variable and its arguments, as one line, which it writes at
#: once: `print` may write the end of the line by itself, after that of another rank
REPORT = """\
import os, sys
import sparsesnn
from sparsesnn.host.comm.environment import find_place
place = find_place(os.environ)
cores = sorted(os.sched_getaffinity(0))
found = [place.launcher, place.rank, place.size, place.local_rank, cores, sparsesnn.num_threads(), os.environ.get("A"), sys.argv[1:]]
os.write(1, f"{found}\\n".encode())
"""


def mpirun() -> str:
    """The mpirun that the launcher would take; without one these tests have nothing to start ranks with."""
    try:
        return find_launcher().executable
    except ConfigError:
        pytest.skip("this machine has no mpirun; pip install 'sparsesnn[mpi]' brings one")


def root_arguments(executable: str) -> list[str]:
    version = subprocess.run([executable, "--version"], capture_output=True, text=True, check=True).stdout
    return ["--launcher-args=--allow-run-as-root"] if "Open MPI" in version and os.geteuid() == 0 else []


def launch(*arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sparsesnn", "launch", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=None if environ is None else os.environ | environ,
    )


@pytest.fixture
def report(tmp_path: Path) -> str:
    path = tmp_path / "it's a report.py"
    path.write_text(REPORT)
    return str(path)


def lines(done: subprocess.CompletedProcess[str]) -> list[list[object]]:
    assert done.returncode == 0, done.stderr
    return sorted((ast.literal_eval(line) for line in done.stdout.splitlines()), key=lambda found: found[1])


def fake_launcher(folder: Path, name: str, version: str = "") -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{version}\nEND\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(SCHEDULERS)]:
        monkeypatch.delenv(name)


def dry_run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[str], str]:
    """The words of the command line, and the messages printed with it."""
    assert main(["launch", *arguments, "--dry-run", "--", "info"]) == 0
    printed = capsys.readouterr()
    return shlex.split(printed.out), printed.err


# ---- dry runs -------------------------------------------------------------------------------------------------------


def test_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake = fake_launcher(tmp_path, "mpirun", "mpirun (Open MPI) 4.1.4")
    assert main(["launch", "--ranks", "4", "--hosts", "a,b", "--threads", "3", "--launcher", fake, "--dry-run", "--",
                 "train", "digits", "--out", "it's here"]) == 0  # fmt: skip
    words = shlex.split(capsys.readouterr().out)
    assert words[:7] == [fake, "-np", "4", "--host", "a:2,b:2", "--map-by", "ppr:2:node:PE=3"]
    assert words[-7:] == [sys.executable, "-m", "sparsesnn", "train", "digits", "--out", "it's here"]


def test_slurm_is_found_in_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    srun = fake_launcher(tmp_path, "srun")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert main(["launch", "--ranks", "1", "--dry-run", "--", "info"]) == 0
    assert capsys.readouterr().out.startswith(f"{srun} --ntasks=1 ")


def test_poprun_is_taken_where_replicas_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    poprun = fake_launcher(tmp_path, "poprun")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert (
        main(["launch", "--ranks", "1", "--num-replicas", "4", "--vipu-partition", "p4", "--dry-run", "--", "info"])
        == 0
    )
    assert capsys.readouterr().out.startswith(f"{poprun} --num-instances=1 --num-replicas=4 --ipus-per-replica=1 ")


def test_ranks_that_share_cores_are_not_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake = fake_launcher(tmp_path, "mpirun", "HYDRA build details")
    cores = usable_cores()
    arguments = ["launch", "--ranks", str(cores + 1), "--launcher", fake, "--dry-run"]
    assert main([*arguments, "--", "info"]) == 0
    printed = capsys.readouterr()
    assert "-bind-to none" in printed.out
    assert f"{cores + 1} ranks × 1 thread share {count(cores, 'core')}; they are not bound" in printed.err
    assert main([*arguments, "--oversubscribe", "--", "info"]) == 0
    assert capsys.readouterr().err == ""
    assert main([*arguments, "--bind", "cores", "--", "info"]) == 2
    assert f"need {count(cores + 1, 'core')}, but this machine has {cores}" in capsys.readouterr().err


def test_two_hardware_threads_are_one_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 4, 5, 9})
    for processor, package, core in ((0, 0, 0), (4, 0, 0), (1, 0, 1), (5, 1, 1)):  # of processor 9 nothing is known
        folder = tmp_path / f"cpu{processor}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{package}\n")
        (folder / "core_id").write_text(f"{core}\n")
    assert usable_cores(tmp_path) == 4
    assert usable_cores(tmp_path / "none") == 5


def test_a_dry_run_may_be_for_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    for kind, program in (("srun", "srun"), ("poprun", "poprun"), ("openmpi", "mpirun"), ("mpich", "mpirun")):
        more = ["--num-replicas", "4"] if kind == "poprun" else ["--launcher", kind]
        words, said = dry_run(capsys, "--ranks", "2", "--hosts", "a,b", *more)
        assert words[0] == program
        assert said == f"sparsesnn: launch: {program} is not installed here, so this command cannot run\n"
    assert main(["launch", "--ranks", "2", "--launcher", "srun", "--", "info"]) == 2
    assert "there is no srun on PATH" in capsys.readouterr().err


def test_template_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["launch", "--template", "jsc", "--ranks", "64", "--ranks-per-host", "8", "--threads", "16"]
    assert main([*arguments, "--account", "me", "--partition", "dc-cpu", "--", "train", "digits", "--resume"]) == 0
    script = capsys.readouterr().out
    assert "#SBATCH --nodes=8\n" in script
    assert script.endswith("-m \\\n  sparsesnn \\\n  train \\\n  digits \\\n  --resume\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "2"], "the command is missing; give it after --"),
        (["--ranks", "0", "--", "info"], "--ranks: is 0; give a whole number"),
        (
            ["--ranks", "2", "--launcher", "/nowhere/mpirun", "--", "info"],
            "'/nowhere/mpirun', which is not an executable file",
        ),
        (["--ranks", "2", "--vipu-partition", "p", "--", "info"], "--vipu-partition: need --num-replicas"),
        (["--ranks", "2", "--env", "A", "--", "info"], "--env: is 'A'; give NAME=VALUE"),
        (["--ranks", "2", "--launcher-args", "'", "--", "info"], "--launcher-args: .*; close the quotes"),
        (["--hosts", "a;b", "--ranks", "2", "--", "info"], "--hosts: is 'a;b'"),
        (
            ["--ranks", "2", "--", "trian", "digits"],
            "'trian' is not a sparsesnn command; allowed: train, .* ends in .py, or -m",
        ),
        (["--ranks", "2", "--", "nowhere.py"], r"launch: nowhere.py: no such file in /.*; give the path"),
        (
            ["--rank", "2", "--", "info"],
            "sparsesnn launch: error: '--rank' is unknown; did you mean --ranks[?] `sparsesnn launch",
        ),
        (["--template", "slurm", "--ranks", "2", "--", "info"], "give --ranks-per-host"),
        (["--ranks", "8", "--auto", "--", "train", "digits"], "--auto: .* --comm dry-run:R"),
    ],
)
def test_wrong_options(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) <= 2  # the second: that ranks share cores
    assert re.search(message, printed.err)


def test_an_mpirun_that_nobody_knows(tmp_path: Path) -> None:
    fake = fake_launcher(tmp_path, "mpirun", "mpirun 1.0 of somebody")
    with pytest.raises(ConfigError, match="'mpirun 1.0 of somebody', which is neither Open MPI nor a Hydra"):
        find_launcher(fake)


def test_no_mpirun_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ConfigError, match=r"found no mpirun next to .* pip install 'sparsesnn\[mpi\]'"):
        find_launcher("auto", {"PATH": str(tmp_path)})
    fake_launcher(tmp_path, "mpirun", "HYDRA build details")
    assert find_launcher("auto", {"PATH": ""}).kind == "mpich"  # the one next to Python
    with pytest.raises(ConfigError, match="found no mpirun of openmpi"):
        find_launcher("openmpi", {"PATH": ""})
    with pytest.raises(ConfigError, match="there is no poprun on PATH; source the enable script"):
        find_launcher("poprun", {"PATH": str(tmp_path)})


# ---- without --ranks -----------------------------------------------------------------------------------------------


def test_ranks_come_from_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_launcher(tmp_path, "srun")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    for name, value in SLURM_JOB.items():
        monkeypatch.setenv(name, value)
    words, said = dry_run(capsys)
    assert words[1:3] == ["--ntasks=6", "--cpus-per-task=16"]
    assert "--cpu-bind=cores" in words  # other machines' cores: not to be compared with these
    assert said == "sparsesnn: launch: 6 ranks on 2 hosts, from SLURM_NTASKS; change it with --ranks\n"
    words, said = dry_run(capsys, "--ranks-per-host", "4", "--threads", "8")
    assert words[1:4] == ["--ntasks=8", "--cpus-per-task=8", "--ntasks-per-node=4"]
    assert said.startswith("sparsesnn: launch: 8 ranks on 2 hosts, from --ranks-per-host; change it with --ranks\n")
    assert "8 ranks, but this job has room for 6 (SLURM_NTASKS)" in said
    assert dry_run(capsys, "--ranks", "2")[1] == ""
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "512")  # hardware threads, perhaps: srun knows
    words, said = dry_run(capsys)
    assert words[1:3] == ["--ntasks=6", "--cpus-per-task=512"]
    assert said == "sparsesnn: launch: 6 ranks, from SLURM_NTASKS; change it with --ranks\n"


def test_more_ranks_than_the_job_has_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_launcher(tmp_path, "srun")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    for name, value in SLURM_JOB.items():
        monkeypatch.setenv(name, value)
    said = dry_run(capsys, "--ranks", "7")[1]
    assert re.match(
        r"sparsesnn: launch: 7 ranks, but .* room for 6 \(SLURM_NTASKS\): .*with --oversubscribe ranks share", said
    )
    words, said = dry_run(capsys, "--ranks", "7", "--oversubscribe")
    assert "--overcommit" in words
    assert said == ""


def test_a_rank_takes_no_more_cpus_than_the_job_has_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job may see all cores of its host and have some."""
    fake_launcher(tmp_path, "srun")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr("sparsesnn.launch.cores.usable_cores", lambda: 64)
    for name, value in (SLURM_JOB | {"SLURM_CPUS_ON_NODE": "7"}).items():
        if name != "SLURM_CPUS_PER_TASK":
            monkeypatch.setenv(name, value)
    assert dry_run(capsys)[0][1:3] == ["--ntasks=6", "--cpus-per-task=2"]


@pytest.mark.parametrize(
    ("step", "overlaps"),
    [
        ("0", True),
        ("12", True),
        ("4294967290", False),
        ("4294967291", False),
        (None, False),
    ],  # salloc's shell, a batch script
)
def test_within_a_step_its_cpus_are_shared(
    step: str | None,
    overlaps: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`srun --pty bash` holds the CPUs that a step within it would wait for."""
    fake_launcher(tmp_path, "srun")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    for name, value in {**SLURM_JOB, "SLURM_NTASKS": "1"}.items():
        monkeypatch.setenv(name, value)
    if step is not None:
        monkeypatch.setenv("SLURM_STEP_ID", step)
    fake = fake_launcher(tmp_path, "mpirun", "HYDRA build details")  # it uses srun, too
    assert (dry_run(capsys, "--ranks", "2", "--launcher", fake)[0][0] == "SLURM_OVERLAP=1") is overlaps
    words, said = dry_run(capsys, "--ranks", "2")
    assert ("--overlap" in words) is overlaps
    assert ("has room for 1" in said) is not overlaps  # of a step it is not known what room its job has


LISTS = {
    "22.05": "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\nspecific pmix plugin versions available: pmix_v4\n",
    "17.11": "srun: MPI types are...\nsrun: pmi2\nsrun: none\nsrun: openmpi\n",
}


@pytest.mark.parametrize(
    ("library", "version", "default", "plugin"),
    [
        ("MPICH Version: 5.0.2", "22.05", "none", "pmi2"),
        ("MPICH Version: 5.0.2", "22.05", "pmix_v4", "pmi2"),
        ("MPICH Version: 5.0.2", "22.05", "pmi2", None),
        ("Open MPI v4.1.4", "22.05", "none", "pmix"),
        ("Open MPI v4.1.4", "22.05", "pmix_v4", None),
        ("Open MPI v4.1.4", "17.11", "none", None),
        ("MPICH Version: 3.2", "17.11", "none", "pmi2"),
        ("MPICH Version: 4.1 (ParaStation)", "22.05", "pspmi", None),  # the cluster's own, for its own MPI
        ("Intel(R) MPI Library 2021.9", "22.05", "none", None),
        ("", "22.05", "none", None),
    ],
)
def test_the_plugin_that_an_mpi_needs(library: str, version: str, default: str, plugin: str | None) -> None:
    assert fitting_plugin(library, re.findall(r"[\w.]+", LISTS[version]), default) == plugin


def test_srun_is_told_what_mpi4py_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mpi4py", reason="needs mpi4py, in the extra 'mpi'")
    fake_launcher(tmp_path, "srun", LISTS["22.05"])
    fake_launcher(tmp_path, "scontrol", "Configuration data\nMpiDefault              = none\nMpiParams = (null)")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_MPI_TYPE", raising=False)
    arguments = ["--ranks", "1", "--launcher", "srun"]
    chosen = [word for word in dry_run(capsys, *arguments)[0] if word.startswith("--mpi=")]
    assert chosen in (["--mpi=pmi2"], ["--mpi=pmix"])
    script = ["--template", "slurm", "--ranks-per-host", "1"]
    assert main(["launch", "--ranks", "1", *script, "--", "info"]) == 0
    assert chosen[0] in capsys.readouterr().out
    assert "--mpi=own" in dry_run(capsys, *arguments, "--mpi", "own")[0]
    monkeypatch.setenv("SLURM_MPI_TYPE", "own")  # srun reads it itself
    assert not [word for word in dry_run(capsys, *arguments)[0] if word.startswith("--mpi=")]


def test_open_mpi_and_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake = fake_launcher(tmp_path, "mpirun", "mpirun (Open MPI) 4.1.4")
    started: list[list[str]] = []

    def become(path: str, words: list[str]) -> None:
        started.append(words)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", become)
    monkeypatch.delenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", raising=False)
    for user, arguments, hint in ((0, [], True), (0, ["--launcher-args=--allow-run-as-root"], False), (7, [], False)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        with pytest.raises(SystemExit):
            main(["launch", "--ranks", "1", "--launcher", fake, *arguments, "--", "info"])
        said = capsys.readouterr().err
        assert ("Open MPI refuses to start programs as root; " in said) is hint
        assert ("--launcher-args=--allow-run-as-root" in said) is hint
    assert len(started) == 3


def test_ranks_come_from_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake = fake_launcher(tmp_path, "mpirun", "HYDRA build details")
    assert dry_run(capsys, "--launcher", fake, "--hosts", "a,b")[0][1:5] == ["-n", "2", "-hosts", "a:1,b:1"]
    assert dry_run(capsys, "--launcher", fake, "--hosts", "a:3,b:1")[0][1:5] == ["-n", "4", "-hosts", "a:3,b:1"]
    words, _ = dry_run(capsys, "--launcher", fake, "--hosts", "a,b", "--ranks-per-host", "4")
    assert words[1:5] == ["-n", "8", "-hosts", "a:4,b:4"]


def test_poprun_starts_one_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_launcher(tmp_path, "poprun")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert dry_run(capsys, "--num-replicas", "4")[0][1:3] == ["--num-instances=1", "--num-replicas=4"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [],
            "launch: the number of ranks is missing, .* not a job of Slurm, .* give --ranks, such as --ranks 2, or --hosts",
        ),
        (["--template", "slurm", "--ranks-per-host", "4"], "--template slurm: needs --ranks"),
        (["--ranks-per-host", "0"], "--ranks-per-host: is 0; give a whole number, at least 1"),
        (["--hosts", "a:0"], "--hosts: is 'a:0'"),
        (["--hosts", "a:6,b:2", "--ranks", "4"], "--hosts: has room for 8 ranks, but --ranks is 4; give --ranks 8"),
    ],
)
def test_nobody_guesses(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", *arguments, "--", "info"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.search(message, printed.err)


# ---- ranks that start -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ranks_know_their_place(report: str) -> None:
    executable = mpirun()
    arguments = ["--launcher", executable, *root_arguments(executable), "--env", "A=b c"]
    found = lines(launch("--ranks", "3", "--threads", "2", "--bind", "none", "--oversubscribe", *arguments,
                         "--", report, "--x", "y z", "--"))  # fmt: skip
    assert [row[1:4] for row in found] == [[k, 3, k] for k in range(3)]
    assert all(row[5:] == [2, "b c", ["--x", "y z", "--"]] for row in found)


@pytest.mark.slow
def test_ranks_are_bound_to_cores_of_their_own(report: str) -> None:
    executable = mpirun()
    if usable_cores() < 2:
        pytest.skip("this machine has one core")
    found = lines(launch("--ranks", "2", "--threads", "1", "--launcher", executable, *root_arguments(executable),
                         "--", report))  # fmt: skip
    first, second = (set(row[4]) for row in found)  # type: ignore[call-overload]
    assert not first & second
    assert [row[5] for row in found] == [1, 1]


@pytest.mark.slow
def test_exit_code_of_a_rank_is_ours(tmp_path: Path) -> None:
    executable = mpirun()
    failing = tmp_path / "failing.py"
    failing.write_text("import os, sys\nfrom sparsesnn.host.comm.environment import find_place\n"
                       "sys.exit(7 if find_place(os.environ).rank == 1 else 0)\n")  # fmt: skip
    done = launch("--ranks", "2", "--bind", "none", "--oversubscribe", "--launcher", executable,
                  *root_arguments(executable), "--", str(failing))  # fmt: skip
    assert done.returncode == 7


@pytest.mark.slow
def test_a_script_that_fails_on_one_rank_ends_on_all(tmp_path: Path) -> None:
    """The others wait for it, and would for ever."""
    pytest.importorskip("mpi4py", reason="needs mpi4py, in the extra 'mpi'")
    executable = mpirun()
    failing = tmp_path / "failing.py"
    failing.write_text("from sparsesnn.host.comm import mpi_world\nworld = mpi_world()\n"
                       "if world.rank == 1:\n    raise ValueError('no such thing')\nworld.barrier()\n")  # fmt: skip
    done = launch("--ranks", "2", "--bind", "none", "--oversubscribe", "--launcher", executable,
                  *root_arguments(executable), "--", str(failing))  # fmt: skip
    assert done.returncode != 0
    assert "ValueError: no such thing" in done.stderr


@pytest.mark.slow
def test_fake_poprun_gives_what_popdist_reads(report: str) -> None:
    executable = mpirun()
    path = f"{FAKES}:{Path(executable).parent}:{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    root = ["--launcher-args=--allow-run-as-root 1"] if root_arguments(executable) else []
    done = launch("--ranks", "2", "--num-replicas", "4", "--ipus-per-replica", "2", "--vipu-partition", "p8", *root,
                  "--threads", "1", "--bind", "none", "--env", "A=1", "--", report, "x",
                  environ={"PATH": path})  # fmt: skip
    found = lines(done)
    assert [row[:4] for row in found] == [["popdist", k, 2, k] for k in range(2)]
    assert all(row[5:] == [1, "1", ["x"]] for row in found)


def test_fake_poprun_deals_replicas_out() -> None:
    """The variables of each instance, from the command that it would run."""
    executable = mpirun()
    environ = os.environ | {"PATH": f"{Path(executable).parent}:{os.environ['PATH']}"}
    command = [
        sys.executable,
        str(FAKES / "poprun"),
        "-vv",
        "--offline-mode=yes",
        "--num-instances=2",
        "--num-replicas=6",
    ]
    done = subprocess.run([*command, "prog"], capture_output=True, text=True, env=environ, check=True)
    words = shlex.split(done.stderr.partition("[poprun:fake]")[2])
    first, second = (_variables(part) for part in _split(words, ":"))
    both = {
        "POPDIST_NUM_TOTAL_REPLICAS": "6", "POPDIST_NUM_IPUS_PER_REPLICA": "1", "POPDIST_NUM_LOCAL_REPLICAS": "3",
        "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "1", "IPUOF_VIPU_API_HOST": "localhost", "IPUOF_VIPU_API_PORT": "8090",
        "IPUOF_VIPU_API_PARTITION_ID": "", "IPUOF_VIPU_API_TIMEOUT": "120", "IPUOF_LOG_LEVEL": "WARN",
        "POPLAR_TARGET_OPTIONS": '{"ipuLinkDomainSize":"64","ipuLinkConfiguration":"slidingWindow",'
        '"ipuLinkTopology":"torus","gatewayMode":"true","instanceSize":"3"}',
    }  # fmt: skip
    for k, found in enumerate((first, second)):
        assert found == both | {
            "POPDIST_REPLICA_INDEX_OFFSET": str(3 * k), "POPDIST_LOCAL_INSTANCE_INDEX": str(k), "IPUOF_VIPU_API_GCD_ID": str(k),
        }  # fmt: skip
    refused = subprocess.run(
        [*command, "--num-replicas=5", "prog"], capture_output=True, text=True, env=environ, check=False
    )
    assert refused.returncode == 1
    assert "5 replicas cannot be distributed evenly over 2 instances" in refused.stderr
    unknown = subprocess.run(
        [*command, "--replicas=5", "prog"], capture_output=True, text=True, env=environ, check=False
    )
    assert unknown.returncode != 0


def _variables(words: list[str]) -> dict[str, str]:
    """What `-x NAME=VALUE` (Open MPI) or `-env NAME VALUE` (Hydra) sets."""
    found = {}
    for k, word in enumerate(words):
        if word == "-env":
            found[words[k + 1]] = words[k + 2]
        elif word == "-x" and "=" in words[k + 1]:
            name, _, found[name] = words[k + 1].partition("=")
    return found


TRAINING = """
[data]
name = "synthetic"
n_neurons = 30
n_steps = 12
n_classes = 3
n_samples = 60
n_blocks = 3
[net]
text = "auto-16-auto"
[train]
epochs = 1
batch = 14
plots = false
tensorboard = false
target = "ipu-mk2:1x16"
"""


def poprun(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """`sparsesnn launch` over the fake PopRun."""
    executable = mpirun()
    path = f"{FAKES}:{Path(executable).parent}:{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    root = ["--launcher-args=--allow-run-as-root 1"] if root_arguments(executable) else []
    (folder / "run.toml").write_text(TRAINING)
    return launch(*arguments[: arguments.index("--")], *root, "--threads", "1", "--bind", "none",
                  *arguments[arguments.index("--") :], environ={"PATH": path})  # fmt: skip


@pytest.mark.slow
def test_poprun_trains_its_replicas(tmp_path: Path) -> None:
    """One instance: the weights are those of four replicas without PopRun, and not those of one."""
    words = ["train", "--config", str(tmp_path / "run.toml"), "--backend", "ipu-model", "--quiet", "--json"]
    done = poprun(
        "--ranks", "1", "--num-replicas", "4", "--", *words, "--out", str(tmp_path / "poprun"), folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    alone = {}
    for n in (1, 4):
        more = ["--set", f"parallel.replicas={n}", "--out", str(tmp_path / str(n))]
        command = [sys.executable, "-m", "sparsesnn", *words, *more]
        alone[n] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)[
            "weights_sha256"
        ]
    result = json.loads((tmp_path / "poprun" / "result.json").read_text())
    assert result["weights_sha256"] == alone[4] != alone[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "backend", "message"),
    [
        (("--ranks", "1", "--num-replicas", "4"), ["ipu-model", "--set", "parallel.replicas=2"], "is 2, but PopRun has 4"),
        (("--ranks", "2", "--num-replicas", "4"), ["ipu-model"], "is 'ipu-model' on 2 ranks of poprun; allowed: "),
        (("--ranks", "2", "--num-replicas", "4"), ["ipu"], "needs the Poplar SDK"),
    ],
)  # fmt: skip
def test_poprun_against_what_a_run_asks_for(
    arguments: tuple[str, ...], backend: list[str], message: str, tmp_path: Path
) -> None:
    words = ["train", "--config", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out"), "--backend", *backend]
    done = poprun(*arguments, "--", *words, folder=tmp_path)
    assert done.returncode != 0
    assert message in done.stderr


def _split(words: list[str], at: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word == at:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def test_fake_is_named_as_one() -> None:
    assert "A fake of Graphcore's PopRun" in (FAKES / "poprun").read_text()
    assert shutil.which("poprun", path=str(FAKES))
