"""The numbers that define a population's dynamics, as the C++ and the Triton kernels take them."""

from __future__ import annotations

from dataclasses import dataclass

from sparsesnn.layers import LI, CubaLIF, Population
from sparsesnn.surrogate import KINDS

#: the number of a reset that leaves the potential alone
NO_RESET = 3


@dataclass(frozen=True)
class Dynamics:
    """Model and reset by their numbers in host/src/layer.h, the surrogate by its number in codelets/surrogate.h."""

    model: int
    reset: int
    detach_reset: bool
    surrogate: int
    slope: float
    gain: float

    @classmethod
    def of(cls, population: LI | Population) -> Dynamics:
        """Of a described population."""
        if isinstance(population, LI):
            return cls(model=2, reset=NO_RESET, detach_reset=True, surrogate=0, slope=1.0, gain=population.gain)
        return cls(
            model=1 if isinstance(population, CubaLIF) else 0,
            reset=1 if population.reset_decays else {"subtract": 0, "zero": 2, "none": NO_RESET}[population.reset],
            detach_reset=population.detach_reset,
            surrogate=KINDS.index(population.surrogate.kind),
            slope=population.surrogate.slope,
            gain=population.gain,
        )
