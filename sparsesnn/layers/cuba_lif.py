"""Current-based leaky integrate-and-fire neurons."""

from __future__ import annotations

from dataclasses import dataclass

from sparsesnn.layers.checks import PerNeuron, check_flags, per_neuron
from sparsesnn.layers.lif import Population


@dataclass(frozen=True)
class CubaLIF(Population):
    """LIF with a synaptic current: i_syn[t] = α·i_syn[t-1] + i[t]; v[t] = ρ(v[t-1]) + gain·i_syn[t].

    Args:
        alpha: decay of the synaptic current per step, in [0, 1]; one number, or one per neuron.
        learn_alpha: train it; see `learn_beta`.

    Other arguments: see `Population`. Source: snnTorch's `Synaptic`; Zenke & Ganguli 2018, eq. 1-3.
    """

    alpha: PerNeuron = 0.9
    learn_alpha: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flags("CubaLIF", learn_alpha=self.learn_alpha)
        object.__setattr__(self, "alpha", per_neuron("CubaLIF", "alpha", self.alpha, self.n, 0.0, 1.0))
