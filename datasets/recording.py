"""A person's own events as arrays: every event has a time, a unit and a sample, every sample a label.

| array | of | what |
|---|---|---|
| `t_us`, `t_ms` or `t_s` | every event | its time, one of the three |
| `unit`, or `x`, `y` and perhaps `p` | every event | which unit it comes from, from 0; or the pixel, and the polarity (0 or 1, or -1 or 1) |
| `sample` | every event | the number of its sample, from 0; in any order |
| `label` | every sample | its class: a whole number from 0, or a text |
| `group`, `group_NAME` | every sample | optional: who or what it belongs to, for held-out groups; a whole number or a text |
| `part` | every sample | optional: train, valid or test |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn.datasets import arrays, hdf5
from sparsesnn.datasets.classes import numbered
from sparsesnn.errors import DataError

Array = npt.NDArray[Any]

PARTS = ("train", "valid", "test")
_TIMES = {"t_us": 1.0, "t_ms": 1e3, "t_s": 1e6}
_EVENT = ("unit", "x", "y", "p", "sample")
_SHD = ("spikes/times", "spikes/units", "labels")
_MAX_SAMPLES = 100_000_000


def is_known(name: str) -> bool:
    """Whether an array of this name is read."""
    return name in (*_TIMES, *_EVENT, "label", "part", "group") or name.startswith("group_")


@dataclass(frozen=True)
class Recording:
    """The events of n samples, one after the other, and what is known of each sample.

    Args:
        t_us: float64[E], microseconds.
        places: "unit", or "x", "y" and perhaps "p": int64[E] each; p is 0 or 1.
        n_events: int64[n], events of each sample.
        labels, class_names: int64[n] and what the numbers stand for; no names where labels are numbers.
        groups, group_names: the same of every group.
        parts: one of `PARTS` for each sample; None: there are no parts.
        source: name for messages.
        unread: names of arrays that nothing reads.
    """

    t_us: npt.NDArray[np.float64]
    places: Mapping[str, npt.NDArray[np.int64]]
    n_events: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    class_names: list[str]
    groups: Mapping[str, npt.NDArray[np.int64]]
    group_names: Mapping[str, list[str]]
    parts: npt.NDArray[np.str_] | None
    source: str
    unread: Sequence[str] = field(default_factory=list)

    def __len__(self) -> int:
        return self.n_events.size

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """int64[n + 1], where the events of each sample begin."""
        return np.concatenate([[0], np.cumsum(self.n_events)]).astype(np.int64)

    def from_first(self) -> Recording:
        """The same with the time of every sample counted from its first event."""
        filled = self.n_events > 0
        first = np.zeros(len(self))
        if filled.any():
            first[filled] = np.minimum.reduceat(self.t_us, self.starts[:-1][filled])
        return replace(self, t_us=self.t_us - np.repeat(first, self.n_events))

    def of_part(self, part: str) -> npt.NDArray[np.int64]:
        """Numbers of the samples of a part."""
        return np.arange(len(self)) if self.parts is None else np.flatnonzero(self.parts == part)


def read(path: Path) -> Recording:
    """From a .npz or HDF5 file with the arrays above, or an HDF5 file in the format of SHD.

    Raises:
        DataError: the file is missing, damaged or of another form; the message names file, array and value.
    """
    if path.suffix.lower() in (".h5", ".hdf5") and path.is_file():
        with hdf5.opened(path) as file:
            is_shd = "spikes" in file
        if is_shd:
            return _read_shd(path)
    table, unread = arrays.read_arrays(path, is_known)
    return replace(from_arrays(table, str(path)), unread=unread)


def from_arrays(table: Mapping[str, Any], source: str) -> Recording:
    """From arrays by their names.

    Args:
        source: name for messages.

    Raises:
        DataError: see `read`.
    """
    found = arrays.as_arrays(table, is_known, source)
    times = [name for name in _TIMES if name in found]
    if len(times) != 1:
        raise DataError(f"{source}: has {' and '.join(times) or 'no times'}; give one of {', '.join(_TIMES)}")
    for name in ("sample", "label"):
        if name not in found:
            raise DataError(f"{source}: has no array {name!r}; {_asked(name)}")
    t_us = _checked(found[times[0]], times[0], "fiu", source).astype(np.float64) * _TIMES[times[0]]
    if not np.isfinite(t_us).all():
        bad = int(np.argmin(np.isfinite(t_us)))
        raise DataError(
            f"{source}: {times[0]}[{bad}] is {found[times[0]][bad]}; allowed: finite numbers; remove the event"
        )
    places = _places(found, source)
    sample = _whole(found["sample"], "sample", source)
    for name, values in (*places.items(), ("sample", sample)):
        if values.size != t_us.size:
            raise DataError(
                f"{source}: {name} has {values.size:,} entries, {times[0]} {t_us.size:,}; give one for each event"
            )
    labels, class_names = numbered(found["label"], f"{source}: label")
    n = labels.size
    if sample.size and not 0 <= int(sample.min()) <= int(sample.max()) < n:
        bad = int(np.argmax((sample < 0) | (sample >= n)))
        raise DataError(
            f"{source}: sample[{bad}] is {sample[bad]}; label has {n:,} samples, so 0 to {n - 1:,} are allowed"
        )
    groups: dict[str, npt.NDArray[np.int64]] = {}
    group_names: dict[str, list[str]] = {}
    for name in found:
        if name == "group" or name.startswith("group_"):
            short = name.removeprefix("group_")
            groups[short], names = numbered(_long(found[name], n, name, source), f"{source}: {name}")
            group_names |= {short: names} if names else {}
    if np.any(sample[1:] < sample[:-1]):
        order = np.argsort(sample, kind="stable")
        t_us, sample, places = t_us[order], sample[order], {name: x[order] for name, x in places.items()}
    counts = np.bincount(sample, minlength=n).astype(np.int64)
    parts = _parts(_long(found["part"], n, "part", source), source) if "part" in found else None
    return Recording(t_us, places, counts, labels, class_names, groups, group_names, parts, source)


def join(recordings: Mapping[str, Recording]) -> Recording:
    """One recording of several files, each of which is a part; classes and groups have the same numbers in all."""
    first = next(iter(recordings.values()))
    for other in recordings.values():
        if set(other.places) != set(first.places) or bool(other.class_names) != bool(first.class_names):
            raise DataError(
                f"{other.source}: has {', '.join(other.places)} and labels that are {'texts' if other.class_names else 'numbers'}, "
                f"{first.source} {', '.join(first.places)} and {'texts' if first.class_names else 'numbers'}; write all parts alike"
            )
    several = list(recordings.values())
    labels, names = _joined([(r.labels, r.class_names) for r in several])
    groups: dict[str, npt.NDArray[np.int64]] = {}
    group_names: dict[str, list[str]] = {}
    for key in sorted(set(first.groups).intersection(*(r.groups for r in several))):
        groups[key], found = _joined([(r.groups[key], r.group_names.get(key, [])) for r in several])
        group_names |= {key: found} if found else {}
    return Recording(
        np.concatenate([r.t_us for r in several]),
        {name: np.concatenate([r.places[name] for r in several]) for name in first.places},
        np.concatenate([r.n_events for r in several]),
        labels,
        names,
        groups,
        group_names,
        np.concatenate([np.full(len(r), part) for part, r in recordings.items()]),
        first.source,
    )


def _joined(parts: list[tuple[npt.NDArray[np.int64], list[str]]]) -> tuple[npt.NDArray[np.int64], list[str]]:
    if all(names == parts[0][1] for _, names in parts):
        return np.concatenate([numbers for numbers, _ in parts]), parts[0][1]
    return numbered(np.concatenate([_named(*part) for part in parts]), "label")


def _named(numbers: npt.NDArray[np.int64], names: list[str]) -> Array:
    return np.array(names, str)[numbers] if names else numbers


def _places(found: Mapping[str, Array], source: str) -> dict[str, npt.NDArray[np.int64]]:
    if ("unit" in found) == ("x" in found or "y" in found):
        raise DataError(
            f"{source}: {'has unit and x or y' if 'unit' in found else 'has no units'}; give unit, or x and y"
        )
    if "unit" in found:
        return {"unit": _from_zero(found["unit"], "unit", source)}
    if not ("x" in found and "y" in found):
        raise DataError(f"{source}: has no {'x' if 'y' in found else 'y'}; give x and y")
    places = {name: _from_zero(found[name], name, source) for name in ("x", "y")}
    if "p" in found:
        p = _whole(found["p"], "p", source)
        allowed = set(np.unique(p).tolist())
        if not (allowed <= {0, 1} or allowed <= {-1, 1}):
            raise DataError(f"{source}: p holds {min(allowed)} to {max(allowed)}; allowed: 0 and 1, or -1 and 1")
        places["p"] = (p > 0).astype(np.int64)
    return places


def _parts(values: Array, source: str) -> npt.NDArray[np.str_]:
    numbers, names = numbered(values, f"{source}: part")
    if strange := [name for name in names if name not in PARTS] or (values.size and not names):
        raise DataError(f"{source}: part is {strange if names else 'numbers'}; allowed: {', '.join(PARTS)}")
    return np.array(names or ["train"], str)[numbers]


def _asked(name: str) -> str:
    return next(line for line in (__doc__ or "").splitlines() if f"`{name}`" in line).strip("| ").replace(" | ", ", ")


def _checked(values: Array, name: str, kinds: str, source: str) -> Array:
    if values.ndim != 1 or values.dtype.kind not in kinds:
        raise DataError(f"{source}: {name} is {values.dtype}{list(values.shape)}; give a flat array of numbers")
    return values


def _whole(values: Array, name: str, source: str) -> npt.NDArray[np.int64]:
    checked = _checked(values, name, "biu", source)
    if checked.size and checked.dtype == np.uint64 and int(checked.max()) >= 1 << 63:
        raise DataError(f"{source}: {name} holds {checked.max()}; allowed: numbers below 2^63")
    return checked.astype(np.int64)


def _from_zero(values: Array, name: str, source: str) -> npt.NDArray[np.int64]:
    whole = _whole(values, name, source)
    if whole.size and int(whole.min()) < 0:
        bad = int(np.argmin(whole))
        raise DataError(f"{source}: {name}[{bad}] is {whole[bad]}; allowed: whole numbers from 0")
    return whole


def _long(values: Array, n: int, name: str, source: str) -> Array:
    if values.shape != (n,):
        raise DataError(f"{source}: {name} is {list(values.shape)}, label [{n}]; give one entry for each sample")
    return values


# ---- the format of SHD ---------------------------------------------------------------------------------------------


def _read_shd(path: Path) -> Recording:
    """`spikes/times` (seconds) and `spikes/units`, one array a sample, `labels`; `extra/speaker`, `extra/keys` where there."""
    with hdf5.opened(path) as file:
        import h5py

        missing = [key for key in _SHD if not isinstance(file.get(key), h5py.Dataset)]
        extra = [key for key in ("extra/speaker", "extra/keys") if isinstance(file.get(key), h5py.Dataset)]
        if missing:
            raise DataError(f"{path}: has no {', '.join(missing)}; a file in SHD's format holds {', '.join(_SHD)}")
        for key, kinds in (("spikes/times", "fiu"), ("spikes/units", "iu")):
            element = h5py.check_vlen_dtype(file[key].dtype)
            if file[key].ndim != 1 or element is None or np.dtype(element).kind not in kinds:
                raise DataError(
                    f"{path}: {key} is {file[key].dtype}{list(file[key].shape)}; it must hold one array of numbers a sample"
                )
        lengths = {key: len(file[key]) for key in (*_SHD, *extra[:1]) if key != "extra/keys"}
        if len(set(lengths.values())) > 1 or lengths["labels"] > _MAX_SAMPLES:
            raise DataError(f"{path}: the numbers of samples are {lengths}; they must be equal")
    hdf5.probe(path, (*_SHD, *extra))
    with hdf5.opened(path) as file:
        times, units = ([np.asarray(x) for x in file[key][()]] for key in _SHD[:2])
        given = np.asarray(file["labels"][()])
        speakers = np.asarray(file["extra/speaker"][()]) if "extra/speaker" in extra else None
        keys = np.ravel(file["extra/keys"][()]) if "extra/keys" in extra else np.empty(0)
    for k, (t, u) in enumerate(zip(times, units, strict=True)):
        if t.shape != u.shape:
            raise DataError(
                f"{path}: sample {k} has times {list(t.shape)} and units {list(u.shape)}; give one unit for each time"
            )
    n_events = np.array([t.size for t in times], np.int64)
    n = n_events.size
    with np.errstate(all="ignore"):
        t_s = np.concatenate([t.astype(np.float64) for t in times]) if n else np.empty(0)
    table: dict[str, Any] = {
        "t_us": np.floor(t_s * 1e6),
        "unit": np.concatenate(units) if n else np.empty(0, np.int64),
        "sample": np.repeat(np.arange(n), n_events),
        "label": given,
    }
    if speakers is not None:
        names = numbered(speakers, f"{path}: extra/speaker")
        table["group_speakers"] = _named(*names)
    recording = from_arrays(table, str(path))
    if keys.size and not recording.class_names:
        texts = [key.decode(errors="replace") if isinstance(key, bytes) else str(key) for key in keys]
        if recording.labels.size and int(recording.labels.max()) >= len(texts):
            raise DataError(
                f"{path}: labels run to {recording.labels.max()}, but extra/keys names {len(texts)} classes"
            )
        recording = replace(recording, class_names=texts)
    return recording
