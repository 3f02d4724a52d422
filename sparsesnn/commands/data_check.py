"""`sparsesnn data check`: a summary of a file of the user's events, as text and as a picture."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparsesnn.errors import ConfigError
from sparsesnn.event_times import STARTS
from sparsesnn.task import NO_LABEL
from sparsesnn.wording import printable

if TYPE_CHECKING:
    from sparsesnn.datasets.recording import Recording

#: most names listed in a line
_MOST_NAMES = 12
#: most units counted one by one; beyond that only units with events
_MOST_COUNTED = 1 << 22
#: most events drawn per sample
_MOST_DOTS = 20_000


def register(what: Any) -> None:
    check = what.add_parser(
        "check",
        help="summarize your own event file, with a picture",
        description="Reads a .npz or HDF5 file, or a folder with one for each part, or recordings of a camera, and summarizes "
        "them: units, rates, durations, classes, groups. `sparsesnn data info events` explains the files.",
    )
    check.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help=".npz, .h5, .aedat4, .raw, .dat, .txt or .csv, or a folder of them",
    )
    check.add_argument("--out", type=Path, metavar="PICTURE", help="png, svg or pdf (default: FILE-check.png here)")
    check.add_argument(
        "--start",
        choices=STARTS,
        help="start of a sample's time, as data.start in training (default: first if the samples begin late, else zero)",
    )
    check.add_argument(
        "--time-unit", choices=("us", "ms", "s"), default="", help="unit of the times, if a text file does not name it"
    )
    check.add_argument("--no-plot", action="store_true", help="text only")
    check.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    from sparsesnn.datasets.classes import count_classes
    from sparsesnn.datasets.events import (
        Options,
        find_files,
        find_recordings,
        function_of,
        parts_of,
        read_files,
        window_of,
    )
    from sparsesnn.datasets.windows import read_recordings

    place = options.file.expanduser()
    if function_of(place):
        raise ConfigError(
            f"data check: {place} is a function; give a file or folder of arrays, or draw a sample: "
            f"sparsesnn data show events --data {shlex.quote(str(place))}"
        )
    if sources := find_recordings(place):
        recording = read_recordings(sources, None, time_unit=options.time_unit, needs_labels=False)
    else:
        recording = read_files(find_files(place))
    count_classes(recording.labels, recording.class_names, f"{place}: label")
    for line in describe(recording, parts_of(recording), options.start or "zero"):
        print(printable(line))
    start = options.start or ("first" if recording.begins_late else "zero")
    n_steps = recording.labels.shape[1] if recording.task.per_step else Options.n_steps
    dt_us = window_of(recording, Options(start=start, n_steps=n_steps))
    more = "" if start == "zero" else f" --set data.start={start}"
    more += f" --set data.time_unit={options.time_unit}" if options.time_unit else ""
    if recording.task.per_step:  # the width cannot be known: the last steps may be empty
        more += f" --set data.n_steps={n_steps} --set data.dt_ms={dt_us / 1e3:g}"
    command = f"sparsesnn train events --data {shlex.quote(str(options.file))}{more}"
    print(printable(f"train    {command}   ({n_steps} steps of {dt_us / 1e3:g} ms)"))
    if recording.task.per_step:
        print(
            "note     data.dt_ms must be the width of the steps that were labeled; the one above is the least that holds all events"
        )
    for text in recording.precision.notes(np.concatenate(recording.spans), dt_us):
        print(f"note     {text}")
    if options.no_plot:
        return 0
    out = options.out or Path(f"{place.stem}-check.png")
    try:
        draw(recording, out, title=str(options.file))
    except OSError as error:
        raise ConfigError(f"--out: {out} cannot be written ({error.strerror}); give another file") from None
    print(printable(f"picture  {out}"))
    return 0


def describe(recording: Recording, parts: list[str], start: str = "zero") -> list[str]:
    """Lines of text: a summary, and likely mistakes; `start`: the option of training."""
    n_events, spans = recording.n_events, _spans(recording)
    first = np.array([s[0] for s in spans]) if spans else np.zeros(0)
    length = np.array([s[1] - s[0] for s in spans]) if spans else np.zeros(0)
    units = _units(recording)
    fired, per_unit = _per_unit(units)
    n_units = int(units.max(initial=0)) + 1
    if recording.sensor:
        n_units = 2 * recording.sensor[0] * recording.sensor[1]
    seconds = max(float(recording.t_us.max(initial=0.0)) / 1e6, 1e-9)
    seconds *= max(1, len(recording))
    busiest = int(per_unit.argmax()) if fired.size else -1
    lines = [
        f"samples  {len(recording):,}, events {recording.t_us.size:,}: {_three(n_events)} each",
        f"units    {_grid(recording)}; {fired.size:,} of {n_units:,} have events; "
        f"a unit fires {units.size / n_units / seconds:.4g} times a second on average, the busiest "
        f"({fired[busiest] if fired.size else 0:,}) {per_unit[busiest] / seconds if fired.size else 0:.4g}",
        f"times    first events at {_three(first / 1e3)} ms, durations {_three(length / 1e3)} ms",
        _labels_line(recording),
    ]
    lines += [
        f"group    {name}: {_named(group, recording.group_names.get(name, []))}"
        for name, group in recording.groups.items()
    ]
    lines.append("parts    " + ", ".join(f"{part} {recording.of_part(part).size:,}" for part in parts))
    lines += [f"note     {text}" for text in (*recording.notes(start), *recording.wraps.texts())]
    if not recording.t_us.size:
        lines.append("note     there are no events to learn from")
    if "train" not in parts:
        lines.append("note     the part 'train' has no samples to learn from")
    labels = _numbers(recording)
    if labels.size and np.unique(labels).size < 2:
        lines.append(
            f"note     there is only one {'value' if recording.task.has_values else 'class'}: nothing to distinguish"
        )
    return lines


def draw(recording: Recording, path: Path, *, title: str) -> None:
    """Samples of some classes, events for each unit, events and durations of samples, and samples for each class."""
    from sparsesnn.figures import BLUE, GREEN, ORANGE, new_figure, save, shown

    units, starts = _units(recording), recording.starts
    figure = new_figure(11, 6)
    above, below = figure.subplots(2, 3)
    filled = recording.n_events > 0
    for axes, sample in zip(above, _examples(recording, filled), strict=False):
        own = slice(int(starts[sample]), min(int(starts[sample + 1]), int(starts[sample]) + _MOST_DOTS))
        axes.plot(recording.t_us[own] / 1e3, units[own], ".", markersize=2, color=BLUE)
        axes.set_title(f"sample {sample}{_class_of(recording, sample)}", fontsize=9)
        axes.set_xlabel("ms")
    above[0].set_ylabel("unit")
    fired, per_unit = _per_unit(units)
    if int(units.max(initial=0)) < _MOST_COUNTED:  # a line, including silent units
        per_unit = np.bincount(units, minlength=1)
        fired = np.arange(per_unit.size)
    below[0].plot(fired, per_unit, color=BLUE, linewidth=0.8)
    below[0].set_xlabel("unit")
    below[0].set_ylabel("events")
    length = np.array([(s[1] - s[0]) / 1e3 for s in _spans(recording)] or [0.0])
    below[1].plot(length, recording.n_events[filled] if filled.any() else [0], ".", markersize=3, color=ORANGE)
    below[1].set_xlabel("duration of a sample, ms")
    below[1].set_ylabel("events of the sample")
    if recording.task.has_values:
        below[2].hist(_numbers(recording), bins=30, color=GREEN)
    else:
        labels, n_samples = np.unique(_numbers(recording), return_counts=True)
        below[2].bar(np.arange(labels.size), n_samples, color=GREEN)
        if labels.size <= _MOST_NAMES:
            names = [shown(recording.class_names[k] if recording.class_names else k) for k in labels.tolist()]
            below[2].set_xticks(np.arange(labels.size), names, rotation=30, fontsize=8)
    below[2].set_xlabel("value" if recording.task.has_values else "class")
    below[2].set_ylabel("steps" if recording.task.per_step else "samples")
    save(figure, path, title)


def _numbers(recording: Recording) -> npt.NDArray[Any]:
    """All labels or values, flat, without the steps that have none."""
    labels = recording.labels
    given: npt.NDArray[Any] = labels[~np.isnan(labels) if recording.task.has_values else labels != NO_LABEL]
    return given


def _labels_line(recording: Recording) -> str:
    """The classes and the samples (or steps) of each, or the range of values."""
    task, numbers = recording.task, _numbers(recording)
    if not task.has_values:
        text = f"classes  {_named(numbers, recording.class_names)}"
        unlabeled = recording.labels.size - numbers.size
        return text + (f" steps, {unlabeled:,} without a label" if task.per_step else "")
    return f"values   {recording.labels.shape[-1]} for each {'step' if task.per_step else 'sample'}: {_three(numbers)}"


def _examples(recording: Recording, filled: npt.NDArray[np.bool_]) -> list[int]:
    """Samples to draw: the first of each of three classes; if samples have no class, the first three."""
    labels = recording.labels
    if not recording.task.is_plain:
        return [int(k) for k in np.flatnonzero(filled)[:3]]
    return [int(np.flatnonzero(filled & (labels == label))[0]) for label in np.unique(labels[filled])[:3]]


def _class_of(recording: Recording, sample: int) -> str:
    from sparsesnn.figures import shown

    if not recording.task.is_plain:
        return ""
    label = int(recording.labels[sample])
    return f", class {shown(recording.class_names[label] if recording.class_names else str(label))}"


def _spans(recording: Recording) -> list[tuple[float, float]]:
    """First and last time of every sample that has events."""
    filled = recording.n_events > 0
    if not filled.any():
        return []
    starts = recording.starts[:-1][filled]
    return list(
        zip(
            np.minimum.reduceat(recording.t_us, starts).tolist(),
            np.maximum.reduceat(recording.t_us, starts).tolist(),
            strict=True,
        )
    )


def _per_unit(units: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The units that have events, ascending, and the number of each; a single event may come from unit 199,999,999."""
    if int(units.max(initial=0)) >= _MOST_COUNTED:
        return np.unique(units, return_counts=True)
    counts = np.bincount(units)
    fired = np.flatnonzero(counts)
    return fired, counts[fired]


def _units(recording: Recording) -> npt.NDArray[np.int64]:
    """int64[E], one number for each unit or pixel and polarity."""
    places = recording.places
    if "unit" in places:
        return places["unit"]
    width, height = _sensor(recording)
    return places["x"] + width * (places["y"] + height * places.get("p", np.zeros(1, np.int64)))


def _sensor(recording: Recording) -> tuple[int, int]:
    """Width and height: those of the file, or of its events."""
    width, height = (int(recording.places[name].max(initial=0)) + 1 for name in ("x", "y"))
    return recording.sensor or (width, height)


def _grid(recording: Recording) -> str:
    places = recording.places
    if "unit" in places:
        return f"0 to {int(places['unit'].max(initial=0)):,}"
    width, height = _sensor(recording)
    return f"{width:,} x {height:,} pixels{' x 2 polarities' if 'p' in places else ''}"


def _named(numbers: npt.NDArray[np.int64], names: list[str]) -> str:
    """`3: left 40, right 38, up 42`: the number of classes or members, and the samples of each."""
    found, n_samples = np.unique(numbers, return_counts=True)
    pairs = list(zip(found.tolist(), n_samples.tolist(), strict=True))
    listed = ", ".join(f"{names[k] if names else k} {n:,}" for k, n in pairs[:_MOST_NAMES])
    return f"{len(pairs):,}: {listed}" + (", …" if len(pairs) > _MOST_NAMES else "")


def _three(values: npt.NDArray[Any]) -> str:
    """Least, median and largest."""
    if not values.size:
        return "none"
    return f"{values.min():,.6g} to {values.max():,.6g} (median {float(np.median(values)):,.6g})"
