"""Finds the surrogate of this package that equals a library's, from its values.

Libraries write their surrogates as classes, closures or modules, and users write their own. All have in common that they can be
evaluated, so their derivative is compared with ours at many points. This also covers users' own surrogates.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sparsesnn.errors import DescriptionError
from sparsesnn.surrogate import KINDS, Surrogate

#: distances from the threshold at which derivatives are compared
_DISTANCES = torch.logspace(-3.5, 0.7, 127, dtype=torch.float32)

#: surrogates whose integral over all distances is 1
_OF_AREA_ONE = ("sigmoid", "atan", "boxcar")


def by_autograd(spike: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """σ'(x) of a function that makes spikes of x = v - threshold."""

    def derivative(x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.clone().requires_grad_()
            (d,) = torch.autograd.grad(spike(x).sum(), x)
        return d

    return derivative


def match_surrogate(derivative: Callable[[Tensor], Tensor], where: str) -> tuple[Surrogate, float]:
    """The `Surrogate` of potentials in other units, and their factor c: the library's derivative is σ'_c(c·x)·c.

    Potentials, thresholds and currents times c are the same dynamics, in which σ' has the height that it has here. A surrogate whose
    integral is fixed (sigmoid, atan, boxcar) has no such freedom: c is 1.

    Args:
        derivative: of the library, at float32[P] distances from the threshold.
        where: the beginning of messages.

    Errors: `DescriptionError` if none is equal.
    """
    with torch.random.fork_rng(devices=[]):
        x = torch.cat([torch.zeros(1), _DISTANCES, -_DISTANCES])
        values = derivative(x).detach().double()
        repeated = derivative(x).detach().double()
    top = float(values[0])
    finite = torch.isfinite(values)  # snnTorch's sigmoid overflows far below the threshold
    if top > 0 and torch.equal(values.nan_to_num(), repeated.nan_to_num()):
        x = x.double()
        for kind in KINDS:
            slope = _slope(kind, x[1:128], values[1:128] / top, top)
            if slope is None or not 1e-6 < slope < 1e6:
                continue
            ours = Surrogate(kind, float(f"{slope:.5g}"))
            found = ours.derivative(x)
            factor = float(f"{top / float(found[0]):.6g}")
            near_edge = (x.abs() - ours.half_width).abs() < 1e-4 * max(1.0, ours.half_width)
            if ours.kind in _OF_AREA_ONE and abs(factor - 1) > 1e-4:
                continue
            if bool(
                (((factor * found - values).abs() <= 2e-4 * values.abs() + 1e-6 * top) | near_edge | ~finite).all()
            ):
                return (
                    (ours, 1.0)
                    if factor == 1 or ours.kind in _OF_AREA_ONE
                    else (Surrogate(kind, ours.slope / factor), factor)
                )
    raise DescriptionError(
        f"{where}: its surrogate has the derivative {_shown(values[[0, 73, 103]])} at 0, 0.08 and 0.8 above the threshold, which is that of no "
        f"surrogate of sparsesnn; allowed: the shapes of {', '.join(KINDS)}; choose one of them in the library, such as atan"
    )


def _shown(values: Tensor) -> str:
    return ", ".join(f"{x:.3g}" for x in values.tolist())


def _slope(kind: str, x: Tensor, share: Tensor, top: float) -> float | None:
    """The slope with which σ'(x) / σ'(0) is `share`, from one distance, or from σ'(0), `top`; None if no distance shows it."""
    if kind == "straight_through":
        return 1.0
    if kind == "boxcar":
        return top  # the height of a box of area 1
    fit = (share < 0.9) & (share > 0.02)
    if not bool(fit.any()):
        return None
    k = int(torch.nonzero(fit)[0])
    d, q = float(x[k]), float(share[k])
    inverse = {
        "fast_sigmoid": lambda: (q**-0.5 - 1) / d,
        "exponential": lambda: -math.log(q) / d,
        "triangle": lambda: (1 - q) / d,
        "atan": lambda: math.sqrt(1 / q - 1) / (math.pi / 2 * d),
        "sigmoid": lambda: 2 * math.acosh(q**-0.5) / d,
    }
    slope: float = inverse[kind]()
    return slope
