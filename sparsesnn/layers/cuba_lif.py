"""Current-based leaky integrate-and-fire neurons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Mapping, Tuple  # noqa: UP035

from sparsesnn.documented import documented
from sparsesnn.layers.checks import PerNeuron
from sparsesnn.layers.declaration import ALPHA, BETA, THRESHOLD, Parameter
from sparsesnn.layers.equations import Pulled, rho, rho_derivatives
from sparsesnn.layers.lif import Population
from sparsesnn.options import option


@documented(n="number of neurons; None: set by convolutions or pooling before them.")
@dataclass(frozen=True)
class CubaLIF(Population):
    """LIF with a synaptic current: i_syn[t] = α·i_syn[t-1] + i[t]; v[t] = ρ(v[t-1]) + gain·i_syn[t].

    Source: snnTorch's `Synaptic`; Zenke & Ganguli 2018, eq. 1-3.
    """

    alpha: PerNeuron = option(0.9, "decay of the synaptic current per step, of CubaLIF neurons", low=0, high=1)
    learn_alpha: bool = option(False, "train alpha")

    letter: ClassVar[Tuple[str, str]] = ("c", "current-based")  # noqa: UP006
    states: ClassVar[Tuple[str, ...]] = ("v", "i_syn")  # noqa: UP006
    parameters: ClassVar[Tuple[Parameter, ...]] = (BETA, ALPHA, THRESHOLD)  # noqa: UP006
    reads: ClassVar[Mapping[str, Tuple[str, ...]]] = {"alpha": ("i_syn",)}  # noqa: UP006

    @property
    def kernel(self) -> str:
        """Name of the C++ model, see codelets/neuron."""
        return f"cuba_lif.{self.reset_rule}"

    def step(self, p: Mapping[str, Any], states: Sequence[Any], reset: Any, s: Any, i: Any) -> tuple[Any, ...]:
        v, i_syn = states
        i_syn = p["alpha"] * i_syn + i
        return rho(self.reset_rule, p["beta"], p["threshold"], v, reset) + self.gain * i_syn, i_syn

    def pull(self, p: Mapping[str, Any], states: Sequence[Any], reset: Any, s: Any, i: Any, d: Sequence[Any]) -> Pulled:
        by_v, by_s, by_beta, by_theta = rho_derivatives(self.reset_rule, p["beta"], p["threshold"], states[0], reset)
        by_i_syn = self.gain * d[0] + d[1]
        parameters = {"beta": d[0] * by_beta, "threshold": d[0] * by_theta, "alpha": by_i_syn * states[1]}
        return Pulled((d[0] * by_v, p["alpha"] * by_i_syn), d[0] * by_s, 0, by_i_syn, parameters)
