"""Your own events: a file of arrays, a folder with a file for each part, or your function. Nothing is downloaded.

    sparsesnn train events --data events.npz          also .h5: t_us (or t_ms, t_s), unit (or x, y, p), sample, label
    sparsesnn train events --data folder              with train.npz, test.npz, valid.npz, or names that end so: mine_train.h5
    sparsesnn train events --data folder              with CLASS/recording.raw, .aedat4, .dat, .txt or .csv, one sample each
    sparsesnn train events --data folder --set data.dt_ms=5 --set data.stride_ms=500      the same, cut into windows
    sparsesnn train events --data mine.py:digits      the result of digits() in mine.py; give it to eval and --resume too
    sparsesnn data check events.npz                   a summary of a file, and a picture

Arrays: every event has an entry in the time `t_us`, `t_ms` or `t_s`, in `unit` (or the pixel `x`, `y` and the polarity `p`)
and in `sample`, the number of its sample; every sample has a `label`, a number from 0 or a text, and may have a `group`
(and any number of `group_NAME`) and a `part`: train, valid or test. Instead of `label`, `step_label` [samples, steps] has a
class for each step (-1: none), `target` [samples, K] values for each sample, `step_target` [samples, steps, K] values for
each step (NaN: none). Files in SHD's format are read too, with any number of channels, with or without `extra/`. A function
returns such arrays in a dict, an `EventSet`, or a dict of `EventSet`s by part. Unit order: unit // pool; pixels as
id = x + W*(y + H*p).

Recordings of cameras (`.aedat4`, `.raw`, `.dat`, or text with lines `t x y p`) are samples, or are cut into windows of n_steps of `dt_ms`, one
every `stride_ms`. Labels are the names of folders, or intervals in `recording.labels.csv`, with
the lines `start_s,stop_s,label` and one for each. The windows of one recording stay in one part, and are a member of the group `recording`.

Without parts a fifth of each class is held out as the test part, and a tenth for validation (`data.test`, `data.valid`).
If training and test share people, the accuracy is overrated: give groups, and hold out whole groups.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import re
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn import event_times
from sparsesnn.datasets import cache, event_files, windows
from sparsesnn.datasets.binning import Binned, bin_flat, check_window, duplicates_option, max_count, pooled, step_us
from sparsesnn.datasets.classes import count_classes, matched_by_name
from sparsesnn.datasets.convert import progress_bar
from sparsesnn.datasets.event_set import EventSet
from sparsesnn.datasets.files import is_hidden
from sparsesnn.datasets.recording import PARTS, Recording, from_arrays, join, read
from sparsesnn.datasets.sensor import Sensor
from sparsesnn.datasets.windows import Source, Window, read_recordings
from sparsesnn.errors import ConfigError, DataError
from sparsesnn.event_times import STARTS
from sparsesnn.options import option
from sparsesnn.wording import a_type

SPLITS = PARTS
LICENSE = "yours"
CITATION = "yours"
RECIPE = {
    "data": {"test": "auto"},
    "net": {"text": "auto-256r-auto"},
    "optim": {"lr": 2e-3},
    "train": {"epochs": 30},
}

#: a longer step means a clock that started long ago
_MAX_STEP_US = 1e12
_FUNCTION = re.compile(r"(?P<path>.+\.py):(?P<name>[A-Za-z_]\w*)")
_ENDINGS = (".npz", ".h5", ".hdf5")
#: of recordings of a camera
RECORDINGS = event_files.ENDINGS
#: entries of a description: likely mistakes, and oddities that may be intended; absent if there are none
PROBLEMS, NOTES = "problems", "notes"


@dataclass(frozen=True)
class Options:
    """How events become spikes."""

    dt_ms: float = option(0.0, "width of a step, milliseconds; 0: the longest sample lasts n_steps", low=0)
    n_steps: int = option(100, "steps of a sample; later events are lost, and counted", low=1, high=1_000_000)
    start: str = option("zero", "start of a sample's time: zero, or its first event", choices=STARTS)
    n_neurons: int = option(
        0, "units, before pool; 0: the largest unit plus one", low=0, high=100_000_000, former="n_units"
    )
    width: int = option(0, "width of a camera, pixels; 0: the largest x plus one", low=0, high=100_000)
    height: int = option(0, "height of a camera, pixels; 0: the largest y plus one", low=0, high=100_000)
    pool: int = option(
        1, "neighboring units that share a neuron; for a camera, pixels in x and in y", low=1, high=1_000_000
    )
    duplicates: str = duplicates_option()
    stride_ms: float = option(
        0.0,
        "recordings are cut into windows of n_steps, one every stride_ms milliseconds; 0: a recording is one sample",
        low=0,
    )
    time_unit: str = option(
        "", "unit of the times in a text file that does not name it: us, ms or s", choices=("", "us", "ms", "s")
    )


def load(
    *,
    split: str,
    data_dir: Path | None,
    cache_dir: Path | None,
    download: bool,
    n_workers: int | None,
    options: Options,
) -> EventSet:
    """One part of the user's events.

    Args:
        data_dir: the file, the folder, or FILE.py:FUNCTION.

    Raises:
        DataError: files that are missing, damaged or of another form, or that have no such part.
        ConfigError: invalid options.

    Warns about the problems in `EventSet.description["problems"]`, whether or not the set comes from the cache.
    """
    event_set = _load(split, data_dir, cache_dir, options)
    for text in event_set.description.get(PROBLEMS, []):
        warnings.warn(f"{data_dir}: {text}", UserWarning, stacklevel=3)
    return event_set


def _load(split: str, data_dir: Path | None, cache_dir: Path | None, options: Options) -> EventSet:
    if data_dir is None:
        raise DataError(
            "events: no file was given; give --data FILE.npz, FILE.h5, a camera's recording, a folder of them, or FILE.py:FUNCTION"
        )
    max_count(options.duplicates)  # checked before searching for files
    if function := function_of(data_dir):
        path, name = function
        made = _made(path, name, path.stat().st_mtime_ns if path.is_file() else 0)
        if isinstance(made, Recording):
            return _part_of(made, split, options, {"source": name})
        return _with_parts(made, split, str(data_dir))
    sources = find_recordings(data_dir)
    files = {str(path): path for x in sources for path in x.files} or find_files(data_dir)
    source = cache.tree_identity(Path(), [str(path) for path in files.values()])
    source |= {"name": data_dir.name}
    source.pop("names_sizes_sha256")  # a hash of absolute paths; a copy elsewhere is the same data
    source |= {"edges": [cache.source_identity(path)["edges_sha256"] for path in files.values()]}
    parameters = {"name": "events", "split": split, "source": source, "files": list(files), **_in_files(options)}
    if sources:  # a copy elsewhere is the same data
        parameters["files"] = [source.name for source in sources]
    parameters["times"] = event_times.VERSION
    window = window_asked(options, bool(sources))

    def build() -> EventSet:
        recording = read_recordings(sources, window, time_unit=options.time_unit) if sources else read_files(files)
        return _part_of(recording, split, options, {"source": cache.without_times(source)})

    return cache.load_or_build(parameters, build, cache_dir)


def function_of(place: str | Path) -> tuple[Path, str] | None:
    """The absolute path of FILE.py and the name of FUNCTION; None if `place` is not FILE.py:FUNCTION."""
    match = _FUNCTION.fullmatch(str(place))
    return None if match is None else (Path(match["path"]).expanduser().absolute(), match["name"])


def find_recordings(place: Path) -> list[Source]:
    """The recordings of a camera in a file or folder; none if it holds arrays."""
    if place.is_dir() and any(
        path.suffix.lower() in _ENDINGS and re.split(r"[_-]", path.stem)[-1] in PARTS for path in place.iterdir()
    ):
        return []
    return windows.find(place)


def window_asked(options: Options, of_recordings: bool) -> Window | None:
    """The window that recordings are cut into, if any; `ConfigError` for a stride without recordings, or without a width of steps."""
    if options.stride_ms and not (of_recordings and options.dt_ms):
        problem = "data.dt_ms is not given" if of_recordings else "these are not recordings of a camera"
        raise ConfigError(
            f"data.stride_ms: is {options.stride_ms:g}, but {problem}; give data.dt_ms with recordings, or leave it out"
        )
    return Window(step_us(options.dt_ms), options.n_steps, options.stride_ms * 1e3) if options.stride_ms else None


def find_files(place: Path) -> dict[str, Path]:
    """The files by part; a single file has the key "", and may define parts itself.

    Raises:
        DataError: there is none, or a folder has two files for one part.
    """
    if not place.is_dir():
        if not place.is_file():
            raise DataError(
                f"events: {place} is neither a file nor a folder; give {', '.join((*_ENDINGS, *RECORDINGS))}, or FILE.py:FUNCTION"
            )
        return {"": place}
    files: dict[str, Path] = {}
    for path in sorted(place.iterdir()):
        if is_hidden(path.name):
            continue
        part = re.split(r"[_-]", path.stem)[-1]
        if path.suffix.lower() in _ENDINGS and part in PARTS:
            if part in files:
                raise DataError(
                    f"{place}: {files[part].name} and {path.name} are both the part {part!r}; keep one of them"
                )
            files[part] = path
    if "train" not in files:
        raise DataError(
            f"{place}: holds no train.npz (or .h5, or mine_train.npz), and no recordings CLASS/NAME ({', '.join(RECORDINGS)}); "
            f"found: {', '.join(files) or 'none'}"
        )
    return files


def read_files(files: Mapping[str, Path]) -> Recording:
    """All of them as one recording."""
    recordings = {part: read(path) for part, path in files.items()}
    return recordings[""] if "" in recordings else join(recordings)


def parts_of(recording: Recording) -> list[str]:
    """The parts that have samples; ["train"] if the file defines none."""
    return ["train"] if recording.parts is None else [part for part in PARTS if (recording.parts == part).any()]


def window_of(recording: Recording, options: Options) -> float:
    """Width of a step, microseconds: the requested one, or one that loses no event."""
    if options.dt_ms:
        return step_us(options.dt_ms)
    first, last = recording.spans
    ends = last - first if options.start == "first" else last
    least = max(float(ends.max(initial=0.0)) / options.n_steps, 1.0)
    unit = 10.0 ** (math.floor(math.log10(least)) - 2)  # rounded up to three digits, above the longest sample's need
    return round((math.floor(least / unit) + 1) * unit, 3)


def _in_files(options: Options) -> dict[str, Any]:
    """The options as caches and checkpoints store them: with `n_units`, so that those of earlier versions stay valid."""
    known = asdict(options)
    for later in ("stride_ms", "time_unit"):
        if not known[later]:
            del known[later]
    return {"n_units" if name == "n_neurons" else name: value for name, value in known.items()}


def _part_of(recording: Recording, split: str, options: Options, more: Mapping[str, Any]) -> EventSet:
    """The spike lists of one part; window, units and classes are those of all parts together."""
    parts = parts_of(recording)
    if split not in parts:
        raise DataError(
            f"{recording.source}: has no part {split!r}; its parts: {', '.join(parts)}; set data.test or data.valid"
        )
    dt_us, (cells, n_units, sensor) = window_of(recording, options), _units(recording, options)
    n_classes = count_classes(recording.labels, recording.class_names, f"{recording.source}: label")
    if dt_us >= _MAX_STEP_US and not options.dt_ms:
        raise DataError(
            f"{recording.source}: times reach {float(recording.spans[1].max()):g} us, so that each of {options.n_steps:,} steps would "
            f"last {dt_us:g} us; allowed: less than {_MAX_STEP_US:g}. Set data.start=first if the clock does not start at 0, or data.dt_ms"
        )
    check_window(n_steps=options.n_steps, dt_us=dt_us, pool=1, n_units=n_units)
    _check_steps(recording, options)
    chosen = recording.of_part(split)
    starts, binned = recording.starts, []
    first, last = recording.spans
    begins = first if options.start == "first" else np.zeros(len(recording))
    n_all = int(recording.n_events[chosen].sum())
    with progress_bar(f"converting events {split}", n_all, large=True) as bar:
        for block in windows.blocks(recording.n_events[chosen]):
            samples = chosen[block]
            n_events = recording.n_events[samples]
            places = np.concatenate([np.arange(starts[s], starts[s + 1]) for s in samples] or [np.empty(0, np.int64)])
            t_us = recording.t_us[places]
            binned.append(
                bin_flat(
                    t_us - np.repeat(begins[samples], n_events),
                    cells(places),
                    n_events,
                    n_units=n_units,
                    n_steps=options.n_steps,
                    dt_us=dt_us,
                    duplicates=options.duplicates,
                    source=recording.source,
                    first_sample=int(samples[0]) if samples.size else 0,
                    slack_us=recording.precision.slack_us(t_us),
                    check_units=False,
                )
            )
            bar.update(places.size)
    lists = Binned.join(binned)
    window_problem = lists.window_problem(
        recording.n_events[chosen], first[chosen], last[chosen], dt_us, start=options.start, of_file=True
    )
    problems = [
        *recording.precision.notes(np.concatenate(recording.spans), dt_us),
        *recording.wraps.texts(window_problem),
        *recording.problems,
    ]
    notes = recording.notes(options.start)
    return EventSet.from_binned(
        lists,
        recording.labels[chosen],
        n_classes,
        groups={name: group[chosen] for name, group in recording.groups.items()},
        description={
            "name": "events",
            "split": split,
            **_in_files(options),
            **more,
            "dt_us": dt_us,
            "parts": parts,
            "classes": recording.class_names,
            "group_names": dict(recording.group_names),
            **({} if sensor is None else {"sensor": sensor.entry()}),
            **({PROBLEMS: problems} if problems else {}),
            **({NOTES: notes} if notes else {}),
            **({windows.TOGETHER: recording.together} if recording.together else {}),
        },
    )


def _check_steps(recording: Recording, options: Options) -> None:
    """`DataError` unless labels of steps fit the steps."""
    if not recording.task.per_step:
        return
    n_steps = recording.labels.shape[1]
    if n_steps != options.n_steps:
        raise DataError(
            f"{recording.source}: has a {recording.task} for {n_steps:,} steps, but data.n_steps is {options.n_steps:,}; set data.n_steps={n_steps}"
        )
    if not options.dt_ms:
        raise DataError(
            f"{recording.source}: has a {recording.task}, so the width of a step must be given; set data.dt_ms to the milliseconds of a step"
        )


def _units(
    recording: Recording, options: Options
) -> tuple[Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]], int, Sensor | None]:
    """A function from events to their cells int64[E], the number of cells, and the sensor of a camera."""
    sizes, (width, height) = {}, recording.sensor or (0, 0)
    for name, key, own in (("unit", "n_neurons", 0), ("x", "width", width), ("y", "height", height)):
        if name in recording.places:
            most = int(recording.places[name].max(initial=0))
            sizes[name] = getattr(options, key) or own or most + 1
            if recording.t_us.size and most >= sizes[name]:
                raise DataError(
                    f"{recording.source}: {name} reaches {most}; data.{key} is {sizes[name]}; raise it, or give 0"
                )
    at, pool = recording.places, options.pool
    if "unit" in at:
        return lambda events: at["unit"][events] // pool, pooled(sizes["unit"], pool), None
    width, height = pooled(sizes["x"], pool), pooled(sizes["y"], pool)
    n_polarities = 2 if "p" in at else 1

    def cells(events: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        row = at["y"][events] // pool
        return at["x"][events] // pool + width * (row + height * at["p"][events] if "p" in at else row)

    return cells, n_polarities * width * height, Sensor(width, height, n_polarities)


# ---- the user's functions ------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4)
def _made(path: Path, name: str, mtime_ns: int) -> Recording | dict[str, EventSet]:
    """The result of a function, called once for each version of its file."""
    where = f"{path}:{name}"
    if not path.is_file():
        raise DataError(f"events: {path} is not a file; give FILE.py:FUNCTION")
    spec = importlib.util.spec_from_file_location(f"_sparsesnn_events_{path.stem}", path)
    assert spec is not None, "a file that ends in .py has a loader"
    assert spec.loader is not None, "a file that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        function = getattr(module, name, None)
        with matched_by_name():  # loading matches the classes of all parts by name
            made = function() if callable(function) else None
    except DataError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise DataError(
            f"{where}: ended with {type(error).__name__}: {error} (line {last.lineno} of {last.filename})"
        ) from error
    if not callable(function):
        raise DataError(f"{where}: {path.name} has no function {name!r}; define one that takes no arguments")
    if isinstance(made, EventSet):
        return {"train": made}
    if isinstance(made, Mapping) and made and all(isinstance(x, EventSet) for x in made.values()):
        if strange := [part for part in made if part not in PARTS]:
            raise DataError(f"{where}: returns the part {strange[0]!r}; allowed: {', '.join(PARTS)}")
        return dict(made)
    if isinstance(made, Mapping):
        return from_arrays(made, where)
    raise DataError(
        f"{where}: returns {a_type(made)}; allowed: an EventSet, a dict of EventSets by part, or a dict of arrays"
    )


def _with_parts(made: Mapping[str, EventSet], split: str, where: str) -> EventSet:
    if split not in made:
        raise DataError(f"{where}: has no part {split!r}; its parts: {', '.join(made)}; set data.test or data.valid")
    chosen = made[split]
    return replace(chosen, description={"name": "events", **chosen.description, "parts": list(made)})
