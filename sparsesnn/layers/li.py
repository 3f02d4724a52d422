"""The leaky-integrator readout."""

from __future__ import annotations

from dataclasses import dataclass

from sparsesnn.layers.checks import PerNeuron, check_finite, check_flags, check_size, per_neuron


@dataclass(frozen=True)
class LI:
    """Leaky integrator that never fires: v[t] = β·v[t-1] + gain·i[t]. Its potentials are the network's output.

    Args:
        n: outputs; with a population code, k neurons a class, class by class.
        beta: decay per step, in [0, 1]; one number, or one per neuron.
        bias: adds a trainable constant current per neuron.
        gain: factor on the input current.
        learn_beta: train the decay; outside [0, 1] it is read as 0 or 1, see `sparsesnn.bounds`.
    """

    n: int
    beta: PerNeuron = 0.95
    bias: bool = False
    gain: float = 1.0
    learn_beta: bool = False

    def __post_init__(self) -> None:
        check_size("LI", self.n)
        object.__setattr__(self, "beta", per_neuron("LI", "beta", self.beta, self.n, 0.0, 1.0))
        check_finite("LI", "gain", self.gain)
        check_flags("LI", bias=self.bias, learn_beta=self.learn_beta)
