"""The leaky-integrator readout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Tuple  # noqa: UP035

from sparsesnn.documented import documented
from sparsesnn.layers.arrays import NeuronArrays
from sparsesnn.layers.checks import PerNeuron
from sparsesnn.layers.neuron import Neuron, parameter
from sparsesnn.options import option


@documented(n="number of outputs; with a population code, k neurons per class, class by class.")
@dataclass(frozen=True)
class LI(Neuron):
    """Leaky integrator that never fires: v[t] = β·v[t-1] + gain·i[t]. Its potentials are the network's output."""

    beta: PerNeuron = parameter(
        0.95, "decay of the readout per step", low=0, high=1, learn_help="train the readout's decay"
    )
    gain: float = option(1.0, "factor on the readout's input current")
    learn_beta: bool = False

    fires: ClassVar[bool] = False
    states: ClassVar[Tuple[str, ...]] = ("v",)  # noqa: UP006

    def arrays(self, p: Mapping[str, Any]) -> NeuronArrays:
        return NeuronArrays(A=[[p["beta"]]], B=[self.gain])
