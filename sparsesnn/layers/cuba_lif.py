"""Current-based leaky integrate-and-fire neurons."""

from __future__ import annotations

from dataclasses import dataclass

from sparsesnn.documented import documented
from sparsesnn.layers.checks import PerNeuron
from sparsesnn.layers.lif import Population
from sparsesnn.options import option


@documented(n="number of neurons.")
@dataclass(frozen=True)
class CubaLIF(Population):
    """LIF with a synaptic current: i_syn[t] = α·i_syn[t-1] + i[t]; v[t] = ρ(v[t-1]) + gain·i_syn[t].

    Source: snnTorch's `Synaptic`; Zenke & Ganguli 2018, eq. 1-3.
    """

    alpha: PerNeuron = option(0.9, "decay of the synaptic current per step, of CubaLIF neurons", low=0, high=1)
    learn_alpha: bool = option(False, "train alpha")
