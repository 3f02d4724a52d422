"""A population's dynamics in the form that the C++ and Triton kernels take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sparsesnn.engines.entries import Entries, entries_of
from sparsesnn.layers import Neuron, is_readout
from sparsesnn.layers.shapes import Shape, shape_of


class Numbers(NamedTuple):
    """A population's arrays.

    Args:
        entries: [E, N], those of its shape, see `sparsesnn.engines.entries`.
        grad_threshold: [N]; None for a readout.
        derivatives: [Q, E, N], of the entries by each parameter with a gradient; None if there is none.
    """

    entries: Tensor
    grad_threshold: Tensor | None
    derivatives: Tensor | None = None

    @classmethod
    def of(
        cls,
        population: Neuron,
        parameters: Mapping[str, Tensor],
        grad_threshold: Tensor | None,
        learnt: Sequence[str] = (),
    ) -> Numbers:
        """The arrays of `population`.

        Args:
            parameters: [N] each, by name, within their range.
            learnt: names of those with a gradient.
        """
        like = grad_threshold if grad_threshold is not None else next(iter(parameters.values()))
        found: Entries = entries_of(population, parameters, learnt)
        entries = _stacked(found.values, population.n, like)
        derivatives = torch.stack([_stacked(by, population.n, like) for by in found.derivatives]) if learnt else None
        return cls(entries, grad_threshold, derivatives)


def _stacked(values: Sequence[Tensor | float | None], n: int, like: Tensor) -> Tensor:
    """[E, N]; None is 0."""
    made = like.new_zeros(len(values), n)
    for row, x in zip(made, values, strict=True):
        if x is not None:
            row[:] = x
    return made


@dataclass(frozen=True)
class Dynamics:
    """The shape of a neuron model, the number of its states, and the surrogate."""

    shape: Shape
    n_states: int
    detach_reset: bool = True
    surrogate: str = "straight_through"
    slope: float = 1.0

    @classmethod
    def of(cls, population: Neuron) -> Dynamics:
        """The dynamics of `population`."""
        shape, n_states = shape_of(population), len(population.states)
        if is_readout(population):
            return cls(shape, n_states)
        surrogate = population.surrogate
        return cls(shape, n_states, population.detach_reset, surrogate.kind, surrogate.slope)
