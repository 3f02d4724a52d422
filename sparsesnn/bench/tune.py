"""The engine's choices of speed (`host/src/machine/choices.h`), measured on this machine: each value in turns with the standard ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from sparsesnn import _core
from sparsesnn.bench.roofline import cache_sizes
from sparsesnn.bench.step import check_repeats, machine_name, still_adam, train_step
from sparsesnn.bench.workload import Workload
from sparsesnn.wording import count

#: values that are tried; of others one may know better
TRIED = {
    "backward_rows": (512, 1024, 4096),
    "events_ahead": (0, 8, 32),
    "senders_ahead": (0, 1, 4),
    "columns_kb": (128, 2048),
    "dense_share": (30, 60),
    "huge_pages": (1,),
}
#: a value must save at least this share of a step
LEAST_GAIN = 0.01


@dataclass(frozen=True)
class Tried:
    """One value of one choice, and what a step took with it.

    Args:
        deliver_ms, deliver_grad_ms, step_ms: medians; a step of one thread in processor time, which other programs disturb less.
        ratio: step over the faster step with standard choices of the same turn: lower quartile, median, upper quartile.
    """

    choice: str
    value: int
    deliver_ms: float
    deliver_grad_ms: float
    step_ms: float
    ratio: tuple[float, float, float]

    @property
    def is_better(self) -> bool:
        """At least three of four turns were faster by `LEAST_GAIN`: beyond the noise."""
        return self.ratio[2] < 1 - LEAST_GAIN


@dataclass(frozen=True)
class TuneResult:
    """What `bench_tune` measured; `standard` and `again` are the same values measured twice, so that one sees the noise: `again` is
    compared with `standard`."""

    standard: Tried
    again: Tried
    tried: list[Tried]
    machine: str
    caches: dict[str, int]
    isa: str
    threads: int
    workload: dict[str, Any]

    def chosen(self) -> list[Tried]:
        """Of each choice the best value, where one is better than the standard beyond the noise."""
        best: dict[str, Tried] = {}
        for x in self.tried:
            if x.is_better and (x.choice not in best or x.ratio[1] < best[x.choice].ratio[1]):
                best[x.choice] = x
        return list(best.values())

    def exports(self) -> list[str]:
        return [f"export SPARSESNN_{x.choice.upper()}={x.value}" for x in self.chosen()]

    def table(self) -> str:
        """For people."""
        w = self.workload
        caches = ", ".join(f"{level} {n >> 10} kB" for level, n in self.caches.items())
        lines = [
            f"{w['net']}, T={w['n_steps']}, batch {w['n_samples']}, {self.isa}, {count(self.threads, 'thread')}, "
            f"{self.machine}; {caches}",
            f"{'choice':<22}{'deliver':>9}{'deliver_grad':>14}{'step, ms':>10}   step against the standard, quartiles",
        ]
        chosen = self.chosen()
        for x in (self.standard, self.again, *self.tried):
            name = x.choice if x in (self.standard, self.again) else f"{x.choice} {x.value}"
            low, middle, high = (f"{100 * (r - 1):+.1f}" for r in x.ratio)
            mark = "   chosen" if x in chosen else ""
            ratio = "" if x is self.standard else f"   {middle} % ({low} to {high}){mark}"
            lines.append(f"{name:<22}{x.deliver_ms:>9.2f}{x.deliver_grad_ms:>14.2f}{x.step_ms:>10.2f}{ratio}")
        lines.append(
            "A value is chosen where three of four turns are faster than both standard ones by "
            f"{100 * LEAST_GAIN:.0f} % or more; the rest is within the noise, of which 'standard again' shows how much there is."
        )
        if chosen:
            lines += ["", *self.exports()]
        else:
            lines.append("Keep the standard choices: nothing to export.")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "exports": self.exports()}


@contextmanager
def choices(**values: int) -> Iterator[None]:
    """The engine with these choices; those before come back at the end."""
    before = {name: value for name, value, *_ in _core.choices()}
    try:
        for name, value in values.items():
            _core.set_choice(name, value)
        yield
    finally:
        for name in values:
            _core.set_choice(name, before[name])


def bench_tune(workload: Workload, *, repeats: int = 15) -> TuneResult:
    """Training steps with the standard choices and with each value of `TRIED`, in turns, each of which begins with another one.

    A step that only warms up, and in which delivering is timed, goes before every timed one: caches, kept memory and
    branch predictors still know the choice before.
    """
    check_repeats(repeats)
    standard = {name: value for name, _, value, _ in _core.choices()}
    variants = [("standard", 0), ("standard again", 0)]
    variants += [(name, value) for name, values in TRIED.items() for value in values]
    spikes, labels = workload.spikes(), workload.labels()
    model = workload.model("cpu", spikes)
    optimizer = still_adam(model)
    clock = time.process_time if _core.num_threads() == 1 else time.perf_counter
    deliver: list[list[float]] = [[] for _ in variants]
    grad: list[list[float]] = [[] for _ in variants]
    step: list[list[float]] = [[] for _ in variants]
    for turn in range(repeats + 1):
        for place in range(len(variants)):
            k = (turn + place) % len(variants)
            name, value = variants[k]
            with choices(**{**standard, **({name: value} if name in standard else {})}):
                _core.probe_deliver(True)
                _core.phase_seconds(reset=True)
                train_step(model, optimizer, spikes, labels)
                _core.probe_deliver(False)
                delivered = _core.phase_seconds(reset=True)["deliver"]
                start = clock()
                train_step(model, optimizer, spikes, labels)
                seconds = clock() - start
                if not turn:
                    continue
                deliver[k].append(1e3 * delivered)
                grad[k].append(1e3 * _core.phase_seconds(reset=True)["deliver_grad"])
                step[k].append(1e3 * seconds)
    found = []
    for k, (name, value) in enumerate(variants):
        against = step[0] if k < 2 else [min(both) for both in zip(step[0], step[1], strict=True)]
        ratios = sorted(ms / ms0 for ms, ms0 in zip(step[k], against, strict=True))
        last = len(ratios) - 1
        quartiles = ratios[round(0.25 * last)], median(ratios), ratios[round(0.75 * last)]
        found.append(Tried(name, value, median(deliver[k]), median(grad[k]), median(step[k]), quartiles))
    return TuneResult(
        standard=found[0],
        again=found[1],
        tried=found[2:],
        machine=machine_name(),
        caches=cache_sizes(),
        isa=_core.build_info()["isa"],
        threads=_core.num_threads(),
        workload=asdict(workload),
    )
