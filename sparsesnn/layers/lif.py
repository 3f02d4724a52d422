"""Leaky integrate-and-fire neurons, and the common base of models with a membrane potential."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Tuple  # noqa: UP035

from sparsesnn.documented import documented
from sparsesnn.errors import DescriptionError
from sparsesnn.layers.arrays import NeuronArrays
from sparsesnn.layers.checks import PerNeuron
from sparsesnn.layers.neuron import Neuron, parameter
from sparsesnn.options import option

RESETS = ("subtract", "zero", "none")


@dataclass(frozen=True)
class Membrane(Neuron):
    """A spiking population with a membrane potential, its decay and its reset; neuron models add the dynamics.

    With `reset_decays` a spike leads to β·(v - θ·s), as in SpikingJelly, Sinabs and NIR; without it to β·v - θ·s, as in
    snnTorch.
    """

    beta: PerNeuron = parameter(0.95, "membrane decay per step", low=0, high=1)
    reset: str = option("subtract", "effect of a spike on the state at the next step", choices=RESETS)
    reset_decays: bool = option(False, "with reset 'subtract': the decay comes after the subtraction, not before it")
    gain: float = option(1.0, "factor on the input current")
    learn_beta: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reset_decays and self.reset != "subtract":
            raise DescriptionError(
                f"{type(self).__name__}: reset_decays works only with reset='subtract', not {self.reset!r}"
            )

    @property
    def reset_rule(self) -> str:
        """The reset with its order: "subtract", "subtract_decays", "zero" or "none"."""
        return "subtract_decays" if self.reset_decays else self.reset

    def reset_of(self, decay: Any, theta: Any) -> Tuple[Any, Any]:  # noqa: UP006
        """R and r of a state that decays by `decay` per step: a spike takes R·z + r."""
        if self.reset == "zero":
            return -decay, 0
        if self.reset == "none":
            return 0, 0
        return 0, -decay * theta if self.reset_decays else -theta


@documented(n="number of neurons; None: set by convolutions or pooling before them.")
@dataclass(frozen=True)
class LIF(Membrane):
    """Leaky integrate-and-fire neurons: v[t] = D(v[t-1]) + gain·i[t], where D is the decay with the reset.

    D(v) = β·v - θ·s (subtract), β·(v - θ·s) (subtract with reset_decays), β·v·(1 - s) (zero), β·v (none), where
    s = v > θ. Source: snnTorch's `Leaky`; Eshraghian et al. 2023, eq. 4.
    """

    states: ClassVar[Tuple[str, ...]] = ("v",)  # noqa: UP006

    def arrays(self, p: Mapping[str, Any]) -> NeuronArrays:
        R, r = self.reset_of(p["beta"], p["threshold"])
        return NeuronArrays(A=[[p["beta"]]], R=[[R]], r=[r], B=[self.gain])
