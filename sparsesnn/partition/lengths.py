"""The expected lengths of a plan's lists, on which cost and memory of every machine depend."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsesnn.layers import Input
from sparsesnn.partition.plan import Plan

#: near-spikes listed per spike, measured by `sparsesnn bench step` at threshold 1, grad_threshold 0.9, activity 2 %
NEAR_PER_SPIKE = 0.64


@dataclass(frozen=True)
class Lengths:
    """Expected ids in a list: neurons that fire, and all listed ones; `most`: its capacity."""

    spikes: float
    listed: float
    most: float = np.inf

    def of_worker(self, n_lists: int, deviations: float) -> tuple[float, float]:
        """Spikes and listed ids, a list, of the busiest worker; each has `n_lists` lists."""
        return self.busiest(self.spikes, n_lists, deviations), self.busiest(self.listed, n_lists, deviations)

    def of_bucket(self, workers: int, n_lists: int, deviations: float) -> float:
        """Spikes, a list, of the fullest bucket; ids are dealt to `workers` buckets."""
        return self.busiest(self.spikes / workers, n_lists, deviations)

    def longest(self, n_lists: int, deviations: float) -> Lengths:
        """The lists of the busiest collector, or reducer; each has `n_lists` of them."""
        return Lengths(*self.of_worker(n_lists, deviations))

    def busiest(self, mean: float, n_lists: float, deviations: float) -> float:
        """Ids a list of the busiest of several that hold `n_lists` lists of `mean` ids each; variance = mean."""
        return min(self.most, mean + deviations * float(np.sqrt(mean / n_lists)))


@dataclass(frozen=True)
class CountedLengths(Lengths):
    """The actual lists of one time step of a batch: the busiest of several are counted, not estimated.

    Args:
        worker: spikes and listed ids, a list, of the busiest worker of a shard.
        bucket: spikes, a list, of the fullest bucket.
        collector: spikes and listed ids, a list, of the busiest collector.
    """

    worker: tuple[float, float] = (0.0, 0.0)
    bucket: float = 0.0
    collector: tuple[float, float] = (0.0, 0.0)

    def of_worker(self, n_lists: int, deviations: float) -> tuple[float, float]:
        return self.worker

    def of_bucket(self, workers: int, n_lists: int, deviations: float) -> float:
        return self.bucket

    def longest(self, n_lists: int, deviations: float) -> Lengths:
        return Lengths(*self.collector)


def expected_lengths(plan: Plan, near_per_spike: float = NEAR_PER_SPIKE) -> dict[str, Lengths]:
    """By population; with fixed activity lists are full, and all entries are spikes."""
    lengths = {}
    for name, p in plan.populations.items():
        population = plan.network.populations[name]
        spikes = min(float(p.capacity), plan.activity[name] * p.n)
        listed = spikes if isinstance(population, Input) else spikes * (1 + near_per_spike)
        if getattr(population, "listed_above", 0.0) == -np.inf:
            listed = p.n
        if getattr(population, "activity", "natural") == "fixed":
            spikes = listed = p.capacity
        lengths[name] = Lengths(spikes, min(float(p.capacity), listed), float(p.capacity))
    return lengths
