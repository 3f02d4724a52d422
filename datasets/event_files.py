"""Events of one recording, as camera software writes it: AEDAT4, EVT2, EVT3, DAT, or text. A file is read block by block.

| ending | format | reader |
|---|---|---|
| `.aedat4` | AEDAT4 (iniVation) | the package faery, in a separate process (`camera_reader`) |
| `.raw` | EVT3 and EVT2 (Prophesee) | the same |
| `.dat` | DAT (Prophesee) | the same |
| `.txt`, `.csv` | a line `t x y p` for each event (`text_events`) | NumPy |

A damaged file ends in a `DataError` that names it: if the reader fails, crashes, hangs, takes too much memory, or finds more events
than such a file can hold.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsesnn.datasets import arrays, camera_reader, reader_process
from sparsesnn.datasets.hdf5_items import most_entries
from sparsesnn.datasets.text_events import read_text
from sparsesnn.errors import DataError, MissingDependencyError
from sparsesnn.event_times import PERIODS_US, Wraps
from sparsesnn.regular_file import check_regular

#: endings, and the bytes with which such a file begins: a file without a header would be decoded as whatever is the default
BEGINNINGS = {".aedat4": b"#!AER-DAT4.0\r\n", ".raw": b"% ", ".dat": b"% "}
#: faery's words for the formats
_TYPES = {".aedat4": "aedat", ".raw": "evt", ".dat": "dat"}
TEXTS = (".txt", ".csv")
ENDINGS = (*BEGINNINGS, *TEXTS)

#: seconds that a reader may take for the next block
SECONDS = 30.0
#: most by which an event may be earlier than one before it, microseconds: packets of a camera overlap a little
LATE_US = 10_000.0
#: times are whole microseconds up to this
_LATEST_US = 2.0**53


class Block(NamedTuple):
    """Some events: t_us float64[n], x and y uint16[n], p uint8[n] (0 or 1)."""

    t_us: npt.NDArray[np.float64]
    x: npt.NDArray[np.uint16]
    y: npt.NDArray[np.uint16]
    p: npt.NDArray[np.uint8]


@dataclass
class EventFile:
    """An open recording.

    Args:
        path: the file.
        sensor: width and height in pixels; None: the file does not name it.
        wraps: wraps of the clock, undone so far.
        is_sorted: whether the blocks so far are in order of time.
    """

    path: Path
    sensor: tuple[int, int] | None
    _blocks: Iterator[Block] = field(repr=False)
    wraps: Wraps = field(default_factory=Wraps)
    is_sorted: bool = True

    def blocks(self) -> Iterator[Block]:
        """The events in the order of the file, once. Each is at most `LATE_US` earlier than the latest one before it.

        Raises:
            DataError: there are no events, or too many; an event lies beyond the sensor; time goes back.
        """
        most, n, clock = most_entries(self.path.stat().st_size), 0, _Clock(self.path, self.wraps)
        for block in self._blocks:
            n += block.t_us.size
            if n > most:
                raise DataError(
                    f"{self.path}: holds more than {most:,} events, the most for a file of its size; it is damaged, get a fresh copy"
                )
            for name, values, size in zip("xy", (block.x, block.y), self.sensor or (1 << 16, 1 << 16), strict=True):
                if values.size and int(values.max()) >= size:
                    raise DataError(
                        f"{self.path}: has an event with {name} = {values.max()}; allowed: 0 to {size - 1}, the sensor of its header; "
                        "the file is damaged, get a fresh copy"
                    )
            block = block._replace(t_us=clock.going_on(block.t_us))
            self.is_sorted = clock.is_sorted
            yield block
        if not n:
            raise DataError(f"{self.path}: holds no events; it is empty or cut short, get a fresh copy")


class Events(NamedTuple):
    """A whole recording, in order of time: arrays as in `Block`, the sensor, and wraps of the clock."""

    t_us: npt.NDArray[np.float64]
    x: npt.NDArray[np.uint16]
    y: npt.NDArray[np.uint16]
    p: npt.NDArray[np.uint8]
    sensor: tuple[int, int] | None
    wraps: Wraps


def is_event_file(path: Path) -> bool:
    """Whether the name ends as that of a recording."""
    return path.suffix.lower() in ENDINGS


def read_events(path: Path, time_unit: str = "") -> Events:
    """All events of a file, in arrays in temporary files; arguments and errors as `opened` and `EventFile.blocks`."""
    with ExitStack() as stack:
        columns = [arrays.Growing(dtype) for dtype in (np.float64, np.uint16, np.uint16, np.uint8)]
        for column in columns:
            stack.callback(column.close)
        file = stack.enter_context(opened(path, time_unit))
        for block in file.blocks():
            for column, name in zip(columns, Block._fields, strict=True):
                column.append(getattr(block, name))
        t_us, x, y, p = (column.whole() for column in columns)
    if not file.is_sorted:
        order = np.argsort(t_us, kind="stable")
        t_us, x, y, p = (values[order] for values in (t_us, x, y, p))
    return Events(t_us, x, y, p, file.sensor, file.wraps)


@contextmanager
def opened(path: Path, time_unit: str = "") -> Iterator[EventFile]:
    """An event file, open for reading; its reader ends with the block.

    Args:
        time_unit: of the times of a text file that does not name it: "us", "ms" or "s".

    Raises:
        DataError: the file is missing, damaged or of another form.
        MissingDependencyError: the package that reads it is not installed.
    """
    check_regular(path, DataError)
    suffix = path.suffix.lower()
    if suffix not in ENDINGS:
        raise DataError(f"{path}: ends in {path.suffix!r}; allowed for a recording: {', '.join(ENDINGS)}")
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error
    with file:
        if suffix in TEXTS:
            sensor, rows = read_text(file, path, time_unit)
            yield EventFile(path, sensor, (Block(*row) for row in rows))
            return
        begins = file.read(len(BEGINNINGS[suffix]))
    if begins != BEGINNINGS[suffix]:
        raise DataError(
            f"{path}: begins with {begins!r}; a {suffix} file begins with {BEGINNINGS[suffix]!r}; it is empty, damaged or of another format"
        )
    if importlib.util.find_spec("faery") is None:
        raise MissingDependencyError("faery", "cameras", f"reading {path.name}")
    with _decoder(path) as process:
        yield EventFile(path, *process)


# ---- order of time ---------------------------------------------------------------------------------------------------


class _Clock:
    """Undoes the wraps of one file's clock, and refuses other falls."""

    def __init__(self, path: Path, wraps: Wraps) -> None:
        self.path, self.wraps = path, wraps
        self.added, self.latest, self.before, self.n, self.is_sorted = 0.0, -np.inf, 0.0, 0, True

    def going_on(self, t_us: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The times of the next events. A fall by almost a period is a wrap, and moves the events that follow."""
        if not t_us.size:
            return t_us
        if not (np.abs(t_us) <= _LATEST_US).all():
            raise DataError(
                f"{self.path}: has an event at {t_us[np.argmax(np.abs(t_us))]:g} us; allowed: up to 2^53 us; the file is damaged, get a "
                "fresh copy"
            )
        fall = -np.diff(t_us, prepend=self.before if self.n else t_us[0])
        self.before, t_us = float(t_us[-1]), t_us + self.added
        for period in PERIODS_US:
            wraps = (fall >= period * 31 / 32) & (fall <= period)
            if wraps.any():
                self.wraps.moved[period] = 1  # of samples, and a file is one
                t_us += period * np.cumsum(wraps)
                self.added += period * int(wraps.sum())
        latest = np.maximum.accumulate(np.maximum(t_us, self.latest))
        if (early := latest - t_us > LATE_US).any():
            k = int(np.argmax(early))
            raise DataError(
                f"{self.path}: time goes back by {(latest[k] - t_us[k]) / 1e6:g} s at event {self.n + k:,}; allowed: {LATE_US / 1e3:g} ms, or "
                "the wrap of a clock; if the recording was restarted there, cut the file; else sort its events"
            )
        self.is_sorted &= bool((t_us == latest).all())
        self.n, self.latest = self.n + t_us.size, float(latest[-1])
        return t_us


# ---- the process that decodes ----------------------------------------------------------------------------------------


@contextmanager
def _decoder(path: Path) -> Iterator[tuple[tuple[int, int], Iterator[Block]]]:
    """The sensor and the blocks of a file, from a process that ends with the context, whatever happens."""
    if not sys.executable:
        raise DataError(
            f"{path}: is read by a separate process, which this Python cannot start because sys.executable is empty; run it as a program"
        )
    process = reader_process.start(camera_reader.__file__)
    assert process.stdin is not None, "opened with a pipe"
    assert process.stdout is not None, "opened with a pipe"
    request = {
        "path": str(path.absolute()),
        "type": _TYPES[path.suffix.lower()],
        "modules": sys.path,
        "seconds": SECONDS,
    }
    try:
        with suppress(BrokenPipeError):  # it died at once: its answer is missing, which is reported below
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.close()
        sensor = _answer(process, path, "sensor")
        yield (int(sensor[0]), int(sensor[1])), _blocks(process, path)
    finally:
        process.kill()
        reader_process.end(process)


def _blocks(process: subprocess.Popen[bytes], path: Path) -> Iterator[Block]:
    out: Any = process.stdout
    while n := _answer(process, path, "n"):
        data = out.read(n * camera_reader.EVENT_BYTES)
        if len(data) < n * camera_reader.EVENT_BYTES:
            raise _death(process, path)
        t = np.frombuffer(data, np.int64, n).astype(np.float64)
        x, y = np.frombuffer(data, np.uint16, 2 * n, 8 * n).reshape(2, n)
        yield Block(t, x, y, np.frombuffer(data, np.uint8, n, 12 * n))


def _answer(process: subprocess.Popen[bytes], path: Path, key: str) -> Any:
    """The value of `key` in the next line of the process; 0 once it is done. Raises `DataError` for any other line."""
    out = process.stdout
    assert out is not None, "opened with a pipe"
    try:
        answer = json.loads(out.readline(1 << 16) or b"{}")
    except ValueError:
        answer = {}
    if "error" in answer:
        raise DataError(
            f"{path}: is damaged, cut short or of another format ({' '.join(str(answer['error']).split())[:200]}); get a fresh copy"
        )
    if key in answer:
        return answer[key]
    if "done" in answer:
        return 0
    raise _death(process, path)


def _death(process: subprocess.Popen[bytes], path: Path) -> DataError:
    """The error for a process that ended without an answer."""
    try:
        code = process.wait(5)
    except subprocess.TimeoutExpired:
        code = 0
    if code == -14:
        return DataError(
            f"{path}: its reader made no progress in {SECONDS:g} seconds; the file is damaged, or its disk hangs: get a fresh copy"
        )
    return DataError(
        f"{path}: is damaged: its reader ended with {reader_process.describe(code)} on it; get a fresh copy"
    )
