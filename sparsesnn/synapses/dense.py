"""All-to-all synapses."""

from __future__ import annotations

from dataclasses import dataclass

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
