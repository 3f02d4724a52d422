"""The leaky-integrator readout with a synaptic current."""

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
class CubaLI(Neuron):
    """LI with a synaptic current, which never fires: i_syn[t] = α·i_syn[t-1] + i[t]; v[t] = β·v[t-1] + gain·i_syn[t].

    Source: NIR's `CubaLI`; Norse's `LI`.
    """

    alpha: PerNeuron = parameter(0.9, "decay of the readout's synaptic current per step", low=0, high=1)
    beta: PerNeuron = parameter(0.95, "decay of the readout per step", low=0, high=1)
    gain: float = option(1.0, "factor on the readout's synaptic current")
    learn_alpha: bool = False
    learn_beta: bool = False

    fires: ClassVar[bool] = False
    states: ClassVar[Tuple[str, ...]] = ("v", "i_syn")  # noqa: UP006

    def arrays(self, p: Mapping[str, Any]) -> NeuronArrays:
        return NeuronArrays(A=[[p["beta"], self.gain], [0, p["alpha"]]], B=[0, 1], sequential=True)
