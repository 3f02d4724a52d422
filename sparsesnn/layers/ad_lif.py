"""Adaptive leaky integrate-and-fire neurons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Tuple  # noqa: UP035

from sparsesnn.documented import documented
from sparsesnn.errors import DescriptionError
from sparsesnn.layers.arrays import NeuronArrays
from sparsesnn.layers.checks import PerNeuron
from sparsesnn.layers.declaration import THRESHOLD, Parameter
from sparsesnn.layers.lif import Membrane
from sparsesnn.layers.neuron import parameter
from sparsesnn.options import option

Bounds = Tuple[float, ...]  # noqa: UP006
ORDERS = ("symplectic", "explicit", "sparch")


@documented(
    n="number of neurons; None: set by convolutions or pooling before them.",
)
@dataclass(frozen=True)
class AdLIF(Membrane):
    """LIF with a second state w, which is driven by the potential and the spikes and pulls the potential down.

        symplectic   r = reset(v[t-1]) ; w[t] = ρ·w[t-1] + (1-ρ)·q·(a·r + b·s[t-1]) ; v[t] = β·r + (1-β)·(gain·i[t] - w[t])
        explicit     the same with w[t-1] in the last term
        sparch       w[t] = ρ·w[t-1] + (1-ρ)·q·(a·v[t-1] + b·s[t-1]) ; v[t] = β·(v[t-1] - θ·s[t-1]) + (1-β)·(gain·i[t] - w[t])

    reset(v) is v·(1 - s) (zero) or v - θ·s (subtract; always with order sparch). The w carried from step to step does not
    yet include the last step's spike. `detach_reset` cuts the gradient through the reset, never that through b·s. A decay
    or a coupling that leaves its range in training is clamped to the range when read, see `sparsesnn.bounds`.

    Without spikes it is a damped oscillator, with an angular frequency of about √(q·a / (τ_v·τ_w)) per step. Source:
    Baronig et al. 2025: `symplectic` is their SE-adLIF, whose w[t-1] is our w[t]; `explicit` is their EF-adLIF;
    Bittar & Garner 2022 (sparch, with couplings scaled by (1-ρ)·q).
    """

    rho: PerNeuron = parameter(0.98, "decay of the adaptation w per step, of AdLIF neurons", low=0, high=1)
    a: PerNeuron = parameter(0.5, "coupling of the potential to the adaptation of AdLIF neurons")
    b: PerNeuron = parameter(1.0, "coupling of a spike to the adaptation of AdLIF neurons")
    q: float = option(20.0, "scale of both drives of the adaptation of AdLIF neurons", low=0)
    order: str = option("symplectic", "order of updates within a step of AdLIF neurons", choices=ORDERS)
    learn_rho: bool = False
    learn_a: bool = False
    learn_b: bool = False
    beta_range: Bounds = option(
        (0.0, 1.0), "lowest and highest beta used by AdLIF neurons in training, such as 0.82, 0.96", low=0, high=1
    )
    rho_range: Bounds = option((0.0, 1.0), "lowest and highest rho used by AdLIF neurons in training", low=0, high=1)
    a_range: Bounds = option((0.0, 1.0), "lowest and highest a used by AdLIF neurons in training")
    b_range: Bounds = option((0.0, 2.0), "lowest and highest b used by AdLIF neurons in training")

    letter: ClassVar[Tuple[str, str]] = ("a", "adaptive")  # noqa: UP006
    states: ClassVar[Tuple[str, ...]] = ("v", "w")  # noqa: UP006

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reset not in ("zero", "subtract"):
            raise DescriptionError(f"AdLIF: reset is {self.reset!r}; allowed: zero, subtract")
        if self.order == "sparch" and self.reset != "subtract":
            raise DescriptionError(
                f"AdLIF: reset is {self.reset!r} with order 'sparch', which subtracts the threshold; use reset 'subtract'"
            )
        if self.reset_decays:
            raise DescriptionError(
                "AdLIF: reset_decays has no effect: the decay always follows the reset; leave it out"
            )
        for name in ("beta", "rho", "a", "b"):
            bounds, value = getattr(self, f"{name}_range"), getattr(self, name)
            if len(bounds) != 2 or bounds[0] > bounds[1]:
                raise DescriptionError(f"AdLIF: {name}_range is {bounds!r}; give its lowest and its highest value")
            for x in value if isinstance(value, tuple) else (value,):
                if not bounds[0] <= x <= bounds[1]:
                    raise DescriptionError(
                        f"AdLIF: {name} is {x!r}; {name}_range allows {bounds[0]:g} to {bounds[1]:g}; change either"
                    )

    @property
    def parameters(self) -> Tuple[Parameter, ...]:  # noqa: UP006
        """The trainable parameters, each with its range."""
        names = ("beta", "rho", "a", "b")
        return (*(Parameter(name, *getattr(self, f"{name}_range")) for name in names), THRESHOLD)

    def arrays(self, p: Mapping[str, Any]) -> NeuronArrays:
        beta, rho, theta = p["beta"], p["rho"], p["threshold"]
        scale = (1 - rho) * self.q
        by_v, by_spike = scale * p["a"], scale * p["b"]
        R: Any = [[0, 0], [0, 0]]
        r: Any = [0, 0]
        if self.order == "sparch":
            r = [-beta * theta, 0]
        elif self.reset == "zero":
            R = [[-beta, 0], [-by_v, 0]]
        else:
            r = [-beta * theta, -by_v * theta]
        return NeuronArrays(
            A=[[beta, beta - 1], [by_v, rho]],
            R=R,
            r=r,
            f=[0, by_spike],
            B=[(1 - beta) * self.gain, 0],
            sequential=self.order != "explicit",
        )
