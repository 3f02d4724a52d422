"""Raw events to spike lists: the time and unit of an event become a step and a neuron.

An event at `t_us` falls into step floor(t_us / dt_us), see `event_times`, and onto cell unit // pool. Events before 0, or in step T and
later, are left out and counted. The order of the events does not matter. For events in order of time the result equals
that of Tonic's `ToFrame(time_window=dt_us, start_time=0, end_time=T·dt_us)`.

Several events of one cell in one step need a rule, `duplicates`:

    "binary"   they make one spike; the others are merged into it and counted (`n_merged`).
    "count"    they make one spike whose value is their number: c events deliver c times the weights.
    "count:K"  the same with values up to K. Events beyond K are merged and counted.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn.arguments import named, renamed
from sparsesnn.errors import ConfigError, DataError
from sparsesnn.event_times import Clock, Precision, Times, spans, step_of, window_problem
from sparsesnn.ids import MAX_UINT16_NEURONS
from sparsesnn.options import number, option, whole
from sparsesnn.typed import padding_advice, typed

Array = npt.NDArray[Any]

#: the limit of "count" without a number; values are exact in float32
_MAX_COUNT = 1 << 24


@dataclass(frozen=True)
class Binned:
    """Spike lists of n samples.

    Args:
        ids: uint16[S] (int32 when N > 65,536), sample by sample, step by step, ascending within a step.
        n_spikes: uint8, uint16 or int32[n, T], length of each list.
        n_neurons: N, after pooling.
        n_lost: events without a spike: before 0 or beyond the window.
        n_merged: events merged into another one's spike without being counted in its value. Spikes (or the sum of their
            values) + lost + merged = events.
        values: uint8, uint16 or int32[S], events counted by each spike; None: spikes do not count.
    """

    ids: Array
    n_spikes: Array
    n_neurons: int
    n_lost: int
    n_merged: int = 0
    values: Array | None = None

    @classmethod
    def join(cls, parts: Sequence[Binned]) -> Binned:
        """The samples of all parts, in order; the parts have the same T and N, and there is at least one."""
        values = [part.values for part in parts if part.values is not None]
        return cls(
            ids=np.concatenate([part.ids for part in parts]),
            # each part has the smallest type that fits, so the widest one fits all
            n_spikes=np.concatenate([part.n_spikes for part in parts]),
            values=np.concatenate(values) if values else None,
            n_neurons=parts[0].n_neurons,
            n_lost=sum(part.n_lost for part in parts),
            n_merged=sum(part.n_merged for part in parts),
        )

    @property
    def n_used(self) -> npt.NDArray[np.int64]:
        """int64[n], the number of steps with spikes of each sample."""
        used: npt.NDArray[np.int64] = np.count_nonzero(self.n_spikes, axis=1)
        return used

    def window_problem(
        self, n_events: npt.NDArray[np.int64], first_us: Times, last_us: Times, dt_us: float, **more: Any
    ) -> list[str]:
        """At most one text: the window does not fit the events; arguments as for `event_times.window_problem`."""
        window: dict[str, Any] = {
            "n_lost": self.n_lost,
            "n_merged": self.n_merged,
            "n_steps": int(self.n_spikes.shape[1]),
            "dt_us": dt_us,
        }
        return window_problem(n_events, first_us, last_us, self.n_used, **window, **more)

    def with_lost(self, n_events: int) -> Binned:
        """The same lists, with `n_events` more lost events, lost before binning."""
        return replace(self, n_lost=self.n_lost + n_events)


def step_us(dt_ms: float) -> float:
    """A time step in microseconds, to the nanosecond: 2.01 ms are 2010 µs and not 2009.9999999999998."""
    width = number(dt_ms)
    if width is None or not 0 < width < 1e9:
        raise ConfigError(f"binning: dt_ms is {dt_ms!r}; give a number of milliseconds above 0")
    return round(width * 1e6) / 1e3


def pooled(n_units: int, pool: int) -> int:
    """Number of neurons when every `pool` neighbors of `n_units` units share one."""
    return -(-n_units // pool)


def duplicates_option() -> Any:
    """The option `duplicates` of a data set."""
    return option(
        "binary",
        "several events of a cell in one step: binary (one spike), count (one spike whose value is their number), "
        "count:K (a value up to K)",
    )


def max_count(duplicates: str) -> int | None:
    """K, the largest value of a spike, for "count:K"; 2^24 for "count"; None for "binary", whose spikes do not count."""
    kind, colon, rest = duplicates.partition(":") if isinstance(duplicates, str) else ("", "", "")
    if duplicates == "binary":
        return None
    if kind == "count" and (not colon or (rest.isascii() and rest.isdigit() and 1 <= int(rest) <= _MAX_COUNT)):
        return int(rest) if colon else _MAX_COUNT
    raise ConfigError(
        f"binning: duplicates is {duplicates!r}; allowed: 'binary' (events of one cell in one step make one spike), "
        f"'count' (their number is the spike's value) or 'count:K' (values up to K, from 1 to {_MAX_COUNT})"
    )


def check_window(*, n_steps: int, dt_us: float, pool: int, n_units: int) -> tuple[int, float, int, int]:
    """The parameters of a binning as Python numbers; `ConfigError` if they are invalid."""
    steps, width, units, shared = whole(n_steps), number(dt_us), whole(n_units), whole(pool)
    if steps is None or not 1 <= steps <= 1_000_000:
        raise ConfigError(f"binning: n_steps is {n_steps!r}; give a whole number from 1 to 1,000,000")
    if width is None or not 0 < width < 1e12:
        raise ConfigError(f"binning: the time step is {dt_us} us; give a finite time above 0 (at least 1 ns)")
    if units is None or not 1 <= units < 1 << 31:
        raise ConfigError(f"binning: n_neurons is {n_units!r}; give a whole number from 1 to {(1 << 31) - 1:,}")
    if shared is None or not 1 <= shared <= units:
        raise ConfigError(f"binning: pool is {pool!r}; give a whole number from 1 to {units}, the number of units")
    return steps, width, shared, units


@named
@renamed(n_units="n_neurons")
def bin_events(
    events: Sequence[tuple[npt.ArrayLike, npt.ArrayLike]],
    *,
    n_neurons: int,
    n_steps: int,
    dt_us: float,
    pool: int = 1,
    duplicates: str = "binary",
    source: str = "events",
    first_sample: int = 0,
    clock: Clock | None = None,
) -> Binned:
    """Bins the events of some samples, one pair of arrays per sample.

    Args:
        events: for each sample `(t_us, unit)`: times in microseconds, float or integer [E], and units, integer [E].
        n_neurons: number of units before pooling, which leaves `pooled(n_neurons, pool)`.
        n_steps: T.
        dt_us: width of a step, microseconds.
        pool: neighboring units that share a neuron.
        source: name for messages, such as the file's.
        first_sample: number of the first sample, for messages.
        clock: decides where the time of a sample begins and collects problems; None: at 0.

    Raises:
        DataError: NaN or infinite times, units that are not integers in 0 .. n_neurons-1, unequal lengths; the message
            names the sample.
        ConfigError: an invalid parameter.

    Without `clock`, warns if no event lies in the window, or all of them in its first step: the times may be in another unit.
    """
    arrays = [(typed(t), typed(u)) for t, u in events]
    n_events = [_check_shape(*pair, f"{source}: sample {first_sample + s}") for s, pair in enumerate(arrays)]
    times = [t for t, _ in arrays]
    precisions = [Precision.of(t) for t in times]
    pieces = [precision.in_us(t) for precision, t in zip(precisions, times, strict=True)]
    t_us = _concatenate(pieces, np.float64)
    slack_us: Times | float = 0.0
    if any(precision.is_narrow for precision in precisions):
        slack_us = np.concatenate(
            [np.broadcast_to(p.slack_us(t), t.shape) for p, t in zip(precisions, pieces, strict=True)]
        )
    lengths = np.array(n_events, np.int64)
    if clock is not None:
        _check_finite(t_us, np.repeat(np.arange(lengths.size), lengths), source, first_sample)
        for precision in dict.fromkeys(precisions):
            own = [t for p, t in zip(precisions, pieces, strict=True) if p == precision]
            clock.notes += precision.notes(_concatenate(own, np.float64), dt_us)
        t_us = clock.relative(t_us, lengths)
    unit = _concatenate([_signed(u) for _, u in arrays], np.int64)
    return bin_flat(
        t_us,
        unit,
        lengths,
        n_units=n_neurons,
        n_steps=n_steps,
        dt_us=dt_us,
        pool=pool,
        duplicates=duplicates,
        source=source,
        first_sample=first_sample,
        slack_us=slack_us,
        check_units=clock is None,
    )


def bin_flat(
    t_us: Array,
    unit: Array,
    n_events: npt.NDArray[np.int64],
    *,
    n_units: int,
    n_steps: int,
    dt_us: float,
    pool: int = 1,
    duplicates: str = "binary",
    source: str = "events",
    first_sample: int = 0,
    slack_us: Times | float = 0.0,
    check_units: bool = True,
) -> Binned:
    """Bins the events of some samples, which follow one another in two flat arrays; see `bin_events`.

    Args:
        t_us: float or integer [E], microseconds.
        unit: integer [E].
        n_events: int64[n], events of each sample; their sum is E.
        slack_us: see `event_times.step_of`.
        check_units: warn, as `bin_events` does without a clock.
    """
    n_steps, dt_us, pool, n_units = check_window(n_steps=n_steps, dt_us=dt_us, pool=pool, n_units=n_units)
    largest, n_neurons, n_samples = max_count(duplicates), pooled(n_units, pool), n_events.size
    sample = np.repeat(np.arange(n_samples), n_events)
    _check_finite(t_us, sample, source, first_sample)
    advice = padding_advice(unit, "t_us[unit >= 0], unit[unit >= 0]")
    allowed = f"0 to {n_units - 1}; {advice or 'check the data set and the sensor it was made with'}"
    _check_all((unit >= 0) & (unit < n_units), unit, sample, source, first_sample, "units", allowed)

    step = step_of(t_us, dt_us, slack_us)
    inside = (step >= 0) & (step < n_steps)
    row = sample[inside] * n_steps + step[inside].astype(np.int64)
    key = np.sort(row * n_neurons + unit[inside].astype(np.int64) // pool)
    first = np.flatnonzero(np.diff(key, prepend=-1))
    row, neuron = np.divmod(key[first], n_neurons)
    n_spikes = np.bincount(row, minlength=n_samples * n_steps).reshape(n_samples, n_steps)
    counts = None if largest is None else np.minimum(np.diff(first, append=key.size), largest)
    binned = Binned(
        ids=neuron.astype(np.uint16 if n_neurons <= MAX_UINT16_NEURONS else np.int32),
        n_spikes=smallest(n_spikes),
        n_neurons=n_neurons,
        n_lost=int(inside.size - key.size),
        n_merged=int(key.size - (first.size if counts is None else counts.sum())),
        values=None if counts is None else smallest(counts),
    )
    if check_units:
        for text in binned.window_problem(n_events, *spans(t_us, n_events), dt_us, units_only=True):
            warnings.warn(f"{source}: {text}", UserWarning, stacklevel=3)
    return binned


def smallest(numbers: npt.NDArray[np.int64]) -> Array:
    """The same numbers, from 0, in the smallest type used to store list lengths and spike values."""
    most = int(numbers.max(initial=0))
    return numbers.astype(np.uint8 if most < 1 << 8 else np.uint16 if most < 1 << 16 else np.int32)


def _concatenate(arrays: list[Array], dtype: type) -> Array:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)


def _signed(unit: npt.ArrayLike) -> Array:
    """Units in a type that concatenates with others: uint64 and int64 together would become floats."""
    array = np.asarray(unit)
    if not array.size:
        return np.empty(0, np.int64)
    return array.astype(np.int64) if array.dtype == np.uint64 and int(array.max()) < 1 << 63 else array


def _check_shape(t_us: npt.ArrayLike, unit: npt.ArrayLike, where: str) -> int:
    t_us, unit = np.asarray(t_us), np.asarray(unit)
    if t_us.ndim != 1 or t_us.shape != unit.shape:
        raise DataError(
            f"{where} has times {list(t_us.shape)} and units {list(unit.shape)}; give one unit for each time"
        )
    if t_us.dtype.kind not in "fiu":
        raise DataError(f"{where} has times of type {t_us.dtype}; give floating-point or integer times")
    if unit.size and unit.dtype.kind not in "iu":
        raise DataError(f"{where} has units of type {unit.dtype}; give integers")
    return int(t_us.size)


def _check_finite(t_us: Array, sample: Array, source: str, first_sample: int) -> None:
    _check_all(np.isfinite(t_us), t_us, sample, source, first_sample, "times", "finite numbers; remove those events")


def _check_all(
    good: npt.NDArray[np.bool_], value: Array, sample: Array, source: str, first_sample: int, what: str, allowed: str
) -> None:
    if not good.all():
        bad = int(np.argmin(good))
        raise DataError(
            f"{source}: sample {first_sample + sample[bad]} has {what} such as {value[bad]} "
            f"({good.size - int(good.sum())} in all); allowed: {allowed}"
        )
