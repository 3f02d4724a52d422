"""A chain of layers is the network of the same layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import sparsesnn as ss
from sparsesnn.errors import DescriptionError


def chain(backend: str) -> ss.Sequential:
    generator = torch.Generator().manual_seed(1)

    def layer(population: Any, n_pre: int) -> ss.Layer:
        return ss.Layer(population, n_pre, backend=backend, generator=generator)

    return ss.Sequential(layer(ss.LIF(11, recurrent=True), 17), layer(ss.CubaLIF(7), 11), layer(ss.LI(3), 7))


@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_is_the_network_of_its_layers(backend: str) -> None:
    made = chain(backend)
    with torch.no_grad():
        for p in made.parameters():
            p.mul_(4)
    network = ss.Network.chain(ss.Input(17), ss.LIF(11, recurrent=True), ss.CubaLIF(7), ss.LI(3))
    model = ss.Model(network, backend=backend)
    for mine, theirs in zip(model.layers.values(), made, strict=True):
        for w, v in zip(mine.weights, theirs.weights, strict=True):
            w.data.copy_(v.data)
    spikes = ss.SpikeBatch.from_dense((torch.rand(13, 3, 17) < 0.3).float())
    x = spikes if backend == "cpu" else spikes.to_dense()
    out, states = made(x)
    assert torch.equal(out, model(spikes).potentials)
    assert len(states) == len(made) == 3
    first, states = made(spikes.steps(0, 5) if backend == "cpu" else x[:5])
    second, _ = made(spikes.steps(5, 13) if backend == "cpu" else x[5:], states)
    torch.testing.assert_close(torch.cat([first, second]), out)
    out.sum().backward()
    assert all(p.grad is not None for p in made.parameters())


def test_other_modules_stand_in_it() -> None:
    class Counts(torch.nn.Module):
        def forward(self, spikes: ss.SpikeBatch) -> torch.Tensor:
            return spikes.counts()

    made = ss.Sequential(ss.Layer(ss.LIF(11), 17), Counts(), torch.nn.Linear(11, 3))
    out, states = made(ss.SpikeBatch.from_dense(torch.ones(5, 2, 17)))
    assert out.shape == (2, 3)
    assert [state is None for state in states] == [False, True, True]


@pytest.mark.parametrize(
    ("modules", "facts"),
    [
        (lambda: [ss.Layer(ss.LIF(11), 17), ss.Layer(ss.LI(3), 12)], "layer 0 has 11 neurons.*layer 1 reads 12"),
        (lambda: [ss.Layer(ss.LI(3), 17), ss.Layer(ss.LIF(3), 3)], "layer 0 is an LI"),
        (lambda: [ss.Layer(ss.LIF(3), (17, 4))], "layer 0 has 2 sources"),
        (lambda: [ss.LIF(3)], r"module 0 is LIF\(n=3, …\), a description; wrap it in a Layer"),
    ],
)
def test_refused(modules: Any, facts: str) -> None:
    with pytest.raises(DescriptionError, match=facts):
        ss.Sequential(*modules())


def test_states_of_another_chain_are_refused() -> None:
    with pytest.raises(DescriptionError, match="2 states for 3 modules"):
        chain("cpu")(ss.SpikeBatch.from_dense(torch.ones(5, 2, 17)), [None, None])
