"""The input population: neurons whose spikes come from data."""

from __future__ import annotations

from dataclasses import dataclass

from sparsesnn.layers.checks import check_population


@dataclass(frozen=True)
class Input:
    """`n` input neurons, for example 700 cochlea channels; they have no state."""

    n: int

    def __post_init__(self) -> None:
        check_population(self)
