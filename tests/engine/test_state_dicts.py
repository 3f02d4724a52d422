"""The message for a state that does not fit names the tensor and the shape that it needs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import sparsesnn as ss
from sparsesnn.errors import CheckpointError

WEIGHT = "layers.hidden.input->hidden"


def changed(state: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**{k: v for k, v in state.items() if k != changes.get("without")}, **changes.get("more", {})}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"without": WEIGHT}, f"this Model: '{WEIGHT}' is missing. Give .*same network.*or strict=False"),
        (
            {"without": WEIGHT, "more": {"layers.hiden.input->hiden": torch.zeros(5, 4)}},
            f"'{WEIGHT}' is missing, 'layers.hiden.input->hiden' is unknown: rename it. Give",
        ),
        ({"more": {"fc1.weight": torch.zeros(3)}}, "'fc1.weight' is unknown"),
        ({"more": {WEIGHT: torch.zeros(7, 3)}}, rf"'{WEIGHT}' has shape \[7, 3\], needs \[5, 4\]. Give"),
        (
            {"more": {WEIGHT: torch.zeros(4, 5)}},
            r"\[4, 5\], needs \[5, 4\], a row per sending neuron: give its transpose",
        ),
    ],
)
def test_misfits(changes: dict[str, Any], message: str) -> None:
    model = ss.Model(ss.parse_net("5-4-3"))
    with pytest.raises(CheckpointError, match=message):
        model.load_state_dict(changed(model.state_dict(), **changes))
    with pytest.raises(RuntimeError, match="load_state_dict"):  # what PyTorch raises
        model.load_state_dict(changed(model.state_dict(), **changes))


def test_not_strict() -> None:
    model = ss.Model(ss.parse_net("5-4-3"), seed=1)
    found = model.load_state_dict({"other": torch.zeros(1), WEIGHT: torch.ones(5, 4)}, strict=False)
    assert found.unexpected_keys == ["other"]
    assert model.layers["hidden"].weights[0].eq(1).all()  # type: ignore[index]
    with pytest.raises(
        CheckpointError, match=r"needs \[5, 4\]. Give the state of a model of the same network .*$"
    ) as refused:
        model.load_state_dict({WEIGHT: torch.ones(5, 3)}, strict=False)
    assert "missing" not in str(refused.value)


def test_one_layer() -> None:
    layer = ss.Layer(ss.LIF(4, capacity=3), n_pre=5)
    with pytest.raises(CheckpointError, match="does not fit this Layer: 'beta' is missing"):
        layer.load_state_dict({k: v for k, v in layer.state_dict().items() if k != "beta"})
