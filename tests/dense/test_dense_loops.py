"""Recurrent connections with delays, several to a population: the dense modes and the reference agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sparsesnn import reference
from sparsesnn.engines.module import Model
from sparsesnn.errors import DescriptionError, ShapeError
from sparsesnn.layers import LI, LIF, AdLIF, CubaLIF, Input, Neuron, Resonator
from sparsesnn.network import Connection, Network
from sparsesnn.reference import Parameters
from sparsesnn.spikes import SpikeBatch

DELAYS = [(1, 5), (3,), (2, 7, 1), (40, 2)]
MODELS: list[tuple[type[Neuron], dict[str, Any]]] = [
    (LIF, {"grad_threshold": 0.2}),
    (LIF, {"reset": "zero", "detach_reset": False}),
    (CubaLIF, {"learn_alpha": True}),
    (AdLIF, {"q": 5.0, "gain": 5.0, "learn_a": True}),
    (Resonator, {"learn_turn": True, "detach_reset": False}),
]


def model_of(delays: tuple[int, ...], population: Neuron, mode: str) -> Model:
    loops = tuple(Connection("b", "b", delay) for delay in delays)
    connections = (Connection("a", "b", 1), *loops, Connection("b", "c"))
    network = Network({"a": Input(19), "b": population, "c": LI(5)}, connections)
    model = Model(network, seed=0, backend="dense", dense_mode=mode).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "->" in name:
                parameter.mul_(4)
    return model


def spikes_of(seed: int) -> SpikeBatch:
    generator = torch.Generator().manual_seed(seed)
    return SpikeBatch.from_dense((torch.rand(13, 3, 19, generator=generator) < 0.3).float())


@pytest.mark.parametrize("mode", ["step", "hoist", "fused"])
@pytest.mark.parametrize("delays", DELAYS, ids=str)
@pytest.mark.parametrize(("kind", "more"), MODELS, ids=str)
def test_spikes_and_gradients_are_those_of_the_reference(
    kind: type[Neuron], more: dict[str, Any], delays: tuple[int, ...], mode: str
) -> None:
    model = model_of(delays, kind(37, learn_beta=True, bias=True, **more), mode)
    output = model(spikes_of(1))
    parameters = {name: Parameters.from_layer(layer) for name, layer in model.layers.items()}
    records = reference.network_forward(model.network, parameters, spikes_of(1).to_dense().double().numpy())
    spikes = output.spikes["b"]
    assert isinstance(spikes, torch.Tensor)
    np.testing.assert_array_equal(spikes.detach().numpy(), records["b"].sent)
    assert 0.02 < records["b"].sent.mean() < 0.6
    rng = np.random.default_rng(0)
    d_out = {"b": rng.normal(size=(13, 3, 37)), "c": rng.normal(size=(13, 3, 5))}
    assert output.potentials is not None
    loss = (spikes * torch.from_numpy(d_out["b"])).sum() + (output.potentials * torch.from_numpy(d_out["c"])).sum()
    loss.backward()
    want, layer = reference.network_backward(model.network, parameters, records, d_out)["b"], model.layers["b"]
    pairs = [*zip(layer.loop_matrices, want.loops, strict=True), (layer.sender_matrices[0], want.weights[0])]  # type: ignore[arg-type]
    pairs += [(layer.bias, want.bias), *((getattr(layer, name), d) for name, d in want.neuron.items())]
    for k, (parameter, expected) in enumerate(pairs):
        if parameter.grad is not None:
            error = float(np.linalg.norm(parameter.grad.numpy() - expected))
            assert error <= 1e-9 * max(1e-6, float(np.linalg.norm(expected))), k


@pytest.mark.parametrize("delays", DELAYS, ids=str)
def test_chunks_equal_one_call(delays: tuple[int, ...]) -> None:
    model, spikes = model_of(delays, LIF(40), "auto"), spikes_of(3)
    state, parts = None, []
    with torch.no_grad():
        whole = model(spikes).potentials
        for first, last in ((0, 4), (4, 6), (6, 13)):
            output = model(spikes.steps(first, last), state)
            state = output.state
            parts.append(output.potentials)
    assert torch.equal(torch.cat(parts), whole)  # type: ignore[arg-type]


def test_the_reference_goes_on_from_a_state() -> None:
    model = model_of((2, 5), LIF(40), "auto")
    p = Parameters.from_layer(model.layers["b"])
    x = spikes_of(3).to_dense().double().numpy()
    whole = reference.layer_forward(p, [x])
    first = reference.layer_forward(p, [x[:4]])
    rest = reference.layer_forward(p, [x[3:]], first.state())  # the connection has a delay of 1
    np.testing.assert_array_equal(np.concatenate([first.sent, rest.sent]), whole.sent)


def test_what_is_refused() -> None:
    model = model_of((1, 5), LIF(40), "auto")
    state = model(spikes_of(3)).state
    state["b"].history = state["b"].history[1:]
    with pytest.raises(ShapeError, match="4 steps; this layer receives its own spikes 5 steps later"):
        model(spikes_of(3), state)
    with pytest.raises(DescriptionError, match=r"b->b, b->b@5: .* delays \[1, 5\]; allowed here: one, with delay 1"):
        _ = model.layers["b"].loop_weight
