"""Surrogate derivatives σ'(x), x = v - threshold, used in place of the spike's derivative.

| name | σ'(x) | source |
|---|---|---|
| `fast_sigmoid(slope)` | (slope·abs(x) + 1)⁻² | SuperSpike, Zenke & Ganguli 2018, eq. 5 |
| `straight_through()` | 1 | Bengio et al. 2013 |
| `sigmoid(slope)` | slope·s·(1 - s), s = 1 / (1 + exp(-slope·x)) | Zenke & Vogels 2021 |
| `atan(alpha)` | (alpha / 2) / (1 + (π/2·alpha·x)²) | Fang et al. 2021 |
| `triangle(slope)` | max(0, 1 - slope·abs(x)) | Bellec et al. 2018 |
| `boxcar(slope)` | slope where abs(x) < 1 / (2·slope), else 0 | STBP, Wu et al. 2018, eq. 27 |
| `exponential(slope)` | exp(-slope·abs(x)) | SLAYER, Shrestha & Orchard 2018 |
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy

from sparsesnn.arguments import named
from sparsesnn.errors import DescriptionError
from sparsesnn.options import check, option


class Formulas(NamedTuple):
    """σ'(x) for slope k, and its smooth step S with S' = σ' and S(0) = 1/2, for which finite differences are right.

    `np` is NumPy or PyTorch: the formulas use only functions of both. σ' is 0 for |x| >= `half_width`.
    """

    derivative: Callable[[Any, Any, float], Any]
    smooth_step: Callable[[Any, Any, float], Any]
    half_width: Callable[[float], float] = lambda k: math.inf


def _logistic(np: Any, x: Any) -> Any:
    return 0.5 * (1 + np.tanh(0.5 * x))


#: all kinds; the engine finds the same names in codelets/surrogate.h
FORMULAS: Mapping[str, Formulas] = {
    "fast_sigmoid": Formulas(
        lambda np, x, k: (k * np.abs(x) + 1) ** -2,
        lambda np, x, k: 0.5 + x / (k * np.abs(x) + 1),
    ),
    "straight_through": Formulas(lambda np, x, k: np.ones_like(x), lambda np, x, k: 0.5 + x),
    "sigmoid": Formulas(
        lambda np, x, k: k * _logistic(np, k * x) * (1 - _logistic(np, k * x)),
        lambda np, x, k: _logistic(np, k * x),
    ),
    "atan": Formulas(
        lambda np, x, k: k / 2 / (1 + (math.pi / 2 * k * x) ** 2),
        lambda np, x, k: 0.5 + np.arctan(math.pi / 2 * k * x) / math.pi,
    ),
    "triangle": Formulas(
        lambda np, x, k: np.clip(1 - k * np.abs(x), 0, None),
        lambda np, x, k: 0.5 + np.clip(x, -1 / k, 1 / k) * (1 - k / 2 * np.clip(np.abs(x), 0, 1 / k)),
        lambda k: 1 / k,
    ),
    "boxcar": Formulas(
        lambda np, x, k: k * np.ones_like(x) * (np.abs(x) < 0.5 / k),
        lambda np, x, k: 0.5 + np.clip(k * x, -0.5, 0.5),
        lambda k: 0.5 / k,
    ),
    "exponential": Formulas(
        lambda np, x, k: np.exp(-k * np.abs(x)),
        lambda np, x, k: 0.5 + np.sign(x) * (1 - np.exp(-k * np.abs(x))) / k,
    ),
}
KINDS = tuple(FORMULAS)


@named
@dataclass(frozen=True)
class Surrogate:
    """A surrogate derivative σ'(x), x = v - threshold, which replaces the derivative of the spike in the backward pass.

    Make one with a function below: `LIF(256, surrogate=sparsesnn.atan(2))`.

    Args:
        kind: name of the function, such as "fast_sigmoid", the default.
        slope: its steepness, above 0; atan calls it alpha. Default: 10.

    Errors: `DescriptionError` for an unknown kind, or a slope that is not above 0.
    """

    kind: str = option("fast_sigmoid", "shape of the derivative", choices=KINDS)
    slope: float = option(10.0, "steepness; alpha of atan", above=0)

    def __post_init__(self) -> None:
        check(self, "surrogate: {}", DescriptionError)

    def derivative(self, x: Any) -> Any:
        """σ'(x), elementwise, of a NumPy array or a PyTorch tensor."""
        return FORMULAS[self.kind].derivative(_library(x), x, self.slope)

    def smooth_step(self, x: Any) -> Any:
        """S(x), the step of the reference's smooth twin."""
        return FORMULAS[self.kind].smooth_step(_library(x), x, self.slope)

    @property
    def half_width(self) -> float:
        """σ'(x) is 0 if |x| is at least this; infinity if it never is."""
        return FORMULAS[self.kind].half_width(self.slope)


def _library(x: Any) -> Any:
    return numpy if isinstance(x, (numpy.ndarray, numpy.generic)) else sys.modules["torch"]


@named
def fast_sigmoid(slope: float = 10.0) -> Surrogate:
    """(slope·|x| + 1)⁻², the default: wide tails, cheap, no overflow."""
    return Surrogate("fast_sigmoid", slope)


@named
def straight_through() -> Surrogate:
    """1 everywhere: the gradient passes unchanged."""
    return Surrogate("straight_through", 1.0)


@named
def sigmoid(slope: float = 25.0) -> Surrogate:
    """Derivative of the logistic function of slope·x."""
    return Surrogate("sigmoid", slope)


@named
def atan(alpha: float = 2.0) -> Surrogate:
    """(alpha/2) / (1 + (π/2·alpha·x)²), as snnTorch and SpikingJelly define it."""
    return Surrogate("atan", alpha)


@named
def triangle(slope: float = 1.0) -> Surrogate:
    """A triangle of height 1 around the threshold: max(0, 1 - slope·|x|). Source: Bellec et al. 2018."""
    return Surrogate("triangle", slope)


@named
def boxcar(slope: float = 1.0) -> Surrogate:
    """A box of height `slope` and area one around the threshold."""
    return Surrogate("boxcar", slope)


@named
def exponential(slope: float = 5.0) -> Surrogate:
    """exp(-slope·|x|), of height one: with slope 5 and threshold 1, still 8 % at half the threshold."""
    return Surrogate("exponential", slope)
