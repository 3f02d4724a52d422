"""Decays from time constants."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparsesnn.errors import DescriptionError


def decays(tau_range: Sequence[float], n: int) -> tuple[float, ...]:
    """exp(-1/τ) for `n` neurons with time constants τ spaced evenly, on a logarithmic scale, between two bounds.

    Gives many time scales in one population: `LIF(256, beta=decays((8, 120), 256), learn_beta=True)`.

    Args:
        tau_range: bounds of the time constants, in steps (τ in ms over dt in ms), above 0. The n values lie in the middle of n
            equal parts of the logarithmic range, so the bounds themselves do not occur.
        n: neurons; the first has the shortest time constant.

    Errors: `DescriptionError` for bounds that are not positive and ascending.
    Source: Perez-Nieves et al. 2021, heterogeneous time constants (there drawn at random).
    """
    low, high = tau_range
    if not 0 < low <= high < math.inf:
        raise DescriptionError(f"decays: tau_range is {list(tau_range)}; give 0 < low <= high, in steps")
    return tuple(math.exp(-1.0 / (low * (high / low) ** ((k + 0.5) / n))) for k in range(n))
