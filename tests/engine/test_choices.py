"""The limits from which on the engine takes another path change no bit; unknown ones and values out of range are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sparsesnn import _core
from sparsesnn.engines.module import Model
from sparsesnn.layers import LI, LIF, CubaLIF, Input
from sparsesnn.network import Connection, Network
from sparsesnn.spikes import SpikeBatch

T, B, M = 37, 19, 71  # several chunks of every number of rows below 703
# 600: chunks of two groups of samples, not one
VALUES = {
    "backward_rows": (0, 8, 100, 256, 512, 600, 1024, 4096),
    "columns_kb": (0, 128, 2048),
    "dense_share": (0, 30, 60, 101),
}


def network(loop: bool, grad_threshold: float) -> Network:
    """Layers that no tile width divides, with copies of a connection, and with a loop or not."""
    a = LIF(83, recurrent=loop, grad_threshold=grad_threshold, bias=True)
    b = CubaLIF(131, grad_threshold=grad_threshold)
    return Network(
        {"input": Input(M), "a": a, "b": b, "out": LI(5)},
        (
            *(Connection("input", "a", d) for d in (0, 3)),
            *(Connection("a", "b", d) for d in (0, 1, 9)),
            Connection("b", "out"),
            Connection("a", "out", 2),
        ),
    )


def step(net: Network, graded: bool) -> list[torch.Tensor]:
    """Spikes, potentials and all gradients of one training step."""
    generator = torch.Generator().manual_seed(3)
    fired = (torch.rand(T, B, M, generator=generator) < 0.2).float()
    values = torch.randn(T, B, M, generator=generator)
    spikes = SpikeBatch.from_dense(fired * values if graded else fired, graded=graded)
    model = Model(net, seed=2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "->" in name:
                parameter.mul_(3)
    output = model(spikes)
    (output.potentials**2).sum().backward()
    lists = [x for of in output.spikes.values() for x in (of.ids, of.n_spikes, of.offsets)]
    return [*lists, output.potentials.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("grad_threshold", [0.9, -math.inf], ids=["some listed", "all listed"])
@pytest.mark.parametrize("graded", [False, True], ids=["ones", "graded"])
@pytest.mark.parametrize("loop", [False, True], ids=["forward", "recurrent"])
def test_no_choice_changes_a_bit(loop: bool, graded: bool, grad_threshold: float, choices: Any) -> None:
    net = network(loop, grad_threshold)
    wanted = step(net, graded)
    for name, values in VALUES.items():
        for value in values:
            with choices(**{name: value}):
                found = step(net, graded)
            assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True)), f"{name} = {value}"


@pytest.mark.parametrize(("name", "value"), [("rows", 8), ("backward_rows", -1), ("dense_share", 1 << 21)])
def test_refused(name: str, value: int) -> None:
    with pytest.raises(
        ValueError, match=f"{name} = {value}; allowed: backward_rows, columns_kb or dense_share, from 0"
    ):
        _core.set_choice(name, value)
