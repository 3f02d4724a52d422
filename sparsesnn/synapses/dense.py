"""All-to-all synapses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsesnn.arguments import named
from sparsesnn.errors import DescriptionError
from sparsesnn.synapses.base import Synapses


@named
@dataclass(frozen=True)
class Dense(Synapses):
    """Connects every sending neuron to every receiving one.

    The weight is float32[n_pre, n_post], the transpose of `torch.nn.Linear.weight`: a spike reads one row.

    i[n] += Σ_{m that fired} weight[m, n]
    """

    def weight_shape(self, n_pre: int, n_post: int) -> tuple[int, ...]:
        return n_pre, n_post

    def fan_in(self, n_pre: int, n_post: int) -> int:
        return n_pre

    def add(self, i: Any, spikes: Any, weight: Any) -> None:
        """i[b] += weight[m] for every m that fired in sample b, m ascending; one addition after the other."""
        for b, m in zip(*np.nonzero(spikes)):  # noqa: B905  Python 3.8
            i[b] += spikes[b, m] * weight[m]

    def pull(self, spikes: Any, weight: Any, d: Any) -> tuple[Any, Any]:
        return d @ weight.T, np.einsum("tbm,tbn->mn", spikes, d)


def check_dense(connections: Iterable[Any], who: str) -> None:
    """`DescriptionError` if a connection has another kind of synapses or axonal delays, which `who` does not support."""
    for c in connections:
        if c.axonal:
            raise DescriptionError(
                f"{c.name}: it has axonal delays, which {who} does not support; use one delay, or backend 'cpu'"
            )
        if not isinstance(c.synapses, Dense):
            raise DescriptionError(
                f"{c.name}: its synapses are {type(c.synapses).__name__}, which {who} does not support; use Dense, or another backend"
            )
