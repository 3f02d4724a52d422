"""Raw events into spike lists: a time and a unit each become a step and a neuron.

An event at `t_us` falls into step floor(t_us / dt_us) and onto cell unit // pool. Events before 0, or in step T and
later, are left out and counted. The order of the events does not matter. For events in order of time this is what
Tonic's `ToFrame(time_window=dt_us, start_time=0, end_time=T·dt_us)` makes.

Several events of one cell in one step need a rule, `duplicates`:

    "binary"   they make one spike; the others are merged into it, and counted (`n_merged`).
    "count"    they make one spike whose value is their number: c events deliver c times the weights.
    "count:K"  the same with values up to K. Events beyond K are merged, and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn.errors import ConfigError, DataError
from sparsesnn.event_times import warn_of_units
from sparsesnn.ids import MAX_UINT16_NEURONS
from sparsesnn.options import option

Array = npt.NDArray[Any]

#: of "count" without a number; values are exact as float32
_MAX_COUNT = 1 << 24


@dataclass(frozen=True)
class Binned:
    """Spike lists of n samples.

    Args:
        ids: uint16[S] (int32 when N > 65,536), sample by sample, step by step, ascending within a step.
        n_spikes: uint8, uint16 or int32[n, T], length of each list.
        n_neurons: N, after pooling.
        n_lost: events that make no spike: before 0 or beyond the window.
        n_merged: events that share the spike of another one, which does not count them. Spikes (or the sum of their
            values) + lost + merged = events.
        values: uint8, uint16 or int32[S], events that each spike counts; None: spikes do not count.
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

    def with_lost(self, n_events: int) -> Binned:
        """The same lists, with so many more events lost before they were binned."""
        return replace(self, n_lost=self.n_lost + n_events)


def step_us(dt_ms: float) -> float:
    """A time step in microseconds, to the nanosecond: 2.01 ms are 2010 µs and not 2009.9999999999998."""
    if isinstance(dt_ms, bool) or not isinstance(dt_ms, (int, float)) or not 0 < dt_ms < 1e9:
        raise ConfigError(f"binning: dt_ms is {dt_ms!r}; give a number of milliseconds above 0")
    return round(dt_ms * 1e6) / 1e3


def pooled(n_units: int, pool: int) -> int:
    """Neurons that `n_units` units make when each `pool` neighbours share one."""
    return -(-n_units // pool)


def duplicates_option() -> Any:
    """The option of a data set."""
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


def check_window(*, n_steps: int, dt_us: float, pool: int, n_units: int) -> None:
    """Raises `ConfigError` unless the parameters of a binning have a meaning."""
    if isinstance(n_steps, bool) or not isinstance(n_steps, int) or not 1 <= n_steps <= 1_000_000:
        raise ConfigError(f"binning: n_steps is {n_steps!r}; give a whole number from 1 to 1,000,000")
    if not 0 < dt_us < 1e12:
        raise ConfigError(f"binning: the time step is {dt_us} us; give a finite time above 0 (at least 1 ns)")
    if isinstance(pool, bool) or not isinstance(pool, int) or not 1 <= pool <= n_units:
        raise ConfigError(f"binning: pool is {pool!r}; give a whole number from 1 to {n_units}, the number of units")


def bin_events(
    events: Sequence[tuple[npt.ArrayLike, npt.ArrayLike]],
    *,
    n_units: int,
    n_steps: int,
    dt_us: float,
    pool: int = 1,
    duplicates: str = "binary",
    source: str = "events",
    first_sample: int = 0,
) -> Binned:
    """Bins the events of some samples, one pair of arrays each.

    Args:
        events: for each sample `(t_us, unit)`: times in microseconds, float or integer [E], and units, integer [E].
        n_units: units that there are; the neurons are `pooled(n_units, pool)`.
        n_steps: T.
        dt_us: width of a step, microseconds.
        pool: neighbouring units that share a neuron.
        source: name for messages: the file.
        first_sample: number of the first sample, for messages.

    Raises:
        DataError: NaN or infinite times, units that are not integers in 0 .. n_units-1, unequal lengths; the message
            names the sample.
        ConfigError: a parameter without meaning.

    Warns where no event lies in the window, or all of them in its first step: the times may be in another unit.
    """
    n_events = [_check_shape(*pair, f"{source}: sample {first_sample + s}") for s, pair in enumerate(events)]
    # float64 before any arithmetic: SHD keeps seconds as float16, whose steps are 0.5 ms after the first half second
    t_us = _concatenate([np.asarray(t, dtype=np.float64) for t, _ in events], np.float64)
    unit = _concatenate([np.asarray(u) if np.size(u) else np.empty(0, np.int64) for _, u in events], np.int64)
    return bin_flat(
        t_us,
        unit,
        np.array(n_events, np.int64),
        n_units=n_units,
        n_steps=n_steps,
        dt_us=dt_us,
        pool=pool,
        duplicates=duplicates,
        source=source,
        first_sample=first_sample,
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
) -> Binned:
    """Bins the events of some samples that lie one after the other in two flat arrays; see `bin_events`.

    Args:
        t_us: float or integer [E], microseconds.
        unit: integer [E].
        n_events: int64[n], events of each sample; they sum to E.
    """
    check_window(n_steps=n_steps, dt_us=dt_us, pool=pool, n_units=n_units)
    largest, n_neurons, n_samples = max_count(duplicates), pooled(n_units, pool), n_events.size
    sample = np.repeat(np.arange(n_samples), n_events)
    _check_all(np.isfinite(t_us), t_us, sample, source, first_sample, "times", "finite numbers; remove those events")
    allowed = f"0 to {n_units - 1}; check the data set and the sensor it was made with"
    _check_all((unit >= 0) & (unit < n_units), unit, sample, source, first_sample, "units", allowed)

    warn_of_units(t_us, n_steps=n_steps, dt_us=dt_us, what=source)
    with np.errstate(over="ignore"):  # a time so late that its step is infinite is beyond the window
        step = np.floor(t_us / dt_us)
    inside = (step >= 0) & (step < n_steps)
    row = sample[inside] * n_steps + step[inside].astype(np.int64)
    key = np.sort(row * n_neurons + unit[inside].astype(np.int64) // pool)
    first = np.flatnonzero(np.diff(key, prepend=-1))
    row, neuron = np.divmod(key[first], n_neurons)
    n_spikes = np.bincount(row, minlength=n_samples * n_steps).reshape(n_samples, n_steps)
    counts = None if largest is None else np.minimum(np.diff(first, append=key.size), largest)
    return Binned(
        ids=neuron.astype(np.uint16 if n_neurons <= MAX_UINT16_NEURONS else np.int32),
        n_spikes=smallest(n_spikes),
        n_neurons=n_neurons,
        n_lost=int(inside.size - key.size),
        n_merged=int(key.size - (first.size if counts is None else counts.sum())),
        values=None if counts is None else smallest(counts),
    )


def smallest(numbers: npt.NDArray[np.int64]) -> Array:
    """The same, from 0 on, in the smallest of the types that lengths of lists and values of spikes are stored in."""
    most = int(numbers.max(initial=0))
    return numbers.astype(np.uint8 if most < 1 << 8 else np.uint16 if most < 1 << 16 else np.int32)


def _concatenate(arrays: list[Array], dtype: type) -> Array:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)


def _check_shape(t_us: npt.ArrayLike, unit: npt.ArrayLike, where: str) -> int:
    t_us, unit = np.asarray(t_us), np.asarray(unit)
    if t_us.ndim != 1 or t_us.shape != unit.shape:
        raise DataError(
            f"{where} has times {list(t_us.shape)} and units {list(unit.shape)}; give one unit for each time"
        )
    if t_us.dtype.kind not in "fiu":
        raise DataError(f"{where} has times of the type {t_us.dtype}; give floating-point or integer times")
    if unit.size and unit.dtype.kind not in "iu":
        raise DataError(f"{where} has units of the type {unit.dtype}; give integers")
    return int(t_us.size)


def _check_all(
    good: npt.NDArray[np.bool_], value: Array, sample: Array, source: str, first_sample: int, what: str, allowed: str
) -> None:
    if not good.all():
        bad = int(np.argmin(good))
        raise DataError(
            f"{source}: sample {first_sample + sample[bad]} has {what} such as {value[bad]} "
            f"({good.size - int(good.sum())} in all); allowed: {allowed}"
        )
