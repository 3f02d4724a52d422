"""Times of events: the step of a time, the start of a sample's time, and signs of a wrong clock.

**One rule for a step.** The event at time t belongs to step floor(t / dt). Floating-point numbers rarely equal the decimal numbers
that they represent: 1.001 s · 1e6 is 1000999.9999999999 µs. So a time that equals a whole microsecond within the precision of its
type is rounded to it, and an event before a step by no more than this precision belongs to that step. Times in seconds,
milliseconds and microseconds, of any sufficiently precise type, make the same spikes.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn.errors import ConfigError
from sparsesnn.wording import count

Times = npt.NDArray[np.float64]

#: version of the rule for a step, in the keys of cached sets with possibly floating-point times
VERSION = 2
#: with fewer events, unit and clock are not checked
MIN_EVENTS = 10
#: start of a sample's time
STARTS = ("zero", "first")

#: tolerance as a share of the time, above the rounding error of float64 sums and products; its limits in microseconds (the width of
#: a step is given to the nanosecond) and as a share of a step
_SLACK, _SLACK_US, _SLACK_STEPS = 1e-9, 1e-4, 1e-3
#: microseconds at which clocks of cameras and microcontrollers wrap
PERIODS_US = (2.0**24, 2.0**31, 2.0**32)
#: fewest and most numbers tested by `Precision.of`
_FEWEST_LOOKED_AT, _MOST_LOOKED_AT = 3, 4096
#: events compared at once
_BLOCK = 1 << 14


@dataclass(frozen=True)
class Precision:
    """The precision of given times.

    Args:
        dtype: type of the numbers as given, or as originally stored.
        unit_us: their unit, microseconds.
    """

    dtype: np.dtype[Any]
    unit_us: float = 1.0

    @classmethod
    def of(cls, values: npt.NDArray[Any], unit_us: float = 1.0) -> Precision:
        """The precision of an array, from its type; float64 with float32 numbers, such as seconds, is no finer than float32."""
        if values.dtype == np.float64:
            some = values[:_MOST_LOOKED_AT]
            some = some[np.isfinite(some)]
            some = some[some * unit_us != np.rint(some * unit_us)]
            for scale in (1.0, 1e3, 1e6) if some.size >= _FEWEST_LOOKED_AT else ():
                with np.errstate(over="ignore"):
                    narrow = (some / scale).astype(np.float32).astype(np.float64) * scale
                if (np.abs(narrow - some) <= 2 * np.spacing(np.abs(some))).all():
                    return cls(np.dtype(np.float32), unit_us * scale)
        return cls(values.dtype, unit_us)

    @property
    def is_narrow(self) -> bool:
        """Whether it is coarser than float64."""
        return self.dtype.kind == "f" and self.dtype.itemsize < 8

    def in_us(self, values: npt.NDArray[Any], unit_us: float = 1.0) -> Times:
        """Numbers in `unit_us` as microseconds; rounded to a whole one if this precision cannot distinguish them."""
        if values.dtype.kind != "f":
            return values.astype(np.float64) * unit_us
        # float64 before any arithmetic: a float16 product overflows at 65 ms
        wide = values if values.dtype.itemsize > 8 else values.astype(np.float64)
        with np.errstate(all="ignore"):  # NaN and infinite times are refused when events are checked
            t_us: Times = np.asarray(wide * unit_us, np.float64)
            spacing, whole = self.spacing_us(t_us) + np.spacing(np.abs(t_us)), np.rint(t_us)
            return np.where((spacing < 1.01) & (np.abs(whole - t_us) <= spacing), whole, t_us)

    def spacing_us(self, t_us: Times) -> Times:
        """The distance from each time to the next representable one; 0 for integers, which are exact."""
        if self.dtype.kind != "f":
            return np.zeros(np.shape(t_us))
        with np.errstate(all="ignore"):
            numbers = np.abs(np.asarray(t_us) / self.unit_us).astype(self.dtype)
            return np.asarray(np.spacing(numbers), np.float64) * self.unit_us

    def slack_us(self, t_us: Times) -> Times | float:
        """The most by which an event may precede its step: 0 for float64, for which `step_of` suffices.

        It equals the spacing. Up to 1 µs it stays below 1, because whole microseconds are still distinguishable.
        """
        if not self.is_narrow:
            return 0.0
        spacing = self.spacing_us(t_us)
        return np.where(spacing <= 1, np.minimum(spacing, 0.99), spacing)

    def notes(self, t_us: Times, dt_us: float) -> list[str]:
        """A text if the type is too coarse for steps of `dt_us` at the time farthest from 0."""
        farthest = float(np.abs(t_us).max(initial=0.0))
        spacing = float(self.spacing_us(np.float64(farthest)))
        if spacing <= dt_us:
            return []
        return [
            f"times are {self.dtype}, whose resolution at {farthest:g} us is only {spacing:g} us, but a step lasts "
            f"{dt_us:g} us. Give times as float64 or as whole numbers, counted from the beginning of a sample"
        ]


def exact_us(seconds: npt.NDArray[Any]) -> Times:
    """Seconds of type float16, as in SHD's format, in whole microseconds: floor(10^6 · t), as Tonic reads them.

    These are rounded from finer times, not from decimal numbers: their spacing is 0.5 ms after the first half second.
    """
    with np.errstate(all="ignore"):  # NaN and infinite times are refused by name when they are binned
        return np.floor(seconds.astype(np.float64) * 1e6)


def step_of(t_us: npt.NDArray[Any], dt_us: float, slack_us: Times | float = 0.0) -> Times:
    """The step of each time, also below 0 and beyond any window; `slack_us`: see `Precision`."""
    with np.errstate(over="ignore"):  # a time whose step overflows is beyond the window
        rounding = np.minimum(_SLACK * np.abs(t_us), min(_SLACK_US, _SLACK_STEPS * dt_us))
        step: Times = np.floor((t_us + rounding + np.minimum(slack_us, dt_us / 2)) / dt_us)
    return step


def spans(t_us: Times, n_events: npt.NDArray[np.int64]) -> tuple[Times, Times]:
    """float64[n], first and last time of every sample; 0 for samples without events. A sample's events are consecutive."""
    first, last = np.zeros((2, n_events.size))
    filled = n_events > 0
    if filled.any():
        starts = (np.cumsum(n_events) - n_events)[filled]
        first[filled] = np.minimum.reduceat(t_us, starts)
        last[filled] = np.maximum.reduceat(t_us, starts)
    return first, last


@dataclass
class Clock:
    """Start of the samples' time, and statistics of their events for warnings.

    Args:
        start: "zero": time 0; "first": the first event of each sample.

    Raises:
        ConfigError: another start.
    """

    start: str = "zero"
    n_events: list[npt.NDArray[np.int64]] = field(default_factory=list)
    spans: list[tuple[Times, Times]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wraps: Wraps = field(default_factory=lambda: Wraps())

    def __post_init__(self) -> None:
        if self.start not in STARTS:
            raise ConfigError(f"start is {self.start!r}; allowed: {', '.join(map(repr, STARTS))}")

    def relative(self, t_us: Times, n_events: npt.NDArray[np.int64]) -> Times:
        """The times of more samples, relative to the start of each; wraps of clocks are undone."""
        t_us = np.array(t_us, np.float64)
        self.wraps += unwrap(t_us, n_events)
        self.n_events.append(n_events)
        self.spans.append(spans(t_us, n_events))
        return t_us - np.repeat(self.spans[-1][0], n_events) if self.start == "first" else t_us

    def samples(self) -> tuple[npt.NDArray[np.int64], Times, Times]:
        """int64[n] and float64[n] twice, for all samples so far: the number of events, and the times of the first and last."""
        first, last = (np.concatenate([np.zeros(0), *(span[k] for span in self.spans)]) for k in range(2))
        return np.concatenate([np.zeros(0, np.int64), *self.n_events]), first, last

    def warn(self, what: str, window_problems: list[str], *, stacklevel: int = 4) -> None:
        """Warns about all findings; a window that does not fit may be due to a wrap. `what`: the owner of the events."""
        for text in (*dict.fromkeys(self.notes), *self.wraps.texts(window_problems)):
            warnings.warn(f"{what}: {text}", UserWarning, stacklevel=stacklevel)


def window_problem(
    n_events: npt.NDArray[np.int64],
    first: Times,
    last: Times,
    n_used: npt.NDArray[np.int64],
    *,
    n_lost: int,
    n_merged: int,
    n_steps: int,
    dt_us: float,
    start: str = "zero",
    of_file: bool = False,
    units_only: bool = False,
) -> list[str]:
    """At most one text: the window does not fit the events, so that samples, most events or their timing are lost.

    Args:
        n_events, first, last, n_used: [n], for each sample: its number of events, the times of the first and last (microseconds,
            before `start`), and its number of steps with spikes.
        n_lost, n_merged: see `EventSet`.
        of_file: name options such as `data.start` instead of arguments.
        units_only: report only that all events lie outside the window, or all in its first step.
    """
    filled, n_all = n_events > 0, int(n_events.sum())
    if n_all < MIN_EVENTS:
        return []
    first, last, n_used = first[filled], last[filled], n_used[filled]
    begin = first if start == "first" else np.zeros(first.size)
    window = f"{n_steps:,} steps of {dt_us:g} us"
    times = f"at times from {first.min():g} to {last.max():g} us"
    change = "data.dt_ms or data.n_steps" if of_file else "dt_us or n_steps"
    units = (
        "Check that t_us, t_ms or t_s matches the unit of the times"
        if of_file
        else "Times are in microseconds: multiply seconds by 1e6 and milliseconds by 1e3"
    )
    set_start = "data.start=first" if of_file else "start='first'"
    clock = ""
    if start == "zero" and float(np.median(last - first)) < float(np.median(last)) / 2 and float(np.median(first)) > 0:
        clock = f"; if the clock does not start at 0, set {set_start}"
    silent, late = n_used == 0, first - begin >= n_steps * dt_us
    if n_steps > 1 and first.min() < last.max() and (begin <= first).all() and (last - begin < dt_us).all():
        return [f"all {n_all:,} events, {times}, fall into the first of {window}. {units}; or change {change}"]
    if silent.all():
        return [
            f"all {n_all:,} events, {times}, lie outside the window of {window}. {units}; or change {change}{clock}"
        ]
    if units_only:
        return []
    if int(n_events[filled][silent].sum()) >= MIN_EVENTS:
        where = f"from {first[silent].min():g} to {last[silent].max():g} us"
        return [
            f"{int(silent.sum()):,} of the {count(first.size, 'sample')} with events have no spikes: their events, {where}, "
            f"lie outside the window of {window}. Change {change}{clock}"
        ]
    if 2 * n_lost > n_all:
        return [f"{n_lost:,} of {n_all:,} events, {times}, lie outside the window of {window}. Change {change}{clock}"]
    spread = last > first
    if n_steps > 1 and spread.any():
        in_one = spread & (step_of(first - begin, dt_us) == step_of(last - begin, dt_us)) & ~late
        merged = f"{n_merged:,} of {n_all:,} events merge"
        if 2 * int(in_one.sum()) > int(spread.sum()) and int(n_events[filled][in_one].sum()) >= MIN_EVENTS:
            return [
                f"{int(in_one.sum()):,} of {count(first.size, 'sample')}, {times}, lie in a single step of {dt_us:g} us each"
                + f", and {merged}" * bool(n_merged)
                + f". Change {change}{clock}"
            ]
        used = float(np.median(n_used[spread]))
        if 2 * n_merged > n_all and used <= max(2, n_steps / 10) and used < n_steps / 2:
            return [f"{merged}: the events of a sample, {times}, fill {used:g} of {window}. Change {change}{clock}"]
    order = np.argsort(first)
    follow = (first[order][1:] >= last[order][:-1]).all() and first.size > 3 and float(np.median(n_events[filled])) >= 4
    if start == "zero" and follow:
        return [
            f"the {count(first.size, 'sample')} follow one another on one clock, {times}, so that their start times take up most "
            f"of the window. Set {set_start}, so that each begins at its first event"
        ]
    return []


# ---- clocks that wrap -----------------------------------------------------------------------------------------------------------


@dataclass
class Wraps:
    """Numbers of samples in which a clock wraps, by its period: corrected ones, and those left unchanged."""

    moved: Counter[float] = field(default_factory=Counter)
    left: Counter[float] = field(default_factory=Counter)

    def __iadd__(self, other: Wraps) -> Wraps:
        self.moved.update(other.moved)
        self.left.update(other.left)
        return self

    def texts(self, window_problems: Sequence[str] = ()) -> list[str]:
        """One text per period, and the window's problems unless an uncorrected wrap is their likely cause."""
        left = [
            f"the clock seems to wrap at {_power(period)} us in {count(n, 'sample')} whose events are not in the order of recording; their "
            f"times are left as they are. Give the events in order of recording, or add {_power(period)} us to those after a wrap"
            for period, n in self.left.items()
        ]
        moved = [
            f"the clock wraps at {_power(period)} us in {count(n, 'sample')}; {_power(period)} us are added to the events after a wrap"
            for period, n in self.moved.items()
        ]
        return [*moved, *(left or window_problems)]


def _power(period: float) -> str:
    return f"2^{int(np.log2(period))}"


def unwrap(t_us: Times, n_events: npt.NDArray[np.int64]) -> Wraps:
    """Adds the period to events after a wrap, in place, in samples whose events are in the order of recording.

    A clock of a few bits wraps to its lowest number. In a sample in order this is a fall of almost one period between two
    events, which becomes a short rise once the period is added. Sorted events never fall; there, a sample that fills only both
    ends of a period looks as if its clock wrapped.
    """
    ends, found = np.cumsum(n_events), Wraps()
    for sample in _with_leaps(t_us, ends, min(PERIODS_US) / 2):
        own = t_us[int(ends[sample] - n_events[sample]) : int(ends[sample])]
        for period in PERIODS_US:
            if float(own.max()) - float(own.min()) >= period:
                continue
            if (wraps := _wraps(own, period)) is not None:
                own[1:] += period * np.cumsum(wraps)
                found.moved[period] += 1
                break
            if _fills_both_ends(own, period):
                found.left[period] += 1
                break
    return found


def _with_leaps(t_us: Times, ends: npt.NDArray[np.int64], least: float) -> Iterator[int]:
    """The samples in which two successive events are at least `least` apart, in either direction."""
    result = np.zeros(ends.size, bool)
    for k in range(0, t_us.size - 1, _BLOCK):
        leaps = k + np.flatnonzero(np.abs(np.diff(t_us[k : k + _BLOCK + 1])) >= least)
        sample = np.searchsorted(ends, leaps, side="right")
        result[sample[leaps + 1 < ends[sample]]] = True
    yield from np.flatnonzero(result).tolist()


def _wraps(t_us: Times, period: float) -> npt.NDArray[np.bool_] | None:
    """The positions at which a sample's clock wraps; None unless the whole sample is in the order of recording."""
    rise = np.diff(t_us)
    wraps = rise < -period / 2
    others = rise[~wraps]
    if (
        not wraps.any()
        or not others.size
        or float(np.abs(others).max()) > period / 2
        or float(others.min()) < -period / 64
    ):
        return None
    # across a wrap no more time passes than elsewhere; a list sorted by unit or polarity also falls, but by less than a period
    passed = rise[wraps] + period
    if float(passed.max()) > min(period / 32, 2 * float(others.max())):
        return None
    length = float(others.sum() + passed.sum())
    return wraps if t_us.size >= MIN_EVENTS or length <= period / 32 else None


def _fills_both_ends(t_us: Times, period: float) -> bool:
    """Whether all events lie in the first and last eighth of a period, counted from 0 or, if signed, from its middle."""
    if t_us.size < MIN_EVENTS:
        return False
    for lowest in (0.0, -period / 2):
        part = np.floor((t_us - lowest) * (8 / period))
        if bool(((part == 0) | (part == 7)).all()) and (part == 0).any() and (part == 7).any():
            return True
    return False
