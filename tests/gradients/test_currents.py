"""Currents as input, and the potentials of neurons that fire as an output: the reference against PyTorch's autograd, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sparsesnn.engines.module import Model
from sparsesnn.layers import LIF, AdLIF, CubaLIF, Input, Neuron, Resonator
from sparsesnn.network import Connection, Network
from sparsesnn.reference import Parameters, network_backward, network_forward

T, B, N = 9, 3, 6
LISTED: dict[str, Any] = {"grad_threshold": 0.2, "threshold": 0.8}
HIDDEN: dict[str, Neuron] = {
    "subtract": LIF(N, bias=True, **LISTED),
    "attached": LIF(N, detach_reset=False, learn_beta=True, learn_threshold=True, **LISTED),
    "zero": LIF(N, reset="zero", detach_reset=False, recurrent=True, **LISTED),
    "current-based": CubaLIF(N, learn_alpha=True, recurrent=True, bias=True, **LISTED),
    "adaptive": AdLIF(N, gain=8.0, learn_rho=True, **LISTED),
    "resonator": Resonator(N, **LISTED),
}


def network(hidden: Neuron, last: Neuron) -> Network:
    """Currents drive two populations; the second has spikes, some of them late, as input too."""
    second = LIF(N, recurrent=True, bias=True, **LISTED)
    populations = {"input": Input(N, currents=True), "a": hidden, "b": second, "out": last}
    connections = [("input", "a", 0), ("a", "b", 2), ("input", "b", 0), ("b", "out", 1), ("a", "out", 0)]
    return Network(populations, [Connection(*c) for c in connections])


def wanted(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def close(found: Any, expected: Any, what: str) -> None:
    scale = max(1e-12, float(np.abs(expected).max()))
    worst = float(np.abs(np.asarray(found) - expected).max()) / scale
    assert worst < 1e-9, f"{what}: worst relative difference {worst:g}"


@pytest.mark.parametrize("last", ["", "detached", "attached"])
@pytest.mark.parametrize("name", HIDDEN)
def test_the_reference_has_the_gradients_of_autograd(name: str, last: str) -> None:
    readout = LIF(4, detach_reset=last == "detached", **LISTED)
    net = network(HIDDEN[name], readout)
    model = Model(net, backend="dense", dense_mode="step", seed=2).double()
    currents = (1.3 * wanted(T, B, N)).requires_grad_()
    output = model(currents, potentials=True)
    assert output.potentials is not None
    of_potentials, of_spikes = wanted(T, B, 4), wanted(B, T, 4)[:, :, :].transpose(0, 1)
    loss = (output.potentials * of_potentials).sum() if last else output.potentials.sum() * 0
    (loss + (output.spikes["out"] * of_spikes).sum() + output.counts("a").square().sum()).backward()

    parameters = {k: Parameters.from_layer(layer) for k, layer in model.layers.items()}
    records = network_forward(net, parameters, currents.detach().numpy())
    close(output.potentials.detach().numpy(), records["out"].v[:-1], "potentials")
    d_a = np.broadcast_to(2 * records["a"].sent.sum(0), records["a"].sent.shape)
    found = network_backward(
        net, parameters, records, {"out": of_spikes.numpy(), "a": d_a}, of_potentials.numpy() if last else None
    )
    assert currents.grad is not None
    close(found["a"].inputs[0] + found["b"].inputs[0], currents.grad.numpy(), "currents")
    for layer, g in found.items():
        mine = dict(model.layers[layer].named_parameters())
        for c, d in zip(model.layers[layer].senders, g.weights, strict=True):
            if c.name in mine:
                close(d, mine[c.name].grad.numpy(), c.name)
        for parameter, d in g.neuron.items():
            if parameter in mine:
                close(d, mine[parameter].grad.numpy(), f"{layer}.{parameter}")


def test_the_potential_is_what_the_threshold_is_compared_with() -> None:
    """By hand: snnTorch's `mem` of `Leaky`, which subtracts the threshold of the previous step's spike."""
    net = Network({"input": Input(1, currents=True), "out": LIF(1, beta=0.5)}, [Connection("input", "out")])
    x = torch.tensor([0.75, 0.75, 0.75, 0.0]).view(4, 1, 1)
    for backend in ("cpu", "dense"):
        output = Model(net, backend=backend)(x, potentials=True)
        assert output.potentials is not None
        assert output.potentials.flatten().tolist() == [0.75, 1.125, 0.3125, 0.15625]
        assert output.counts().tolist() == [[1.0]]


@pytest.mark.parametrize("mode", ["step", "hoist", "fused"])
@pytest.mark.parametrize("constant", [False, True])
def test_every_mode_of_dense_runs_currents(mode: str, constant: bool) -> None:
    net = network(HIDDEN["current-based"], LIF(4, **LISTED))
    found = []
    for dense_mode in ("step", mode):
        model = Model(net, backend="dense", dense_mode=dense_mode, seed=2).double()
        x = (1.3 * (wanted(B, N) if constant else wanted(T, B, N))).requires_grad_()
        output = model(x, n_steps=T if constant else None, potentials=True)
        assert output.potentials is not None
        (output.potentials * wanted(T, B, 4)).sum().backward()
        assert x.grad is not None
        found.append([output.potentials.detach(), x.grad, *(p.grad for p in model.parameters())])
    for k, (a, b) in enumerate(zip(*found, strict=True)):
        close(b.numpy(), a.numpy(), f"{mode}: {k}")
