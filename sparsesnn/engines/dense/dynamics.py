"""A population's dynamics in the form that the C++ and Triton kernels take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from sparsesnn.layers import LI, Population


class Numbers(NamedTuple):
    """A population's parameters in the model's order, and its secondary threshold (None for a readout); [N] each."""

    parameters: tuple[Tensor, ...]
    grad_threshold: Tensor | None


@dataclass(frozen=True)
class Dynamics:
    """A neuron model by its name in codelets/neuron, its states and parameters in its order, and the surrogate."""

    kernel: str
    states: tuple[str, ...]
    parameters: tuple[str, ...]
    constants: tuple[float, ...]
    detach_reset: bool = True
    surrogate: str = "straight_through"
    slope: float = 1.0

    @classmethod
    def of(cls, population: LI | Population) -> Dynamics:
        """The dynamics of `population`."""
        names = tuple(parameter.name for parameter in population.parameters)
        model = (population.kernel, population.states, names, population.constants)
        if isinstance(population, LI):
            return cls(*model)
        surrogate = population.surrogate
        return cls(*model, population.detach_reset, surrogate.kind, surrogate.slope)
