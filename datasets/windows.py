"""Recordings cut into samples: windows of T·dt at every stride, each with a label.

A window has steps of a width and a stride; without one, each recording or interval is a sample.

| the label of a window | from |
|---|---|
| of the interval that holds it | `recording.labels.csv` next to the recording, or `labels` (see `intervals`) |
| of its recording | the folder that holds it, `root/CLASS/recording.raw`, or `labels` |

`root/train/CLASS/…` and `root/test/CLASS/…` are parts. Elsewhere parts are made of whole recordings: each sample belongs to a
group `recording`, and the windows of one recording are never divided (`splits`), because they resemble one another.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn.datasets import arrays, event_files, intervals
from sparsesnn.datasets.binning import Binned, bin_flat, check_window, pooled
from sparsesnn.datasets.classes import count_classes, numbered, warn_of_other_texts
from sparsesnn.datasets.convert import progress_bar
from sparsesnn.datasets.event_files import ENDINGS, Events, is_event_file, read_events
from sparsesnn.datasets.files import is_hidden
from sparsesnn.datasets.intervals import Interval
from sparsesnn.datasets.recording import PARTS, Recording
from sparsesnn.datasets.sensor import Sensor
from sparsesnn.errors import ConfigError, DataError
from sparsesnn.event_times import Wraps
from sparsesnn.options import number, plain, whole
from sparsesnn.wording import count

#: the group that is never divided
GROUP = "recording"
#: the entry of a description that names it
TOGETHER = "together"
#: most windows of a set
MAX_WINDOWS = 1_000_000
#: longer samples get a note
_LONG_US = 10e6
#: events binned at once
_BLOCK_EVENTS = 4_000_000


@dataclass(frozen=True)
class Window:
    """The window of a sample: n_steps of dt_us each, and stride_us from one to the next."""

    dt_us: float
    n_steps: int
    stride_us: float

    @property
    def length_us(self) -> float:
        return self.dt_us * self.n_steps

    def n_windows(self, start_us: float, stop_us: float) -> int:
        """The number of windows between two times; a stretch shorter than a window has one."""
        return 1 + max(0, int(np.floor((stop_us - start_us - self.length_us) / self.stride_us + 1e-9)))

    def starts(self, start_us: float, stop_us: float) -> npt.NDArray[np.float64]:
        """The starts of these windows."""
        return start_us + self.stride_us * np.arange(self.n_windows(start_us, stop_us), dtype=np.float64)

    def __str__(self) -> str:
        return f"the window of {count(self.n_steps, 'step')} of {self.dt_us / 1e3:g} ms, {self.length_us / 1e3:g} ms,"


@dataclass(frozen=True)
class Source:
    """A recording's file, its name among the others, its part ("": none), and its label or intervals (None: no label)."""

    path: Path
    name: str
    part: str = ""
    label: Any = None
    intervals: Sequence[Interval] | Path | None = None

    @property
    def files(self) -> list[Path]:
        """All files that it consists of."""
        return [self.path, *([self.intervals] if isinstance(self.intervals, Path) else [])]


def find(place: Path) -> list[Source]:
    """The recordings of a file or folder; none if it is something else.

    Raises:
        DataError: a recording has no label.
    """
    if place.is_file():
        return [Source(place, place.name, intervals=intervals.file_of(place))] if is_event_file(place) else []
    names = [
        name for name in _below(place) if is_event_file(Path(name)) and not name.lower().endswith(intervals.SUFFIXES)
    ]
    # a text next to the folders of classes, such as README.txt, is not a recording unless it has intervals
    names = [x for x in names if "/" in x or not x.lower().endswith(event_files.TEXTS) or intervals.file_of(place / x)]
    tops = {name.split("/")[0] for name in names}
    has_parts = "train" in tops and tops <= set(PARTS)
    found = []
    for name in names:
        part, _, rest = name.partition("/") if has_parts else ("", "", name)
        path = place / name
        labeled = intervals.file_of(path)
        found.append(Source(path, name, part, None if labeled or "/" not in rest else path.parent.name, labeled))
    if without := [source for source in found if source.label is None and source.intervals is None]:
        raise DataError(
            f"{without[0].path}: has no label; put it into a folder named after its class, or label its intervals in "
            f"{without[0].path.stem}{intervals.SUFFIXES[0]}"
        )
    return found


def _below(folder: Path) -> list[str]:
    found = []
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        found += [(Path(here) / name).relative_to(folder).as_posix() for name in sorted(names) if not is_hidden(name)]
    return found


def given(paths: Any, labels: Any) -> list[Source]:
    """The recordings that a caller names.

    Args:
        paths: a file, a folder, or several files.
        labels: one entry per recording: a label, or `(start_us, stop_us, label)` of several intervals; None: as `find` finds them.
    """
    if isinstance(paths, (str, os.PathLike)):
        place = Path(paths).expanduser()
        if not place.exists():
            raise DataError(
                f"from_recordings: {place} is neither a file nor a folder; give recordings ({', '.join(ENDINGS)})"
            )
        found = find(place)
        if parts := sorted({source.part for source in found} - {""}):
            raise ConfigError(
                f"from_recordings: {place} has the parts {', '.join(parts)}; give the folder of one part, such as {place / parts[0]}"
            )
    else:
        files = [Path(path).expanduser() for path in paths]
        root = Path(os.path.commonpath([path.absolute().parent for path in files])) if files else Path()
        found = [
            Source(path, path.absolute().relative_to(root).as_posix(), intervals=intervals.file_of(path))
            for path in files
        ]
    if not found:
        raise DataError(
            f"from_recordings: there are no recordings; give files that end in {', '.join(ENDINGS)}, or a folder of them"
        )
    if labels is None:
        return found
    entries = [labels] if isinstance(labels, (str, bytes)) else list(plain(labels))
    if len(entries) != len(found):
        raise DataError(
            f"from_recordings: labels has the length {len(entries)}; for {count(len(found), 'recording')} give one each"
        )
    return [
        Source(source.path, source.name, source.part, None, intervals.checked(entry, source.name))
        if isinstance(entry, (list, tuple))
        else Source(source.path, source.name, source.part, entry)
        for source, entry in zip(found, entries, strict=True)
    ]


# ---- cutting ---------------------------------------------------------------------------------------------------------


@dataclass
class _Cuts:
    """Samples cut so far: for each its recording, label and number of events; then the events, and counts for messages."""

    source: list[int] = field(default_factory=list)
    label: list[Any] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    t_us: arrays.Growing = field(default_factory=lambda: arrays.Growing(np.float64))
    places: dict[str, arrays.Growing] = field(
        default_factory=lambda: {name: arrays.Growing(np.int64) for name in "xyp"}
    )
    sensors: list[tuple[int, int] | None] = field(default_factory=list)
    longest: tuple[float, str] = (0.0, "")
    n_events: int = 0
    n_outside: int = 0

    def close(self) -> None:
        """Closes the files of the events."""
        for column in (self.t_us, *self.places.values()):
            column.close()

    def add(self, k: int, source: Source, events: Events, window: Window | None) -> None:
        """The windows of recording number k; None: the whole recording, or its whole intervals."""
        t = events.t_us
        stretches = [Interval(float(t[0]), float(t[-1]) + (window.dt_us if window else 1.0), source.label)]
        if source.intervals is not None:
            stretches = list(
                intervals.read_intervals(source.intervals) if isinstance(source.intervals, Path) else source.intervals
            )
            if not any(start <= t[-1] and stop > t[0] for start, stop, _ in stretches):
                raise DataError(
                    f"{source.path}: its intervals lie between {stretches[0].start_us:g} and {max(x.stop_us for x in stretches):g} us, its "
                    f"events between {t[0]:.17g} and {t[-1]:.17g}; give intervals as the recording counts time"
                )
        n = len(self.source) + sum(window.n_windows(start, stop) if window else 1 for start, stop, _ in stretches)
        if n > MAX_WINDOWS:
            raise DataError(
                f"{source.path}: {t.size:,} events from {t[0]:.17g} to {t[-1]:.17g} us make {n:,} windows, with those before; allowed: "
                f"{MAX_WINDOWS:,}; give a longer window or stride, or intervals"
            )
        used = np.zeros(t.size + 1, np.int64)
        for start, stop, label in stretches:
            self.longest = max(self.longest, (min(stop, float(t[-1])) - start, source.name))
            for begin in window.starts(start, stop).tolist() if window else [start]:
                end = min(begin + window.length_us, stop) if window else stop
                first, last = np.searchsorted(t, [begin, end]).tolist()
                self.source.append(k)
                self.label.append(label)
                self.size.append(last - first)
                self.t_us.append(t[first:last] - begin)
                for name, column in self.places.items():
                    column.append(getattr(events, name)[first:last])
                used[first] += 1
                used[last] -= 1
        self.sensors.append(events.sensor)
        self.n_events += t.size
        self.n_outside += int((np.cumsum(used[:-1]) == 0).sum())


def read_recordings(
    sources: Sequence[Source],
    window: Window | None,
    *,
    time_unit: str = "",
    classes: Sequence[Any] | None = None,
    needs_labels: bool = True,
) -> Recording:
    """The windows of all recordings; their times begin at 0.

    Args:
        window: None: each recording, or each of its intervals, is one sample.
        time_unit: of text files that do not name it.
        classes: names of class 0, 1, …; None: in sorted order.
        needs_labels: False: a recording without a label has the class 0.

    Raises:
        DataError: a file that is damaged, or has no label; the window is longer than every recording.
        MissingDependencyError: the package that reads a file is not installed.
    """
    if needs_labels and (without := [x for x in sources if x.label is None and x.intervals is None]):
        raise DataError(
            f"{without[0].path}: has no labels; write intervals into {without[0].path.stem}{intervals.SUFFIXES[0]} next to it, a line "
            "start_s,stop_s,label and one line for each, or give a folder of recordings, CLASS/recording"
        )
    cuts, wraps = _Cuts(), Wraps()
    with (
        contextlib.closing(cuts),
        progress_bar(f"reading {count(len(sources), 'recording')}", len(sources)) as bar,
    ):
        for k, source in enumerate(sources):
            events = read_events(source.path, time_unit)
            wraps += events.wraps
            cuts.add(k, source, events, window)
            bar.update(1)
        return _recording(cuts, sources, window, wraps, classes)


def _recording(
    cuts: _Cuts, sources: Sequence[Source], window: Window | None, wraps: Wraps, classes: Sequence[Any] | None
) -> Recording:
    where = str(
        sources[0].path if len(sources) == 1 else Path(os.path.commonpath([x.path.absolute() for x in sources]))
    )
    if window and window.length_us > cuts.longest[0] + window.dt_us:
        raise DataError(
            f"{where}: {window} is longer than every recording and interval; the longest, of {cuts.longest[1]}, lasts "
            f"{cuts.longest[0] / 1e3:g} ms; give fewer or shorter steps (data.n_steps, data.dt_ms)"
        )
    labels, class_names = numbered(_one_kind(cuts.label), f"{where}: labels", classes)
    sizes = [sensor for sensor in cuts.sensors if sensor is not None]
    n_events = np.array(cuts.size, np.int64)
    problems = []
    if 2 * int((n_events == 0).sum()) > n_events.size:
        problems.append(
            f"{int((n_events == 0).sum()):,} of {count(n_events.size, 'window')} have no events; check the intervals, or the unit of "
            "the times, or make windows longer (data.dt_ms, data.n_steps)"
        )
    notes = []
    if cuts.n_outside:
        notes.append(f"{cuts.n_outside:,} of {count(cuts.n_events, 'event')} lie in no window")
    if not window and cuts.longest[0] > _LONG_US:
        notes.append(
            f"samples last up to {cuts.longest[0] / 1e6:.3g} s: set data.dt_ms and data.stride_ms to cut them into windows"
        )
    parts = [sources[k].part for k in cuts.source]
    return Recording(
        cuts.t_us.whole(),
        {name: column.whole() for name, column in cuts.places.items()},
        n_events,
        labels,
        class_names,
        {GROUP: np.array(cuts.source, np.int64)},
        {GROUP: [source.name for source in sources]},
        np.array(parts, str) if any(parts) else None,
        where,
        wraps=wraps,
        sensor=(max(w for w, _ in sizes), max(h for _, h in sizes)) if len(sizes) == len(sources) else None,
        together=GROUP,
        problems=tuple(problems),
        remarks=tuple(notes),
    )


def _one_kind(labels: list[Any]) -> list[Any]:
    """Labels as whole numbers if all are such numbers, else as texts."""
    if all(label is None for label in labels):
        return [0] * len(labels)
    if all(isinstance(label, str) and label.isascii() and label.isdecimal() and len(label) < 10 for label in labels):
        return [int(label) for label in labels]
    return labels


# ---- spike lists -----------------------------------------------------------------------------------------------------


def bin_recordings(
    paths: Any,
    *,
    n_steps: int,
    dt_us: float,
    stride_us: float | None = None,
    labels: Any = None,
    classes: Sequence[Any] | None = None,
    pool: int = 1,
    duplicates: str = "binary",
    sensor_size: Sequence[int] | None = None,
    time_unit: str = "",
    stacklevel: int = 2,
) -> dict[str, Any]:
    """The arguments for `EventSet.from_binned`; see `EventSet.from_recordings`. `stacklevel`: of warnings."""
    n_steps, dt_us, _, _ = check_window(n_steps=n_steps, dt_us=dt_us, pool=1, n_units=1)
    stride = n_steps * dt_us if stride_us is None else number(stride_us)
    if stride is None or not 0 < stride < np.inf:
        raise ConfigError(f"from_recordings: stride_us is {stride_us!r}; give a time in microseconds above 0, or None")
    window = Window(dt_us, n_steps, stride)
    recording = read_recordings(given(paths, labels), window, time_unit=time_unit, classes=classes)
    for text in (*recording.problems, *recording.wraps.texts()):
        warnings.warn(f"from_recordings: {recording.source}: {text}", UserWarning, stacklevel=stacklevel + 1)
    warn_of_other_texts(recording.class_names, "from_recordings", chosen=classes is not None, stacklevel=stacklevel + 1)
    width, height = _size(recording, sensor_size)
    _, _, pool, _ = check_window(n_steps=n_steps, dt_us=dt_us, pool=pool, n_units=max(width, height))
    side_x, side_y = pooled(width, pool), pooled(height, pool)
    at, starts, parts = recording.places, recording.starts, []
    for some in blocks(recording.n_events):
        own = slice(int(starts[some.start]), int(starts[some.stop]))
        unit = at["x"][own] // pool + side_x * (at["y"][own] // pool + side_y * at["p"][own])
        options: dict[str, Any] = {"n_steps": n_steps, "dt_us": dt_us, "duplicates": duplicates}
        n_events = recording.n_events[some]
        parts.append(
            bin_flat(
                recording.t_us[own],
                unit,
                n_events,
                n_units=2 * side_x * side_y,
                **options,
                source=recording.source,
                first_sample=some.start,
                check_units=False,
            )
        )
    return {
        "binned": Binned.join(parts),
        "labels": recording.labels,
        "n_classes": count_classes(recording.labels, recording.class_names, recording.source),
        "groups": dict(recording.groups),
        "description": {
            "name": "recordings",
            "dt_us": dt_us,
            "pool": pool,
            **({} if stride_us is None else {"stride_us": stride}),
            **({} if duplicates == "binary" else {"duplicates": duplicates}),
            "classes": recording.class_names,
            "group_names": dict(recording.group_names),
            TOGETHER: GROUP,
            "sensor": Sensor(side_x, side_y, 2).entry(),
            **({"notes": list(recording.remarks)} if recording.remarks else {}),
        },
    }


def blocks(n_events: npt.NDArray[np.int64]) -> Iterable[slice]:
    """Samples to bin together; one empty block if there are none."""
    block = (np.cumsum(n_events) - n_events) // _BLOCK_EVENTS
    edges = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), n_events.size]
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


def _size(recording: Recording, sensor_size: Sequence[int] | None) -> tuple[int, int]:
    """Width and height of the sensor: as given, of the files, or of the events."""
    most = [int(recording.places[name].max(initial=0)) + 1 for name in ("x", "y")]
    if sensor_size is None:
        return recording.sensor or (most[0], most[1])
    sizes = [whole(size) or 0 for size in plain(list(sensor_size))]
    if len(sizes) != 2 or sizes[0] < most[0] or sizes[1] < most[1]:
        raise DataError(
            f"from_recordings: sensor_size is {sensor_size!r}; give (width, height), at least {most[0]} and {most[1]}, so that all events fit"
        )
    return sizes[0], sizes[1]
