"""Command lines, host lists, batch scripts: pure functions, compared word by word."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsesnn.errors import ConfigError
from sparsesnn.launch.command import KINDS, command_line
from sparsesnn.launch.finding import kind_of
from sparsesnn.launch.job import Host, Job, PopRun, parse_hosts
from sparsesnn.launch.templates import Batch, batch_script

PROGRAM = ("/py", "-m", "sparsesnn", "train", "it's; $HOME")


def line(kind: str, **options: Any) -> str:
    """The command without the program, as one would read it."""
    words = command_line(kind, kind, Job(PROGRAM, **options))
    assert words[-len(PROGRAM) :] == list(PROGRAM)  # untouched: no shell reads it
    return " ".join(words[: -len(PROGRAM)])


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (
            "openmpi",
            {"ranks": 4, "threads": 2},
            "openmpi -np 4 --map-by slot:PE=2 --bind-to core -x SPARSESNN_THREADS=2 -x OMP_NUM_THREADS=2",
        ),
        (
            "openmpi",
            {"ranks": 3, "hosts": (Host("a", 2), Host("b", 1)), "bind": False, "oversubscribe": True},
            "openmpi -np 3 --host a:2,b:1 --map-by slot:OVERSUBSCRIBE --bind-to none -x SPARSESNN_THREADS=1 -x OMP_NUM_THREADS=1",
        ),
        (
            "openmpi",
            {"ranks": 4, "hosts": (Host("a", 2), Host("b", 2)), "threads": 8},
            "openmpi -np 4 --host a:2,b:2 --map-by ppr:2:node:PE=8 --bind-to core -x SPARSESNN_THREADS=8 -x OMP_NUM_THREADS=8",
        ),
        (
            "mpich",
            {"ranks": 4, "hosts": (Host("a", 3), Host("b", 1)), "threads": 2, "environment": {"SPARSESNN_ISA": "base"}},
            "mpich -n 4 -hosts a:3,b:1 -bind-to core:2 -genv SPARSESNN_THREADS 2 -genv OMP_NUM_THREADS 2 -genv SPARSESNN_ISA base",
        ),
        (
            "mpich",
            {"ranks": 4, "ranks_per_host": 2, "bind": False, "extra": ("-launcher", "fork")},
            "mpich -n 4 -ppn 2 -bind-to none -genv SPARSESNN_THREADS 1 -genv OMP_NUM_THREADS 1 -launcher fork",
        ),
        (
            "srun",
            {"ranks": 8, "threads": 16, "ranks_per_host": 4, "pmi": "pmi2"},
            "srun --ntasks=8 --cpus-per-task=16 --ntasks-per-node=4 --distribution=block:block --kill-on-bad-exit=1 "
            "--cpu-bind=cores --mpi=pmi2 --export=ALL,SPARSESNN_THREADS=16,OMP_NUM_THREADS=16",
        ),
        (
            "srun",
            {"ranks": 3, "hosts": (Host("a", 2), Host("b", 1)), "bind": False, "oversubscribe": True},
            "srun --ntasks=3 --cpus-per-task=1 --nodes=2 --nodelist=a,b --ntasks-per-node=2 --distribution=block:block "
            "--kill-on-bad-exit=1 --cpu-bind=none --overcommit --export=ALL,SPARSESNN_THREADS=1,OMP_NUM_THREADS=1",
        ),
        (
            "poprun",
            {"ranks": 2, "hosts": (Host("a", 1), Host("b", 1)), "poprun": PopRun(8, 2, "p16")},
            "poprun --num-instances=2 --num-replicas=8 --ipus-per-replica=2 --vipu-partition=p16 --host=a,b --numa-aware=yes "
            "--mpi-local-args=-x SPARSESNN_THREADS=1 -x OMP_NUM_THREADS=1",
        ),
    ],
)
def test_command_lines(kind: str, options: dict[str, Any], expected: str) -> None:
    assert line(kind, **options) == expected


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("mpirun", {}, "--launcher: is 'mpirun'; allowed: openmpi, mpich, srun, poprun"),
        ("openmpi", {"poprun": PopRun()}, "--vipu-partition: are options for PopRun, not for openmpi"),
        ("mpich", {"pmi": "pmi2"}, "--mpi: is 'pmi2', a plugin for srun, not for mpich"),
        ("srun", {"ranks": 4, "hosts": (Host("a", 1), Host("b", 3))}, "a:1, b:3; srun spreads ranks evenly"),
        ("srun", {"environment": {"A": "x,y"}}, "--env: A is 'x,y'; srun --export splits at commas"),
        ("poprun", {}, "--launcher poprun: needs --num-replicas"),
        ("poprun", {"poprun": PopRun(), "environment": {"A": "x y"}}, "PopRun splits at spaces"),
        ("poprun", {"poprun": PopRun(), "oversubscribe": True}, "its own cores; leave it out"),
        (
            "poprun",
            {"ranks": 4, "poprun": PopRun(4), "hosts": (Host("a", 3), Host("b", 1))},
            "PopRun puts the same number of instances on each host",
        ),
    ],
)
def test_what_a_launcher_cannot_do(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        line(kind, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": 0}, "--ranks: is 0; give a whole number from 1 to 1,000,000"),
        ({"ranks": 10**9}, "--ranks: is 1000000000"),
        ({"threads": 1025}, "--threads: is 1025; give a whole number from 1 to 1,024"),
        ({"ranks_per_host": 0}, "--ranks-per-host: is 0"),
        (
            {"ranks": 2, "hosts": (Host("a", 2),), "ranks_per_host": 1},
            "--ranks-per-host: is 1, but --hosts puts 2 of 2 ranks on a; name more hosts",
        ),
        ({"ranks": 3, "hosts": (Host("a", 2),)}, "--hosts: has room for 2 ranks, but --ranks is 3; give --ranks 2"),
        ({"environment": {"A B": "1"}}, "--env: is A B='1'; give NAME=VALUE"),
        ({"environment": {"A": "1\0"}}, "--env: is A="),
        ({"ranks": 3, "poprun": PopRun(8)}, r"--num-replicas: is 8, which 3 ranks \(instances\) .*; give 2 or 4 ranks"),
        (
            {"ranks": 8, "poprun": PopRun(4)},
            r"--num-replicas: is 4, which 8 ranks \(instances\) .*; give 8 replicas or more",
        ),
        ({"poprun": PopRun(6)}, "--num-replicas: is 6; IPUs come in powers of two: give 4 or 8"),
        ({"poprun": PopRun(4, 3)}, "--ipus-per-replica: is 3; IPUs come in powers of two: give 2 or 4"),
        ({"poprun": PopRun(1, 0)}, "--ipus-per-replica: is 0"),
    ],
)
def test_jobs_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Job(PROGRAM, **options)


def test_a_job_needs_a_program() -> None:
    with pytest.raises(ConfigError, match="the command is missing; give it after --"):
        Job(())


def test_hosts() -> None:
    assert parse_hosts("a,b", 4) == (Host("a", 2), Host("b", 2))
    assert parse_hosts("a, b.c-d", 3) == (Host("a", 2), Host("b.c-d", 1))
    assert parse_hosts("a,b", None) == (Host("a", 1), Host("b", 1))
    assert parse_hosts("a,b", None, 4) == (Host("a", 4), Host("b", 4))
    assert parse_hosts("a:3,b:1", None, 4) == (Host("a", 3), Host("b", 1))
    assert parse_hosts("10.0.0.1:3,10.0.0.2:1", 4) == (Host("10.0.0.1", 3), Host("10.0.0.2", 1))


@given(st.integers(1, 40), st.integers(1, 12))
def test_every_rank_finds_a_host(ranks: int, n_hosts: int) -> None:
    names = [f"h{k}" for k in range(min(n_hosts, ranks))]
    hosts = parse_hosts(",".join(names), ranks)
    assert [host.name for host in hosts] == names
    assert sum(host.ranks for host in hosts) == ranks
    assert max(h.ranks for h in hosts) - min(h.ranks for h in hosts) <= 1


@pytest.mark.parametrize("text", ["", "a,", "a,a", "a b", "-a", "a;rm", "a:b", "a:", "$(x)", "a\nb"])
def test_no_hosts(text: str) -> None:
    with pytest.raises(ConfigError, match="--hosts: is .*; give different host names joined by commas"):
        parse_hosts(text, 4)


def test_hosts_say_all_or_nothing() -> None:
    with pytest.raises(ConfigError, match="--hosts: is 'a:1,b'; give the number of ranks for every host"):
        parse_hosts("a:1,b", 2)
    with pytest.raises(ConfigError, match="names 3 hosts for 2 ranks"):
        parse_hosts("a,b,c", 2)


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to", "openmpi"),
        ("mpirun (Open MPI) 5.0.11", "openmpi"),
        ("mpiexec (OpenRTE) 4.1.4", "openmpi"),
        ("HYDRA build details:\n    Version: 5.0.2", "mpich"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9", "mpich"),
        ("slurm 22.05", None),
        ("", None),
    ],
)
def test_kinds_of_mpirun(version: str, kind: str | None) -> None:
    assert kind_of(version) == kind


# ---- batch scripts --------------------------------------------------------------------------------------------------

CLUSTER_JOB = Job(PROGRAM, ranks=10, ranks_per_host=4, threads=16)
IPU_JOB = Job(PROGRAM, ranks=2, poprun=PopRun(8, 2))


def check_shell(script: str) -> None:
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def words_of_command(script: str) -> list[str]:
    return shlex.split(script[script.index("\nexec ") + 6 :].replace("\\\n", ""))


def test_slurm_script() -> None:
    script = batch_script("slurm", CLUSTER_JOB, Batch(name="snn", time="30", modules=("OpenMPI", "Python/3.11")))
    check_shell(script)
    assert script.startswith("#!/bin/bash\n#SBATCH --job-name=snn\n#SBATCH --time=30\n")
    for option in (
        "--nodes=3",
        "--ntasks=10",
        "--ntasks-per-node=4",
        "--cpus-per-task=16",
        "--requeue",
        "--open-mode=append",
        "--signal=TERM@120",
    ):
        assert f"\n#SBATCH {option}\n" in script
    assert "account" not in script
    assert "\nmodule load OpenMPI Python/3.11\n" in script
    assert words_of_command(script) == command_line("srun", "srun", CLUSTER_JOB)


@pytest.mark.parametrize(
    ("time", "seconds", "grace"),
    [("2", 120, 24), ("9:59", 599, 119), ("10", 600, 120), ("00:01:30", 90, 18), ("1-0", 86400, 120), ("0", 0, 120),
     ("1-2:3", 93780, 120), ("2-0:0:7", 172807, 120)],
)  # fmt: skip
def test_a_short_limit_leaves_time_to_train(time: str, seconds: int, grace: int) -> None:
    batch = Batch(time=time)
    assert batch.limit_s == seconds
    assert f"\n#SBATCH --signal=TERM@{grace}\n" in batch_script("slurm", CLUSTER_JOB, batch)


def test_jsc_script() -> None:
    script = batch_script("jsc", CLUSTER_JOB, Batch(account="snn42", partition="dc-cpu"))
    check_shell(script)
    for expected in ("#SBATCH --account=snn42\n", "#SBATCH --partition=dc-cpu\n", "module load GCC ParaStationMPI\n"):
        assert expected in script
    assert "export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK}\n" in script


def test_alcf_script() -> None:
    script = batch_script("alcf", IPU_JOB, Batch())
    check_shell(script)
    assert "#SBATCH --ipus=16\n" in script
    assert "\nsource /software/graphcore/poplar_sdk/3.3.0/enable\n" in script
    assert "--vipu-partition=slurm_${SLURM_JOBID} " in script
    assert words_of_command(script)[-5:] == list(PROGRAM)


def test_poprun_script() -> None:
    job = Job(PROGRAM, ranks=2, poprun=PopRun(8, 1, "p8"))
    script = batch_script("poprun", job, Batch(sdk="/my sdk/enable"))
    check_shell(script)
    assert "#SBATCH" not in script
    assert "\nsource '/my sdk/enable'\n" in script
    assert words_of_command(script) == command_line("poprun", "poprun", job)


@pytest.mark.parametrize(
    ("template", "job", "batch", "message"),
    [
        ("pbs", CLUSTER_JOB, {}, "--template: is 'pbs'; allowed: slurm, jsc, alcf, poprun"),
        ("slurm", Job(PROGRAM, ranks=2), {}, "--template slurm: needs the ranks per node; give --ranks-per-host"),
        (
            "slurm",
            Job(PROGRAM, ranks=2, ranks_per_host=2, hosts=(Host("a", 2),)),
            {},
            "Slurm chooses the hosts; leave --hosts out",
        ),
        ("jsc", CLUSTER_JOB, {"account": "a"}, "--template jsc: give --account .* and --partition"),
        ("alcf", CLUSTER_JOB, {}, "--template alcf: needs --num-replicas"),
        ("alcf", Job(PROGRAM, poprun=PopRun(1, 1, "p")), {}, "--vipu-partition: Slurm names it after the job"),
        ("poprun", IPU_JOB, {"account": "a"}, "--account, --partition: are for a scheduler"),
        ("slurm", CLUSTER_JOB, {"account": "a\nexit"}, "--account: is 'a.nexit'; give letters, digits"),
        ("slurm", CLUSTER_JOB, {"time": "soon"}, "--time: is 'soon'; give a limit such as 01:30:00"),
        ("slurm", CLUSTER_JOB, {"name": "x; reboot"}, "--name: is 'x; reboot'"),
    ],
)
def test_scripts_that_lack_something(template: str, job: Job, batch: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        batch_script(template, job, Batch(**batch))


def test_kinds_are_those_that_the_help_names() -> None:
    from sparsesnn.launch import command

    assert all(f"| `{kind}` |" in (command.__doc__ or "") for kind in KINDS)
    assert shutil.which("bash")
