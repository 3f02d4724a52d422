from __future__ import annotations

import math

import numpy as np
import pytest

from sparsesnn import surrogate
from sparsesnn.errors import DescriptionError
from sparsesnn.surrogate import KINDS, Surrogate


def test_constructors_name_every_kind() -> None:
    made = {
        kind: getattr(surrogate, kind)() if kind == "straight_through" else getattr(surrogate, kind)(3.0)
        for kind in KINDS
    }
    assert {kind: s.kind for kind, s in made.items()} == {kind: kind for kind in KINDS}
    assert all(s.slope == (1.0 if kind == "straight_through" else 3.0) for kind, s in made.items())
    assert Surrogate() == surrogate.fast_sigmoid(slope=10)


@pytest.mark.parametrize(
    ("made", "at_0", "at_half"),
    [
        (surrogate.fast_sigmoid(4.0), 1.0, 1 / 9),
        (surrogate.straight_through(), 1.0, 1.0),
        (surrogate.sigmoid(2.0), 0.5, 2 * math.e / (1 + math.e) ** 2),
        (surrogate.atan(2.0), 1.0, 1 / (1 + (math.pi / 2) ** 2)),
        (surrogate.triangle(1.5), 1.0, 0.25),
        (surrogate.boxcar(2.0), 2.0, 0.0),
        (surrogate.exponential(2.0), 1.0, math.exp(-1)),
    ],
)
def test_values_by_hand(made: Surrogate, at_0: float, at_half: float) -> None:
    got = made.derivative(np.array([0.0, 0.5, -0.5]))
    np.testing.assert_allclose(got, [at_0, at_half, at_half], rtol=1e-12)


@pytest.mark.parametrize("kind", ["sigmoid", "boxcar"])
def test_area_is_one(kind: str) -> None:
    x = np.linspace(-20, 20, 400_001)
    assert Surrogate(kind, 3.0).derivative(x).sum() * (x[1] - x[0]) == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_far_away_is_finite(kind: str) -> None:
    for dtype in (np.float32, np.float64):
        far = Surrogate(kind, 25.0).derivative(np.array([-1e30, -1e4, 1e4, 1e30], dtype).astype(np.float64))
        assert np.isfinite(far).all()
        assert (far >= 0).all()


def test_errors() -> None:
    with pytest.raises(DescriptionError, match="kind is 'relu'; allowed: fast_sigmoid"):
        Surrogate("relu")
    for slope in (0.0, -1.0, math.nan, math.inf, "steep", True):
        with pytest.raises(DescriptionError, match="slope is .*allowed: (numbers, )?above 0"):
            Surrogate("atan", slope)  # type: ignore[arg-type]
