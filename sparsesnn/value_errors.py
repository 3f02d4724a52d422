"""Errors of values over samples: sums of which the RMSE and R² follow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
from torch import Tensor


@dataclass(frozen=True)
class ValueErrors:
    """Sums over the targets that are given, for each of K values; empty without targets.

    Args:
        n: targets.
        squared: Σ (y - target)².
        targets: Σ target.
        squares: Σ target².
    """

    n: tuple[float, ...] = ()
    squared: tuple[float, ...] = ()
    targets: tuple[float, ...] = ()
    squares: tuple[float, ...] = ()

    @classmethod
    def of(cls, sums: npt.NDArray[np.float64]) -> ValueErrors:
        """From the sums of samples, float64[B, 4, K]; see `sums_of_samples`."""
        return cls(*map(tuple, sums.sum(0).tolist()))

    def __add__(self, other: ValueErrors) -> ValueErrors:
        """The sums over the samples of both."""
        if not self.n:
            return other
        return ValueErrors(
            *(tuple(map(sum, zip(getattr(self, f.name), getattr(other, f.name), strict=True))) for f in fields(self))
        )

    @property
    def rmse(self) -> float:
        """√(Σ (y - target)² / n), over all K values together."""
        return math.sqrt(sum(self.squared) / max(1.0, sum(self.n)))

    @property
    def r2(self) -> float | None:
        """1 - Σ (y - target)² / Σ (target - mean)², the mean over K values; None if all targets of a value are equal."""
        found: list[float] = []
        for n, squared, total, squares in zip(self.n, self.squared, self.targets, self.squares, strict=True):
            around_mean = squares - total * total / max(1.0, n)
            if around_mean <= 1e-12 * squares:
                return None
            found.append(1.0 - squared / around_mean)
        return sum(found) / len(found) if found else None


def sums_of_samples(outputs: Tensor, targets: Tensor) -> npt.NDArray[np.float64]:
    """float64[B, 4, K], the terms of `ValueErrors` for each sample; outputs and targets are [B, K] or [T, B, K], NaN: no target.

    Sums over steps have an order that does not depend on B.
    """
    y, target = (_samples_first(x.detach().cpu().double().numpy()) for x in (outputs, targets))
    given = ~np.isnan(target)
    target = np.where(given, target, 0.0)
    error = np.where(given, y - target, 0.0)
    terms: Sequence[npt.NDArray[np.float64]] = (given.astype(np.float64), error**2, target, target**2)
    return np.stack([np.ascontiguousarray(term).sum(-1) for term in terms], axis=1)


def _samples_first(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """[B, K] or [T, B, K] as [B, K, T]."""
    return x[:, :, None] if x.ndim == 2 else np.ascontiguousarray(x.transpose(1, 2, 0))
