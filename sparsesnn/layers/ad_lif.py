"""Adaptive leaky integrate-and-fire neurons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Mapping, Tuple  # noqa: UP035

from sparsesnn.documented import documented
from sparsesnn.errors import DescriptionError
from sparsesnn.layers.checks import PerNeuron
from sparsesnn.layers.declaration import THRESHOLD, Parameter
from sparsesnn.layers.equations import Pulled
from sparsesnn.layers.lif import Population
from sparsesnn.options import option

Bounds = Tuple[float, ...]  # noqa: UP006
ORDERS = ("symplectic", "explicit", "sparch")


@documented(
    n="number of neurons; None: set by convolutions or pooling before them.",
)
@dataclass(frozen=True)
class AdLIF(Population):
    """LIF with a second state w, which is driven by the potential and the spikes and pulls the potential down.

        symplectic   r = reset(v[t-1]) ; w[t] = ρ·w[t-1] + (1-ρ)·q·(a·r + b·s[t-1]) ; v[t] = β·r + (1-β)·(gain·i[t] - w[t])
        explicit     the same with w[t-1] in the last term
        sparch       w[t] = ρ·w[t-1] + (1-ρ)·q·(a·v[t-1] + b·s[t-1]) ; v[t] = β·(v[t-1] - θ·s[t-1]) + (1-β)·(gain·i[t] - w[t])

    reset(v) is v·(1 - s) (zero) or v - θ·s (subtract; always with order sparch). The w carried from step to step does not
    yet include the last step's spike. `detach_reset` cuts the gradient through the reset, never that through b·s. A decay
    or a coupling that leaves its range in training is clamped to the range when read, see `sparsesnn.bounds`.

    Without spikes it is a damped oscillator, with an angular frequency of about √(q·a / (τ_v·τ_w)) per step. Source:
    Baronig et al. 2025 (symplectic is their SE-adLIF with w one step behind in the notation, explicit their EF-adLIF);
    Bittar & Garner 2022 (sparch, with couplings scaled by (1-ρ)·q).
    """

    rho: PerNeuron = option(0.98, "decay of the adaptation w per step, of AdLIF neurons", low=0, high=1)
    a: PerNeuron = option(0.5, "coupling of the potential to the adaptation of AdLIF neurons")
    b: PerNeuron = option(1.0, "coupling of a spike to the adaptation of AdLIF neurons")
    q: float = option(20.0, "scale of both drives of the adaptation of AdLIF neurons", low=0)
    order: str = option("symplectic", "order of updates within a step of AdLIF neurons", choices=ORDERS)
    learn_rho: bool = option(False, "train rho")
    learn_a: bool = option(False, "train a")
    learn_b: bool = option(False, "train b")
    beta_range: Bounds = option(
        (0.0, 1.0), "lowest and highest beta used by AdLIF neurons in training, such as 0.82, 0.96", low=0, high=1
    )
    rho_range: Bounds = option((0.0, 1.0), "lowest and highest rho used by AdLIF neurons in training", low=0, high=1)
    a_range: Bounds = option((0.0, 1.0), "lowest and highest a used by AdLIF neurons in training")
    b_range: Bounds = option((0.0, 2.0), "lowest and highest b used by AdLIF neurons in training")

    letter: ClassVar[Tuple[str, str]] = ("a", "adaptive")  # noqa: UP006
    states: ClassVar[Tuple[str, ...]] = ("v", "w")  # noqa: UP006
    reads: ClassVar[Mapping[str, Tuple[str, ...]]] = {"beta": ("w", "i"), "rho": ("w",)}  # noqa: UP006
    operations: ClassVar[Tuple[int, int]] = (8, 10)  # noqa: UP006

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
    def parameters(self) -> Tuple[Parameter, ...]:  # type: ignore[override]  # noqa: UP006
        """The trainable parameters, each with its range."""
        names = ("beta", "rho", "a", "b")
        return (*(Parameter(name, *getattr(self, f"{name}_range")) for name in names), THRESHOLD)

    @property
    def kernel(self) -> str:
        """Name of the C++ model, see codelets/neuron."""
        return "ad_lif.sparch" if self.order == "sparch" else f"ad_lif.{self.order}.{self.reset}"

    @property
    def constants(self) -> tuple[float, ...]:
        """Numbers of the C++ model that are the same for all neurons."""
        return (self.gain, self.q)

    def step(self, p: Mapping[str, Any], states: Sequence[Any], reset: Any, s: Any, i: Any) -> tuple[Any, ...]:
        v, w = states
        r = v - (v if self.reset == "zero" else p["threshold"]) * reset
        read = v if self.order == "sparch" else r
        w_next = p["rho"] * w + (1 - p["rho"]) * self.q * (p["a"] * read + p["b"] * s)
        pull = w if self.order == "explicit" else w_next
        return p["beta"] * r + (1 - p["beta"]) * (self.gain * i - pull), w_next

    def pull(self, p: Mapping[str, Any], states: Sequence[Any], reset: Any, s: Any, i: Any, d: Sequence[Any]) -> Pulled:
        v, w = states
        beta, rho, a, b, theta = (p[name] for name in ("beta", "rho", "a", "b", "threshold"))
        zero, sparch, explicit = self.reset == "zero", self.order == "sparch", self.order == "explicit"
        scale = (1 - rho) * self.q
        r = v - (v if zero else theta) * reset
        read = v if sparch else r
        inner = a * read + b * s
        d_w = d[1] if explicit else d[1] - (1 - beta) * d[0]
        by_r = beta * d[0] + (0 if sparch else scale * a * d_w)
        by_v = by_r * (1 - reset) if zero else by_r + (scale * a * d_w if sparch else 0)
        parameters = {
            "beta": d[0] * (r - (self.gain * i - (w if explicit else rho * w + scale * inner))),
            "rho": d_w * (w - self.q * inner),
            "a": d_w * scale * read,
            "b": d_w * scale * s,
            "threshold": 0 * by_r if zero else -by_r * reset,
        }
        by_w = rho * d_w - ((1 - beta) * d[0] if explicit else 0)
        by_reset = -by_r * (v if zero else theta)
        return Pulled((by_v, by_w), by_reset, scale * b * d_w, (1 - beta) * self.gain * d[0], parameters)
