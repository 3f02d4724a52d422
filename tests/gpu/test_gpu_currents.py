"""Currents as the input of networks on the emulated device: the bits of the engine `cpu`."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsesnn import Model, parse_net
from sparsesnn.layers import LI, LIF, Input
from sparsesnn.loss import CrossEntropy, cross_entropy
from sparsesnn.network import Connection, Network

pytestmark = pytest.mark.usefixtures("emulated")

T, B = 6, 11
NETS = {
    "plain": parse_net("currents-70-40-10", grad_threshold=0.3),
    "recurrent": parse_net("currents-33r-20r-10", grad_threshold=0.3, bias=True),
    "learnt": parse_net("currents-19-10", learn_beta=True, learn_threshold=True, detach_reset=False),
    "spikes": parse_net("currents-37-10s", reset="zero", detach_reset=False, grad_threshold=-math.inf),
    "readout": parse_net("currents-70"),
    "shared": Network(
        {"input": Input(20, currents=True), **{name: LIF(20, grad_threshold=0.0) for name in "abc"}, "output": LI(5)},
        [
            *(Connection("input", name) for name in "abc"),
            Connection("a", "b"),
            Connection("b", "c", delay=1),
            *(Connection(name, "output") for name in "abc"),
        ],
    ),
}


def currents(n: int, *shape: int) -> Tensor:
    return 1.5 * torch.randn(*shape, n, generator=torch.Generator().manual_seed(n))


def model_of(network: Network, backend: str) -> Model:
    model = Model(network, backend=backend, seed=3)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "->" in name:
                p.mul_(3)
    return model


def result(model: Model, x: Tensor, **steps: Any) -> dict[str, Tensor]:
    """The lists and potentials of a pass, and all gradients, by name."""
    output = model(x, **steps)
    loss = sum(lists.values.square().sum() for lists in output.spikes.values() if lists.values is not None)
    found = {
        f"{name}, {what}": getattr(lists, what) for name, lists in output.spikes.items() for what in ("offsets", "ids")
    }
    if output.potentials is not None:
        loss = loss + output.potentials.square().mean()
        found["potentials"] = output.potentials
    if isinstance(loss, Tensor) and loss.requires_grad:
        loss.backward()
    return found | {name: p.grad for name, p in [("x", x), *model.named_parameters()] if p.grad is not None}


def check_same(expected: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    assert expected.keys() == found.keys()
    assert [name for name, x in expected.items() if not torch.equal(x, found[name])] == []


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_lists_and_gradients(name: str, learns: bool, constant: bool) -> None:
    """Without a gradient of the currents, a first population that learns nothing lists no near-spikes."""
    n = NETS[name].populations["input"].n
    steps = {"n_steps": T} if constant else {}
    results = []
    for backend in ("cpu", "gpu"):
        x = currents(n, B) if constant else currents(n, T, B)
        results.append(result(model_of(NETS[name], backend), x.requires_grad_(learns), **steps))
    check_same(*results)
    assert ("x" in results[0]) == learns
    assert "potentials" in results[0] or int(results[0]["hidden, offsets"][-1])


@pytest.mark.parametrize("shape", [(1, 1), (3, 150)])
def test_other_shapes(shape: tuple[int, int]) -> None:
    """One step of one sample, and several waves."""
    network = parse_net("currents-18-7", grad_threshold=-math.inf)
    check_same(*(result(model_of(network, x), currents(18, *shape).requires_grad_()) for x in ("cpu", "gpu")))


@pytest.mark.parametrize("learns", [False, True])
def test_learn_trains_a_module_in_front(learns: bool) -> None:
    gradients = []
    for backend in ("cpu", "gpu"):
        torch.manual_seed(0)
        front, model = nn.Linear(5, 20).requires_grad_(learns), model_of(parse_net("currents-20-4"), backend)
        x, labels = torch.randn(T, B, 5), torch.randint(0, 4, (B,))
        loss, _ = model.learn(front(x), CrossEntropy(labels, "mean", 4))
        found = {
            name: p.grad for name, p in [*front.named_parameters(), *model.named_parameters()] if p.grad is not None
        }
        gradients.append({"loss": loss, **found})
    check_same(*gradients)
    assert ("weight" in gradients[0]) == learns


def test_other_types_get_their_own_gradient() -> None:
    results = [
        result(model_of(NETS["learnt"], x), currents(19, T, B).double().requires_grad_()) for x in ("cpu", "gpu")
    ]
    check_same(*results)
    assert results[1]["x"].dtype == torch.float64


@pytest.mark.parametrize("learns", [False, True])
def test_a_pass_in_between(learns: bool) -> None:
    """The first pass is repeated, with its own currents; they must not change until then."""
    results = []
    for backend in ("cpu", "gpu"):
        model = model_of(NETS["recurrent"], backend)
        x = currents(33, T, B).requires_grad_(learns)
        first = model(x)
        model(currents(33, 2, B))
        cross_entropy(first, torch.arange(B) % 10, "mean", 10).backward()
        results.append({name: p.grad for name, p in model.named_parameters()} | ({"x": x.grad} if learns else {}))
    check_same(*results)
    x = currents(33, T, B)
    first = model(x)
    x += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        first.potentials.sum().backward()
