"""The grid of a cluster: how many of its ranks should be replicas and how many shards, by prediction.

More ranks are not always faster: messages cost latency, every list goes to every rank, and a layer has only so many tiles.
So the search predicts a step of all sensible grids, those that leave ranks idle too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sparsesnn.errors import ConfigError, PlanError
from sparsesnn.partition.cpu.tiles import GROUP_SAMPLES
from sparsesnn.partition.plan import Plan
from sparsesnn.partition.prediction import Prediction, predict
from sparsesnn.partition.target import Target
from sparsesnn.wording import count

#: a grid of more ranks must be faster by this part, or the smaller one is the best
WORTH = 0.01


@dataclass(frozen=True)
class Grid:
    """One way to share a training step.

    Args:
        replicas, shards: see `sparsesnn.host.comm.Grid`.
        batch: samples of all replicas.
        predicted: the step of the replica with the most samples.
        efficiency: samples a second and rank, compared with one rank and the smallest batch that was asked for.
    """

    replicas: int
    shards: int
    batch: int
    predicted: Prediction
    efficiency: float

    @property
    def ranks(self) -> int:
        return self.replicas * self.shards

    @property
    def samples_per_s(self) -> float:
        return self.batch / self.predicted.batch_s

    @property
    def n_samples(self) -> int:
        """Of the replica with the most: whole groups, in which gradients are summed."""
        return largest_part(self.batch, self.replicas)

    @property
    def bound(self) -> str:
        """What takes most of the time: "compute", "exchange" (bytes) or "latency" (the number of messages)."""
        parts = self.predicted.parts_s
        return max(parts, key=parts.__getitem__)

    def to_dict(self) -> dict[str, Any]:
        return {
            "replicas": self.replicas,
            "shards": self.shards,
            "ranks": self.ranks,
            "batch": self.batch,
            "step_ms": 1e3 * self.predicted.batch_s,
            "samples_per_s": self.samples_per_s,
            "efficiency": self.efficiency,
            "bound": self.bound,
            "parts_ms": {what: 1e3 * s for what, s in self.predicted.parts_s.items()},
        }


def largest_part(batch: int, replicas: int) -> int:
    """Samples of the replica with the most."""
    return min(batch, -(-_groups(batch) // replicas) * GROUP_SAMPLES)


def _groups(batch: int) -> int:
    return -(-batch // GROUP_SAMPLES)


def search_grids(
    plan: Callable[[int, int, int], Plan], ranks: int, batches: Sequence[int], replicas: int = 0
) -> list[Grid]:
    """The fastest grid of each number of ranks, in ascending order.

    Numbers that cannot hold the network are left out, and those of which no layer has a tile, or the batch a group of samples,
    for all.

    Args:
        plan: makes a plan from replicas, shards and the samples of one replica.
        ranks: of the cluster, of which a grid may leave some idle.
        batches: samples of all replicas; of several the one with most samples a second is taken.
        replicas: 0: any number.

    Errors: that of the largest grid where no grid can hold the network; `ConfigError` for more replicas than samples.
    """
    fastest: dict[int, Grid] = {}
    refused: PlanError | None = None
    base = 0.0
    if replicas > max(batches):
        raise ConfigError(f"--replicas: is {replicas}, for batches of {max(batches)}; give at most one for each sample")
    for batch in sorted(n for n in batches if n >= replicas):
        for n in [replicas] if replicas else _counts(min(ranks, _groups(batch)), ranks):
            samples = largest_part(batch, n)
            for shards in _counts(ranks // n, ranks):
                try:
                    made = plan(n, shards, samples)
                except PlanError as error:
                    refused = error
                    continue
                predicted = predict(made)
                of_rank = batch / predicted.batch_s / (n * shards)
                base = base or of_rank  # of the smallest grid
                grid = Grid(n, shards, batch, predicted, of_rank / base)
                known = fastest.get(grid.ranks)
                if known is None or grid.samples_per_s > known.samples_per_s:
                    fastest[grid.ranks] = grid
                if shards >= max(len(p.shards) for p in made.populations.values()):
                    break  # no layer has a tile for one more
    if not fastest:
        assert refused is not None
        raise refused
    return [fastest[n] for n in sorted(fastest)]


def best_grid(grids: Sequence[Grid]) -> Grid:
    """The fastest; of those that are as fast within a percent the one with the fewest ranks."""
    most = max(grid.samples_per_s for grid in grids)
    return next(grid for grid in grids if grid.samples_per_s >= (1 - WORTH) * most)


def _counts(most: int, ranks: int) -> list[int]:
    """Powers of two, divisors of the cluster, and `most`."""
    return [n for n in range(1, most + 1) if n & (n - 1) == 0 or ranks % n == 0 or n == most]


@dataclass(frozen=True)
class Grids:
    """What a search found, for people.

    Args:
        rows: of `search_grids`; empty: there is nothing to choose.
        target: the whole cluster.
        source: where its links come from.
    """

    rows: tuple[Grid, ...]
    target: Target
    source: str

    def table(self) -> list[str]:
        """Lines for a terminal: a row for each number of ranks, then the best grid and how to train on it."""
        if not self.rows:
            return []
        best, cores, links = best_grid(self.rows), self.target.tiles, self.target.links
        lines = [
            "",
            f"grids of at most {count(self.target.devices, 'rank')} × {count(cores, 'core')}; links of "
            f"{links.bytes_per_s / 1e9:.3g} GB/s and {1e6 * links.latency_s:.3g} µs a message ({self.source})",
            "ranks  replicas  shards  batch   step, ms  samples/s  efficiency  compute  exchange  latency  bound by",
        ]
        for grid in self.rows:
            if grid.ranks & (grid.ranks - 1) and grid not in (best, self.rows[-1]):
                continue
            share = {what: 100 * s / grid.predicted.batch_s for what, s in grid.predicted.parts_s.items()}
            lines.append(
                f"{grid.ranks:>5}  {grid.replicas:>8}  {grid.shards:>6}  {grid.batch:>5}  {1e3 * grid.predicted.batch_s:>9.2f}  "
                f"{grid.samples_per_s:>9,.0f}  {100 * grid.efficiency:>8.0f} %  {share['compute']:>5.0f} %  "
                f"{share['exchange']:>6.0f} %  {share['latency']:>5.0f} %  {grid.bound}{' (best)' * (grid is best)}"
            )
        if (most := self.rows[-1].ranks) < self.target.devices:
            lines.append(
                f"of more than {most} ranks some would be idle: layers have too few tiles, the batch too few groups of 8"
            )
        thrifty = best_grid([grid for grid in self.rows if grid.efficiency >= 0.5])
        return [
            *lines,
            f"best: {grid_text(best)}",
            *([] if thrifty is best else [f"at 50 % or more: {grid_text(thrifty)}"]),
            f"train on it: launch --ranks {best.ranks} --threads {cores} -- train … --batch {best.batch} "
            f"--set parallel.replicas={best.replicas} --set parallel.shards={best.shards}",
        ]


def grid_text(grid: Grid) -> str:
    """One line about a grid."""
    return (
        f"{count(grid.replicas, 'replica')} × {count(grid.shards, 'shard')}, {count(grid.ranks, 'rank')}: {1e3 * grid.predicted.batch_s:.2f} ms a step of "
        f"{grid.batch} samples, {100 * grid.efficiency:.0f} % efficiency, bound by {grid.bound}"
    )
