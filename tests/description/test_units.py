"""Time constants in milliseconds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import sparsesnn as ss
from sparsesnn.errors import DescriptionError
from sparsesnn.layers.units import tau_of


def test_populations_from_milliseconds() -> None:
    assert ss.LIF.from_ms(7, tau=20, dt=5, recurrent=True) == ss.LIF(7, beta=math.exp(-0.25), recurrent=True)
    assert ss.LI.from_ms(3, tau=math.inf, dt=2.5) == ss.LI(3, beta=1.0)
    cuba = ss.CubaLIF.from_ms(3, tau=(5, 10, 20.0), tau_syn=np.float32(2), dt=torch.tensor(1), bias=True)
    assert cuba == ss.CubaLIF(
        3, beta=(math.exp(-0.2), math.exp(-0.1), math.exp(-0.05)), alpha=math.exp(-0.5), bias=True
    )
    assert ss.LIF.from_ms(2, tau=torch.tensor([10.0, 20.0]), dt=10).beta == (math.exp(-1), math.exp(-0.5))


@pytest.mark.parametrize("tau", [0.02, 0.5, 20.0, 1e4])
def test_back_again(tau: float) -> None:
    assert tau_of(float(ss.LIF.from_ms(1, tau=tau, dt=0.3).beta), 0.3) == pytest.approx(tau, rel=1e-9)  # type: ignore[arg-type]


def test_bounds_have_time_constants() -> None:
    assert (tau_of(0.0, 5), tau_of(1.0, 5)) == (0, math.inf)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tau": 0, "dt": 1}, "LIF.from_ms: tau is 0; give a time constant in milliseconds, above 0"),
        ({"tau": [1, -2.0, 3], "dt": 1}, r"LIF.from_ms: tau is -2\.0"),
        ({"tau": math.nan, "dt": 1}, "LIF.from_ms: tau is nan"),
        ({"tau": "20", "dt": 1}, "LIF.from_ms: tau is '20'"),
        ({"tau": 20, "dt": 0}, "LIF.from_ms: dt is 0; give the width of a step in milliseconds"),
        ({"tau": 20, "dt": math.inf}, "LIF.from_ms: dt is inf"),
        ({"tau": 20, "dt": 1, "beta": 0.9}, "LIF.from_ms: got tau and beta"),
        ({"tau": 20, "dt": 1, "tau_syn": 5}, "LIF.from_ms: tau_syn is 5, but LIF has no alpha"),
        ({"tau": [20, 30], "dt": 1}, r"LIF: beta has 2 values; give one number, or one per neuron \(3\)"),
    ],
)
def test_times_that_have_no_meaning(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        ss.LIF.from_ms(3, **arguments)
