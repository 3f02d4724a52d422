"""How each library turns NIR's continuous time into steps, and the omissions of its files.

NIR: τ·dv/dt = v_leak - v + r·i;  with a synaptic current: τ_syn·di/dt = w_in·x - i. With f = dt/τ, a library's step is one of

    euler         v[t] = (1 - f)·v[t-1] + r·f·i[t]                  β = 1 - f
    exponential   v[t] = e^-f·v[t-1] + r·(1 - e^-f)·i[t]            β = e^-f

Source: the exporters of snnTorch 1.0.0, Norse 1.1.0, SpikingJelly 2.0.0, Sinabs 3.1.3, Rockpool 3.1.0 and Spyx 1.0.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from sparsesnn.errors import DescriptionError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Convention:
    """The meaning of the numbers in a library's graphs.

    Args:
        name: of the library.
        dt: its step, in the unit of its time constants; None: it has no default, and must be given.
        decay: "euler" or "exponential".
        resets: possible resets of its neurons; the first is its default. All write NIR's v_reset = 0.
        reset_decays: its subtraction comes before the decay, β·(v - θ).
        current: factor on the synaptic current: "scaled": w_in·dt/τ_syn, as in NIR; "jump": w_in alone; "decayed": α,
            because a spike decays in its own step; "unit": 1, with every other factor.
        gain: of the membrane: "file" (r·f or r·(1 - e^-f)) or "unit" (1).
        late: steps by which a population's spikes are later than ours.
    """

    name: str
    dt: float | None
    decay: str = "euler"
    resets: tuple[str, ...] = ("zero",)
    reset_decays: bool = False
    current: str = "scaled"
    gain: str = "file"
    late: int = 0


CONVENTIONS: Mapping[str, Convention] = MappingProxyType(
    {
        c.name: c
        for c in (
            Convention("nir", None),
            Convention("snntorch", 1e-4, resets=("subtract", "zero", "none")),
            Convention("norse", 1e-3, resets=("zero", "subtract"), reset_decays=True, current="jump"),
            Convention("spikingjelly", 1e-4),
            Convention("sinabs", 1.0, "exponential", ("subtract", "zero"), reset_decays=True),
            Convention("rockpool", None, "exponential", ("subtract",), True, current="decayed", gain="unit"),
            Convention("spyx", 1.0, resets=("subtract",), current="unit", gain="unit", late=1),
        )
    }
)


def find_convention(source: str) -> Convention:
    if source not in CONVENTIONS:
        raise DescriptionError(
            f"`source` is {source!r}; give the library that wrote the graph: {', '.join(CONVENTIONS)}"
        )
    return CONVENTIONS[source]


def decays_of(convention: Convention, dt: float, tau: Array, where: str) -> tuple[Array, Array]:
    """Decay β and gain per unit of r from time constants `tau`; undoes a rounding of β to float32.

    Norse writes dt·τ instead of τ (its `to_nir` divides dt by 1/τ); a τ below dt, for which an Euler step is impossible,
    reveals it.

    Errors: `DescriptionError` for time constants that do not fit dt.
    """
    if convention.name == "norse" and np.all(tau < dt):
        tau = tau / dt
    with np.errstate(divide="ignore", invalid="ignore"):
        f = np.where(np.isinf(tau), 0.0, dt / tau)
    worst = float(np.max(f)) if np.all(np.isfinite(f)) else float("nan")
    if not np.all(tau > 0) or not np.all(np.isfinite(f)) or (convention.decay == "euler" and worst > 1 + 1e-6):
        raise DescriptionError(
            f"{where}: tau is {float(np.min(tau)):g} with a step dt of {dt:g} ({convention.name}); a time constant is "
            "above 0, and an Euler step at most as long: give the `dt` that the graph was written with"
        )
    if convention.decay == "exponential":
        return np.exp(-f), 1 - np.exp(-f)
    f = np.minimum(f, 1.0)
    values, places = np.unique(f, return_inverse=True)
    return np.array([_unrounded(float(x)) for x in values])[places].reshape(f.shape), f


def _unrounded(f: float) -> float:
    """β = 1 - f, as a short decimal number if float32 arithmetic turns that into f: 0.9, not 0.89999998."""
    short = float(f"{1 - f:.6g}")
    exact = 1 - float(np.float32(short))
    return short if abs(exact - f) <= 2.5e-7 * f else 1 - f


def unrounded_gain(gain: Array) -> Array:
    """Gains, rounded to a short number if float32 arithmetic moved them from it by a few units in the last place."""
    values, places = np.unique(gain, return_inverse=True)
    short = np.array([float(f"{x:.6g}") for x in values])
    return np.where(np.abs(short - values) <= 4e-7 * np.abs(values), short, values)[places].reshape(gain.shape)
