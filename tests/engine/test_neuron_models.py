"""What descriptions declare of their neuron models, and what the engine has built in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsesnn import _core
from sparsesnn.engines.cpu import layer as engine
from sparsesnn.engines.module import Layer
from sparsesnn.errors import DescriptionError, ShapeError
from sparsesnn.layers import LI, LIF, AdLIF, CubaLIF, Population, Resonator
from sparsesnn.surrogate import KINDS

DESCRIBED = [
    LI(3),
    *(model(3, reset=reset) for model in (LIF, CubaLIF) for reset in ("subtract", "zero", "none")),
    *(model(3, reset="subtract", reset_decays=True) for model in (LIF, CubaLIF)),
    *(AdLIF(3, order=order, reset=reset) for order in ("symplectic", "explicit") for reset in ("zero", "subtract")),
    AdLIF(3, order="sparch"),
    Resonator(3),
]


@pytest.mark.parametrize("population", DESCRIBED, ids=lambda p: p.kernel)
def test_engine_and_description_agree(population: LI | Population) -> None:
    states, parameters, n_constants = _core.neuron_models()[population.kernel]
    assert states == population.states
    assert parameters == tuple(p.name for p in population.parameters)
    assert n_constants == len(population.constants)


def test_every_model_has_a_description() -> None:
    assert sorted(_core.neuron_models()) == sorted(p.kernel for p in DESCRIBED)


def test_every_surrogate_is_built_in() -> None:
    assert sorted(_core.surrogates()) == sorted(KINDS)


def spec(**change: Any) -> _core.LayerSpec:
    arguments = engine.spec_arguments(Layer(CubaLIF(17), n_pre=5), save=True, learnt=())
    return _core.LayerSpec(**{**arguments, **change})


def test_unknown_names() -> None:
    with pytest.raises(DescriptionError, match=r"model is 'lif.half'; allowed: lif.subtract, .*, li"):
        spec(model="lif.half")
    with pytest.raises(DescriptionError, match=r"surrogate is 'step'; allowed: fast_sigmoid, .*, boxcar"):
        spec(surrogate="step")


def test_wrong_numbers_of_constants_and_learns() -> None:
    with pytest.raises(ShapeError, match=r"constants has 2 values; model 'cuba_lif.subtract' needs 1"):
        spec(constants=[1.0, 2.0])
    with pytest.raises(ShapeError, match=r"learns has 2 values; model 'cuba_lif.subtract' needs 3"):
        spec(learns=[True, False])


def test_wrong_numbers_of_parameters_and_states() -> None:
    n = np.ones(17, np.float32)
    lists = _core.Lists(np.zeros(2, np.int64), np.empty(0, np.uint16), np.zeros(1, np.int32))
    source = _core.Source(lists, 5, 0, np.zeros((5, 17), np.float32))

    def call(parameters: list[Any], state: list[Any] | None) -> None:
        _core.forward(
            _core.LayerCall(
                spec(), n_steps=1, n_samples=1, sources=[source], parameters=parameters, grad_threshold=n, state=state
            )
        )

    with pytest.raises(ShapeError, match=r"2 parameters are given; .* has 3: beta, alpha, threshold"):
        call([n, n], None)
    with pytest.raises(ShapeError, match=r"1 states are given; .* has 2: v, i_syn"):
        call([n, n, n], [n[None]])
    with pytest.raises(ShapeError, match=r"state i_syn has shape \[2, 17\]; give \[1, 17\]"):
        call([n, n, n], [n[None], np.ones((2, 17), np.float32)])
    call([n, n, n], [n[None], n[None]])
