"""Time in milliseconds, for data whose steps have a width."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sparsesnn.datasets.event_set import EventSet
from sparsesnn.layers.units import time_constants
from sparsesnn.network import Network


@dataclass(frozen=True)
class Times:
    """The times in `result.json`.

    Args:
        dt_ms: width of a step, milliseconds; None if steps have no width.
        tau_ms: per population and decay (`beta`, `alpha`) the lowest and the highest time constant, milliseconds, of the
            described network; "inf": no decay. Empty if `dt_ms` is None.
    """

    dt_ms: float | None = None
    tau_ms: Mapping[str, Mapping[str, Sequence[float | str]]] = field(default_factory=dict)

    @classmethod
    def of(cls, network: Network, data: EventSet) -> Times:
        if data.dt_us is None:
            return cls()
        dt_ms = data.dt_us / 1e3
        constants = {name: time_constants(p, dt_ms) for name, p in network.populations.items()}
        return cls(
            dt_ms,
            {
                name: {decay: [x if math.isfinite(x) else "inf" for x in taus] for decay, taus in decays.items()}
                for name, decays in constants.items()
                if decays
            },
        )

    def __str__(self) -> str:
        """`10 ms per step; time constants: hidden 20 to 300 ms, output 5 ms`; those of synapses in parentheses."""
        parts = []
        for name, decays in self.tau_ms.items():
            synapses = f" (synapses {_range(decays['alpha'])})" if "alpha" in decays else ""
            parts.append(f"{name} {_range(decays['beta'])}{synapses}")
        return f"{self.dt_ms:g} ms per step; time constants: {', '.join(parts)}"


def _range(taus: Sequence[float | str]) -> str:
    low, high = (f"{float(tau):.3g}" for tau in taus)
    return f"{low} ms" if low == high else f"{low} to {high} ms"
