"""The expected cost of a plan for IPUs, as plain data. A prediction, never a measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: phases in the order of a training step, the forward pass first
PHASES = (
    "fetch",
    "deliver",
    "step",
    "select",
    "compact",
    "list gradient",
    "weight gradient",
    "reduce",
    "sum",
    "state gradient",
    "optimizer",
    "loss",
)


@dataclass(frozen=True)
class Superstep:
    """One exchange and the computation after it, at its slowest tile.

    Args:
        name: the exchanged data.
        compute: cycles by phase, at the slowest tile.
        exchange: cycles of the exchange, at the tile with the most bytes in or out.
        sync: cycles of the barrier; link: cycles of data between devices.
        exchange_bytes: bytes that tiles receive, summed over tiles; link_bytes: bytes that devices receive.
        slowest_tile: the tile with the longest computation.
    """

    name: str
    compute: Mapping[str, float]
    exchange: float
    sync: float
    link: float
    exchange_bytes: int
    link_bytes: int
    slowest_tile: int

    @property
    def cycles(self) -> float:
        return sum(self.compute.values()) + self.exchange + self.sync + self.link


@dataclass(frozen=True)
class Prediction:
    """The predicted cost of a plan.

    Args:
        per_step: supersteps of one time step, forward then backward.
        per_batch: supersteps once a batch.
        n_steps, n_samples, clock_hz: of the plan and its target.
        host_s: seconds a batch added by streaming from the host.
        host_bytes: bytes a batch between the host and all devices.
        lists_bytes: bytes a batch of all lists, which the devices send to the host only when they are read; not in `host_s`.
    """

    per_step: tuple[Superstep, ...]
    per_batch: tuple[Superstep, ...]
    n_steps: int
    n_samples: int
    clock_hz: float
    host_s: float
    host_bytes: int
    lists_bytes: int = 0

    @property
    def cycles_per_step(self) -> float:
        """Cycles of a time step; including a T-th of the work once a batch, without the host."""
        return self._per_step(lambda s: s.cycles)

    @property
    def batch_s(self) -> float:
        """Seconds of one batch: T steps forward and backward, optimizer and host."""
        return self.n_steps * self.cycles_per_step / self.clock_hz + self.host_s

    @property
    def samples_per_s(self) -> float:
        return self.n_samples / self.batch_s

    @property
    def exchange_bytes_per_step(self) -> float:
        """Bytes that all tiles together receive from others."""
        return self._per_step(lambda s: s.exchange_bytes)

    @property
    def link_bytes_per_step(self) -> float:
        """Bytes that all devices together receive from others."""
        return self._per_step(lambda s: s.link_bytes)

    def _per_step(self, what: Callable[[Superstep], float]) -> float:
        return sum(map(what, self.per_step)) + sum(map(what, self.per_batch)) / self.n_steps

    def phases(self) -> dict[str, float]:
        """Cycles a step by phase: computation, then exchange, links, sync; once-a-batch work divided by T."""
        found = dict.fromkeys(PHASES, 0.0)
        rest = {"exchange": 0.0, "links": 0.0, "sync": 0.0}
        for steps, share in ((self.per_step, 1.0), (self.per_batch, 1.0 / self.n_steps)):
            for s in steps:
                for phase, cycles in s.compute.items():
                    found[phase] += share * cycles
                rest["exchange"] += share * s.exchange
                rest["links"] += share * s.link
                rest["sync"] += share * s.sync
        host = self.host_s * self.clock_hz / self.n_steps
        return {**{k: v for k, v in found.items() if v}, **rest, "host": host}

    def to_dict(self) -> dict[str, Any]:
        return {
            "samples_per_s": self.samples_per_s,
            "batch_ms": 1e3 * self.batch_s,
            "cycles_per_step": self.cycles_per_step,
            "cycles_per_step_by_phase": self.phases(),
            "exchange_bytes_per_step": self.exchange_bytes_per_step,
            "link_bytes_per_step": self.link_bytes_per_step,
            "host_bytes_per_batch": self.host_bytes,
            "lists_bytes_per_batch": self.lists_bytes,
        }
