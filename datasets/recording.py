"""The user's events as arrays: every event has a time, a unit and a sample, every sample or step a label.

| array | for | meaning |
|---|---|---|
| `t_us`, `t_ms` or `t_s` | every event | its time, one of the three; if the clock wraps, each sample must be in the order of recording |
| `unit`, or `x`, `y` and perhaps `p` | every event | its unit, from 0; or its pixel and polarity (0 or 1, or -1 or 1) |
| `sample` | every event | the number of its sample, from 0; in any order |
| `label` | every sample | its class: a whole number from 0, or a text |
| `step_label` | every sample and step | instead of `label`: [samples, steps], the class of each step, a whole number from 0; -1: no label |
| `target` | every sample | instead of `label`: [samples] or [samples, K], its values |
| `step_target` | every sample and step | instead of `label`: [samples, steps] or [samples, steps, K], values of each step; NaN: no value |
| `group`, `group_NAME` | every sample | optional: its group, such as a speaker, for held-out groups; a whole number or a text |
| `part` | every sample | optional: train, valid or test |
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn.datasets import arrays, hdf5
from sparsesnn.datasets.classes import numbered
from sparsesnn.datasets.convert import progress_bar
from sparsesnn.datasets.labels import sample_values, step_classes, step_values
from sparsesnn.errors import DataError
from sparsesnn.event_times import Precision, Wraps, exact_us, spans, unwrap
from sparsesnn.task import Task
from sparsesnn.typed import padding_advice
from sparsesnn.wording import count

Array = npt.NDArray[Any]

PARTS = ("train", "valid", "test")
#: most names listed in a line
_MOST_NAMES = 12
_TIMES = {"t_us": 1.0, "t_ms": 1e3, "t_s": 1e6}
#: the arrays of labels, of which a file has one
_FORMS = ("label", "step_label", "target", "step_target")
_EVENT = ("unit", "x", "y", "p", "sample")
_SHD = ("spikes/times", "spikes/units", "labels")
_SHD_EXTRA = ("extra/speaker", "extra/keys")
_MAX_SAMPLES = 100_000_000
#: most places of an event's origin: units, pixels along one side
_MAX_PLACES = {"unit": 100_000_000, "x": 10_000, "y": 10_000}


def is_known(name: str) -> bool:
    """Whether an array with this name is read."""
    return name in (*_TIMES, *_EVENT, *_FORMS, "part", "group") or name.startswith("group_")


@dataclass(frozen=True)
class Recording:
    """The events of n samples, one after the other, and the label, groups and part of each sample.

    Args:
        t_us: float64[E], microseconds.
        places: "unit", or "x", "y" and perhaps "p": int64[E] each; p is 0 or 1.
        n_events: int64[n], events of each sample.
        labels, class_names: int64[n] and the names of the numbers; no names if labels are numbers. Labels of steps, and values, have the
            forms of `sparsesnn.task.Task`.
        groups, group_names: the same for every group.
        parts: one of `PARTS` for each sample; None: there are no parts.
        source: name for messages.
        unread: names of ignored arrays.
        precision: of the times as given.
        wraps: of clocks.
        sensor: width and height of the camera; None: derived from the largest pixels.
        together: a group whose members are never divided between parts; "": none.
        problems, remarks: likely mistakes, and oddities that may be intended.
    """

    t_us: npt.NDArray[np.float64]
    places: Mapping[str, npt.NDArray[np.int64]]
    n_events: npt.NDArray[np.int64]
    labels: Array
    class_names: list[str]
    groups: Mapping[str, npt.NDArray[np.int64]]
    group_names: Mapping[str, list[str]]
    parts: npt.NDArray[np.str_] | None
    source: str
    unread: Sequence[str] = field(default_factory=list)
    precision: Precision = field(default_factory=lambda: Precision(np.dtype(np.int64)))
    wraps: Wraps = field(default_factory=Wraps)
    sensor: tuple[int, int] | None = None
    together: str = ""
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.n_events.size

    @property
    def task(self) -> Task:
        return Task.of(self.labels)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """int64[n + 1], start of each sample's events."""
        return np.concatenate([[0], np.cumsum(self.n_events)]).astype(np.int64)

    @functools.cached_property
    def spans(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """float64[n], first and last time of every sample; 0 for samples without events."""
        return spans(self.t_us, self.n_events)

    @property
    def begins_late(self) -> bool:
        """Whether samples do not begin near time 0: they begin before 0, or later than they are long."""
        filled = self.n_events > 0
        first, last = (x[filled] for x in self.spans)
        if not first.size:
            return False
        return bool((first < 0).any()) or float(np.median(first)) > float(np.median(last - first)) > 0

    def notes(self, start: str) -> list[str]:
        """Oddities that may be intended, one line each; `start`: see `event_times.STARTS`."""
        texts = [f"not read: {', '.join(self.unread[:_MOST_NAMES])}"] if self.unread else []
        texts += self.remarks
        if empty := int((self.n_events == 0).sum()):
            texts.append(f"{count(empty, 'sample')} without events")
        if start == "zero" and (early := int((self.t_us < 0).sum())):
            texts.append(f"{count(early, 'event')} before time 0, which are lost; set data.start=first")
        elif start == "zero" and self.begins_late:
            texts.append("samples begin late: set data.start=first to count their time from their first event")
        return texts

    def of_part(self, part: str) -> npt.NDArray[np.int64]:
        """The numbers of the samples in a part."""
        return np.arange(len(self)) if self.parts is None else np.flatnonzero(self.parts == part)


def read(path: Path) -> Recording:
    """Reads a .npz or HDF5 file with the arrays above, or an HDF5 file in SHD's format.

    Raises:
        DataError: the file is missing, damaged or of another form; the message names file, array and value.
    """
    columns, unread = arrays.read_arrays(path, is_known)
    if "spikes" in unread and path.suffix.lower() != ".npz":
        return _read_shd(path)
    return replace(from_columns(columns, str(path)), unread=unread)


def from_arrays(table: Mapping[str, Any], source: str) -> Recording:
    """Makes a recording from arrays by their names.

    Args:
        source: name for messages.

    Raises:
        DataError: see `read`.
    """
    return from_columns(arrays.as_columns(table, is_known, source), source)


def from_columns(found: arrays.Columns, source: str) -> Recording:
    """Makes a recording from arrays read in pieces, twice: first to count the events of every sample, then to place them."""
    times = [name for name in _TIMES if name in found]
    if len(times) != 1:
        raise DataError(f"{source}: has {' and '.join(times) or 'no times'}; give one of {', '.join(_TIMES)}")
    if "sample" not in found:
        raise DataError(f"{source}: has no array 'sample'; add it (for {_asked('sample')})")
    if not any(name in found for name in _FORMS):
        raise DataError(
            f"{source}: has no array 'label'; add it (for {_asked('label')}), or one of {', '.join(_FORMS[1:])}"
        )
    time, place_names = times[0], _place_names(found, source)
    for name in (time, *place_names, "sample"):
        _check_column(found[name], name, "fiu" if name == time else "biu", source)
    n_all = found[time].size
    for name in (*place_names, "sample"):
        if found[name].size != n_all:
            raise DataError(
                f"{source}: {name} has {found[name].size:,} entries, {time} {n_all:,}; give one for each event"
            )
    labels, class_names, form = _labels(found, source)
    n = len(labels)
    counts = np.zeros(n, np.int64)
    for where, block in arrays.blocks(found, ["sample"]):
        sample = _whole(block["sample"], "sample", source)
        if sample.size and not 0 <= int(sample.min()) <= int(sample.max()) < n:
            bad = int(np.argmax((sample < 0) | (sample >= n)))
            raise DataError(
                f"{source}: sample[{where.start + bad}] is {sample[bad]}; {form} has {count(n, 'sample')}, so 0 to {n - 1:,} are allowed; count samples "
                "from 0, and give each a label"
            )
        counts += np.bincount(sample, minlength=n)
    _warn_of_empty(counts, source)
    groups: dict[str, npt.NDArray[np.int64]] = {}
    group_names: dict[str, list[str]] = {}
    for name in found:
        if name == "group" or name.startswith("group_"):
            short = name.removeprefix("group_")
            groups[short], names = numbered(_long(found[name], n, name, source), f"{source}: {name}")
            group_names |= {short: names} if names else {}
    parts = _parts(_long(found["part"], n, "part", source), source) if "part" in found else None
    t_us = arrays.room(n_all, np.float64)
    places = {name: arrays.room(n_all, np.int64) for name in place_names}
    free, signs, precision = np.cumsum(counts) - counts, set[int](), Precision(found[time].dtype, _TIMES[time])
    with progress_bar(f"reading {source}", n_all, large=True) as bar:
        for where, block in arrays.blocks(found, [time, *place_names, "sample"]):
            to = _free_places(_whole(block["sample"], "sample", source), free)
            given = _finite(block[time], time, where.start, source)
            if where.start == 0:
                precision = Precision.of(given, _TIMES[time])
            t_us[to] = precision.in_us(given, _TIMES[time])
            for name in place_names:
                if name == "p":
                    p = _whole(block["p"], "p", source)
                    signs |= set(np.unique(p).tolist())
                    if not (signs <= {0, 1} or signs <= {-1, 1}):
                        raise DataError(
                            f"{source}: p holds {min(signs)} to {max(signs)}; allowed: 0 and 1, or -1 and 1"
                        )
                    places["p"][to] = p > 0
                else:
                    places[name][to] = _from_zero(block[name], name, where.start, source)
            bar.update(where.stop - where.start)
    return Recording(
        t_us,
        places,
        counts,
        labels,
        class_names,
        groups,
        group_names,
        parts,
        source,
        precision=precision,
        wraps=unwrap(t_us, counts),
    )


def _labels(found: arrays.Columns, source: str) -> tuple[Array, list[str], str]:
    """The labels, the names of classes, and the name of the array."""
    given = [name for name in _FORMS if name in found]
    if len(given) != 1:
        raise DataError(f"{source}: has {' and '.join(given)}; keep one of them, which decides the task")
    (form,) = given
    whole = found[form].whole()
    if form == "label":
        return *numbered(whole, f"{source}: label"), form
    if form != "target" and whole.ndim < 2:
        raise DataError(
            f"{source}: {form} has the shape {list(whole.shape)}; give [samples, steps{', K' if 'target' in form else ''}]"
        )
    what = f"{source}: {form}"
    if form == "target":
        return sample_values(whole, len(whole), what), [], form
    read = step_classes if form == "step_label" else step_values
    return read(whole, len(whole), whole.shape[1], what), [], form


def _warn_of_empty(n_events: npt.NDArray[np.int64], source: str) -> None:
    """Warns if most samples have no events: then the entries of `label` are probably not one per sample."""
    n, n_all, empty = n_events.size, int(n_events.sum()), int((n_events == 0).sum())
    if 2 * empty <= n or not n_all:
        return
    if n == n_all:
        advice = (
            "label has one entry for each event; give one for each sample, such as "
            "label[np.unique(sample, return_index=True)[1]] if no sample is empty"
        )
    else:
        advice = "label has one entry for each sample, numbered from 0; check sample and label"
    warnings.warn(
        f"{source}: {empty:,} of {count(n, 'sample')} have no events: {advice}",
        UserWarning,
        stacklevel=3,
    )


def _free_places(sample: npt.NDArray[np.int64], free: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | slice:
    """The places of events so that samples follow one another, each in its given order; advances `free`, the next place
    of each sample."""
    if not sample.size:
        return slice(0, 0)
    first = int(sample[0])
    if sample[-1] == first and not (sample != first).any():  # the usual order in files
        begin = int(free[first])
        free[first] += sample.size
        return slice(begin, begin + sample.size)
    order = np.argsort(sample, kind="stable")
    ascending = sample[order]
    begins = np.flatnonzero(np.diff(ascending, prepend=-1))
    lengths = np.diff(begins, append=ascending.size)
    to = np.empty(sample.size, np.int64)
    to[order] = np.arange(sample.size) + np.repeat(free[ascending[begins]] - begins, lengths)
    free[ascending[begins]] += lengths
    return to


def join(recordings: Mapping[str, Recording]) -> Recording:
    """One recording from several files, each of which is a part; classes and groups have the same numbers in all."""
    first = next(iter(recordings.values()))
    for other in recordings.values():
        if set(other.places) != set(first.places) or bool(other.class_names) != bool(first.class_names):
            raise DataError(
                f"{other.source}: has {', '.join(other.places)} and labels that are {'texts' if other.class_names else 'numbers'}, "
                f"{first.source} {', '.join(first.places)} and {'texts' if first.class_names else 'numbers'}; write all parts in the same form"
            )
    several = list(recordings.values())
    if len({(r.task, r.labels.shape[1:]) for r in several}) > 1:
        shapes = ", ".join(f"{r.source} has a {r.task}, {list(r.labels.shape)}" for r in several)
        raise DataError(f"parts have different labels: {shapes}; write all parts in the same form")
    labels, names = _joined([(r.labels, r.class_names) for r in several])
    groups: dict[str, npt.NDArray[np.int64]] = {}
    group_names: dict[str, list[str]] = {}
    for key in sorted(set(first.groups).intersection(*(r.groups for r in several))):
        groups[key], found = _joined([(r.groups[key], r.group_names.get(key, [])) for r in several])
        group_names |= {key: found} if found else {}
    return Recording(
        _one_after_another([r.t_us for r in several]),
        {name: _one_after_another([r.places[name] for r in several]) for name in first.places},
        np.concatenate([r.n_events for r in several]),
        labels,
        names,
        groups,
        group_names,
        np.concatenate([np.full(len(r), part) for part, r in recordings.items()]),
        first.source,
        unread=list(dict.fromkeys(name for r in several for name in r.unread)),
        precision=max(
            (r.precision for r in several), key=lambda precision: float(precision.spacing_us(np.float64(1e6)))
        ),
        wraps=functools.reduce(operator.iadd, (r.wraps for r in several), Wraps()),
    )


def _one_after_another(several: Sequence[Array]) -> Array:
    """`np.concatenate`, but the result may be larger than memory."""
    whole, start = arrays.room(sum(x.size for x in several), several[0].dtype), 0
    for x in several:
        whole[start : start + x.size] = x
        start += x.size
    return whole


def _joined(parts: list[tuple[npt.NDArray[np.int64], list[str]]]) -> tuple[npt.NDArray[np.int64], list[str]]:
    if all(names == parts[0][1] for _, names in parts):
        return np.concatenate([numbers for numbers, _ in parts]), parts[0][1]
    return numbered(np.concatenate([_named(*part) for part in parts]), "label")


def _named(numbers: npt.NDArray[np.int64], names: list[str]) -> Array:
    return np.array(names, str)[numbers] if names else numbers


def _place_names(found: arrays.Columns, source: str) -> list[str]:
    if ("unit" in found) == ("x" in found or "y" in found):
        raise DataError(
            f"{source}: {'has unit and x or y' if 'unit' in found else 'has no units'}; give unit, or x and y"
        )
    if "unit" in found:
        return ["unit"]
    if not ("x" in found and "y" in found):
        raise DataError(f"{source}: has no {'x' if 'y' in found else 'y'}; give x and y")
    return ["x", "y", "p"] if "p" in found else ["x", "y"]


def _parts(values: Array, source: str) -> npt.NDArray[np.str_]:
    numbers, names = numbered(values, f"{source}: part")
    if strange := [name for name in names if name not in PARTS] or (values.size and not names):
        raise DataError(f"{source}: part is {strange if names else 'numbers'}; allowed: {', '.join(PARTS)}")
    return np.array(names or ["train"], str)[numbers]


def _asked(name: str) -> str:
    """`every sample its class: a whole number from 0, or a text`: an array's entry in the table of this module's docstring."""
    row = next(line for line in (__doc__ or "").splitlines() if line.startswith(f"| `{name}` |"))
    return " ".join(row.strip("| ").split(" | ")[1:])


def _check_column(column: arrays.Column, name: str, kinds: str, source: str) -> None:
    if len(column.shape) != 1 or column.dtype.kind not in kinds:
        wanted = "numbers" if "f" in kinds else "whole numbers, such as a.astype(int)"
        raise DataError(f"{source}: {name} is {column.dtype}{list(column.shape)}; give a flat array of {wanted}")


def _finite(values: Array, name: str, start: int, source: str) -> Array:
    if not np.isfinite(values).all():
        bad = int(np.argmin(np.isfinite(values)))
        raise DataError(f"{source}: {name}[{start + bad}] is {values[bad]}; allowed: finite numbers; remove the event")
    return values


def _whole(values: Array, name: str, source: str) -> npt.NDArray[np.int64]:
    if values.size and values.dtype == np.uint64 and int(values.max()) >= 1 << 63:
        raise DataError(f"{source}: {name} holds {values.max()}; allowed: numbers below 2^63")
    return values.astype(np.int64)


def _from_zero(values: Array, name: str, start: int, source: str) -> npt.NDArray[np.int64]:
    whole = _whole(values, name, source)
    if whole.size and int(whole.min()) < 0:
        bad = int(np.argmin(whole))
        advice = padding_advice(whole, f"{name}[{name} >= 0], and the same entries of the other arrays")
        raise DataError(
            f"{source}: {name}[{start + bad}] is {whole[bad]}; allowed: whole numbers from 0"
            + (advice and f"; {advice}")
        )
    if whole.size and int(whole.max()) >= _MAX_PLACES.get(name, 1 << 63):
        bad = int(np.argmax(whole))
        raise DataError(
            f"{source}: {name}[{start + bad}] is {whole[bad]}; allowed: 0 to {_MAX_PLACES[name] - 1:,}; remove the event, or number "
            f"{name} without large gaps"
        )
    return whole


def _long(column: arrays.Column, n: int, name: str, source: str) -> Array:
    if column.shape != (n,):
        raise DataError(f"{source}: {name} is {list(column.shape)}, label [{n}]; give one entry for each sample")
    return column.whole()


# ---- SHD's format --------------------------------------------------------------------------------------------------


def _read_shd(path: Path) -> Recording:
    """`spikes/times` (seconds) and `spikes/units`, one array per sample, `labels`; `extra/speaker`, `extra/keys` if present."""
    hdf5.probe(path, lambda _: (*_SHD, *_SHD_EXTRA))
    with hdf5.opened(path) as file:
        import h5py

        missing = [key for key in _SHD if not isinstance(file.get(key), h5py.Dataset)]
        extra = [key for key in _SHD_EXTRA if isinstance(file.get(key), h5py.Dataset)]
        if missing:
            raise DataError(f"{path}: has no {', '.join(missing)}; a file in SHD's format holds {', '.join(_SHD)}")
        for key, kinds in (("spikes/times", "fiu"), ("spikes/units", "iu")):
            element = h5py.check_vlen_dtype(file[key].dtype)
            if file[key].ndim != 1 or element is None or np.dtype(element).kind not in kinds:
                raise DataError(
                    f"{path}: {key} is {file[key].dtype}{list(file[key].shape)}; it must hold one array of numbers per sample"
                )
        lengths = {key: len(file[key]) for key in (*_SHD, *extra[:1]) if key != "extra/keys"}
        if len(set(lengths.values())) > 1 or lengths["labels"] > _MAX_SAMPLES:
            raise DataError(f"{path}: the numbers of samples are {lengths}; they must be equal")
        labels, *others = (arrays.hdf5_column(path, key, file[key]) for key in ("labels", *extra))
    known = dict(zip(extra, others, strict=True))
    columns = _shd_events(path, labels.size)
    columns["label"] = labels
    if "extra/speaker" in known:
        speakers = numbered(known["extra/speaker"].whole(), f"{path}: extra/speaker")
        columns["group_speakers"] = arrays.in_memory(_named(*speakers))
    recording = from_columns(columns, str(path))
    if "extra/keys" in known and known["extra/keys"].size and not recording.class_names:
        texts = [str(key) for key in known["extra/keys"].whole()]
        if recording.labels.size and int(recording.labels.max()) >= len(texts):
            raise DataError(
                f"{path}: labels run to {recording.labels.max()}, but extra/keys names {len(texts)} classes"
            )
        recording = replace(recording, class_names=texts)
    return recording


def _shd_events(path: Path, n: int) -> dict[str, arrays.Column]:
    """Times, units and samples of all events, a few samples at a time."""

    def pieces(key: str) -> Iterator[tuple[int, list[Array]]]:
        with hdf5.opened(path) as file:
            for k in range(0, n, hdf5.BLOCK_SAMPLES):
                yield k, [np.asarray(x) for x in file[key][k : k + hdf5.BLOCK_SAMPLES]]

    n_events = np.zeros(n, np.int64)
    for (first, times), (_, units) in zip(pieces(_SHD[0]), pieces(_SHD[1]), strict=True):
        for k, (t, u) in enumerate(zip(times, units, strict=True), first):
            if t.shape != u.shape:
                raise DataError(
                    f"{path}: sample {k} has times {list(t.shape)} and units {list(u.shape)}; give one unit for each time"
                )
            n_events[k] = t.size

    with hdf5.opened(path) as file:
        import h5py

        time_dtype, unit = (np.dtype(h5py.check_vlen_dtype(file[key].dtype)) for key in _SHD[:2])

    def time_values() -> Iterator[Array]:
        for _, found in pieces(_SHD[0]):
            given = np.concatenate(found)
            yield exact_us(given) if time_dtype == np.float16 else given

    def unit_ids() -> Iterator[Array]:
        yield from (np.concatenate(found) for _, found in pieces(_SHD[1]))

    def samples() -> Iterator[Array]:
        for k in range(0, n, hdf5.BLOCK_SAMPLES):
            some = n_events[k : k + hdf5.BLOCK_SAMPLES]
            yield np.repeat(np.arange(k, k + some.size), some)

    shape = (int(n_events.sum()),)
    return {
        **(
            {"t_us": arrays.Column(shape, np.dtype(np.float64), time_values)}
            if time_dtype == np.float16
            else {"t_s": arrays.Column(shape, time_dtype, time_values)}
        ),
        "unit": arrays.Column(shape, unit, unit_ids),
        "sample": arrays.Column(shape, np.dtype(np.int64), samples),
    }
