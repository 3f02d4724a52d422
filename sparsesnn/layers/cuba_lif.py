"""Current-based leaky integrate-and-fire neurons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Tuple  # noqa: UP035

from sparsesnn.documented import documented
from sparsesnn.layers.arrays import NeuronArrays
from sparsesnn.layers.checks import PerNeuron
from sparsesnn.layers.lif import Membrane
from sparsesnn.layers.neuron import parameter


@documented(n="number of neurons; None: set by convolutions or pooling before them.")
@dataclass(frozen=True)
class CubaLIF(Membrane):
    """LIF with a synaptic current: i_syn[t] = α·i_syn[t-1] + i[t]; v[t] = D(v[t-1]) + gain·i_syn[t].

    Source: snnTorch's `Synaptic`; Zenke & Ganguli 2018, eq. 1-3.
    """

    alpha: PerNeuron = parameter(0.9, "decay of the synaptic current per step, of CubaLIF neurons", low=0, high=1)
    learn_alpha: bool = False

    letter: ClassVar[Tuple[str, str]] = ("c", "current-based")  # noqa: UP006
    states: ClassVar[Tuple[str, ...]] = ("v", "i_syn")  # noqa: UP006

    def arrays(self, p: Mapping[str, Any]) -> NeuronArrays:
        R, r = self.reset_of(p["beta"], p["threshold"])
        return NeuronArrays(
            A=[[p["beta"], self.gain], [0, p["alpha"]]], R=[[R, 0], [0, 0]], r=[r, 0], B=[0, 1], sequential=True
        )
