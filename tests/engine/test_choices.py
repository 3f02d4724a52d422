"""The engine's choices of speed change no bit; unknown ones and values out of range are refused."""

from __future__ import annotations

import json
import math

import pytest
import torch

from sparsesnn import _core
from sparsesnn.bench.tune import TRIED, choices
from sparsesnn.cli import main
from sparsesnn.engines.module import Model
from sparsesnn.layers import LI, LIF, CubaLIF, Input
from sparsesnn.network import Connection, Network
from sparsesnn.spikes import SpikeBatch

T, B, M = 37, 19, 71  # several chunks of every number of rows below 703
STANDARD = {name: standard for name, _, standard, _ in _core.choices()}
VALUES = {
    **TRIED,
    "backward_rows": (8, 100, 256, *TRIED["backward_rows"]),
    "columns_kb": (0, *TRIED["columns_kb"]),
    "dense_share": (0, 101),
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
def test_no_choice_changes_a_bit(loop: bool, graded: bool, grad_threshold: float) -> None:
    assert set(VALUES) == set(STANDARD), "a choice that bench tune does not know"
    net = network(loop, grad_threshold)
    with choices(**STANDARD):
        wanted = step(net, graded)
    for name, values in VALUES.items():
        for value in values:
            with choices(**{**STANDARD, name: value}):
                found = step(net, graded)
            assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True)), f"{name} = {value}"
    with choices(**{**STANDARD, "backward_rows": 600}):  # chunks of two groups of samples, not one
        assert all(torch.equal(x, y) for x, y in zip(step(net, graded), wanted, strict=True))


def test_refused() -> None:
    with pytest.raises(ValueError, match=r"no choice 'rows'; allowed: backward_rows, "):
        _core.set_choice("rows", 8)
    with pytest.raises(
        ValueError, match="backward_rows is '7'; give a whole number from 8 to 1048576 .2048 without it"
    ):
        _core.set_choice("backward_rows", 7)


def test_bench_tune(capsys: pytest.CaptureFixture[str]) -> None:
    before = _core.choices()
    small = ["--net", "30-20-4", "--steps", "9", "--batch", "3", "--repeats", "1", "--delays", "0,2"]
    assert main(["bench", "tune", *small]) == 0
    text = capsys.readouterr().out
    assert all(f"{name} {value}" in text for name, values in TRIED.items() for value in values)
    assert main(["bench", "tune", *small, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["workload"]["delays"] == [0, 2]
    assert all(line.startswith("export SPARSESNN_") for line in found["exports"])
    assert _core.choices() == before
