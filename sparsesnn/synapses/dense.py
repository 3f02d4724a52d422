"""All-to-all synapses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sparsesnn.errors import DescriptionError
from sparsesnn.synapses.base import Synapses


@dataclass(frozen=True)
class Dense(Synapses):
    """A weight for every pair: float32[n_pre, n_post], a row per sending neuron, so that a spike reads one row.

    i[n] += Σ_{m that fired} weight[m, n]
    """

    def weight_shape(self, n_pre: int, n_post: int) -> tuple[int, ...]:
        return n_pre, n_post

    def fan_in(self, n_pre: int, n_post: int) -> int:
        return n_pre


def check_dense(connections: Iterable[Any], who: str) -> None:
    """`DescriptionError` where a connection has synapses of another kind, which `who` does not have."""
    for c in connections:
        if not isinstance(c.synapses, Dense):
            raise DescriptionError(
                f"{c.name}: its synapses are {type(c.synapses).__name__}, which {who} does not have; use Dense, or backend 'cpu'"
            )
