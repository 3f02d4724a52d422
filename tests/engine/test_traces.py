"""Recorded potentials and currents are those of the reference, whole and in chunks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import sparsesnn as ss
from sparsesnn import reference
from sparsesnn.errors import DescriptionError

T, B, N_IN = 13, 3, 17


def network(hidden: Any, delay: int = 0) -> ss.Network:
    populations = {"input": ss.Input(N_IN), "hidden": hidden, "output": ss.LI(5, beta=0.8, bias=True)}
    connections = (
        ss.Connection("input", "hidden"),
        ss.Connection("input", "hidden", 1, ss.Sparse(0.2)),
        *((ss.Connection("input", "hidden", delay),) if delay else ()),
        ss.Connection("hidden", "output", delay),
        ss.Connection("input", "output"),
    )
    return ss.Network(populations, connections)


def batch(seed: int = 0) -> ss.SpikeBatch:
    return ss.SpikeBatch.from_dense(
        (torch.rand(T, B, N_IN, generator=torch.Generator().manual_seed(seed)) < 0.3).float()
    )


def loud(net: ss.Network, backend: str) -> ss.Model:
    model = ss.Model(net, seed=3, backend=backend)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3) if p.ndim == 2 else p.add_(0.1)
    return model


HIDDEN = {
    "lif": ss.LIF(11, beta=0.9, recurrent=True),
    "zero": ss.LIF(11, reset="zero", bias=True, gain=0.7, grad_threshold=-math.inf),
    "cuba": ss.CubaLIF(11, alpha=0.7, beta=tuple(np.linspace(0.5, 0.95, 11)), recurrent=True, reset_decays=True),
    "adaptive": ss.AdLIF(11, recurrent=True, gain=8.0),
    "full": ss.LIF(11, capacity=2, recurrent=True),
}


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize(
    ("backend", "hidden"), [(b, h) for b in ("cpu", "dense") for h in HIDDEN if (b, h) != ("dense", "full")]
)
def test_values_are_those_of_the_reference(backend: str, hidden: str, delay: int) -> None:
    model, spikes = loud(network(HIDDEN[hidden], delay), backend), batch()
    output = model(spikes, record=["hidden", "output"])
    parameters = {name: reference.Parameters.from_layer(layer, np.float32) for name, layer in model.layers.items()}
    records = reference.network_forward(model.network, parameters, spikes.to_dense().numpy(), seed=3, training_step=1)
    assert output.activity()["hidden"] > 0.02
    tolerance = {"rtol": 0, "atol": 0} if backend == "cpu" else {"rtol": 1e-5, "atol": 1e-5}
    for name, record in records.items():
        traces = output.traces[name]
        torch.testing.assert_close(traces.current, torch.from_numpy(record.current), **tolerance)
        for found, expected in zip(traces.states.values(), record.states, strict=True):
            torch.testing.assert_close(found, torch.from_numpy(expected[:-1]), **tolerance)
    assert output.potentials is not None
    torch.testing.assert_close(output.traces["output"].v, output.potentials.detach(), **tolerance)


@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_chunks_and_chosen_neurons_are_parts_of_the_whole(backend: str) -> None:
    model, spikes = loud(network(HIDDEN["cuba"], 2), backend), batch(1)
    with torch.no_grad():
        whole = model(spikes, record=["hidden"]).traces["hidden"]
        first = model(spikes.steps(0, 5), record={"hidden": [7, 0]})
        second = model(spikes.steps(5, T), first.state, record={"hidden": [7, 0]})
    assert whole.v.shape == (T, B, 11)
    for name in ("v", "i_syn"):
        joined = torch.cat([x.traces["hidden"].states[name] for x in (first, second)])
        torch.testing.assert_close(joined, whole.states[name][:, :, [7, 0]], rtol=1e-6, atol=1e-6)
    assert torch.equal(first.traces["hidden"].neurons, torch.tensor([7, 0]))


def test_weights_read_as_bfloat16() -> None:
    model = ss.Model(ss.parse_net("17-11r-5"), weight_dtype="bfloat16")
    output = model(batch(), record=["hidden", "output"])
    assert torch.equal(output.traces["hidden"].v[-1], output.state["hidden"].v)
    assert torch.equal(output.traces["output"].v, output.potentials)


@pytest.mark.parametrize(
    ("record", "facts"),
    [
        ("hidden", r"record is 'hidden'.*\['hidden'\]"),
        (["input"], "'input'.*hidden, output"),
        ({"hidden": [11]}, r"'hidden'.*\[11\].*0 to 10"),
        ({"hidden": [0.5]}, r"'hidden'.*\[0.5\].*0 to 10"),
    ],
)
def test_what_cannot_be_recorded(record: Any, facts: str) -> None:
    with pytest.raises(DescriptionError, match=facts):
        ss.Model(ss.parse_net("17-11r-5"))(batch(), record=record)


def test_behind_convolutions() -> None:
    model = loud(ss.parse_net("2x8x8:3C3s2-MP2-5"), "dense")
    spikes = ss.SpikeBatch.from_dense((torch.rand(T, B, 128, generator=torch.Generator().manual_seed(0)) < 0.3).float())
    output = model(spikes, record=list(model.layers))
    assert min(output.activity().values()) > 0.01
    parameters = {name: reference.Parameters.from_layer(layer, np.float32) for name, layer in model.layers.items()}
    records = reference.network_forward(model.network, parameters, spikes.to_dense().numpy())
    for name, record in records.items():
        torch.testing.assert_close(output.traces[name].current, torch.from_numpy(record.current), rtol=1e-5, atol=1e-5)
