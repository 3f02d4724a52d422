"""`sparsesnn launch`: start a command on several ranks, over MPI, Slurm or PopRun."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsesnn.commands import launch_scaling
from sparsesnn.errors import ConfigError
from sparsesnn.utf8 import print_file, to_bytes
from sparsesnn.wording import count

if TYPE_CHECKING:
    from sparsesnn.launch.allocation import Allocation
    from sparsesnn.launch.job import Job

EXAMPLES = """\
examples:
  sparsesnn launch --ranks 4 -- train digits --out runs/four        four processes on this machine
  sparsesnn launch --ranks 4 --dry-run -- train digits              print the command, start nothing
  sparsesnn launch --ranks 8 --hosts a,b --threads 16 -- train --config run.toml --out runs/x --resume
  sparsesnn launch --ranks 8 --hosts a:6,b:2 -- train shd --data DIR
  sparsesnn launch --ranks 2 --num-replicas 8 --vipu-partition p8 -- train digits --backend ipu
  sparsesnn launch --template jsc --ranks 64 --ranks-per-host 8 --threads 16 --account A --partition dc-cpu -- \\
      train --config run.toml --out runs/x --resume > job.sh         a batch script; then: sbatch job.sh

  sparsesnn launch weak-scaling --ranks 1,2                         measure; see launch weak-scaling --help, strong-scaling, batch-size

options of launch stand before --; after it: a sparsesnn command, your Python file, or -m and a module, with arguments; every rank runs it.
the launcher: srun inside a Slurm job; PopRun if --num-replicas is given; else the mpirun (Open MPI, MPICH, Intel)
  next to this Python or on PATH. The launcher itself reaches other hosts, usually by ssh; they must have the same
  Python at the same path. If a launcher refuses to run as root, add --launcher-args=--allow-run-as-root.
ranks: in a job of Slurm, PBS, LSF or Grid Engine the default is its number of tasks or slots, which is printed. With
  --hosts it is one per host, or --ranks-per-host; with --num-replicas it is one. Otherwise give --ranks.
threads: --threads T gives each rank T worker threads, and binds it to T cores. Default: Slurm's --cpus-per-task, else
  the cores of this machine divided by the ranks on a host. If ranks must share cores, they are not bound, and launch
  reports it.
templates: slurm, jsc (Jülich), alcf (Graphcore at ALCF), poprun; they stop a run before its time limit so that it
  writes a checkpoint, and requeue it if a node fails: use train --resume."""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "launch",
        help="start a command in several processes (ranks), or write a batch script",
        description="Starts a command in several processes (ranks), through mpirun, srun or PopRun.",
        usage="sparsesnn launch [--ranks R] [OPTIONS] -- COMMAND …",
        allow_abbrev=False,  # else options of weak-scaling could be mistaken for launch's
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_launch, commands=commands.choices)
    where = parser.add_argument_group("where")
    where.add_argument(
        "--ranks",
        "--num-instances",
        type=int,
        default=None,
        metavar="R",
        help="processes (default: those of the scheduler's job, or one for each of --hosts)",
    )
    where.add_argument("--auto", action="store_true", help=argparse.SUPPRESS)  # from earlier versions
    where.add_argument("--hosts", metavar="A,B", help="machines, in order; a:6,b:2 gives the ranks on each")
    where.add_argument("--ranks-per-host", type=int, metavar="N", help="maximum number of ranks on a host")
    where.add_argument("--threads", type=int, metavar="T", help="worker threads and cores per rank")
    where.add_argument(
        "--bind",
        choices=("auto", "cores", "none"),
        default="auto",
        help="auto: bind ranks to cores if there are enough (default)",
    )
    where.add_argument("--oversubscribe", action="store_true", help="allow more ranks than cores, without a warning")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--dry-run",
        action="store_true",
        help="print the command line and start nothing; the launcher need not be installed",
    )
    how.add_argument(
        "--launcher", default="auto", metavar="KIND", help="openmpi, mpich, srun, poprun, or the path of an mpirun"
    )
    how.add_argument(
        "--mpi",
        metavar="TYPE",
        help="srun's --mpi (default: pmix for Open MPI, pmi2 for MPICH, if srun has it; else the cluster's default)",
    )
    how.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="variable for every rank; may be repeated"
    )
    how.add_argument("--launcher-args", default="", metavar="TEXT", help="more arguments for the launcher itself")
    ipus = parser.add_argument_group("IPUs, through PopRun")
    ipus.add_argument("--num-replicas", type=int, metavar="N", help="replicas of the graph, over all ranks")
    ipus.add_argument("--ipus-per-replica", type=int, metavar="N", help="IPUs per replica (default: 1)")
    ipus.add_argument("--vipu-partition", metavar="NAME", help="partition of the V-IPU controller")
    batch = parser.add_argument_group("a batch script")
    batch.add_argument("--template", metavar="NAME", help="print one: slurm, jsc, alcf or poprun")
    batch.add_argument("--account", metavar="NAME", help="account to charge")
    batch.add_argument("--partition", metavar="NAME", help="nodes to use")
    batch.add_argument("--time", default="01:00:00", metavar="H:M:S", help="time limit (default: %(default)s)")
    batch.add_argument("--name", default="sparsesnn", metavar="TEXT", help="name of the job (default: %(default)s)")
    batch.add_argument(
        "--module", action="append", default=[], metavar="NAME", help="module to load first; may be repeated"
    )
    batch.add_argument("--sdk", metavar="FILE", help="enable script of the Poplar SDK")
    parser.set_defaults(
        before=[action for action in parser._actions if action.option_strings and action.dest != "help"]
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- COMMAND …", help="command for every rank")


def _launch(options: argparse.Namespace) -> int:
    if options.program[:1] and options.program[0] in launch_scaling.KINDS:
        _check_nothing_before(options)
        return launch_scaling.run(options.program[0], options.program[1:])
    if options.auto:
        raise ConfigError(
            "--auto: launch no longer predicts which grid is fastest; measure grids with sparsesnn train … --comm dry-run:R "
            "--set parallel.shards=S, and launch the fastest: --ranks R -- train … --set parallel.shards=S"
        )
    from sparsesnn.launch.command import command_line
    from sparsesnn.launch.finding import find_launcher

    if options.template is not None:
        return _print_template(options)
    job = make_job(options)
    asked = "poprun" if job.poprun is not None and options.launcher == "auto" else options.launcher
    launcher = find_launcher(asked, elsewhere=options.dry_run)
    if launcher.kind == "srun":
        job = _with_plugin(job, launcher.executable)
    command = command_line(launcher.kind, launcher.executable, job)
    # Within a step, mpirun starts its helper processes on other hosts by srun, which would wait for CPUs.
    before = {"SLURM_OVERLAP": "1"} if job.overlap and launcher.kind != "srun" else {}
    if options.dry_run:
        print_file(to_bytes(shlex.join([*(f"{name}={value}" for name, value in before.items()), *command]) + "\n"))
        if shutil.which(launcher.executable) is None:
            print(
                f"sparsesnn: launch: {launcher.executable} is not installed here, so this command cannot run",
                file=sys.stderr,
            )
        return 0
    if launcher.kind == "openmpi" and os.geteuid() == 0 and not _root_is_allowed(job):
        print(
            "sparsesnn: launch: Open MPI refuses to start programs as root; run as another user, or, to allow root, give "
            "--launcher-args=--allow-run-as-root",
            file=sys.stderr,
        )
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        # The launcher replaces this process: signals reach it, and its exit code is ours.
        os.environ.update(before)
        os.execv(command[0], command)
    except OSError as error:
        raise ConfigError(f"launch: {command[0]} cannot be run: {error.strerror}; give --launcher") from None


def _with_plugin(job: Job, srun: str) -> Job:
    """The job with srun's `--mpi` that its ranks need, if it sets none."""
    from sparsesnn.launch.slurm import choose_plugin

    return job if job.pmi is not None else replace(job, pmi=choose_plugin(srun, {**os.environ, **job.variables}))


def _root_is_allowed(job: Job) -> bool:
    return "--allow-run-as-root" in job.extra or "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM" in os.environ


def _check_nothing_before(options: argparse.Namespace) -> None:
    """Refuses options before the name of a scaling measurement, whose own options follow it."""
    given = [a.option_strings[0] for a in options.before if getattr(options, a.dest) != a.default]
    if given:
        kind = options.program[0]
        raise ConfigError(
            f"launch {kind}: {', '.join(given)} before it would have no effect; give its own options after it (sparsesnn launch "
            f"{kind} --help), and other options of launch as --launch '{given[0]} …'"
        )


def _print_template(options: argparse.Namespace) -> int:
    from sparsesnn.launch.templates import Batch, batch_script

    batch = Batch(options.name, options.time, options.account, options.partition, tuple(options.module), options.sdk)
    job = make_job(options)
    if options.template == "slurm":
        job = _with_plugin(job, "srun")
    print_file(to_bytes(batch_script(options.template, job, batch)))
    return 0


def make_job(options: argparse.Namespace) -> Job:
    """The job described by the options; unset options are decided from this machine."""
    from sparsesnn.launch.allocation import find_allocation, in_slurm_step
    from sparsesnn.launch.job import Job, PopRun, parse_hosts

    program = _program(options.program, options.commands, here=options.template is None)
    if options.ranks is not None and options.ranks < 1:
        raise ConfigError(f"--ranks: is {options.ranks}; give a whole number of processes, at least 1")
    if options.ranks_per_host is not None and options.ranks_per_host < 1:
        raise ConfigError(f"--ranks-per-host: is {options.ranks_per_host}; give a whole number, at least 1")
    elsewhere = options.hosts is not None or options.template is not None
    given = None if elsewhere else find_allocation(os.environ)
    hosts = () if options.hosts is None else parse_hosts(options.hosts, options.ranks, options.ranks_per_host or 1)
    ranks = options.ranks or sum(host.ranks for host in hosts) or _ranks_left_open(options, given)
    if given and ranks > given.ranks and not options.oversubscribe and not in_slurm_step(os.environ):
        print(
            f"sparsesnn: launch: {count(ranks, 'rank')}, but this job has room for {given.ranks} ({given.source}): the launcher may "
            "refuse; with --oversubscribe ranks share CPUs",
            file=sys.stderr,
        )
    on_a_host = options.ranks_per_host or max(
        (host.ranks for host in hosts), default=-(-ranks // (given.hosts if given else 1))
    )
    # A scheduler that sets the CPUs of a rank may count hardware threads, and starts no more ranks than fit.
    here = not elsewhere and (given is None or (given.hosts == 1 and given.threads is None))
    threads, bind, oversubscribe = _share_cores(options, on_a_host, given, here=here)
    poprun = None
    if options.num_replicas is not None:
        poprun = PopRun(options.num_replicas, options.ipus_per_replica or 1, options.vipu_partition)
    elif options.ipus_per_replica is not None or options.vipu_partition is not None:
        raise ConfigError("--ipus-per-replica, --vipu-partition: need --num-replicas")
    return Job(
        program=program,
        ranks=ranks,
        hosts=hosts,
        ranks_per_host=options.ranks_per_host,
        threads=threads,
        bind=bind,
        oversubscribe=oversubscribe,
        environment=dict(_assignment(text) for text in options.env),
        pmi=options.mpi,
        overlap=options.template is None and in_slurm_step(os.environ),
        extra=tuple(_words(options.launcher_args)),
        poprun=poprun,
    )


def _ranks_left_open(options: argparse.Namespace, given: Allocation | None) -> int:
    """The number of ranks without --ranks and --hosts: the room in the scheduler's job."""
    if options.num_replicas is not None:
        return 1  # PopRun's own default: one process drives all replicas
    if options.template is not None:
        raise ConfigError(f"--template {options.template}: needs --ranks, such as 8")
    if given is None:
        raise ConfigError(
            "launch: the number of ranks is missing, and this is not a job of Slurm, PBS, LSF or Grid Engine; give --ranks, "
            "such as --ranks 2, or --hosts a,b"
        )
    ranks = given.ranks if options.ranks_per_host is None else given.hosts * options.ranks_per_host
    why = given.source if options.ranks_per_host is None else "--ranks-per-host"
    hosts = f" on {count(given.hosts, 'host')}" if given.hosts > 1 else ""
    print(f"sparsesnn: launch: {count(ranks, 'rank')}{hosts}, from {why}; change it with --ranks", file=sys.stderr)
    return ranks


def _share_cores(
    options: argparse.Namespace, on_a_host: int, given: Allocation | None, *, here: bool
) -> tuple[int, bool, bool]:
    """Threads per rank, whether to bind it, whether ranks share cores.

    Other machines are unknown: for defaults they are assumed to have the same number of cores as this one, and to be
    large enough for explicit options.
    """
    from sparsesnn.launch.cores import usable_cores

    cores = min(usable_cores(), given.cpus) if given and given.cpus else usable_cores()
    threads = options.threads
    if threads is None:
        threads = given.threads if given and given.threads else max(1, cores // on_a_host)
    fits = not here or threads * on_a_host <= cores
    work = f"{count(on_a_host, 'rank')} × {count(threads, 'thread')}"
    if options.bind == "cores" and not fits:
        raise ConfigError(
            f"--bind cores: {work} need {count(threads * on_a_host, 'core')}, but this machine has {cores}; give fewer, or --bind none"
        )
    if not fits and not options.oversubscribe:
        print(
            f"sparsesnn: launch: {work} share {count(cores, 'core')}; they are not bound",
            file=sys.stderr,
        )
    return threads, options.bind == "cores" or (options.bind == "auto" and fits), not fits or options.oversubscribe


def _program(words: list[str], commands: Collection[str], *, here: bool) -> tuple[str, ...]:
    """The program of every rank: this Python with a sparsesnn command, or with a file, which must exist here.

    Checked before the start, so that an error is reported once and not by every rank.
    """
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        return ()
    if words[0] == "-m" and len(words) > 1:
        return _python(*words)
    if words[0].startswith("-"):
        raise ConfigError(
            f"launch: {words[0]} is not a command; put -- before the command: sparsesnn launch --ranks 4 -- train …"
        )
    if words[0].endswith(".py"):
        if here and not Path(words[0]).is_file():
            raise ConfigError(f"launch: {words[0]}: no such file in {Path.cwd()}; give the path of your script")
        return _python(*words)
    if words[0] in launch_scaling.KINDS:
        raise ConfigError(f"launch: {words[0]} starts ranks itself; write: sparsesnn launch {words[0]} --ranks 1,2")
    if words[0] not in commands:
        raise ConfigError(
            f"launch: {words[0]!r} is not a sparsesnn command; allowed: {', '.join(commands)}, a file that ends in .py, or -m "
            "and a module"
        )
    return (sys.executable, "-m", "sparsesnn", *words)


def _python(*words: str) -> tuple[str, ...]:
    """Python with a user's script or module, run by `launch/script.py`, which needs mpi4py."""
    runner = ("-m", "sparsesnn.launch.script") if importlib.util.find_spec("mpi4py") else ()
    return (sys.executable, *runner, *words)


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--env: is {text!r}; give NAME=VALUE, such as SPARSESNN_ISA=base")
    return name, value


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--launcher-args: {text!r}: {error}; close the quotes") from None
