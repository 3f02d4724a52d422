"""One contestant in a separate process: reads one JSON command a line, answers with one JSON line.

load {task}           builds network and data, takes the first step (compiling, if it compiles)
steps {seconds}       one step to warm up, then steps until the time is over, at least one
memory                highest memory since the first step ended, above the memory before the first step
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

from rivals.catalog import Rival, chosen
from rivals.task import Task


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of libraries goes to the log
    _die_with_parent()
    (rival,) = chosen([options.name])
    contestant = Contestant(rival, options.threads, options.device)
    with contextlib.suppress(Exception):  # imports take seconds: all workers import while the first ones load
        importlib.import_module(contestant.module)
    for line in sys.stdin:
        try:
            command = json.loads(line)
            answer = getattr(contestant, command.pop("do"))(**command)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
        _say(answers, answer)


def _die_with_parent() -> None:
    """Ends this process with its parent (Linux): a stopped process would outlive a killed race."""
    pr_set_pdeathsig = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGKILL))


def _say(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer, allow_nan=False) + "\n")


class Contestant:
    def __init__(self, rival: Rival, threads: int, device: str) -> None:
        self.rival = rival
        self.device = device
        self.module = f"rivals.contestants.{rival.module}"
        self.threads = threads
        self.step: Callable[[], float] | None = None
        self.at_rest: int | None = None

    def load(self, task: str) -> dict[str, Any]:
        self.step = None
        gc.collect()
        if self.rival.environment != "jax":
            import torch

            torch.set_num_threads(self.threads)
        loaded = Task.load(Path(task))
        name, options = self.rival.contestant(cameras=loaded.maps is not None)
        module = importlib.import_module(f"rivals.contestants.{name}")
        with self._on_device():  # only while it is made: a default device costs each call of PyTorch some microseconds
            self.step = module.make(loaded, **options)
        gc.collect()
        self.at_rest = self._in_use()
        start = time.perf_counter()
        loss = self.step()
        first = time.perf_counter() - start
        self._reset_peak()  # memory of compilation is not that of a step
        return {"loss": loss, "first_step_s": first, "version": self._version()}

    def steps(self, seconds: float) -> dict[str, Any]:
        assert self.step is not None, "load must come first"
        self.step()
        self._wait()
        times: list[float] = []
        begin, cpu = time.perf_counter(), time.process_time()
        while not times or time.perf_counter() - begin < seconds:
            start = time.perf_counter()
            self.step()
            self._wait()
            times.append(time.perf_counter() - start)
        return {"times": times, "cpu": (time.process_time() - cpu) / len(times)}

    def memory(self) -> dict[str, Any]:
        peak = self._peak()
        return {"growth": None if peak is None or self.at_rest is None else peak - self.at_rest}

    # device, synchronization and memory; a CPU's work is done when a call returns

    def _on_device(self) -> contextlib.AbstractContextManager[Any]:
        if self.device == "cpu":
            return contextlib.nullcontext()
        import torch

        return torch.device(self.device)

    def _wait(self) -> None:
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize()

    def _in_use(self) -> int | None:
        if self.device == "cpu":
            return start_peak()
        import torch

        return torch.cuda.memory_allocated()

    def _reset_peak(self) -> None:
        if self.device == "cpu":
            reset_peak()
        else:
            import torch

            torch.cuda.reset_peak_memory_stats()

    def _peak(self) -> int | None:
        if self.device == "cpu":
            return _status("VmHWM")
        import torch

        return torch.cuda.max_memory_allocated()

    def _version(self) -> str | None:
        return None if self.rival.package is None else metadata.version(self.rival.package)


def start_peak() -> int | None:
    """Returns free memory, resets the high-water mark, and returns the bytes in use; None if unknown."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return None
    return _status("VmRSS") if reset_peak() else None


def reset_peak() -> bool:
    """Sets the high-water mark to the memory in use (Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status(key: str) -> int | None:
    """Bytes of an entry of /proc/self/status, which is in kB."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{key}:")), None)


if __name__ == "__main__":
    main()
