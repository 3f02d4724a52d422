"""Surrogate derivatives σ'(x), x = v - threshold, that stand for the derivative of the spike.

| name | σ'(x) | source |
|---|---|---|
| `fast_sigmoid(slope)` | (slope·|x| + 1)⁻² | SuperSpike, Zenke & Ganguli 2018, eq. 5 |
| `straight_through()` | 1 | Bengio et al. 2013 |
| `sigmoid(slope)` | slope·s·(1 - s), s = 1 / (1 + exp(-slope·x)) | Zenke & Vogels 2021 |
| `atan(alpha)` | (alpha / 2) / (1 + (π/2·alpha·x)²) | Fang et al. 2021 |
| `triangle(slope)` | max(0, 1 - slope·|x|) | Bellec et al. 2018 |
| `boxcar(slope)` | slope where |x| < 1 / (2·slope), else 0 | STBP, Wu et al. 2018, eq. 27 |
"""

from __future__ import annotations

from dataclasses import dataclass

from sparsesnn.errors import DescriptionError
from sparsesnn.options import check, option

KINDS = ("fast_sigmoid", "straight_through", "sigmoid", "atan", "triangle", "boxcar")


@dataclass(frozen=True)
class Surrogate:
    """One surrogate derivative: its kind and its single parameter (`slope`; atan calls it `alpha`)."""

    kind: str = option("fast_sigmoid", "shape of the derivative", choices=KINDS)
    slope: float = option(10.0, "steepness; alpha of atan", above=0)

    def __post_init__(self) -> None:
        check(self, "surrogate: {}", DescriptionError)


def fast_sigmoid(slope: float = 10.0) -> Surrogate:
    """(slope·|x| + 1)⁻², the default: wide tails, cheap, no overflow."""
    return Surrogate("fast_sigmoid", slope)


def straight_through() -> Surrogate:
    """1 everywhere: the gradient passes unchanged."""
    return Surrogate("straight_through", 1.0)


def sigmoid(slope: float = 25.0) -> Surrogate:
    """Derivative of the logistic function of slope·x."""
    return Surrogate("sigmoid", slope)


def atan(alpha: float = 2.0) -> Surrogate:
    """(alpha/2) / (1 + (π/2·alpha·x)²), as snnTorch and SpikingJelly define it."""
    return Surrogate("atan", alpha)


def triangle(slope: float = 1.0) -> Surrogate:
    """max(0, 1 - slope·|x|)."""
    return Surrogate("triangle", slope)


def boxcar(slope: float = 1.0) -> Surrogate:
    """A box of height `slope` and area one around the threshold."""
    return Surrogate("boxcar", slope)
