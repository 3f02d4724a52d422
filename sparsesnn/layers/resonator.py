"""Resonate-and-fire neurons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Mapping, Tuple  # noqa: UP035

from sparsesnn.documented import documented
from sparsesnn.errors import DescriptionError
from sparsesnn.layers.checks import PerNeuron
from sparsesnn.layers.declaration import BETA, THRESHOLD, Parameter
from sparsesnn.layers.equations import Pulled
from sparsesnn.layers.lif import Population
from sparsesnn.options import option


@documented(n="number of neurons.")
@dataclass(frozen=True)
class Resonator(Population):
    """A state (v, y) that rotates and shrinks: the neuron responds to one frequency of its input.

        (v, y)[t] = β·R·(v[t-1] - θ·s[t-1], y[t-1]) + (gain·i[t], 0)

    R rotates by an angle ω per step; `turn` is the tangent of half the angle, tan(ω/2). A period takes 2π/ω steps. The
    reset always subtracts, before the decay. Source: C-SiLIF of Fabre et al. 2025, u[t] = λ·(u[t-1] - s[t-1]/2) + b·i[t] with
    complex λ = β·exp(jω), where v = 2·Re u, y = 2·Im u, and the weights hold 2·b.
    """

    turn: PerNeuron = option(
        0.1,
        "tan(ω/2) for the angle ω by which the state of Resonator neurons rotates per step; 1: a quarter turn",
        low=0,
        high=1,
    )
    learn_turn: bool = option(False, "train turn")

    letter: ClassVar[Tuple[str, str]] = ("o", "oscillating")  # noqa: UP006
    states: ClassVar[Tuple[str, ...]] = ("v", "y")  # noqa: UP006
    parameters: ClassVar[Tuple[Parameter, ...]] = (BETA, Parameter("turn", 0.0, 1.0), THRESHOLD)  # noqa: UP006
    reads: ClassVar[Mapping[str, Tuple[str, ...]]] = {"beta": ("y",), "turn": ("y",)}  # noqa: UP006
    operations: ClassVar[Tuple[int, int]] = (12, 13)  # noqa: UP006

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reset != "subtract" or self.reset_decays:
            raise DescriptionError(
                f"Resonator: reset is {self.reset!r} with reset_decays={self.reset_decays}; allowed: 'subtract' without "
                "reset_decays (the decay always follows the reset)"
            )

    @property
    def kernel(self) -> str:
        """Name of the C++ model, see codelets/neuron."""
        return "resonator"

    def step(self, p: Mapping[str, Any], states: Sequence[Any], reset: Any, s: Any, i: Any) -> tuple[Any, ...]:
        v, y = states
        _, cosine, sine = _rotation(p["turn"])
        along, across = p["beta"] * cosine, p["beta"] * sine
        r = v - p["threshold"] * reset
        return along * r - across * y + self.gain * i, across * r + along * y

    def pull(self, p: Mapping[str, Any], states: Sequence[Any], reset: Any, s: Any, i: Any, d: Sequence[Any]) -> Pulled:
        v, y = states
        inverse, cosine, sine = _rotation(p["turn"])
        r = v - p["threshold"] * reset
        turned_v, turned_y = cosine * r - sine * y, sine * r + cosine * y
        by_v = p["beta"] * (cosine * d[0] + sine * d[1])
        by_y = p["beta"] * (cosine * d[1] - sine * d[0])
        parameters = {
            "beta": d[0] * turned_v + d[1] * turned_y,
            "turn": 2 * inverse * p["beta"] * (d[1] * turned_v - d[0] * turned_y),
            "threshold": -by_v * reset,
        }
        return Pulled((by_v, by_y), -p["threshold"] * by_v, 0, self.gain * d[0], parameters)


def _rotation(k: Any) -> tuple[Any, Any, Any]:
    """1 / (1 + k²), cos ω and sin ω, from k = tan(ω/2)."""
    inverse = 1 / (1 + k * k)
    half = k * inverse
    return inverse, inverse - k * half, half + half
