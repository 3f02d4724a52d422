"""Labeled intervals of a recording: a text file next to it, or `(start_us, stop_us, label)` for each.

    start_s,stop_s,label      the header names the unit: start_us, start_ms or start_s, and stop likewise
    0.5,3.25,left             times as the recording counts them; separated by commas or tabs, or by spaces
    3.25,6,right              lines after # are comments

The file of `recording.raw` is `recording.labels.csv`, or `.labels.txt`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from sparsesnn.datasets.text_events import UNITS
from sparsesnn.errors import DataError
from sparsesnn.options import number
from sparsesnn.regular_file import MAX_TEXT_BYTES, check_regular

#: the endings of a file of intervals, after the recording's name without its ending
SUFFIXES = (".labels.csv", ".labels.txt")
_HEADER = "start_s,stop_s,label (or start_us, start_ms)"


class Interval(NamedTuple):
    """A stretch of a recording with one label; stop is exclusive. Times as the recording counts them, microseconds."""

    start_us: float
    stop_us: float
    label: Any


def file_of(recording: Path) -> Path | None:
    """The file with the intervals of a recording; None: there is none."""
    places = [recording.with_name(recording.stem + suffix) for suffix in SUFFIXES]
    return next((place for place in places if place.exists()), None)


def checked(intervals: Iterable[Any], where: str) -> list[Interval]:
    """The same intervals in order of their start; `DataError` if one is not (start_us, stop_us, label)."""
    found = []
    for k, entry in enumerate(intervals):
        try:
            start, stop, label = entry
        except (TypeError, ValueError):
            raise DataError(f"{where}: interval {k} is {entry!r}; give (start_us, stop_us, label)") from None
        begin, end = number(start), number(stop)
        if begin is None or end is None or not -math.inf < begin < end < math.inf:
            raise DataError(
                f"{where}: interval {k} runs from {start!r} to {stop!r}; give two times in microseconds, the later one last"
            )
        found.append(Interval(begin, end, label))
    if not found:
        raise DataError(
            f"{where}: has no intervals; give (start_us, stop_us, label) for each, or one label for the recording"
        )
    return sorted(found, key=lambda interval: interval[:2])


def read_intervals(path: Path) -> list[Interval]:
    """The intervals in a text file; labels are texts.

    Raises:
        DataError: the file cannot be read, or a line is of another form; the message names it.
    """
    check_regular(path, DataError, MAX_TEXT_BYTES)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); give a text file of intervals") from None
    numbered = [(k, line) for k, line in enumerate(lines, 1) if line.partition("#")[0].strip()]
    if not numbered:
        raise DataError(f"{path}: is empty; begin it with the line {_HEADER}, and give a line for each interval")
    separator = next((mark for mark in ",\t" if mark in numbered[0][1]), None)
    names, scales = [], []
    for word in _cells(numbered[0][1], separator):
        match = re.fullmatch(r"(start|stop)_(us|ms|s)|(label)", word.lower())
        names.append(match and (match[1] or match[3]))
        scales.append(UNITS[match[2]] if match and match[2] else 0.0)
    if sorted(map(str, names)) != ["label", "start", "stop"]:
        raise DataError(
            f"{path}: line {numbered[0][0]} is {numbered[0][1][:80]!r}; begin the file with the line {_HEADER}"
        )
    found = []
    for k, line in numbered[1:]:
        cells = _cells(line, separator)
        try:
            row = {name: (cell, scale) for name, cell, scale in zip(names, cells, scales, strict=True)}
            start, stop = (float(row[name][0]) * row[name][1] for name in ("start", "stop"))
        except ValueError:
            start = stop = math.nan
        if not -math.inf < start < stop < math.inf or not row["label"][0]:
            raise DataError(f"{path}: line {k} is {line[:80]!r}; allowed: a start, a later stop, and a label")
        found.append(Interval(start, stop, row["label"][0]))
    return checked(found, str(path))


def _cells(line: str, separator: str | None) -> list[str]:
    return [cell.strip() for cell in line.partition("#")[0].strip().split(separator)]
