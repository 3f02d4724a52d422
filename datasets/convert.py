"""Converts a data set block by block, using more processes for larger sources.

A block is a range of files or samples; the data set's module makes one with `convert(first, last, **arguments)`, whose
arguments are plain data. So any process can make any block, and the result does not depend on their number.

A worker is a fresh process of this interpreter: it inherits no threads and no locks, and does not run the caller's
script a second time, as `multiprocessing` would. It reads ranges from its standard input and answers with a line of
JSON and the bytes of the arrays. It ends when its input ends, so no worker outlives a killed caller by more than a block.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from sparsesnn import errors
from sparsesnn.datasets.binning import Binned
from sparsesnn.errors import ConfigError, SparseSnnError

#: raw bytes that justify a worker: starting one costs two seconds, about as long as converting this much
_BYTES_PER_WORKER = 64 << 20

#: in an answer, next to the names of columns
_VALUES = "values of spikes"

_WORKER = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from sparsesnn.datasets import convert
convert.work()
"""


@dataclass(frozen=True)
class Part:
    """Some samples: their lists, and for each name, such as `labels` or `users`, one whole number per sample."""

    binned: Binned
    columns: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)

    @classmethod
    def join(cls, parts: Sequence[Part]) -> Part:
        """The samples of all parts, in order; there is at least one part."""
        columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
        return cls(Binned.join([part.binned for part in parts]), columns)


@dataclass(frozen=True)
class Job:
    """A conversion.

    Args:
        module: full name of the module whose `convert(first, last, **arguments)` makes a `Part`.
        arguments: JSON values.
        n_items: files or samples; each block is a range of them.
        n_bytes: size of the source, from which the number of processes follows.
        title: of the progress bar and of messages: data set and split.
        block: items per block.
    """

    module: str
    arguments: Mapping[str, Any]
    n_items: int
    n_bytes: int
    title: str
    block: int

    def blocks(self) -> list[tuple[int, int]]:
        """All ranges `(first, last)`, last exclusive; one empty range if there are no items."""
        starts = range(0, max(1, self.n_items), self.block)
        return [(first, min(first + self.block, self.n_items)) for first in starts]


def n_workers_for(job: Job, n_workers: int | None) -> int:
    """Number of processes: `n_workers`, or one per core as far as there are enough bytes; never more than blocks.

    Raises:
        ConfigError: `n_workers` is below 1.
    """
    if n_workers is None:
        n_workers = max(1, min(len(os.sched_getaffinity(0)), job.n_bytes // _BYTES_PER_WORKER))
    if n_workers < 1:
        raise ConfigError(f"{job.title}: {n_workers} worker processes requested; give a number from 1")
    return min(n_workers, len(job.blocks()))


def run(job: Job, n_workers: int = 1) -> Part:
    """Converts all blocks and joins them in order; a long conversion shows a progress bar in a terminal.

    Args:
        n_workers: processes; 1 converts in this one.

    Raises:
        DataError, ConfigError: as `convert` raised them in any process.
        DataError: a worker died, because a damaged file crashed a library or memory ran out.
    """
    with progress_bar(f"converting {job.title}", job.n_items) as bar:
        if n_workers == 1:
            return Part.join(list(_made_here(job, bar.update)))
        return Part.join(_made_by_workers(job, n_workers, bar.update))


def progress_bar(title: str, total: int, *, large: bool = False) -> tqdm[Any]:
    """A progress bar, shown only in a terminal and after a second; `large`: abbreviated numbers, 12.3M."""
    size = shutil.get_terminal_size((120, 24))  # tqdm prints nothing if a terminal reports 0 columns
    return tqdm(
        desc=title,
        total=total,
        unit_scale=large,
        bar_format="{desc} {percentage:3.0f}% |{bar:20}| {n_fmt}/{total_fmt}, {remaining} left",
        disable=None,  # not in a terminal
        delay=1.0,
        leave=False,
        ncols=size.columns,
        nrows=size.lines,
    )


def _made_here(job: Job, done: Callable[[int], Any]) -> Iterator[Part]:
    convert = importlib.import_module(job.module).convert
    for first, last in job.blocks():
        yield convert(first, last, **job.arguments)
        done(last - first)


# ---- the caller's side ---------------------------------------------------------------------------------------------


def _made_by_workers(job: Job, n_workers: int, done: Callable[[int], Any]) -> list[Part]:
    blocks = job.blocks()
    parts: list[Part | None] = [None] * len(blocks)
    failures: dict[int, BaseException] = {}
    todo = iter(range(len(blocks)))
    lock = threading.Lock()
    workers = [_Worker(job) for _ in range(n_workers)]

    def serve(worker: _Worker) -> None:
        while True:
            with lock:
                k = None if failures else next(todo, None)
            if k is None:
                return
            try:
                parts[k] = worker.convert(*blocks[k])
            except Exception as error:
                failures[k] = error
                return
            with lock:
                done(blocks[k][1] - blocks[k][0])

    try:
        with ThreadPoolExecutor(n_workers) as pool:
            try:
                for served in [pool.submit(serve, worker) for worker in workers]:
                    served.result()
            except BaseException:  # Ctrl-C: the threads wait for their workers, which must end first
                for worker in workers:
                    worker.kill()
                raise
    finally:
        for worker in workers:
            worker.kill()
    if failures:
        raise failures[min(failures)]  # the failure of the first block, whichever came first
    return [part for part in parts if part is not None]


class _Worker:
    """A process that converts blocks."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.process = subprocess.Popen(
            # -I: import nothing from the current folder
            [sys.executable, "-I", "-c", _WORKER, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C reaches only the caller, which ends its workers
        )
        self.begun = False

    def convert(self, first: int, last: int) -> Part:
        assert self.process.stdin is not None, "opened with a pipe"
        assert self.process.stdout is not None, "opened with a pipe"
        try:
            if not self.begun:
                self._send({"module": self.job.module, "arguments": dict(self.job.arguments)})
                self.begun = True
            self._send([first, last])
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if not answer.endswith(b"\n"):
            raise self._died(first, last)
        reply = json.loads(answer)
        if "error" in reply:
            name, message = reply["error"]
            known = {"DataError": errors.DataError, "ConfigError": ConfigError, "MemoryError": MemoryError}
            raise known.get(name, RuntimeError)(message)
        arrays = {}
        for name, dtype, shape in reply["arrays"]:
            array = np.empty(shape, dtype)
            stdout = cast(io.BufferedReader, self.process.stdout)
            if stdout.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:
                raise self._died(first, last)
            arrays[name] = array
        n_neurons, n_lost, n_merged = reply["numbers"]
        values = arrays.pop(_VALUES, None)
        binned = Binned(arrays.pop("ids"), arrays.pop("n_spikes"), n_neurons, n_lost, n_merged, values)
        return Part(binned, arrays)

    def _send(self, value: Any) -> None:
        assert self.process.stdin is not None, "opened with a pipe"
        self.process.stdin.write(json.dumps(value).encode() + b"\n")
        self.process.stdin.flush()

    def _died(self, first: int, last: int) -> errors.DataError:
        code = self.process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return errors.DataError(
            f"{self.job.title}: the process that converted items {first} to {last - 1} {how}; "
            "if memory ran out, use fewer workers, else a file is damaged: get a fresh copy"
        )

    def kill(self) -> None:
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # data not sent yet
                    pipe.close()
        self.process.wait()


# ---- the worker's side ---------------------------------------------------------------------------------------------


def work() -> None:
    """Answers requests until standard input ends."""
    # output printed by a library must not mix with an answer
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        requests = sys.stdin.buffer
        task = json.loads(requests.readline() or b"null")
        for line in requests:
            first, last = json.loads(line)
            try:
                convert = importlib.import_module(task["module"]).convert
                _answer(out, convert(first, last, **task["arguments"]))
            except (SparseSnnError, MemoryError) as error:
                _answer_line(out, {"error": [type(error).__name__, str(error)]})
            except Exception:
                _answer_line(out, {"error": ["RuntimeError", traceback.format_exc()]})


def _answer(out: BinaryIO, part: Part) -> None:
    binned = part.binned
    values = {} if binned.values is None else {_VALUES: binned.values}
    arrays = {"ids": binned.ids, "n_spikes": binned.n_spikes, **values, **part.columns}
    numbers = [binned.n_neurons, binned.n_lost, binned.n_merged]
    described = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    _answer_line(out, {"arrays": described, "numbers": numbers})
    for array in arrays.values():
        out.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    out.flush()


def _answer_line(out: BinaryIO, value: Any) -> None:
    out.write(json.dumps(value).encode() + b"\n")
    out.flush()
