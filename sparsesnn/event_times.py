"""Times of events: the step that a time falls into, where the time of a sample begins, and signs of a wrong clock.

**One rule for a step.** The event at time t belongs to step floor(t / dt). Floating-point numbers are rarely the decimal numbers
that they stand for: 1.001 s · 1e6 is 1000999.9999999999 µs. So a time within the precision of its type of a whole microsecond is
that microsecond, and an event that lies before a step by no more than this precision belongs to that step. Times in seconds,
milliseconds and microseconds, of any type that can tell them apart, make the same spikes.
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

#: of the rule for a step, in the keys of cached sets whose times may be floating-point numbers
VERSION = 2
#: fewer events say nothing of their unit or their clock
MIN_EVENTS = 10
#: where the time of a sample begins
STARTS = ("zero", "first")

#: a share of the time, more than the rounding error of sums and products of float64; limits in microseconds (the width of a step is
#: given to the nanosecond) and as a share of a step
_SLACK, _SLACK_US, _SLACK_STEPS = 1e-9, 1e-4, 1e-3
#: microseconds at which clocks of cameras and of microcontrollers wrap to their lowest number
_PERIODS_US = (2.0**24, 2.0**31, 2.0**32)
#: numbers by which `Precision.of` judges
_FEWEST_LOOKED_AT, _MOST_LOOKED_AT = 3, 4096
#: events that are compared at once
_BLOCK = 1 << 14


@dataclass(frozen=True)
class Precision:
    """How finely some times were given.

    Args:
        dtype: type of the numbers that they were given in, or made from.
        unit_us: the unit of these, microseconds.
    """

    dtype: np.dtype[Any]
    unit_us: float = 1.0

    @classmethod
    def of(cls, values: npt.NDArray[Any], unit_us: float = 1.0) -> Precision:
        """That of an array, seen in its type; float64 that holds float32 numbers, of seconds say, is no finer than these."""
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
        """Whether float64 is finer."""
        return self.dtype.kind == "f" and self.dtype.itemsize < 8

    def in_us(self, values: npt.NDArray[Any], unit_us: float = 1.0) -> Times:
        """Numbers in `unit_us` as microseconds; a whole one if this precision cannot tell the time from it."""
        if values.dtype.kind != "f":
            return values.astype(np.float64) * unit_us
        # float64 before any arithmetic: a float16 product overflows at 65 ms
        wide = values if values.dtype.itemsize > 8 else values.astype(np.float64)
        with np.errstate(all="ignore"):  # NaN and infinite times are refused, by name, where events are checked
            t_us: Times = np.asarray(wide * unit_us, np.float64)
            spacing, whole = self.spacing_us(t_us) + np.spacing(np.abs(t_us)), np.rint(t_us)
            return np.where((spacing < 1.01) & (np.abs(whole - t_us) <= spacing), whole, t_us)

    def spacing_us(self, t_us: Times) -> Times:
        """From each time to the next one that the type holds; 0 for integers, which are exact."""
        if self.dtype.kind != "f":
            return np.zeros(np.shape(t_us))
        with np.errstate(all="ignore"):
            numbers = np.abs(np.asarray(t_us) / self.unit_us).astype(self.dtype)
            return np.asarray(np.spacing(numbers), np.float64) * self.unit_us

    def slack_us(self, t_us: Times) -> Times | float:
        """How far before a step an event may lie that still belongs to it: 0 for float64, for which `step_of` suffices.

        That is the spacing. Up to 1 µs it stays below 1, because whole microseconds are still told apart.
        """
        if not self.is_narrow:
            return 0.0
        spacing = self.spacing_us(t_us)
        return np.where(spacing <= 1, np.minimum(spacing, 0.99), spacing)

    def notes(self, t_us: Times, dt_us: float) -> list[str]:
        """A text if the type is too coarse for steps of `dt_us` at the time that is farthest from 0."""
        farthest = float(np.abs(t_us).max(initial=0.0))
        spacing = float(self.spacing_us(np.float64(farthest)))
        if spacing <= dt_us:
            return []
        return [
            f"times are {self.dtype}, which at {farthest:g} us tells apart only times that differ by {spacing:g} us; a step lasts "
            f"{dt_us:g} us. Give times as float64 or as whole numbers, counted from the beginning of a sample"
        ]


def exact_us(seconds: npt.NDArray[Any]) -> Times:
    """Seconds of type float16, as files in SHD's format hold them, in whole microseconds: floor(10^6 · t), as Tonic reads them.

    These are roundings of finer times, and not of decimal numbers: their spacing is 0.5 ms after the first half second.
    """
    with np.errstate(all="ignore"):  # NaN and infinite times are found, and named, when they are binned
        return np.floor(seconds.astype(np.float64) * 1e6)


def step_of(t_us: npt.NDArray[Any], dt_us: float, slack_us: Times | float = 0.0) -> Times:
    """The step that each time falls into, also below 0 and beyond any window; `slack_us`: see `Precision`."""
    with np.errstate(over="ignore"):  # a time so late that its step is infinite is beyond the window
        rounding = np.minimum(_SLACK * np.abs(t_us), min(_SLACK_US, _SLACK_STEPS * dt_us))
        step: Times = np.floor((t_us + rounding + np.minimum(slack_us, dt_us / 2)) / dt_us)
    return step


def spans(t_us: Times, n_events: npt.NDArray[np.int64]) -> tuple[Times, Times]:
    """float64[n], first and last time of every sample; 0 where it has no events. The events of a sample follow one another."""
    first, last = np.zeros((2, n_events.size))
    filled = n_events > 0
    if filled.any():
        starts = (np.cumsum(n_events) - n_events)[filled]
        first[filled] = np.minimum.reduceat(t_us, starts)
        last[filled] = np.maximum.reduceat(t_us, starts)
    return first, last


@dataclass
class Clock:
    """Where the time of samples begins, and when their events come, to say what looks wrong.

    Args:
        start: "zero": at time 0; "first": at the first event of each sample.

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
        """The times of more samples, counted from where each begins; clocks that wrap go on."""
        t_us = np.array(t_us, np.float64)
        self.wraps += unwrap(t_us, n_events)
        self.n_events.append(n_events)
        self.spans.append(spans(t_us, n_events))
        return t_us - np.repeat(self.spans[-1][0], n_events) if self.start == "first" else t_us

    def samples(self) -> tuple[npt.NDArray[np.int64], Times, Times]:
        """int64[n] and float64[n] twice, of all samples so far: their events, and the times of the first and of the last one."""
        first, last = (np.concatenate([np.zeros(0), *(span[k] for span in self.spans)]) for k in range(2))
        return np.concatenate([np.zeros(0, np.int64), *self.n_events]), first, last

    def warn(self, what: str, window_problems: list[str]) -> None:
        """Warns of all that was noticed; a window that does not fit may be due to a wrap. `what`: whose events they are."""
        for text in (*dict.fromkeys(self.notes), *self.wraps.texts(window_problems)):
            warnings.warn(f"{what}: {text}", UserWarning, stacklevel=4)


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
    """At most one text: the window does not fit the events, so that samples or most events are lost, or time is.

    Args:
        n_events, first, last, n_used: [n], of each sample: its events, the times of the first and the last one (microseconds, before
            `start`), and the steps in which it has spikes.
        n_lost, n_merged: see `EventSet`.
        of_file: `data.start` and its like, not arguments, decide.
        units_only: notice only events that all lie outside the window, or all in its first step.
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
        "Check that t_us, t_ms or t_s is the unit of the times"
        if of_file
        else "Times are in microseconds: multiply seconds by 1e6 and milliseconds by 1e3"
    )
    set_start = "data.start=first" if of_file else "start='first'"
    clock = ""
    if start == "zero" and float(np.median(last - first)) < float(np.median(last)) / 2 and float(np.median(first)) > 0:
        clock = f"; if the clock does not begin at 0, set {set_start}"
    silent, late = n_used == 0, first - begin >= n_steps * dt_us
    if n_steps > 1 and first.min() < last.max() and (begin <= first).all() and (last - begin < dt_us).all():
        return [f"all {n_all:,} events, {times}, fall into the first of {window}. {units}; or give another {change}"]
    if silent.all():
        return [
            f"all {n_all:,} events, {times}, lie outside the window of {window}. {units}; or give another {change}{clock}"
        ]
    if units_only:
        return []
    if int(n_events[filled][silent].sum()) >= MIN_EVENTS:
        where = f"from {first[silent].min():g} to {last[silent].max():g} us"
        return [
            f"{int(silent.sum()):,} of the {count(first.size, 'sample')} with events have no spikes: their events, {where}, "
            f"lie outside the window of {window}. Give another {change}{clock}"
        ]
    if 2 * n_lost > n_all:
        return [
            f"{n_lost:,} of {n_all:,} events, {times}, lie outside the window of {window}. Give another {change}{clock}"
        ]
    spread = last > first
    if n_steps > 1 and spread.any():
        in_one = spread & (step_of(first - begin, dt_us) == step_of(last - begin, dt_us)) & ~late
        merged = f"{n_merged:,} of {n_all:,} events merge"
        if 2 * int(in_one.sum()) > int(spread.sum()) and int(n_events[filled][in_one].sum()) >= MIN_EVENTS:
            return [
                f"{int(in_one.sum()):,} of {count(first.size, 'sample')}, {times}, lie in a single step of {dt_us:g} us each"
                + f", and {merged}" * bool(n_merged)
                + f". Give another {change}{clock}"
            ]
        used = float(np.median(n_used[spread]))
        if 2 * n_merged > n_all and used <= max(2, n_steps / 10) and used < n_steps / 2:
            return [
                f"{merged}: the events of a sample, {times}, fill {used:g} of {window}. Give another {change}{clock}"
            ]
    order = np.argsort(first)
    follow = (first[order][1:] >= last[order][:-1]).all() and first.size > 3 and float(np.median(n_events[filled])) >= 4
    if start == "zero" and follow:
        return [
            f"the {count(first.size, 'sample')} follow one another on one clock, {times}, which tells them apart and takes up most "
            f"of the window. Set {set_start}, so that each begins at its first event"
        ]
    return []


# ---- clocks that wrap -----------------------------------------------------------------------------------------------------------


@dataclass
class Wraps:
    """In how many samples a clock wraps, by its period: of those whose later events were moved, and of those left as they are."""

    moved: Counter[float] = field(default_factory=Counter)
    left: Counter[float] = field(default_factory=Counter)

    def __iadd__(self, other: Wraps) -> Wraps:
        self.moved.update(other.moved)
        self.left.update(other.left)
        return self

    def texts(self, window_problems: Sequence[str] = ()) -> list[str]:
        """One for each period, and those of a window that does not fit, unless a clock that still wraps is the likely cause."""
        left = [
            f"the clock seems to wrap at {_power(period)} us in {count(n, 'sample')} whose events are not in the order of recording; their "
            f"times are left as they are. Give the events in order of recording, or add {_power(period)} us to those after a wrap"
            for period, n in self.left.items()
        ]
        moved = [
            f"the clock wraps at {_power(period)} us in {count(n, 'sample')}; the events after a wrap are moved on by {_power(period)} us"
            for period, n in self.moved.items()
        ]
        return [*moved, *(left or window_problems)]


def _power(period: float) -> str:
    return f"2^{int(np.log2(period))}"


def unwrap(t_us: Times, n_events: npt.NDArray[np.int64]) -> Wraps:
    """Moves events after a wrap on by its period, in place, in samples whose events stand in the order of recording.

    A clock of a few bits wraps to its lowest number. In a sample in order this is a fall of almost one period between two
    events, which is a short rise once the period is added. Sorted events do not fall; there a sample that fills both ends of a
    period, and nothing between, looks as if its clock wrapped.
    """
    ends, found = np.cumsum(n_events), Wraps()
    for sample in _with_leaps(t_us, ends, min(_PERIODS_US) / 2):
        own = t_us[int(ends[sample] - n_events[sample]) : int(ends[sample])]
        for period in _PERIODS_US:
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
    """The samples in which one event and the next are so far apart, either way."""
    found = np.zeros(ends.size, bool)
    for k in range(0, t_us.size - 1, _BLOCK):
        leaps = k + np.flatnonzero(np.abs(np.diff(t_us[k : k + _BLOCK + 1])) >= least)
        sample = np.searchsorted(ends, leaps, side="right")
        found[sample[leaps + 1 < ends[sample]]] = True
    yield from np.flatnonzero(found).tolist()


def _wraps(t_us: Times, period: float) -> npt.NDArray[np.bool_] | None:
    """Between which events of a sample the clock wraps; None unless all of it is in the order of recording."""
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
    # across a wrap no more time passes than elsewhere; a list sorted by unit or polarity falls as well, but by less than a period
    passed = rise[wraps] + period
    if float(passed.max()) > min(period / 32, 2 * float(others.max())):
        return None
    length = float(others.sum() + passed.sum())
    return wraps if t_us.size >= MIN_EVENTS or length <= period / 32 else None


def _fills_both_ends(t_us: Times, period: float) -> bool:
    """Whether events lie in the first and in the last eighth of a period alone, counted from 0 or, if signed, from its middle."""
    if t_us.size < MIN_EVENTS:
        return False
    for lowest in (0.0, -period / 2):
        part = np.floor((t_us - lowest) * (8 / period))
        if bool(((part == 0) | (part == 7)).all()) and (part == 0).any() and (part == 7).any():
            return True
    return False
