"""SHD and SSC, and any folder in their format: HDF5 files of speech as spikes of an artificial cochlea.

B. Cramer, Y. Stradmann, J. Schemmel, F. Zenke, "The Heidelberg Spiking Data Sets for the Systematic Evaluation of
Spiking Neural Networks", IEEE TNNLS 33, 2022. License: CC BY 4.0.

Sensor: 700 channels of a cochlea. Unit order: unit 0 is the highest tone; neuron = unit // pool.

A file holds, for each sample, `spikes/times` (seconds, float16) and `spikes/units` (0 to 699), `labels`,
`extra/speaker` and, for the classes, `extra/keys`. Tonic's class finds (or downloads) the file; the events are then
read in blocks, because Tonic's reader reopens the file for every sample. The events equal Tonic's: times in whole
microseconds. Times of type float32 or float64 are read as described in `event_times`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn import event_times
from sparsesnn.datasets import cache, files, hdf5
from sparsesnn.datasets import convert as conversion
from sparsesnn.datasets.binning import bin_events, check_window, duplicates_option, max_count, step_us
from sparsesnn.datasets.classes import MAX_CLASSES, shape_advice
from sparsesnn.datasets.convert import Job, Part
from sparsesnn.datasets.event_set import EventSet
from sparsesnn.errors import DataError
from sparsesnn.event_times import STARTS, Clock, Precision, exact_us
from sparsesnn.options import option
from sparsesnn.wording import count

N_UNITS = 700
CITATION = (
    "B. Cramer, Y. Stradmann, J. Schemmel, F. Zenke, The Heidelberg Spiking Data Sets for the Systematic Evaluation "
    "of Spiking Neural Networks, IEEE TNNLS 33, 2022"
)
LICENSE = "CC BY 4.0"

_KEYS = ("spikes/times", "spikes/units", "labels", "extra/speaker", "extra/keys")
_MAX_SAMPLES = 10_000_000

#: makes Tonic's data set from its class (or a subclass) and the folder to save to
Make = Callable[[type, str], Any]


@dataclass(frozen=True)
class Options:
    """How events become spikes."""

    dt_ms: float = option(10.0, "width of a step, milliseconds, to the nanosecond", above=0)
    n_steps: int = option(100, "steps of a sample; later events are lost, and counted", low=1, high=1_000_000)
    pool: int = option(1, "neighboring channels that share a neuron", low=1, high=N_UNITS)
    duplicates: str = duplicates_option()
    start: str = option("zero", "start of a sample's time: zero, or its first event", choices=STARTS)


def load(
    class_name: str,
    make: Make,
    file_name: str,
    *,
    split: str,
    data_dir: Path | None,
    cache_dir: Path | None,
    download: bool,
    n_workers: int | None,
    options: Options,
) -> EventSet:
    """One split of SHD or SSC.

    Args:
        class_name: Tonic's class, "SHD" or "SSC".
        make: constructs it for this split.
        file_name: the split's file.
        data_dir: the folder that holds the folder `class_name` (Tonic's `save_to`), or the folder of the file itself.
        n_workers: processes that convert; None: chosen by cores and size.

    Raises:
        DataError: the file is missing, damaged or not in the format; the message names file, sample and value.
    """
    dt_us = step_us(options.dt_ms)
    check_window(n_steps=options.n_steps, dt_us=dt_us, pool=options.pool, n_units=N_UNITS)
    max_count(options.duplicates)  # checked before searching for files
    path = _find(class_name, make, file_name, data_dir, download)
    window = {"dt_us": dt_us, **{name: getattr(options, name) for name in ("n_steps", "pool", "duplicates")}}
    if options.start != "zero":  # sets from before this option existed keep their description
        window["start"] = options.start
    source = cache.source_identity(path)
    parameters: dict[str, Any] = {"name": class_name.lower(), "split": split, "source": source, **window}

    def build() -> EventSet:
        hdf5.probe(path, lambda _: _KEYS)
        dataset = _open_with_tonic(class_name, make, path)
        labels, speakers, classes = _classes(dataset, path)
        job = Job(
            module=__name__,
            arguments={"path": str(path), **window},
            n_items=labels.size,
            n_bytes=path.stat().st_size,
            title=f"{class_name.lower()} {split}",
            block=hdf5.BLOCK_SAMPLES,
        )
        binned = conversion.run(job, conversion.n_workers_for(job, n_workers)).binned
        return EventSet.from_binned(
            binned,
            labels,
            len(classes) or int(labels.max(initial=-1)) + 1,
            groups={"speakers": speakers},
            description={
                **parameters,
                "source": cache.without_times(source),
                "classes": classes,
                "license": LICENSE,
            },
        )

    return cache.load_or_build({**parameters, "times": event_times.VERSION}, build, cache_dir)


def convert(
    first: int, last: int, *, path: str, dt_us: float, n_steps: int, pool: int, duplicates: str, start: str = "zero"
) -> Part:
    """The lists of samples `first` to `last - 1` of a file."""
    events = [pair for block in read_events(Path(path), first, last) for pair in block]
    window: dict[str, Any] = {"dt_us": dt_us, "n_steps": n_steps, "pool": pool, "duplicates": duplicates}
    return Part(bin_events(events, n_neurons=N_UNITS, **window, source=path, first_sample=first, clock=Clock(start)))


def read_events(
    path: Path, first: int = 0, last: int | None = None
) -> Iterator[list[tuple[npt.NDArray[np.float64], npt.NDArray[Any]]]]:
    """The events of samples `first` to `last - 1` (None: all), block by block: `(t_us, unit)` for each sample.

    The times are whole microseconds.
    """
    with hdf5.opened(path) as file:
        times, units = file["spikes/times"], file["spikes/units"]
        last = len(times) if last is None else last
        for start in range(first, last, hdf5.BLOCK_SAMPLES):
            stop = min(start + hdf5.BLOCK_SAMPLES, last)
            block = zip(times[start:stop], units[start:stop], strict=True)
            yield [(_in_us(np.asarray(t)), np.asarray(u)) for t, u in block]


def _in_us(seconds: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    if seconds.dtype == np.float16:
        return exact_us(seconds)
    precision = Precision.of(seconds, 1e6)
    t_us = precision.in_us(seconds, 1e6)
    with np.errstate(invalid="ignore"):
        return np.floor(t_us + precision.slack_us(t_us))


def _find(class_name: str, make: Make, file_name: str, data_dir: Path | None, download: bool) -> Path:
    if data_dir is None:
        raise DataError(
            f"{class_name.lower()}: no folder was given; give data_dir (--data), the folder that holds "
            f"{class_name}/{file_name}, or, with download=True (--download), a folder to download to"
        )
    places = [data_dir / class_name / file_name, data_dir / file_name]
    if download and not any(place.is_file() for place in places):
        parent = getattr(files.tonic_datasets(class_name.lower()), class_name)
        with files.downloading(class_name.lower(), data_dir / class_name):
            make(parent, str(data_dir))
    for place in places:
        if place.is_file():
            return place
    raise DataError(
        f"{class_name.lower()}: neither {places[0]} nor {places[1]} exists; give the folder that holds one of them, "
        "or download=True (--download) to let Tonic fetch the data set"
    )


def _open_with_tonic(class_name: str, make: Make, path: Path) -> Any:
    """Tonic's data set on an existing file, wherever it is and with or without its archive."""
    _check(path)

    def located(self: Any) -> bool:
        self.location_on_system = str(path.parent)
        return True

    parent = getattr(files.tonic_datasets(class_name.lower()), class_name)
    with hdf5.reading(path):
        return make(type(class_name, (parent,), {"_check_exists": located}), str(path.parent))


def _check(path: Path) -> None:
    """Raises `DataError` unless the file has the layout of the format."""
    with hdf5.opened(path) as file:
        import h5py

        missing = [key for key in _KEYS if not isinstance(file.get(key), h5py.Dataset)]
        if missing:
            raise DataError(
                f"{path}: has no {', '.join(missing)}; a file in SHD's format holds {', '.join(_KEYS)}; "
                "check that it is complete and is SHD or SSC"
            )
        for key, kinds, what in (
            ("spikes/times", "f", "floating-point times"),
            ("spikes/units", "iu", "integer units"),
        ):
            element = h5py.check_vlen_dtype(file[key].dtype)
            if file[key].ndim != 1 or element is None or np.dtype(element).kind not in kinds:
                raise DataError(
                    f"{path}: {key} is {file[key].dtype}{list(file[key].shape)}; "
                    f"it must hold one array of {what} per sample"
                )
        if file["labels"].ndim != 1 or file["labels"].dtype.kind not in "iu":
            shape = file["labels"].shape
            raise DataError(
                f"{path}: labels is {file['labels'].dtype}{list(shape)}; it must be flat integers"
                + (f"; {shape_advice(shape)}" if len(shape) > 1 else "")
            )
        if file["extra/speaker"].ndim != 1:
            raise DataError(f"{path}: extra/speaker is {list(file['extra/speaker'].shape)}; it must be flat")
        lengths = {key: file[key].shape[0] for key in _KEYS[:4]}
        if len(set(lengths.values())) > 1 or lengths["labels"] > _MAX_SAMPLES:
            raise DataError(
                f"{path}: the numbers of samples are {lengths}; they must be equal and at most {_MAX_SAMPLES:,}"
            )


def _classes(dataset: Any, path: Path) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[str]]:
    """Label and speaker of each sample, and the names of the classes; empty if the file has none."""
    with hdf5.opened(path) as file:
        labels = file["labels"][()].astype(np.int64)
        speakers = file["extra/speaker"][()]
        if speakers.dtype.kind not in "iu":  # names, numbered in sorted order
            speakers = np.unique(speakers, return_inverse=True)[1]
    classes = [
        key.decode(errors="replace") if isinstance(key, bytes) else str(key) for key in np.ravel(dataset.classes)
    ]
    n_classes = len(classes) or min(int(labels.max(initial=-1)) + 1, MAX_CLASSES)
    limit = "extra/keys names" if classes else "a file without extra/keys has at most"
    if labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < n_classes:
        raise DataError(
            f"{path}: labels run from {labels.min()} to {labels.max()}, but {limit} {count(n_classes, 'class')}; "
            "check that labels and keys belong together"
        )
    return labels, speakers.astype(np.int64), classes
