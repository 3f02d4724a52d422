"""DVS128 Gesture: eleven hand and arm gestures of 29 people under five kinds of light, recorded by an event camera.

A. Amir et al., "A Low Power, Fully Event-Based Gesture Recognition System", CVPR 2017. License: CC BY 4.0.

Sensor: 128 x 128 pixels, 2 polarities. Unit order: id = x + W·(y + H·p), with W = H = 128, or fewer after pooling; a frame
[p, y, x] row by row, as Tonic's `ToFrame` makes it.

Tonic downloads one file per clip, user<NN>_<light>/<class>.npy, which holds [events, 4]: x, y, polarity and time in
milliseconds. A clip lasts about six seconds. Its time counts from its first event, and a sample is a *window* of it:

    hop_ms = 0    one window per clip, from its beginning
    hop_ms > 0    a window every hop_ms, while the whole window lies before the clip's last event; at least one

So windows may overlap, touch or leave gaps; events in no window are counted in `n_lost`, events in several windows make
spikes in each. Tonic's `SliceByTime` cuts the same windows. Tonic is needed to download the set, but not to read it.
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
from sparsesnn.errors import ConfigError, DataError
from sparsesnn.options import option

SPLITS = ("train", "test")
CITATION = (
    "A. Amir et al., A Low Power, Fully Event-Based Gesture Recognition System, IEEE Conference on Computer Vision and "
    "Pattern Recognition, 2017"
)
LICENSE = "CC BY 4.0"
RECIPE = {
    "data": {"valid": "users:20,21,22,23"},
    "net": {"text": "auto-256r-auto"},
    "train": {"epochs": 50, "batch": 32},
}

SIZE = 128
CLASSES = (
    "hand clapping",
    "right hand wave",
    "left hand wave",
    "right arm clockwise",
    "right arm counter-clockwise",
    "left arm clockwise",
    "left arm counter-clockwise",
    "arm roll",
    "air drums",
    "air guitar",
    "other gestures",
)
_LIGHTS = ("fluorescent", "fluorescent_led", "lab", "led", "natural")
_FOLDERS = {"train": "ibmGestureTrain", "test": "ibmGestureTest"}
#: clips of the whole set, as Tonic downloads it
_WHOLE = {"train": 1077, "test": 264}
#: longest allowed clip; those of the data set last a few seconds
LONGEST_MS = 3_600_000
#: clips read at once, a few megabytes each
_BLOCK = 4


class Clip(NamedTuple):
    """The events of one clip, int64[E] each, in the order of time; microseconds from the first one."""

    x: npt.NDArray[np.int64]
    y: npt.NDArray[np.int64]
    p: npt.NDArray[np.int64]
    t_us: npt.NDArray[np.int64]


class Name(NamedTuple):
    """The contents of a file name: the person's number, the light and the class."""

    user: int
    light: str
    label: int


@dataclass(frozen=True)
class Options:
    """How events become spikes."""

    dt_ms: float = option(20.0, "width of a step, milliseconds; times in the files are whole milliseconds", above=0)
    n_steps: int = option(75, "steps of a window", low=1, high=1_000_000)
    pool: int = option(4, "pixels that share a neuron, in x and in y; 4 leaves 32 x 32", low=1, high=SIZE)
    hop_ms: float = option(
        0.0, "time from the start of one window to the start of the next, at least 1 ms; 0: one window", low=0
    )
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
    """Windows of the clips of one split (1,077 train, 264 test clips), or of all clips in the folder if it is incomplete.

    Groups, for held-out validation: `users`, `lights` (numbered as in description["lights"]), `clips` and `windows`
    (0 is the first of its clip).

    Args:
        data_dir: the folder that holds DVSGesture/ibmGestureTrain, or ibmGestureTrain itself.
        n_workers: processes that convert; None: chosen by cores and size.

    Raises:
        DataError: files that are missing, damaged or not in the format; the message names file and value.
        ConfigError: an invalid parameter.
    """
    dt_us, hop_ms = step_us(options.dt_ms), options.hop_ms
    max_count(options.duplicates)  # checked before searching for files
    if not (hop_ms == 0 or 1 <= hop_ms < 1e9):
        raise ConfigError(f"dvsgesture: hop_ms is {hop_ms!r}; give 0 (one window per clip) or at least 1 millisecond")
    side = pooled(SIZE, options.pool)
    sensor = Sensor(side, side, 2)
    check_window(n_steps=options.n_steps, dt_us=dt_us, pool=1, n_units=sensor.n_neurons)
    folder = files.find_folder("dvsgesture", "DVSGesture", _FOLDERS[split], data_dir, download)
    names = files.list_files(folder, ".npy")
    lights = _number_lights([parse_name(folder, name).light for name in names])
    files.warn_if_partial("dvsgesture", split, len(names), _WHOLE[split], "clips", folder)
    source = cache.tree_identity(folder, names)
    window: dict[str, Any] = {
        "dt_us": dt_us,
        "n_steps": options.n_steps,
        "pool": options.pool,
        "hop_us": step_us(hop_ms) if hop_ms else 0.0,
        "duplicates": options.duplicates,
    }
    parameters = {"name": "dvsgesture", "split": split, "source": source, **window, "sensor": sensor.entry()}

    def build() -> EventSet:
        job = Job(
            module=__name__,
            arguments={"folder": str(folder), "names": names, "lights": lights, **window},
            n_items=len(names),
            n_bytes=source["size"],
            title=f"dvsgesture {split}",
            block=_BLOCK,
        )
        part = conversion.run(job, conversion.n_workers_for(job, n_workers))
        columns = dict(part.columns)
        return EventSet.from_binned(
            part.binned,
            columns.pop("labels"),
            len(CLASSES),
            groups=columns,
            description={
                **parameters,
                "source": cache.without_times(source),
                "classes": list(CLASSES),
                "lights": lights,
                "license": LICENSE,
            },
        )

    return cache.load_or_build(parameters, build, cache_dir)


def parse_name(folder: Path, name: str) -> Name:
    """Parses user<NN>_<light>/<class>.npy; `DataError` for any other name."""
    person, _, file = name.partition("/")
    user, _, light = person.partition("_")
    number, label = user.removeprefix("user"), file.removesuffix(".npy")
    if number.isdecimal() and user != number and light and label.isdecimal() and int(label) < len(CLASSES):
        return Name(int(number), light, int(label))
    raise DataError(
        f"{folder / name}: is not a clip's name; allowed: user<NN>_<light>/<class>.npy with a class from 0 to "
        f"{len(CLASSES) - 1}; remove other .npy files from this folder"
    )


def _number_lights(found: list[str]) -> list[str]:
    """The names of the lights in the order of their numbers; lights of the data set always have the same numbers."""
    return [*_LIGHTS, *sorted(set(found) - set(_LIGHTS))]


def convert(
    first: int,
    last: int,
    *,
    folder: str,
    names: list[str],
    lights: list[str],
    dt_us: float,
    n_steps: int,
    pool: int,
    hop_us: float,
    duplicates: str,
) -> Part:
    """The lists of all windows of clips `first` to `last - 1`."""
    side = pooled(SIZE, pool)
    parts = []
    for number in range(first, last):
        path = Path(folder) / names[number]
        clip = read_clip(path)
        starts, bounds = cut(clip.t_us, hop_us=hop_us, window_us=n_steps * dt_us)
        unit = clip.x // pool + side * (clip.y // pool + side * clip.p)
        slices = [slice(*bound) for bound in bounds.tolist()]
        binned = bin_flat(
            np.concatenate([clip.t_us[s] - start for s, start in zip(slices, starts, strict=True)]),
            np.concatenate([unit[s] for s in slices]),
            np.diff(bounds, axis=1)[:, 0],
            n_units=2 * side * side,
            n_steps=n_steps,
            dt_us=dt_us,
            duplicates=duplicates,
            source=str(path),
            check_units=False,
        )
        begun, ended = (np.cumsum(np.bincount(bound, minlength=clip.t_us.size + 1)[:-1]) for bound in bounds.T)
        name = parse_name(Path(folder), names[number])
        n_windows = len(starts)
        columns = {
            "labels": np.full(n_windows, name.label, np.int64),
            "users": np.full(n_windows, name.user, np.int64),
            "lights": np.full(n_windows, lights.index(name.light), np.int64),
            "clips": np.full(n_windows, number, np.int64),
            "windows": np.arange(n_windows, dtype=np.int64),
        }
        parts.append(Part(binned.with_lost(int((begun == ended).sum())), columns))
    return Part.join(parts)


def cut(
    t_us: npt.NDArray[np.int64], *, hop_us: float, window_us: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Beginning of each window, and int64[n_windows, 2]: the events of window k are bounds[k, 0] : bounds[k, 1].

    `t_us` ascends from 0; see the head of this file for the choice of windows.
    """
    n_windows = 1
    if hop_us and t_us.size:
        n_windows = max(1, int((int(t_us[-1]) - window_us) // hop_us) + 1)
    starts = np.arange(n_windows, dtype=np.float64) * hop_us
    return starts, np.stack([np.searchsorted(t_us, starts), np.searchsorted(t_us, starts + window_us)], axis=1)


def read_clip(path: Path) -> Clip:
    """The events of one file.

    Raises:
        DataError: it is damaged, or does not hold events of this sensor.
    """
    array = files.map_npy(path)
    if array.ndim != 2 or array.shape[1] != 4 or array.dtype.kind not in "iuf":
        raise DataError(
            f"{path}: is {array.dtype}{list(array.shape)}; a clip is numeric [events, 4]: x, y, polarity, time in milliseconds"
        )
    with np.errstate(invalid="ignore"):
        events = array.astype(np.int64)
    limits = np.array([SIZE - 1, SIZE - 1, 1, 1 << 40])
    good = (events == array).all(axis=1) & (events >= 0).all(axis=1) & (events <= limits).all(axis=1)
    if not good.all():
        bad = int(np.argmin(good))
        raise DataError(
            f"{path}: event {bad} is {array[bad].tolist()} ({int((~good).sum())} such in all); allowed: whole x and y "
            f"from 0 to {SIZE - 1}, polarity 0 or 1, whole milliseconds from 0; get a fresh copy"
        )
    if (
        len(events) and np.ptp(events[:, 3]) > LONGEST_MS
    ):  # windows cover the whole clip: one late event would fill memory
        far = np.abs(events[:, 3] - int(np.median(events[:, 3])))
        bad = int(np.argmax(far))
        raise DataError(
            f"{path}: event {bad} is at {events[bad, 3]:,} ms, {far[bad] / 3_600_000:,.1f} hours from the median; a clip "
            "lasts at most an hour; remove the event, or get a fresh copy"
        )
    x, y, p, t_ms = events[np.argsort(events[:, 3], kind="stable")].T
    return Clip(x, y, p, (t_ms - t_ms.min(initial=1 << 40)) * 1000)
