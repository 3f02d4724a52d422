"""The synapses supported by the event-sparse engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sparsesnn.errors import DescriptionError


def check_in_lists(connections: Iterable[Any], who: str) -> None:
    """`DescriptionError` if `who`, the engine or its plan, does not support the synapses of a connection."""
    for c in connections:
        if c.synapses.gives_currents:
            continue
        looped = c.is_recurrent and not c.synapses.is_matrix
        if looped or c.synapses.in_lists(0) is None:
            allowed = (
                "Dense, Sparse from a population to itself; use one of them"
                if looped
                else "matrices, Conv2d, and pools of spikes before one of them; pool spikes (MP2 instead of +MP2)"
            )
            raise DescriptionError(
                f"connection {c.name}: its synapses are {c.synapses!r}, which {who} does not support; allowed: {allowed}, or use the "
                "backend 'dense' (--backend dense)"
            )
