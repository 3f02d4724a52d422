"""The leaky-integrator readout."""

from __future__ import annotations

from dataclasses import dataclass

from sparsesnn.documented import documented
from sparsesnn.layers.checks import PerNeuron, check_population
from sparsesnn.layers.units import HasDecays
from sparsesnn.options import option


@documented(n="number of outputs; with a population code, k neurons a class, class by class.")
@dataclass(frozen=True)
class LI(HasDecays):
    """Leaky integrator that never fires: v[t] = β·v[t-1] + gain·i[t]. Its potentials are the network's output.

    A decay that leaves [0, 1] as it learns is read as 0 or 1, see `sparsesnn.bounds`.
    """

    n: int
    beta: PerNeuron = option(0.95, "decay of the readout per step", low=0, high=1)
    bias: bool = option(False, "a trainable constant current per output")
    gain: float = option(1.0, "factor on the readout's input current")
    learn_beta: bool = option(False, "train the readout's decay")

    def __post_init__(self) -> None:
        check_population(self)
