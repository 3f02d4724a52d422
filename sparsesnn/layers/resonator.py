"""Resonate-and-fire neurons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Tuple  # noqa: UP035

from sparsesnn.documented import documented
from sparsesnn.errors import DescriptionError
from sparsesnn.layers.arrays import NeuronArrays
from sparsesnn.layers.checks import PerNeuron
from sparsesnn.layers.lif import Membrane
from sparsesnn.layers.neuron import parameter


@documented(n="number of neurons.")
@dataclass(frozen=True)
class Resonator(Membrane):
    """A state (v, y) that rotates and shrinks: the neuron responds to one frequency of its input.

        (v, y)[t] = β·R·(v[t-1] - θ·s[t-1], y[t-1]) + (gain·i[t], 0)

    R rotates by an angle ω per step; `turn` is the tangent of half the angle, tan(ω/2). A period takes 2π/ω steps. The
    reset always subtracts, before the decay. Source: C-SiLIF of Fabre et al. 2025, u[t] = λ·(u[t-1] - s[t-1]/2) + b·i[t] with
    complex λ = β·exp(jω), where v = 2·Re u, y = 2·Im u, and the weights hold 2·b.
    """

    turn: PerNeuron = parameter(
        0.1,
        "tan(ω/2) for the angle ω by which the state of Resonator neurons rotates per step; 1: a quarter turn",
        low=0,
        high=1,
    )
    learn_turn: bool = False

    letter: ClassVar[Tuple[str, str]] = ("o", "oscillating")  # noqa: UP006
    states: ClassVar[Tuple[str, ...]] = ("v", "y")  # noqa: UP006

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reset != "subtract" or self.reset_decays:
            raise DescriptionError(
                f"Resonator: reset is {self.reset!r} with reset_decays={self.reset_decays}; allowed: 'subtract' without "
                "reset_decays (the decay always follows the reset)"
            )

    def arrays(self, p: Mapping[str, Any]) -> NeuronArrays:
        cosine, sine = _rotation(p["turn"])
        along, across = p["beta"] * cosine, p["beta"] * sine
        return NeuronArrays(
            A=[[along, -across], [across, along]],
            r=[-p["threshold"] * along, -p["threshold"] * across],
            B=[self.gain, 0],
        )


def _rotation(k: Any) -> tuple[Any, Any]:
    """cos ω and sin ω, from k = tan(ω/2)."""
    half = k / (1 + k * k)
    return 1 / (1 + k * k) - k * half, half + half
