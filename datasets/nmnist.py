"""N-MNIST: handwritten digits recorded by an event camera that moved in three saccades; 10 classes.

G. Orchard, A. Jayawant, G. K. Cohen, N. Thakor, "Converting Static Image Datasets to Spiking Neuromorphic Datasets Using
Saccades", Frontiers in Neuroscience 9:437, 2015. License: CC BY-SA 4.0.

Sensor: 34 x 34 pixels, 2 polarities (0: darker, 1: brighter). Unit order: id = x + W·(y + H·p), with W = H = 34, or
fewer after pooling; a frame [p, y, x] row by row, as Tonic's `ToFrame` makes it. A recording lasts about 0.31 s: three
saccades of about 0.1 s, with quiet between them.

A file holds 5 bytes per event: x, y, then polarity (top bit) and 23 bits of time in microseconds, big-endian. A y of
240 marks an overflow instead of an event: all later times grow by 2^13. Tonic's reader takes one file at a time; here
the files of a block are read into one array. The events equal Tonic's, also with `stabilise` (its `stabilize`) and the
first saccade (its `first_saccade_only`); Tonic is needed to download the set, but not to read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsesnn.datasets import cache, files
from sparsesnn.datasets import convert as conversion
from sparsesnn.datasets.binning import bin_flat, check_window, duplicates_option, max_count, pooled, step_us
from sparsesnn.datasets.convert import Job, Part
from sparsesnn.datasets.event_set import EventSet
from sparsesnn.datasets.sensor import Sensor
from sparsesnn.errors import DataError
from sparsesnn.options import option

SPLITS = ("train", "test")
CITATION = (
    "G. Orchard, A. Jayawant, G. K. Cohen, N. Thakor, Converting Static Image Datasets to Spiking Neuromorphic Datasets "
    "Using Saccades, Frontiers in Neuroscience 9:437, 2015"
)
LICENSE = "CC BY-SA 4.0"
RECIPE = {"net": {"text": "auto-256-auto"}, "train": {"epochs": 20}}

SIZE = 34
_N_CLASSES = 10
_FOLDERS = {"train": "Train", "test": "Test"}
#: recordings of the whole set
_WHOLE = {"train": 60_000, "test": 10_000}
_BYTES_PER_EVENT = 5
#: recordings read at once
_BLOCK = 256
_OVERFLOW_Y, _OVERFLOW_US = 240, 1 << 13
#: first and last microsecond of each saccade. The first ends where Tonic's does; the others begin and end where
#: `stabilise` assumes that the camera turns.
_SACCADES = {1: (0, 99_999), 2: (105_001, 210_000), 3: (210_001, 1 << 62)}


class Events(NamedTuple):
    """Events of some recordings, one after the other: int64[E] each, and int64[n], the number in each recording."""

    x: npt.NDArray[np.int64]
    y: npt.NDArray[np.int64]
    p: npt.NDArray[np.int64]
    t_us: npt.NDArray[np.int64]
    n_events: npt.NDArray[np.int64]

    def where(self, keep: npt.NDArray[np.bool_]) -> Events:
        """The events selected by `keep`."""
        recording = np.repeat(np.arange(self.n_events.size), self.n_events)[keep]
        n_events = np.bincount(recording, minlength=self.n_events.size)
        return Events(self.x[keep], self.y[keep], self.p[keep], self.t_us[keep], n_events)


@dataclass(frozen=True)
class Options:
    """How events become spikes."""

    dt_ms: float = option(5.0, "width of a step, milliseconds, to the nanosecond", above=0)
    n_steps: int = option(63, "steps of a sample; later events are lost, and counted", low=1, high=1_000_000)
    pool: int = option(1, "pixels that share a neuron, in x and in y", low=1, high=SIZE)
    saccade: int = option(
        0, "keep one saccade, 1, 2 or 3, with time counted from its beginning; 0: all three", low=0, high=3
    )
    stabilise: bool = option(False, "shift events to undo the camera's motion")
    duplicates: str = duplicates_option()


def load(
    *,
    split: str,
    data_dir: Path | None,
    cache_dir: Path | None,
    download: bool,
    n_workers: int | None,
    options: Options,
) -> EventSet:
    """One split of N-MNIST (60,000 train, 10,000 test recordings), or all recordings in the folder if it is incomplete.

    Args:
        data_dir: the folder that holds NMNIST/Train and NMNIST/Test, or Train and Test themselves.
        options: the first saccade lasts until 100 ms, the second from 105 to 210 ms, the third from 210 ms. Events that
            are left out or leave the sensor are counted in `n_lost`. `duplicates`: see `binning`.
        n_workers: processes that convert; None: chosen by cores and size.

    Raises:
        DataError: files that are missing, damaged or not in the format; the message names file and value.
        ConfigError: an invalid parameter.
    """
    dt_us = step_us(options.dt_ms)
    max_count(options.duplicates)  # checked before searching for files
    side = pooled(SIZE, options.pool)
    sensor = Sensor(side, side, 2)
    check_window(n_steps=options.n_steps, dt_us=dt_us, pool=1, n_units=sensor.n_neurons)
    folder = files.find_folder("nmnist", "NMNIST", _FOLDERS[split], data_dir, download)
    names = list_files(folder)
    files.warn_if_partial("nmnist", split, len(names), _WHOLE[split], "recordings", folder)
    source = cache.tree_identity(folder, names)
    window: dict[str, Any] = {
        "dt_us": dt_us,
        **{name: getattr(options, name) for name in ("n_steps", "pool", "saccade", "stabilise", "duplicates")},
    }
    parameters = {"name": "nmnist", "split": split, "source": source, **window, "sensor": sensor.entry()}

    def build() -> EventSet:
        job = Job(
            module=__name__,
            arguments={"folder": str(folder), "names": names, **window},
            n_items=len(names),
            n_bytes=source["size"],
            title=f"nmnist {split}",
            block=_BLOCK,
        )
        binned = conversion.run(job, conversion.n_workers_for(job, n_workers)).binned
        return EventSet.from_binned(
            binned,
            np.array([int(name.split("/")[0]) for name in names], np.int64),
            _N_CLASSES,
            description={
                **parameters,
                "source": cache.without_times(source),
                "classes": [str(digit) for digit in range(_N_CLASSES)],
                "license": LICENSE,
            },
        )

    return cache.load_or_build(parameters, build, cache_dir)


def list_files(folder: Path) -> list[str]:
    """The recordings, as <class>/<number>.bin, in Tonic's order: by class, then by name.

    Raises:
        DataError: there is none, or one lies outside the class folders.
    """
    names = files.list_files(folder, ".bin")
    for name in names:
        label = name.split("/")[0]
        if name.count("/") != 1 or label not in map(str, range(_N_CLASSES)):
            raise DataError(f"{folder / name}: a recording must lie in a folder 0 to 9, named after its class")
    return names


def convert(
    first: int,
    last: int,
    *,
    folder: str,
    names: list[str],
    dt_us: float,
    n_steps: int,
    pool: int,
    saccade: int,
    stabilise: bool,
    duplicates: str,
) -> Part:
    """The lists of recordings `first` to `last - 1`."""
    events = read_events([Path(folder) / name for name in names[first:last]])
    n_read = events.t_us.size
    if saccade:
        begin, end = _SACCADES[saccade]
        events = events.where((events.t_us >= begin) & (events.t_us <= end))
    if stabilise:
        events = stabilised(events)
    t_us = events.t_us - (begin if saccade else 0)
    side = pooled(SIZE, pool)
    unit = events.x // pool + side * (events.y // pool + side * events.p)
    binned = bin_flat(
        t_us,
        unit,
        events.n_events,
        n_units=2 * side * side,
        n_steps=n_steps,
        dt_us=dt_us,
        duplicates=duplicates,
        source=folder,
        first_sample=first,
        check_units=False,
    )
    return Part(binned.with_lost(n_read - events.t_us.size))


def read_events(paths: list[Path]) -> Events:
    """The events of some files, in their order.

    Raises:
        DataError: a file that cannot be read, is cut short or has pixels beyond the sensor.
    """
    raw, n_rows = files.read_rows(paths, _BYTES_PER_EVENT)
    x, y = raw[:, 0].astype(np.int64), raw[:, 1].astype(np.int64)
    p = (raw[:, 2] >> 7).astype(np.int64)
    t_us = ((raw[:, 2].astype(np.int64) & 127) << 16) | (raw[:, 3].astype(np.int64) << 8) | raw[:, 4]
    events = Events(x, y, p, t_us, n_rows)
    overflow = y == _OVERFLOW_Y
    if overflow.any():
        before = np.cumsum(overflow)
        starts = np.cumsum(n_rows) - n_rows
        in_recording = before - np.repeat(np.concatenate([[0], before])[starts], n_rows)
        events = events._replace(t_us=t_us + _OVERFLOW_US * in_recording).where(~overflow)
    beyond = (events.x >= SIZE) | (events.y >= SIZE)
    if beyond.any():
        bad = int(np.argmax(beyond))
        path = paths[int(np.searchsorted(np.cumsum(events.n_events), bad, side="right"))]
        raise DataError(
            f"{path}: has an event at x = {events.x[bad]}, y = {events.y[bad]} ({beyond.sum()} such in this block); "
            f"allowed: 0 to {SIZE - 1}; get a fresh copy"
        )
    return events


def stabilised(events: Events) -> Events:
    """The events moved against the saccades, so that the digit stands still; events moved off the sensor are left out.

    The arithmetic, operation by operation, is Tonic's `stabilize`, which ports the data set's own code: in three times
    105 ms the camera moves by (3.5, 7), (3.5, -7) and (-7, 0) pixels; (4, 2) centers the digit.
    """
    x, y, t = events.x.astype(np.float64), events.y.astype(np.float64), events.t_us
    one, two, three = t <= 105e3, (t > 105e3) & (t <= 210e3), t > 210e3
    x[one] = 4 + x[one] - 3.5 * t[one] / 105e3
    y[one] = 2 + y[one] - 7 * t[one] / 105e3
    x[two] = 4 + x[two] - 3.5 - 3.5 * (t[two] - 105e3) / 105e3
    y[two] = 2 + y[two] - 7 + 7 * (t[two] - 105e3) / 105e3
    x[three] = 4 + x[three] - 7 + 7 * (t[three] - 210e3) / 105e3
    y[three] = 2 + y[three]
    inside = (x >= 0) & (y >= 0) & (x <= SIZE - 1) & (y <= SIZE - 1)
    moved = events._replace(x=np.round(x).astype(np.int64), y=np.round(y).astype(np.int64))
    return moved.where(inside)
