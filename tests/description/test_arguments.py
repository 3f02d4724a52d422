"""A misspelt argument is refused with the nearest name and all allowed ones."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest
import torch

import sparsesnn as ss
from sparsesnn.arguments import named
from sparsesnn.loss import cross_entropy


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (
            ss.LIF,
            {"n": 10, "bta": 0.9},
            "LIF: unknown argument 'bta'; did you mean 'beta'. allowed: n, threshold, .*beta",
        ),
        (ss.CubaLIF, {"n": 10, "alfa": 0.9}, "CubaLIF: .*'alfa'; did you mean 'alpha'"),
        (ss.LI, {"n": 3, "threshold": 1.0}, "LI: threshold is 1.0, but LI never fires"),
        (ss.Input, {"shap": (3, 3, 1)}, "Input: .*did you mean 'shape'"),
        (ss.Conv2d, {"channels": 3, "kernel": 3, "strides": 2}, "Conv2d: .*did you mean 'stride'"),
        (
            ss.Connection,
            {"pre": "a", "post": "b", "dely": 1},
            "Connection: .*'dely'; did you mean 'delay'. allowed: pre",
        ),
        (
            ss.Model,
            {"network": ss.parse_net("5-4-3"), "sed": 1},
            "Model: .*did you mean 'seed'. allowed: network, backend",
        ),
        (ss.Layer, {"population": ss.LIF(3), "n_pre": 5, "back": "cpu"}, "Layer: .*did you mean 'backend'"),
        (ss.SpikeBatch.from_dense, {"dens": torch.zeros(1, 1, 1)}, "SpikeBatch.from_dense: .*allowed: spikes"),
        (ss.EventSet.from_events, {"dt_ms": 5}, "EventSet.from_events: .*'dt_ms'; did you mean 'dt_us'"),
        (ss.atan, {"slope": 2.0}, "atan: unknown argument 'slope'; allowed: alpha"),
        (ss.encode.rate, {"n_step": 3}, "rate: .*did you mean 'n_steps'. allowed: x, n_steps, generator"),
        (cross_entropy, {"decode": "max"}, "cross_entropy: .*did you mean 'decoding'"),
        (ss.LIF(5).__class__, {"n": 5, "recurent": True}, "did you mean 'recurrent'"),
    ],
)
def test_misspelt(call: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call(**arguments)


def test_nothing_else_changes() -> None:
    assert list(inspect.signature(ss.LIF).parameters)[:2] == ["n", "threshold"]
    assert pickle.loads(pickle.dumps(ss.LIF(7, beta=0.5))) == ss.LIF(7, beta=0.5)
    assert "tau" in inspect.signature(ss.LIF.from_ms).parameters

    @named
    def takes_all(a: int, **others: int) -> int:
        return a + sum(others.values())

    assert takes_all(1, b=2) == 3


def test_time_constants_in_seconds() -> None:
    with pytest.warns(
        UserWarning, match=r"LIF.from_ms: tau is 0.02 ms, but a step is 5 ms long: .*multiply seconds by 1e3"
    ):
        ss.LIF.from_ms(3, tau=0.02, dt=5)
    ss.LIF.from_ms(3, tau=0.5, dt=5)


def test_what_a_model_is_given_by_mistake() -> None:
    model, spikes = ss.Model(ss.parse_net("5-4-3")), ss.SpikeBatch.from_dense(torch.ones(7, 2, 5))
    with pytest.raises(
        ss.errors.ShapeError, match="input is an ndarray; give a SpikeBatch, such as SpikeBatch.from_dense"
    ):
        model(spikes.to_dense().numpy())  # type: ignore[arg-type]
    output = model(spikes)
    with pytest.raises(ss.errors.ShapeError, match="state is Output; give .*output.state"):
        model(spikes, output)  # type: ignore[arg-type]
    labels: Any = ["0", "1"]
    with pytest.raises(
        ss.errors.DescriptionError, match=r"backend is 'cuda'; allowed: .*; cuda is a device: .*model.to\('cuda'\)"
    ):
        ss.Model(ss.parse_net("5-3"), backend="cuda")
    with pytest.raises(ss.errors.ShapeError, match="labels: got a list; give a tensor, or an array of numbers"):
        cross_entropy(output, labels, "max", 3)
    with pytest.raises(
        ss.errors.DescriptionError, match=r"Adam: params is a Model; give the tensors: model.parameters\(\)"
    ):
        ss.Adam(model)  # type: ignore[arg-type]
    lr: Any = "1e-3"
    with pytest.raises(ss.errors.DescriptionError, match=r"Adam: lr='1e-3', .*numbers"):
        ss.Adam(model.parameters(), lr=lr)
