"""The leaky-integrator readout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Tuple  # noqa: UP035

from sparsesnn.documented import documented
from sparsesnn.layers.checks import PerNeuron, check_population
from sparsesnn.layers.declaration import BETA, Parameter
from sparsesnn.layers.equations import Pulled
from sparsesnn.layers.units import HasDecays
from sparsesnn.options import option


@documented(n="number of outputs; with a population code, k neurons per class, class by class.")
@dataclass(frozen=True)
class LI(HasDecays):
    """Leaky integrator that never fires: v[t] = β·v[t-1] + gain·i[t]. Its potentials are the network's output.

    A decay that leaves [0, 1] in training is read as 0 or 1, see `sparsesnn.bounds`.
    """

    n: int = None  # type: ignore[assignment]  # a number once a network is created
    beta: PerNeuron = option(0.95, "decay of the readout per step", low=0, high=1)
    bias: bool = option(False, "a trainable constant current per output")
    gain: float = option(1.0, "factor on the readout's input current")
    learn_beta: bool = option(False, "train the readout's decay")

    states: ClassVar[Tuple[str, ...]] = ("v",)  # noqa: UP006
    parameters: ClassVar[Tuple[Parameter, ...]] = (BETA,)  # noqa: UP006

    @property
    def kernel(self) -> str:
        """Name of the C++ model, see codelets/neuron."""
        return "li"

    @property
    def constants(self) -> tuple[float, ...]:
        """Numbers of the C++ model that are the same for all neurons."""
        return (self.gain,)

    def __post_init__(self) -> None:
        check_population(self)

    def step(self, p: Mapping[str, Any], states: Sequence[Any], reset: Any, s: Any, i: Any) -> tuple[Any, ...]:
        """As `Population.step`; there are no spikes."""
        return (p["beta"] * states[0] + self.gain * i,)

    def pull(self, p: Mapping[str, Any], states: Sequence[Any], reset: Any, s: Any, i: Any, d: Sequence[Any]) -> Pulled:
        """As `Population.pull`."""
        return Pulled((d[0] * p["beta"],), 0, 0, self.gain * d[0], {"beta": d[0] * states[0]})
