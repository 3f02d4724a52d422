"""Events as text: a line `t x y p` for each, separated by spaces, tabs or commas.

    t_s,x,y,p             a header is optional; it may name the columns in another order, and names the unit of the times
    0.000412,31,7,1       p: 0 and 1, or -1 and 1

A line of two numbers before the events is the width and height of the sensor. Lines after # are comments.

**The unit of the times** is us, ms or s, by the header (`t_us`, `t_ms`, `t_s`) or by the argument `time_unit`. Without either, times
with a fourth decimal are seconds, and whole numbers that would span a day in milliseconds are microseconds. Anything else is
uncertain, and an error asks for the unit.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from sparsesnn.errors import DataError
from sparsesnn.event_times import Precision

Array = npt.NDArray[Any]

#: microseconds of a unit
UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}
#: bytes read at once; a longer line is refused
_BLOCK_BYTES = 1 << 20
#: lines whose decimals decide the unit
_LOOKED_AT = 4096
_DAY_S = 86_400.0
#: most pixels along one side
_MOST_PIXELS = 10_000
_TIME = re.compile(r"(t|time|timestamp)(_(?P<unit>us|ms|s))?")
_NAMES = {"x": "x", "y": "y", "p": "p", "pol": "p", "polarity": "p"}
_COLUMNS = "t_us (or t_ms, t_s), x, y, p"


def read_text(
    file: BinaryIO, path: Path, time_unit: str = ""
) -> tuple[tuple[int, int] | None, Iterator[tuple[Array, Array, Array, Array]]]:
    """The sensor, None if the file does not give one; and blocks of events: times in us, x, y, p.

    Args:
        path: for messages.
        time_unit: "us", "ms" or "s"; "": the file's, see above.

    Raises:
        DataError: a line of another form, with its number; a unit that is not certain.
    """
    blocks = _blocks(file, path)
    first = next(blocks, [])
    sensor, order, named, n_head = _head(first, path)
    rows = first[n_head:]
    unit = _unit(path, named, time_unit, rows, order, file)
    return sensor, _events(itertools.chain([rows], blocks), n_head, order, UNITS[unit], path)


def _blocks(file: BinaryIO, path: Path) -> Iterator[list[bytes]]:
    """Some lines at a time."""
    rest = b""
    while data := file.read(_BLOCK_BYTES):
        lines = (rest + data).replace(b"\r\n", b"\n").split(b"\n")
        rest = lines.pop()
        if len(rest) > _BLOCK_BYTES:
            raise DataError(
                f"{path}: has a line of more than {_BLOCK_BYTES:,} bytes; a text of events has lines `t x y p`; give a text file"
            )
        yield lines
    yield [rest] if rest else []


def _words(line: bytes) -> list[str]:
    return line.decode("utf-8", "replace").replace(",", " ").split()


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _head(lines: list[bytes], path: Path) -> tuple[tuple[int, int] | None, list[int], str, int]:
    """The sensor, the columns of t, x, y, p, the unit that the header names or "", and the number of lines before the events."""
    sensor, order, unit = None, [0, 1, 2, 3], ""
    for k, line in enumerate(lines):
        words = _words(line.lstrip(b"#% \t\xef\xbb\xbf"))
        comment = line.lstrip()[:1] in (b"#", b"%")
        if not words or (comment and not any(_TIME.fullmatch(word.lower()) for word in words)):
            continue
        if all(map(_is_number, words)):
            if len(words) == 2 and sensor is None and all(word.isdecimal() for word in words):
                sensor = _sensor(words, path)
                continue
            return sensor, order, unit, k
        if not all(re.fullmatch("[A-Za-z_]+", word) for word in words):
            return sensor, order, unit, k  # a damaged event, which is reported later
        order, unit = _columns([word.lower() for word in words], path, k)
        return sensor, order, unit, k + 1
    return sensor, order, unit, len(lines)


def _sensor(words: list[str], path: Path) -> tuple[int, int]:
    width, height = int(words[0][:9]), int(words[1][:9])
    if not (1 <= width <= _MOST_PIXELS and 1 <= height <= _MOST_PIXELS):
        raise DataError(f"{path}: its sensor is {width} x {height}; allowed: 1 to {_MOST_PIXELS:,} pixels along a side")
    return width, height


def _columns(words: list[str], path: Path, line: int) -> tuple[list[int], str]:
    times = [match for match in map(_TIME.fullmatch, words) if match]
    names = ["t" if _TIME.fullmatch(word) else _NAMES.get(word, word) for word in words]
    if len(times) != 1 or sorted(names) != ["p", "t", "x", "y"]:
        raise DataError(
            f"{path}: line {line + 1} names the columns {', '.join(words)[:200]}; give {_COLUMNS}, each once"
        )
    return [names.index(name) for name in ("t", "x", "y", "p")], times[0]["unit"] or ""


def _unit(path: Path, named: str, given: str, rows: list[bytes], order: list[int], file: BinaryIO) -> str:
    """The unit of the times; `DataError` if it is not certain."""
    if given and given not in UNITS:
        raise DataError(f"{path}: time_unit is {given!r}; allowed: {', '.join(UNITS)}")
    if named and given and named != given:
        raise DataError(f"{path}: its header names the unit {named}, time_unit is {given!r}; leave time_unit out")
    if named or given:
        return named or given
    times = [words[order[0]] for words in map(_words, rows[:_LOOKED_AT]) if len(words) == 4]
    times = [word for word in times if _is_number(word)]
    if not times:
        return "us"  # there are no events, which is reported later
    last = _last_time(file, order[0])
    last = last if _is_number(last) else times[-1]
    span = float(last) - float(times[0])
    if any("." in word for word in times):
        plain = all(re.fullmatch(r"[+-]?\d*\.?\d*", word) for word in times)
        if plain and span < _DAY_S and any(len(word.partition(".")[2].rstrip("0")) > 3 for word in times):
            return "s"
    elif all(re.fullmatch(r"[+-]?\d+", word) for word in times) and span >= _DAY_S * 1e3:
        return "us"
    raise DataError(
        f"{path}: the unit of its times, {times[0]} to {last}, is not certain; begin the file with a line that names the columns, such as "
        "t_us x y p (or t_ms, t_s), or give time_unit (data.time_unit): us, ms or s"
    )


def _last_time(file: BinaryIO, column: int) -> str:
    """The time in the last line of a file; "" if there is none."""
    here = file.tell()
    end = file.seek(0, io.SEEK_END)
    file.seek(max(0, end - 4096))
    lines = [words for words in map(_words, file.read().splitlines()) if len(words) == 4]
    file.seek(here)
    return lines[-1][column] if lines else ""


def _events(
    blocks: Iterator[list[bytes]], n_head: int, order: list[int], unit_us: float, path: Path
) -> Iterator[tuple[Array, Array, Array, Array]]:
    line, signs, precision = n_head + 1, set[int](), Precision(np.dtype(np.float64), unit_us)
    for lines in blocks:
        table = _table(lines, line, path)
        line += len(lines)
        if not table.size:
            continue
        t, x, y, p = (table[:, k] for k in order)
        if not np.isfinite(t).all():
            raise DataError(f"{path}: has the time {t[~np.isfinite(t)][0]}; allowed: finite numbers; remove the line")
        for name, values in (("x", x), ("y", y)):
            wrong = (values != np.rint(values)) | ~((values >= 0) & (values < _MOST_PIXELS))
            if wrong.any():
                raise DataError(
                    f"{path}: {name} is {values[wrong][0]:g} in the event at {t[wrong][0]:.17g}; allowed: whole numbers from 0 to "
                    f"{_MOST_PIXELS - 1:,}; if the columns are not t x y p, name them in the first line: {_COLUMNS}"
                )
        signs |= set(np.unique(p).tolist())
        if not (signs <= {0, 1} or signs <= {-1, 1}):
            raise DataError(
                f"{path}: p holds {min(signs):g} to {max(signs):g}; allowed: 0 and 1, or -1 and 1; if the columns are not t x y p, "
                f"name them in the first line: {_COLUMNS}"
            )
        yield precision.in_us(t, unit_us), x.astype(np.uint16), y.astype(np.uint16), (p > 0).astype(np.uint8)


def _table(lines: list[bytes], first: int, path: Path) -> npt.NDArray[np.float64]:
    """float64[n, 4], the numbers of some lines."""
    rows = [row for row in (line.partition(b"#")[0].strip() for line in lines) if row]
    if not rows:
        return np.zeros((0, 4))
    try:
        table = np.loadtxt(io.BytesIO(b"\n".join(rows).replace(b",", b" ")), ndmin=2, comments=None)
        if table.shape[1] == 4:
            return table
    except (ValueError, OverflowError, RuntimeError, UnicodeDecodeError):
        pass
    for k, line in enumerate(lines, first):  # the line to blame
        words = _words(line.partition(b"#")[0])
        if words and (len(words) != 4 or not all(map(_is_number, words))):
            shown = line[:80].decode("utf-8", "replace")
            raise DataError(
                f"{path}: line {k:,} is {shown!r}; allowed: four numbers, t x y p; remove or correct the line"
            )
    raise DataError(f"{path}: lines {first:,} to {first + len(lines):,} are not numbers; give lines `t x y p`")
