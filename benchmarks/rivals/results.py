"""Evaluation of the turns: speed, spread, agreement of losses, ratios, and where dense wins. Pure functions of plain data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median, quantiles
from typing import Any

from rivals.catalog import Rival
from rivals.race import Loaded, Turn, is_quiet, quietest

#: allowed relative distance from the expected loss. Sums in another order move a potential by a few ulp, and if it
#: was at the threshold a spike appears or vanishes; other semantics change the loss by about 1e-3.
TOLERANCE = 2e-4


@dataclass(frozen=True)
class Result:
    """One contestant on one workload.

    Args:
        name, title, kind, note, version: the contestant.
        samples_per_s, step_ms: from the median over turns.
        quartiles_ms: of the turns; the spread between states of the machine.
        cpu_ms: time of all threads in a step, median over turns.
        growth_mb: highest memory of a step above the process with its weights, Adam's state and data; None if unknown.
        loss, expected_loss, semantics, agrees: of the first step.
        first_step_s: including compilation.
        foreign: cores used by others, median over its turns.
        n_quiet: turns without disturbance, of those used.
        n_turns: turns used.
    """

    name: str
    title: str
    kind: str
    note: str
    version: str | None
    samples_per_s: float
    step_ms: float
    quartiles_ms: tuple[float, float]
    cpu_ms: float
    growth_mb: float | None
    loss: float
    expected_loss: float
    semantics: str
    agrees: bool
    first_step_s: float
    foreign: float | None
    n_quiet: int
    n_turns: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def agrees(loss: float, expected: float) -> bool:
    """Whether a contestant computed the expected network."""
    return math.isfinite(loss) and abs(loss - expected) <= TOLERANCE * abs(expected)


def summarize(
    rival: Rival,
    loaded: Loaded,
    turns: Sequence[Turn],
    rounds: int,
    n_samples: int,
    expected_loss: float,
    growth: int | None,
) -> Result:
    """The result of one contestant from its turns; the quietest `rounds` of them count."""
    used = quietest(turns, rounds)
    milliseconds = [1e3 * turn.seconds for turn in used]
    middle = median(milliseconds)
    low, _, high = quantiles(milliseconds, n=4, method="inclusive") if len(used) > 1 else (middle,) * 3
    loads = [turn.foreign for turn in used if turn.foreign is not None]
    return Result(
        name=rival.name,
        title=rival.title,
        kind=rival.kind,
        note=rival.note,
        version=loaded.version,
        samples_per_s=1e3 * n_samples / middle,
        step_ms=middle,
        quartiles_ms=(low, high),
        cpu_ms=median(1e3 * turn.cpu for turn in used),
        growth_mb=None if growth is None else growth / 1e6,
        loss=loaded.loss,
        expected_loss=expected_loss,
        semantics=rival.semantics,
        agrees=agrees(loaded.loss, expected_loss),
        first_step_s=loaded.first_step_s,
        foreign=median(loads) if loads else None,
        n_quiet=sum(map(is_quiet, used)),
        n_turns=len(used),
    )


def best_dense(results: Iterable[Result]) -> Result | None:
    """The fastest contestant that is neither sparsesnn's engine nor built on sparse products."""
    return max((r for r in results if r.kind in ("dense", "library")), key=lambda r: r.samples_per_s, default=None)


def ratios(workloads: Mapping[str, Sequence[Result]], points: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Ratios from the tables: speed-ups, and the growth of time with activity and threads."""
    result: dict[str, float] = {}
    for workload, results in workloads.items():
        speed = {r.name: r.samples_per_s for r in results}
        if "sparsesnn" not in speed:
            continue
        ours = speed["sparsesnn"]
        if best := best_dense(results):
            result[f"{workload}: against the best dense ({best.name})"] = ours / best.samples_per_s
        for name in ("csr", "convolution", "snntorch", "spikingjelly"):
            if name in speed:
                result[f"{workload}: against {name}"] = ours / speed[name]
        if "sparsesnn-1-thread" in speed:
            result[f"{workload}: all threads against one"] = ours / speed["sparsesnn-1-thread"]
        for name in ("sparsesnn-axonal", "sparsesnn-trained"):
            if name in speed:
                result[f"{workload}: time of {name} against sparsesnn"] = ours / speed[name]
    ours_at = {p["target"]: p["samples_per_s"].get("sparsesnn") for p in points}
    for more, less in ((0.04, 0.02), (0.002, 0.02)):
        slow, fast = ours_at.get(more), ours_at.get(less)
        if slow and fast:
            result[f"time at {more:.1%} / at {less:.1%} hidden activity"] = fast / slow
    return result


def crossing(points: Sequence[Mapping[str, Any]], name: str, others: Sequence[str]) -> float | None:
    """The activity from which on the fastest of `others` is faster than `name`; None if `name` wins everywhere.

    Between two measured points speed is interpolated as a power of activity: a straight line on the plot.
    """
    leads = []
    for point in points:
        speed = point["samples_per_s"]
        rivals = [speed[other] for other in others if other in speed]
        if name in speed and rivals:
            leads.append((math.log(point["activity"]), math.log(speed[name] / max(rivals))))
    leads.sort()
    if leads and leads[0][1] <= 0:
        return math.exp(leads[0][0])
    for (x, lead), (next_x, next_lead) in pairwise(leads):
        if lead > 0 >= next_lead:
            return math.exp(x + (next_x - x) * lead / (lead - next_lead))
    return None
