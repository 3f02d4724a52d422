"""Resonator on every path: reference, autograd, dense modes and engine give one another's numbers and gradients."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from sparsesnn import reference
from sparsesnn.engines.module import Model
from sparsesnn.errors import DescriptionError
from sparsesnn.layers import LI, Input, Resonator
from sparsesnn.network import Connection, Network, parse_net
from sparsesnn.reference import Parameters
from sparsesnn.spikes import SpikeBatch
from sparsesnn.surrogate import Surrogate

LEARNS = {f"learn_{name}": True for name in ("beta", "turn", "threshold")}


def neurons(n: int, **more: Any) -> Resonator:
    even = np.linspace(0, 1, n)
    return Resonator(
        n,
        beta=tuple(0.8 + 0.19 * even),
        turn=tuple(0.9 * even[::-1]),
        threshold=tuple(0.8 + 0.4 * even),
        bias=True,
        surrogate=Surrogate("fast_sigmoid", 3.0),
        **more,
    )


def model_of(network: Network, seed: int, **options: Any) -> Model:
    model = Model(network, seed=seed, **options)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "->" in name:
                parameter.mul_(2)
    return model


def spikes_of(seed: int, n_steps: int = 13) -> SpikeBatch:
    generator = torch.Generator().manual_seed(seed)
    return SpikeBatch.from_dense((torch.rand(n_steps, 3, 19, generator=generator) < 0.3).float())


def run(model: Model, spikes: SpikeBatch) -> dict[str, torch.Tensor]:
    """Spikes, and every gradient of a loss that spikes and potentials enter."""
    output = model(spikes)
    assert output.potentials is not None
    found = {}
    generator = torch.Generator().manual_seed(1)
    loss = (output.potentials * torch.randn(output.potentials.shape, generator=generator)).sum()
    for name, lists in output.spikes.items():
        dense = lists.to_dense() if isinstance(lists, SpikeBatch) else lists
        loss = loss + (dense * torch.randn(dense.shape, generator=generator)).sum()
        found[name] = dense.detach()
    loss.backward()
    return {**found, **{name: p.grad for name, p in model.named_parameters() if p.grad is not None}}


@pytest.mark.parametrize("detach", [True, False])
def test_gradients_of_every_path_are_those_of_autograd(detach: bool) -> None:
    for case, (recurrent, delay, n) in enumerate(itertools.product([False, True], [0, 1], [37, 70])):
        more = {"detach_reset": detach, "grad_threshold": -math.inf, **LEARNS}
        network = Network.chain(
            Input(19), neurons(n, recurrent=recurrent, **more), neurons(21, **more), LI(5), delay=delay
        )
        spikes = spikes_of(case)
        want = run(model_of(network, case, backend="dense", dense_mode="hoist"), spikes)
        assert 0.02 < float(want["hidden1"].mean()) < 0.6
        for options in ({"backend": "cpu"}, *({"backend": "dense", "dense_mode": m} for m in ("step", "fused"))):
            got = run(model_of(network, case, **options), spikes)
            assert got.keys() == want.keys()
            for name, x in want.items():
                assert float((got[name] - x).norm()) <= 1e-5 * float(x.norm()), (options, case, name)


@pytest.mark.parametrize(
    "rules", [{"grad_threshold": 0.2}, {"capacity": 7}, {"capacity": 9, "activity": "fixed"}], ids=str
)
@pytest.mark.parametrize("detach", [True, False])
def test_lists_and_gradients_are_those_of_the_reference(detach: bool, rules: dict[str, Any]) -> None:
    population = neurons(33, recurrent=True, detach_reset=detach, **LEARNS, **{"grad_threshold": 0.2, **rules})
    network = Network({"a": Input(19), "b": population, "c": LI(5)}, (Connection("a", "b", 2), Connection("b", "c")))
    model, spikes = model_of(network, 0), spikes_of(0)
    output = model(spikes)
    layer = model.layers["b"]
    parameters = {name: Parameters.from_layer(one, np.float32) for name, one in model.layers.items()}
    step = 0 if layer.training_steps is None else int(layer.training_steps)
    records = reference.network_forward(network, parameters, spikes.to_dense().numpy(), seed=0, training_step=step)
    want = reference.to_lists(records["b"])
    lists = output.spikes["b"]
    assert isinstance(lists, SpikeBatch)
    np.testing.assert_array_equal(lists.ids.numpy(), want.ids)
    np.testing.assert_array_equal(lists.offsets.numpy(), want.offsets)
    d_out = np.random.default_rng(0).normal(size=(13, 3, 5)).astype(np.float32)
    assert output.potentials is not None
    (output.potentials * torch.from_numpy(d_out)).sum().backward()
    gradients = reference.network_backward(network, parameters, records, {"c": d_out})["b"]
    pairs = [(layer.loop_weight, gradients.loops[0]), (layer.sender_matrices[0], gradients.weights[0])]
    pairs += [(getattr(layer, name), value) for name, value in gradients.neuron.items()]
    for k, (parameter, expected) in enumerate(pairs):
        error = float(np.linalg.norm(parameter.grad.numpy() - expected))  # type: ignore[union-attr]
        assert error <= 2e-5 * float(np.linalg.norm(expected)), k


def test_a_turn_resonates() -> None:
    """A quarter turn a step without decay: input at every fourth step adds up, at every second step it cancels."""
    model = Model(Network.chain(Input(1), Resonator(1, beta=1.0, turn=1.0, threshold=9.0), LI(1)))
    found = {}
    with torch.no_grad():
        model.layers["hidden"].sender_matrices[0].fill_(1.0)
        for period in (4, 2):
            pulses = torch.zeros(17, 1, 1)
            pulses[::period] = 1
            found[period] = float(model(SpikeBatch.from_dense(pulses)).state["hidden"].v)
    assert found == pytest.approx({4: 5.0, 2: 1.0}, abs=1e-5)


@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_chunks_equal_one_call(backend: str) -> None:
    model = model_of(Network.chain(Input(19), neurons(40, recurrent=True), LI(5)), 0, backend=backend)
    with torch.no_grad():
        whole = model(spikes_of(2))
        first = model(spikes_of(2).steps(0, 5))
        rest = model(spikes_of(2).steps(5, 13), first.state)
    assert torch.equal(rest.state["hidden"].y, whole.state["hidden"].y)
    assert torch.equal(rest.potentials, whole.potentials[5:])


def test_description() -> None:
    network = parse_net("19-8o-5", turn=0.25, learn_turn=True)
    assert network.populations["hidden"] == Resonator(8, turn=0.25, learn_turn=True)
    assert Network.from_json(network.to_json()) == network
    with pytest.raises(DescriptionError, match="Resonator: reset is 'zero' .*; allowed: 'subtract'"):
        Resonator(3, reset="zero")
    with pytest.raises(DescriptionError, match="turn is 1.5; allowed: 0 to 1"):
        Resonator(3, turn=1.5)
