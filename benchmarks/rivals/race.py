"""The rotation: one process per contestant, all kept alive, one running at a time and all others stopped."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

from rivals.catalog import Rival

#: cores used by others during a turn above which the turn is disturbed
QUIET = 0.15
#: the most rounds, as a multiple of the requested ones, in the hope of quiet ones
MORE_ROUNDS = 2
LOAD_LIMIT_S = 900.0  # compiling the whole graph takes minutes
STEP_LIMIT_S = 900.0  # two steps of StateLeaky over 10,000


class WorkerError(Exception):
    """A contestant failed, with this message."""


@dataclass(frozen=True)
class Turn:
    """One turn of one contestant.

    Args:
        seconds: median time of a step.
        n_steps: timed steps.
        cpu: time of all its threads in a step, mean. With one thread it measures the speed even on a shared machine.
        foreign: cores used by other processes meanwhile; None if unknown.
    """

    seconds: float
    n_steps: int
    cpu: float
    foreign: float | None


@dataclass(frozen=True)
class Loaded:
    """A contestant's report of its first step."""

    loss: float
    first_step_s: float
    version: str | None


class Worker:
    """A contestant's process. Between its turns it is stopped, so that no idle thread of it takes time from others."""

    def __init__(
        self, rival: Rival, python: Path, threads: int, folder: Path, cache: Path, device: str = "cpu"
    ) -> None:
        """Starts it; its log goes to `folder`, PyTorch's compiled code to `cache`."""
        self.rival = rival
        self.log = folder / f"{rival.name}.log"
        n = str(threads)
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
            "OMP_NUM_THREADS": n,
            "MKL_NUM_THREADS": n,
            "NUMBA_NUM_THREADS": n,
            "JAX_PLATFORMS": "cpu",
            "PYTHONWARNINGS": "ignore",
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
        }
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [str(python), "-m", "rivals.worker", rival.name, "--threads", n, "--device", device],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,  # not the repository, whose folders would shadow installed packages
                env=environment,
                text=True,
            )
        if hasattr(os, "sched_setaffinity"):  # XLA uses a thread for each available core
            cores = sorted(os.sched_getaffinity(0))[:threads]
            os.sched_setaffinity(self.process.pid, cores)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def load(self, task: Path) -> Loaded:
        return Loaded(**self._ask({"do": "load", "task": str(task)}, LOAD_LIMIT_S))

    def turn(self, seconds: float) -> Turn:
        own, busy, start = _cpu_seconds(self.process.pid), _busy_seconds(), time.perf_counter()
        answer = self._ask({"do": "steps", "seconds": seconds}, STEP_LIMIT_S)
        elapsed = time.perf_counter() - start
        own_after, busy_after = _cpu_seconds(self.process.pid), _busy_seconds()
        foreign = None
        if own is not None and own_after is not None and busy is not None and busy_after is not None:
            foreign = max(0.0, (busy_after - busy) - (own_after - own)) / elapsed
        return Turn(median(answer["times"]), len(answer["times"]), answer["cpu"], foreign)

    def growth(self) -> int | None:
        """Bytes of memory above the memory before the first step."""
        growth = self._ask({"do": "memory"}, STEP_LIMIT_S)["growth"]
        return None if growth is None else int(growth)

    def _ask(self, command: dict[str, Any], limit_s: float) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGCONT)
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
            if not select.select([self.process.stdout], [], [], limit_s)[0]:
                raise WorkerError(f"no answer to '{command['do']}' in {limit_s:.0f} s")
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerError(f"its process ended: {self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        self.process.send_signal(signal.SIGSTOP)
        return dict(answer)

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"status {self.process.wait()}"


def rotate(workers: list[Worker], rounds: int, seconds: float) -> tuple[dict[str, list[Turn]], dict[str, str]]:
    """Turns of each contestant by name; a round is one turn each, and the next begins with another contestant.

    Rounds continue, up to MORE_ROUNDS times `rounds`, until `rounds` of each contestant's turns were quiet. A failed one leaves
    `workers`, and its reason is in the second result.
    """
    turns: dict[str, list[Turn]] = {worker.rival.name: [] for worker in workers}
    failed: dict[str, str] = {}
    for number in range(rounds * MORE_ROUNDS):
        if number >= rounds and all(sum(map(is_quiet, t)) >= rounds for t in turns.values()):
            break
        first = number % max(1, len(workers))
        for worker in [*workers[first:], *workers[:first]]:
            try:
                turns[worker.rival.name].append(worker.turn(seconds))
            except WorkerError as error:
                workers.remove(worker)
                worker.close()
                failed[worker.rival.name] = str(error)
                del turns[worker.rival.name]
        _progress(number, turns)
    return turns, failed


def is_quiet(turn: Turn) -> bool:
    return turn.foreign is None or turn.foreign <= QUIET


def quietest(turns: Sequence[Turn], n: int) -> list[Turn]:
    """The `n` turns least disturbed by others; chosen by their load, never by their time."""
    return sorted(turns, key=lambda turn: turn.foreign or 0.0)[:n]


def _progress(number: int, turns: Mapping[str, Sequence[Turn]]) -> None:
    loads = [t[-1].foreign or 0.0 for t in turns.values() if t]
    load = f"{median(loads):.2f} cores used by others" if loads else ""
    print(f"    round {number + 1}: {load}", file=sys.stderr, flush=True)


def _cpu_seconds(pid: int) -> float | None:
    """User and system time of a process, all its threads."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _busy_seconds() -> float | None:
    """Time that all cores were not idle; time stolen by the host counts as busy."""
    if (fields := _core_seconds()) is None:
        return None
    user, nice, system, _idle, _wait, irq, softirq, steal = fields
    return user + nice + system + irq + softirq + steal


def stolen_seconds() -> tuple[float, float] | None:
    """Time that a virtual machine's host took from busy cores, and the total time of all cores."""
    fields = _core_seconds()
    return None if fields is None else (fields[-1], sum(fields))


def _core_seconds() -> list[float] | None:
    """Seconds of all cores since the system started: user, nice, system, idle, wait, irq, softirq, steal."""
    try:
        fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return None
    return [x / os.sysconf("SC_CLK_TCK") for x in fields] if len(fields) == 8 else None
