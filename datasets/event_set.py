"""A data set as spike lists: all samples of a split, binned once, and batches of them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparsesnn.arguments import named, renamed
from sparsesnn.datasets import direct
from sparsesnn.datasets.augment import Augment
from sparsesnn.datasets.binning import Binned, bin_events
from sparsesnn.datasets.classes import count_classes, numbered, one_label_each, warn_of_other_texts
from sparsesnn.datasets.labels import check_labels, moved_labels, one_form
from sparsesnn.datasets.sensor import Sensor
from sparsesnn.datasets.tonic_sets import read_tonic
from sparsesnn.datasets.windows import bin_recordings
from sparsesnn.errors import ConfigError, DataError
from sparsesnn.event_times import Clock
from sparsesnn.ids import MAX_UINT16_NEURONS
from sparsesnn.options import plain, whole
from sparsesnn.spikes import SpikeBatch
from sparsesnn.task import Task
from sparsesnn.typed import typed
from sparsesnn.wording import count

Array = npt.NDArray[Any]

#: a batch is ordered by marking cells of [T, B, N] if there are at most this many cells per spike, else by sorting
_MAX_CELLS_PER_SPIKE = 256


@named
@dataclass(frozen=True, eq=False)
class EventSet:
    """The spikes, labels and groups of n samples; the arrays may be memory-mapped and are never modified.

    The spikes of sample s, step by step and ascending within a step, are
    `ids[n_spikes[:s].sum() : n_spikes[:s+1].sum()]`; `n_spikes[s, t]` of them belong to step t. Lengths are
    stored instead of offsets: they fit in one or two bytes, while offsets would need eight.

    Args:
        ids: uint16[S] (int32 when N > 65,536), neuron ids of all samples.
        n_spikes: uint8, uint16 or int32[n, T], length of each list.
        labels: in one of four forms, see `sparsesnn.task.Task`: the class of each sample, int64[n]; the class of
            each step, int8 to int64 [n, T], -1: no label; values of each sample, float32[n, K]; values of each step, float32[n, T, K],
            NaN: no value.
        n_neurons, n_classes: N and the number of classes; 0 classes if samples have values.
        groups: for each name, int64[n]: the group of each sample, such as its speaker.
        n_lost: events without a spike: before 0, beyond the window of T steps, or moved off the sensor.
        n_merged: events merged into another one's spike, see `binning`; `n_counted` + lost + merged = events.
        description: the set's origin (data set, split, parameters, license; `dt_us`, width of a step; `sensor` of a camera), JSON
            values only.
        path: the cache file whose content the arrays are views of; None: they are in memory.
        values: uint8, uint16 or int32[S], from 1: events counted by each spike, a factor on its weights; None: plain
            spikes, whose value is 1.

    Raises:
        DataError: the arrays are inconsistent.
    """

    ids: Array
    n_spikes: Array
    labels: Array
    n_neurons: int
    n_classes: int
    groups: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    n_lost: int = 0
    description: Mapping[str, Any] = field(default_factory=dict)
    n_merged: int = 0
    path: Path | None = None
    values: Array | None = None
    #: int64[n + 1], start of each sample in `ids`
    sample_starts: npt.NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name, least in (("n_neurons", 1), ("n_classes", 0), ("n_lost", 0), ("n_merged", 0)):
            number = whole(getattr(self, name))
            if number is None or number < least:
                raise DataError(f"EventSet: {name} is {getattr(self, name)!r}; give a whole number from {least}")
            object.__setattr__(self, name, number)
        if self.n_spikes.ndim != 2 or self.n_spikes.dtype not in (np.uint8, np.uint16, np.int32):
            raise DataError(
                f"EventSet: n_spikes is {self.n_spikes.dtype}{list(self.n_spikes.shape)}; "
                "give uint8, uint16 or int32 with the shape [samples, steps]"
            )
        want = np.uint16 if self.n_neurons <= MAX_UINT16_NEURONS else np.int32
        if self.ids.ndim != 1 or self.ids.dtype != want:
            raise DataError(
                f"EventSet: ids are {self.ids.dtype}{list(self.ids.shape)}; "
                f"for {count(self.n_neurons, 'neuron')} give flat {want.__name__}"
            )
        if self.values is not None:
            if self.values.shape != self.ids.shape or self.values.dtype not in (np.uint8, np.uint16, np.int32):
                raise DataError(
                    f"EventSet: values are {self.values.dtype}{list(self.values.shape)}; "
                    f"for {count(self.ids.size, 'id')} give uint8, uint16 or int32[{self.ids.size}]"
                )
            if self.values.size and int(self.values.min()) < 1:
                raise DataError(f"EventSet: a spike has the value {self.values.min()}; give counts from 1")
        n = self.n_spikes.shape[0]
        for name, array in self.groups.items():
            if array.shape != (n,) or array.dtype != np.int64:
                raise DataError(
                    f"EventSet: {name} is {array.dtype}{list(array.shape)}; for {count(n, 'sample')} give int64[{n}]"
                )
        check_labels(self.labels, n, self.n_steps, self.n_classes)
        if self.n_spikes.size and int(self.n_spikes.min()) < 0:
            raise DataError("EventSet: a list has a negative length; make the data again")
        starts = np.zeros(n + 1, np.int64)
        np.cumsum(self.n_spikes.sum(axis=1, dtype=np.int64), out=starts[1:])
        if starts[-1] != self.ids.size:
            raise DataError(f"EventSet: the lists hold {starts[-1]} spikes but there are {self.ids.size} ids")
        if self.ids.size and not 0 <= int(self.ids.min()) <= int(self.ids.max()) < self.n_neurons:
            raise DataError(
                f"EventSet: ids run from {self.ids.min()} to {self.ids.max()}; allowed: 0 to {self.n_neurons - 1}"
            )
        if direct.steps_of(self.description) is not None and (self.values is None or self.n_spikes.shape[1] != 1):
            raise DataError(
                f"EventSet: direct encoding with n_spikes {list(self.n_spikes.shape)} and {'no ' * (self.values is None)}values; give one "
                "list for each sample, [samples, 1], and values"
            )
        object.__setattr__(self, "sample_starts", starts)

    @classmethod
    def from_binned(cls, binned: Binned, labels: Array, n_classes: int, **more: Any) -> EventSet:
        """Makes a set from lists and labels; `more`: groups, description."""
        return cls(
            ids=binned.ids,
            n_spikes=binned.n_spikes,
            values=binned.values,
            labels=labels,
            n_neurons=binned.n_neurons,
            n_classes=n_classes,
            n_lost=binned.n_lost,
            n_merged=binned.n_merged,
            **more,
        )

    @classmethod
    @renamed(n_units="n_neurons")
    def from_events(
        cls,
        events: Sequence[tuple[npt.ArrayLike, npt.ArrayLike]],
        labels: npt.ArrayLike | None = None,
        *,
        step_labels: Any = None,
        targets: npt.ArrayLike | None = None,
        step_targets: Any = None,
        n_steps: int,
        dt_us: float,
        n_neurons: int | None = None,
        n_classes: int | None = None,
        classes: Sequence[Any] | None = None,
        pool: int = 1,
        duplicates: str = "binary",
        start: str = "zero",
        groups: Mapping[str, npt.ArrayLike] | None = None,
        group_names: Mapping[str, Sequence[Any]] | None = None,
        description: Mapping[str, Any] | None = None,
    ) -> EventSet:
        """Makes a set from raw events, one `(t_us, unit)` pair of arrays per sample; see `binning.bin_events`.

        Args:
            events, n_steps, dt_us, pool, duplicates: see `binning.bin_events`.
            labels: [n], class of each sample: whole numbers from 0, or texts. Or, instead, one of the next three.
            step_labels: [n, T], class of each step, whole numbers from 0; -1: no label. Or a list of n arrays of up to T steps each:
                the steps after the end of an array have no label.
            targets: [n, K] or [n], values of each sample.
            step_targets: [n, T, K] or [n, T], values of each step; NaN: no value. Or a list of n arrays, as `step_labels`.
            n_neurons: number of units, before `pool`; None: the largest unit plus one.
            n_classes: number of classes; None: the largest label plus one.
            start: begin the time of a sample at 0 ("zero") or at its first event ("first").
            classes: the names of class 0, 1, …, such as those of the training set: `classes=train.classes`. None: texts are
                numbered in sorted order, separately for each set; a set whose texts differ from an earlier one's warns.
            groups: for each name, [n]: the group of each sample; whole numbers or texts.
            group_names: for each name of a group, the names of member 0, 1, …; None: in sorted order.
            description: the set's origin, JSON values; its entries `classes` and `group_names` number texts as the arguments do.

        Raises:
            DataError: events that `bin_events` refuses; labels or groups that are neither whole numbers nor texts, or texts
                missing from `classes` or `group_names`.
            ConfigError: an invalid window.

        Warns if samples or most events are lost, if the window does not fit, and if a clock restarts; see `event_times`.
        """
        clock = Clock(start)
        arrays = [(typed(t_us), typed(unit)) for t_us, unit in events]
        if n_neurons is None:
            n_neurons = 1 + max((0, *(int(unit.max()) for _, unit in arrays if unit.size and unit.dtype.kind in "iu")))
        window: dict[str, Any] = {"n_neurons": n_neurons, "n_steps": n_steps, "dt_us": dt_us, "pool": pool}
        description = dict(description or {})
        given = description.get("classes") if classes is None else classes
        forms = {"labels": labels, "step_labels": step_labels, "targets": targets, "step_targets": step_targets}
        form, numbers = one_form(forms, len(arrays), n_steps, "from_events")
        names = [str(name) for name in given or ()] if form == "step_labels" else []
        if form == "labels":
            assert labels is not None, "one_form has checked it"
            numbers, names = numbered(labels, "from_events: labels", given, only_texts=classes is None)
            one_label_each(numbers.size, [t_us.size for t_us, _ in arrays], "from_events: labels", whole(n_steps))
            warn_of_other_texts(names, "from_events", chosen=given is not None, stacklevel=4)
        binned = bin_events(arrays, **window, duplicates=duplicates, source="from_events", clock=clock)
        clock.warn("from_events", binned.window_problem(*clock.samples(), dt_us, start=start))
        if numbers.dtype.kind == "f":
            n_classes = 0
        elif n_classes is None:
            n_classes = count_classes(numbers, names, "from_events")
        elif classes is not None and names and whole(n_classes) != len(names):
            raise DataError(
                f"from_events: n_classes is {n_classes!r}, but classes has {len(names)} names; leave n_classes out"
            )
        described = description.pop("group_names", None) or {}
        texts_of = {**described, **(group_names or {})}
        if strange := [name for name in group_names or {} if name not in (groups or {})]:
            raise DataError(
                f"from_events: group_names has {strange[0]!r}; allowed: {', '.join(groups or {}) or 'none'}"
            )
        members = {
            name: numbered(
                group,
                f"from_events: groups[{name!r}]",
                texts_of.get(name),
                argument=f"group_names[{name!r}]",
                only_texts=name not in (group_names or {}),
            )
            for name, group in (groups or {}).items()
        }
        found_names = {**described, **{name: texts for name, (_, texts) in members.items() if texts}}
        return cls.from_binned(
            binned,
            numbers,
            n_classes,
            groups={name: numbers for name, (numbers, _) in members.items()},
            description={
                "dt_us": plain(dt_us),
                **({} if binned.values is None else {"duplicates": duplicates}),
                **({} if start == "zero" else {"start": start}),
                **description,
                **({"classes": names} if names else {}),
                **({"group_names": found_names} if found_names else {}),
            },
        )

    @classmethod
    def from_tonic(
        cls,
        dataset: Any,
        *,
        n_steps: int,
        dt_us: float,
        pool: int = 1,
        duplicates: str = "binary",
        start: str = "zero",
        sensor_size: Sequence[int] | None = None,
        classes: Sequence[Any] | None = None,
    ) -> EventSet:
        """Makes a set from a Tonic data set, or any whose items are (events with fields x, t and perhaps y, p; label).

        Args:
            dataset: without a transform; its times are microseconds.
            n_steps, dt_us, duplicates: see `binning.bin_events`.
            start: as in `from_events`.
            pool: pixels that share a neuron, in x and in y; for a sensor with one row, neighboring channels.
            sensor_size: (width, height, polarities); None: the data set's. Unit order: x + W·(y + H·p).
            classes: the names of class 0, 1, …; None: `dataset.classes`, or, if there is none, as in `from_events`.

        Raises:
            DataError: events beyond the sensor, or of another form; labels that are neither whole numbers nor texts, or texts
                missing from `classes`.
        """
        window: dict[str, Any] = {"n_steps": n_steps, "dt_us": dt_us, "pool": pool, "duplicates": duplicates}
        return cls.from_binned(
            **read_tonic(dataset, **window, start=start, sensor_size=sensor_size, classes=classes, stacklevel=4)
        )

    @classmethod
    def from_recordings(
        cls,
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
    ) -> EventSet:
        """Makes a set from files of event cameras, each cut into windows of n_steps·dt_us; see `datasets.event_files`.

        All windows of one recording belong to the same member of the group "recording", which `split_validation` never divides.

        Args:
            paths: a file, several, or a folder with CLASS/recording: .aedat4, .raw (EVT3, EVT2), .dat, or text with lines `t x y p`.
            n_steps, dt_us, duplicates: see `binning.bin_events`.
            stride_us: from the start of one window to that of the next; None: windows follow one another.
            labels: for each recording a label, or its intervals `(start_us, stop_us, label)`, as the recording counts time. Windows
                begin at an interval's start and end by its end. None: the file `NAME.labels.csv` next to a recording (see
                `datasets.intervals`), else the folder that holds it.
            classes: as in `from_events`.
            pool: pixels that share a neuron, in x and in y.
            sensor_size: (width, height); None: that in the files' headers, else the largest pixels.
            time_unit: "us", "ms" or "s", for text files that do not name it; "": see `datasets.text_events`.

        Raises:
            DataError: a file that is missing, damaged or has no label; the window is longer than every recording.
            MissingDependencyError: the package that reads a camera's files is not installed.
            ConfigError: an invalid window.

        Warns if most windows have no events.
        """
        window: dict[str, Any] = {"n_steps": n_steps, "dt_us": dt_us, "stride_us": stride_us, "pool": pool}
        return cls.from_binned(
            **bin_recordings(
                paths,
                **window,
                labels=labels,
                classes=classes,
                duplicates=duplicates,
                sensor_size=sensor_size,
                time_unit=time_unit,
                stacklevel=4,
            )
        )

    # ---- properties --------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self.n_spikes.shape[0])

    @property
    def n_steps(self) -> int:
        """T."""
        return direct.steps_of(self.description) or int(self.n_spikes.shape[1])

    @property
    def unit(self) -> float:
        """The number that a value of 1 stands for in a batch: 1, except for direct encoding (`sparsesnn.datasets.direct`)."""
        return direct.unit_of(self.description)

    @property
    def n_events(self) -> int:
        """Number of events before binning."""
        return self.n_counted + self.n_lost + self.n_merged

    @property
    def n_counted(self) -> int:
        """The sum of the values of all spikes."""
        return self.ids.size if self.values is None else int(self.values.sum(dtype=np.int64))

    @property
    def task(self) -> Task:
        """A class or values, for each sample or each step."""
        return Task.of(self.labels)

    @property
    def n_outputs(self) -> int:
        """Neurons that a readout needs: C classes, or K values."""
        return int(self.labels.shape[-1]) if self.task.has_values else self.n_classes

    @functools.cached_property
    def list_sums(self) -> Array:
        """[n, T], the sum of the values of each list; for plain spikes, their number."""
        if self.values is None:
            return self.n_spikes
        sums = np.concatenate([[0], np.cumsum(self.values, dtype=np.int64)])
        ends = np.cumsum(self.n_spikes, dtype=np.int64).reshape(self.n_spikes.shape)
        result: Array = sums[ends] - sums[ends - self.n_spikes]
        return result

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order of their numbers; empty if labels are numbers."""
        return [str(name) for name in self.description.get("classes") or ()]

    @property
    def group_names(self) -> dict[str, list[str]]:
        """For each group whose members have names, the names in the order of their numbers."""
        return {name: [str(x) for x in names] for name, names in (self.description.get("group_names") or {}).items()}

    @property
    def dt_us(self) -> float | None:
        """Width of a step, microseconds; None if steps have no width, as for synthetic data."""
        return self.description.get("dt_us")

    @property
    def sensor(self) -> Sensor | None:
        """Size of the image for cameras; None for other data."""
        return Sensor.described(self.description, self.n_neurons)

    def activity(self) -> float:
        """Spikes per neuron and time step, averaged over all samples."""
        return self.ids.size / max(1, self.n_spikes.size * self.n_neurons)

    # ---- batches -----------------------------------------------------------------------------------------------

    def batch(
        self,
        indices: Sequence[int] | Array,
        rng: tuple[int, int] | None = None,
        augment: Augment | None = None,
        partners: Array | None = None,
    ) -> SpikeBatch:
        """Returns the chosen samples as a `SpikeBatch` [T, B, N], in the given order.

        `Stream` makes the same batches faster.

        Args:
            indices: int[B], numbers of the samples.
            rng: `(seed, epoch)`, needed with `augment`: with the sample's number it decides the augmentation.
            augment: changes to the samples; None: no changes.
            partners: int64[n], samples that others are blended or mixed with, such as the training part; None: all.

        Raises:
            IndexError: a sample number out of range.
            ConfigError: `augment` without `rng`, or with a change that does not apply to this data.
        """
        chosen = self.checked(indices)
        if augment:
            if rng is None:
                raise ConfigError("batch: augment is given but rng is not; give rng=(seed, epoch)")
            augment.check(self.sensor, self.task, self.description)
            return self._augmented(chosen, rng, augment, self._partners(partners))
        return self._plain(chosen)

    def batch_labels(
        self,
        indices: Sequence[int] | Array,
        rng: tuple[int, int] | None = None,
        augment: Augment | None = None,
        partners: Array | None = None,
    ) -> Array:
        """The labels of a batch; arguments as in `batch`.

        Returns: int64[B], or float32[B, C], shares of classes, if `augment` mixes samples; for other tasks int64[T, B], float32[B, K] or
            float32[T, B, K]. Labels of steps move with their steps.
        """
        chosen = self.checked(indices)
        if not self.task.per_step:
            if augment and augment.mix and rng is not None:
                return self.shares(chosen, rng, augment, partners)
            return self.labels[chosen]
        labels = self.labels[chosen]
        if augment and rng is not None:
            if augment.mix:
                _, partner, theirs = self._sources(chosen, rng, augment, self._partners(partners))
                labels = np.where(theirs if labels.ndim == 2 else theirs[:, :, None], self.labels[partner], labels)
            source = augment.label_steps(chosen, n_steps=self.n_steps, seed=rng[0], epoch=rng[1])
            labels = moved_labels(labels, source)
        labels = np.swapaxes(labels, 0, 1)
        return np.ascontiguousarray(labels, np.float32 if self.task.has_values else np.int64)

    def shares(
        self, indices: Sequence[int] | Array, rng: tuple[int, int], augment: Augment, partners: Array | None = None
    ) -> npt.NDArray[np.float32]:
        """float32[B, C], the share of each class in each sample of a mixed batch; arguments as in `batch`."""
        chosen = self.checked(indices)
        _, partner, theirs = self._sources(chosen, rng, augment, self._partners(partners))
        n_own = np.where(theirs, 0, self.list_sums[chosen]).sum(1)
        n_theirs = np.where(theirs, self.list_sums[partner], 0).sum(1)
        share = n_theirs / np.maximum(1, n_own + n_theirs)
        targets = np.zeros((chosen.size, self.n_classes))
        row = np.arange(chosen.size)
        targets[row, self.labels[chosen]] = 1.0 - share
        targets[row, self.labels[partner]] += share
        return targets.astype(np.float32)

    def checked(self, indices: Sequence[int] | Array) -> npt.NDArray[np.int64]:
        """int64[B], the numbers of samples; `IndexError` if one is out of range."""
        chosen = typed(indices)
        if chosen.size == 0:
            chosen = chosen.astype(np.int64)
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
            raise IndexError(
                f"batch: indices are {chosen.dtype}{list(chosen.shape)}; give a flat list of sample numbers"
            )
        chosen = chosen.astype(np.int64, copy=False)
        if chosen.size and (chosen.min() < 0 or chosen.max() >= len(self)):
            raise IndexError(f"batch: indices run from {chosen.min()} to {chosen.max()}; allowed: 0 to {len(self) - 1}")
        return chosen

    def _partners(self, partners: Array | None) -> npt.NDArray[np.int64]:
        return np.arange(len(self)) if partners is None else self.checked(partners)

    def _list_starts(self, chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """int64[B, T], start of each step's list in `ids`."""
        n_spikes = self.n_spikes[chosen].astype(np.int64)
        starts: npt.NDArray[np.int64] = np.cumsum(n_spikes, axis=1) - n_spikes + self.sample_starts[chosen][:, None]
        return starts

    def _plain(self, chosen: npt.NDArray[np.int64]) -> SpikeBatch:
        n_spikes = self.n_spikes[chosen].astype(np.int64).T.reshape(-1)
        starts = self._list_starts(chosen).T.reshape(-1)
        offsets = np.zeros(n_spikes.size + 1, np.int64)
        np.cumsum(n_spikes, out=offsets[1:])
        entry = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], n_spikes)
        values = None if self.values is None else self.values[entry]
        return self._spike_batch(self.ids[entry], offsets, n_spikes, chosen.size, values)

    def _augmented(
        self,
        chosen: npt.NDArray[np.int64],
        rng: tuple[int, int],
        augment: Augment,
        partners: npt.NDArray[np.int64],
    ) -> SpikeBatch:
        n_samples, n_steps, n_neurons = chosen.size, self.n_steps, self.n_neurons
        mate, partner, theirs = self._sources(chosen, rng, augment, partners)
        spikes = self._events(
            np.where(theirs, self.n_spikes[partner], self.n_spikes[chosen]),
            np.where(theirs, self._list_starts(partner), self._list_starts(chosen)),
        )
        options: dict[str, Any] = {
            "indices": chosen,
            "n_steps": n_steps,
            "n_neurons": n_neurons,
            "seed": rng[0],
            "epoch": rng[1],
            "sensor": self.sensor,
        }
        (blended,) = np.nonzero(mate != chosen)
        if blended.size:
            sample, step, unit = self._events(self.n_spikes[mate[blended]], self._list_starts(mate[blended]))
            spikes = augment.merge(spikes, (blended[sample], step, unit), **options)
        sample, step, unit = augment.apply(*spikes, **options)
        cell, values = (step * n_samples + sample) * n_neurons + unit, None
        if self.values is None:
            cell = _distinct(cell, n_steps * n_samples * n_neurons)
        else:
            cell, values = np.unique(cell, return_counts=True)
        row, unit = np.divmod(cell, n_neurons)
        counts = np.bincount(row, minlength=n_steps * n_samples)
        offsets = np.zeros(counts.size + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        return self._spike_batch(unit.astype(self.ids.dtype), offsets, counts, n_samples, values)

    def _sources(
        self, chosen: Array, rng: tuple[int, int], augment: Augment, partners: Array
    ) -> tuple[Array, Array, Array]:
        """The partner to blend with int64[B] (the sample itself: none); the partner to mix with int64[B], and whether a step is its, bool[B, T]."""
        mate = augment.blending(chosen, labels=self.labels, partners=partners, seed=rng[0], epoch=rng[1])
        partner, start, stop = augment.mixing(
            chosen, partners=partners, n_steps=self.n_steps, seed=rng[0], epoch=rng[1]
        )
        unmixed, step = mate != chosen, np.arange(self.n_steps)
        theirs = (step >= start[:, None]) & (step < stop[:, None]) & ~unmixed[:, None]
        return mate, np.where(unmixed, chosen, partner), theirs

    def _events(self, n_spikes: Array, starts: Array) -> tuple[Array, Array, Array]:
        """`(sample, step, unit)`, int64[S] each, one entry per event, from lists with lengths and starts [B, T]."""
        lengths = n_spikes.astype(np.int64).reshape(-1)
        row = np.repeat(np.arange(lengths.size), lengths)
        entry = np.arange(row.size) + (starts.reshape(-1) - np.cumsum(lengths) + lengths)[row]
        if self.values is not None:
            row, entry = (np.repeat(x, self.values[entry]) for x in (row, entry))
        sample, step = np.divmod(row, max(1, self.n_steps))
        return sample, step, self.ids[entry].astype(np.int64)

    def _spike_batch(
        self,
        ids: Array,
        offsets: npt.NDArray[np.int64],
        n_spikes: npt.NDArray[np.int64],
        n_samples: int,
        values: Array | None,
    ) -> SpikeBatch:
        return SpikeBatch(
            offsets=torch.from_numpy(offsets),
            ids=torch.from_numpy(np.ascontiguousarray(ids)),
            n_spikes=torch.from_numpy(n_spikes.astype(np.int32)),
            n_steps=self.n_steps,
            n_samples=n_samples,
            n_neurons=self.n_neurons,
            values=None if values is None else torch.from_numpy(values.astype(np.float32) * np.float32(self.unit)),
            graded=values is not None,
            repeats=direct.steps_of(self.description) is not None,
        )


def _distinct(cell: npt.NDArray[np.int64], n_cells: int) -> npt.NDArray[np.int64]:
    """The distinct numbers in `cell`, ascending."""
    if n_cells > _MAX_CELLS_PER_SPIKE * cell.size:
        return np.unique(cell)
    # scanning a whole byte mask costs less than sorting
    marked = np.zeros(n_cells, bool)
    marked[cell] = True
    return np.flatnonzero(marked)
