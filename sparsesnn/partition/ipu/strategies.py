"""The sizes of shards: neurons of each population on one tile.

All neurons of a population cost the same, so a plan is determined by one number per population, its neurons a tile, and
"the fullest tile is as empty as possible" has an exact solution: the least level at which the shards that fit below it
need no more tiles than the device has.

| strategy | sizes |
|---|---|
| even | one number for all populations, the smallest that fits |
| bytes | the fewest bytes on the fullest tile |
| work | the fewest cycles on the slowest tile: fan-in × expected activity × neurons, in the cost model |
| search | from the best of these, local search: neurons move from slow populations' tiles to fast ones' while the sum of the supersteps, each at its slowest tile, decreases |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache

from sparsesnn.partition.ipu.memory import PACKED_NEURONS, mask_words, padded, shard_bytes
from sparsesnn.partition.ipu.work import FORWARD, CycleAssumptions, collector_cycles, shard_cycles
from sparsesnn.partition.lengths import expected_lengths
from sparsesnn.partition.plan import Plan

STRATEGIES = ("even", "bytes", "work", "search")
Sizes = dict[str, int]


class Sizing:
    """Sizes of shards for one skeleton plan (its shards are ignored), at most `limit` bytes a shard.

    `cycles` and `bytes` of a shard depend on its population and size alone, so both are computed once for all equal populations
    because networks of hundreds of equal layers query them often.
    """

    def __init__(self, plan: Plan, limit: int, n_tiles: int, a: CycleAssumptions) -> None:
        self.plan, self.limit, self.n_tiles, self.a = plan, limit, n_tiles, a
        self.names = [k for k in plan.populations if k not in plan.inputs]
        self.n = {k: plan.populations[k].n for k in self.names}
        self.step = padded(1, plan.weight_dtype)
        self.lengths = expected_lengths(plan, a.near_per_spike)
        self.stage = plan.stages
        first: dict[object, str] = {}
        self.like = {k: first.setdefault(self._kind(k), k) for k in self.names}
        bytes_ = cache(lambda name, n: shard_bytes(plan, name, n))
        cycles = cache(lambda name, n: shard_cycles(plan, name, n, self.lengths, a))
        compact = cache(self._compact)
        self.bytes: Callable[[str, int], int] = lambda name, n: bytes_(self.like[name], n)
        self.cycles: Callable[[str, int], Mapping[str, float]] = lambda name, n: cycles(self.like[name], n)
        self.compact: Callable[[str, int], float] = lambda name, n: compact(self.like[name], n)
        self.most = self._largest_of_all(lambda name, n: self.bytes(name, n) <= limit)

    def _kind(self, name: str) -> object:
        """A key, equal for populations whose shards of a size have equal bytes and cycles."""
        plan = self.plan
        incoming = [
            (c.delay, c.pre in plan.inputs, plan.populations[c.pre].n, self.lengths[c.pre]) for c in plan.incoming(name)
        ]
        outgoing = [c.delay for c in plan.outgoing(name)]
        return (
            plan.network.populations[name],
            self.lengths[name],
            plan.populations[name].capacity,
            tuple(incoming),
            tuple(outgoing),
        )

    def n_shards(self, sizes: Mapping[str, int]) -> int:
        return sum(-(-self.n[k] // sizes[k]) for k in self.names)

    def feasible(self, sizes: Mapping[str, int]) -> bool:
        return all(1 <= sizes[k] <= self.most[k] for k in self.names) and self.n_shards(sizes) <= self.n_tiles

    # ---- the strategies; None: nothing fits ----------------------------------------------------------------------

    def even(self, least: int = 1) -> Sizes | None:
        """The smallest number from `least` on that needs no more than the available tiles."""
        largest = max(self.n.values())
        for per_tile in range(-(-least // self.step) * self.step, largest + self.step, self.step):
            sizes = {k: min(per_tile, self._whole(k)) for k in self.names}
            if self.n_shards(sizes) <= self.n_tiles:
                return sizes if self.feasible(sizes) else None
        return None

    def by_bytes(self) -> Sizes | None:
        return self._least_level(lambda name, n: float(self.bytes(name, n)))

    def by_work(self) -> Sizes | None:
        return self._least_level(lambda name, n: sum(self.cycles(name, n).values()))

    def search(self) -> Sizes | None:
        starts = [self.by_bytes(), self.by_work()]
        # fewer, larger shards: less collection, more computation
        starts += [self.even(2**k) for k in range(max(self.n.values()).bit_length())]
        feasible = [s for s in starts if s is not None]
        return self._improve(min(feasible, key=self.estimate)) if feasible else None

    def sizes(self, strategy: str) -> Sizes | None:
        return {"even": self.even, "bytes": self.by_bytes, "work": self.by_work, "search": self.search}[strategy]()

    # ---- parts -------------------------------------------------------------------------------------------------

    def _whole(self, name: str) -> int:
        return -(-self.n[name] // self.step) * self.step

    def _largest(self, name: str, below: Callable[[str, int], bool]) -> int:
        """The largest size, a multiple of the step, that is `below`; 0 if none is. `below` is monotone."""
        low, high = 0, self._whole(name) // self.step
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if below(name, middle * self.step) else (low, middle - 1)
        return low * self.step

    def _largest_of_all(self, below: Callable[[str, int], bool]) -> Sizes:
        largest = {k: self._largest(k, below) for k in dict.fromkeys(self.like.values())}
        return {k: largest[self.like[k]] for k in self.names}

    def _least_level(self, cost: Callable[[str, int], float]) -> Sizes | None:
        """Sizes whose largest cost is least among those that fit; bisection over the level of cost."""
        if min(self.most.values()) == 0:
            return None

        def at(level: float) -> Sizes | None:
            largest = self._largest_of_all(lambda name, n: cost(name, n) <= level)
            sizes = {k: min(self.most[k], largest[k]) for k in self.names}
            return sizes if min(sizes.values()) > 0 and self.n_shards(sizes) <= self.n_tiles else None

        low, high = 0.0, max(cost(k, self.most[k]) for k in self.names)
        best = at(high)
        while best is not None and high - low > max(1.0, 1e-4 * high):
            middle = (low + high) / 2
            sizes = at(middle)
            best, low, high = (best, middle, high) if sizes is None else (sizes, low, middle)
        return best

    def estimate(self, sizes: Mapping[str, int]) -> float:
        """The cycles of a step that depend on sizes: each superstep at its slowest tile; exchange is left out."""
        total = 0.0
        for r in sorted({self.stage[k] for k in self.names}):
            names = [k for k in self.names if self.stage[k] == r]
            by_name = {k: self.cycles(k, sizes[k]) for k in names}
            forward = [sum(c.get(p, 0.0) for p in FORWARD) for c in by_name.values()]
            backward = [c.get("list gradient", 0.0) + c.get("weight gradient", 0.0) for c in by_name.values()]
            state = [c.get("state gradient", 0.0) for c in by_name.values()]
            total += max(forward) + max(backward) + max(state) + max(self.compact(k, sizes[k]) for k in names)
        total += max(self.cycles(k, sizes[k]).get("input gradient", 0.0) for k in self.names)
        return total

    def _compact(self, name: str, n: int) -> float:
        n_shards = -(-self.n[name] // n)
        words, packed = n_shards * mask_words(n), n_shards * (n <= PACKED_NEURONS)
        # 2·√shards sums: stage 1 and stage 2 of the reduction of list gradients
        groups = 2 * int((self.n[name] / n) ** 0.5)
        return sum(collector_cycles(self.plan, name, 1, words, packed, groups, self.lengths, self.a).values())

    def _improve(self, sizes: Sizes) -> Sizes:
        """First-improvement descent: shrinks the shards of one population, and grows those of others to free tiles for it."""
        best, value = dict(sizes), self.estimate(sizes)
        improved = True
        while improved:
            improved = False
            for candidate in self._neighbors(best):
                new = self.estimate(candidate)
                if new < value * (1 - 1e-9):
                    best, value, improved = candidate, new, True
                    break
        return best

    def _neighbors(self, sizes: Sizes) -> Iterable[Sizes]:
        slow_first = sorted(self.names, key=lambda k: -sum(self.cycles(k, sizes[k]).values()))
        for name in slow_first:
            if sizes[name] <= self.step:
                continue
            smaller = {**sizes, name: sizes[name] - self.step}
            if self.feasible(smaller):
                yield smaller
                continue
            for other in reversed(slow_first):
                if other != name:
                    traded = {**smaller, other: smaller[other] + self.step}
                    if self.feasible(traded):
                        yield traded
