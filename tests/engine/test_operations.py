"""Synaptic operations are those that one counts spike by spike."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import sparsesnn as ss
from sparsesnn.engines import Batch, Training, make_engine
from sparsesnn.neurobench import NeuroBenchModel
from sparsesnn.operations import Operations

T, B, N_IN = 9, 5, 13
DELAYS = ss.Delays(3, given=tuple(m % 4 for m in range(N_IN)))


def matrix(layer: Any, c: ss.Connection) -> torch.Tensor:
    """The weight of a connection as [n_pre, n]."""
    if c.is_recurrent:
        return layer.loop_matrix
    return layer.sender_matrices[[s.name for s in layer.senders].index(c.name)]


@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_every_spike_that_arrives_costs_its_synapses(backend: str) -> None:
    network = ss.Network(
        {"input": ss.Input(N_IN), "hidden": ss.LIF(7, recurrent=True, bias=True), "output": ss.LI(3)},
        (
            ss.Connection("input", "hidden", 2, axonal=DELAYS),
            ss.Connection("input", "hidden"),
            ss.Connection("hidden", "output"),
            ss.Connection("input", "hidden", 1, ss.Sparse(0.3)),
        ),
    )
    engine = make_engine(backend, network, Training(n_classes=3, decoding="max"))
    with torch.no_grad():
        for p in engine.model.parameters():
            p[torch.rand(p.shape, generator=torch.Generator().manual_seed(0)) < 0.3] = 0
            p.mul_(4)
    operations = Operations(engine.model)
    effective = n_spikes = 0
    for seed in (1, 2):
        dense = (torch.rand(T, B, N_IN, generator=torch.Generator().manual_seed(seed)) < 0.3).float()
        spikes = ss.SpikeBatch.from_dense(dense)
        engine.infer(
            Batch(spikes, torch.zeros(B, dtype=torch.int64)), lambda output, _, x=spikes: operations.add(x, output)
        )
        hidden = engine.output(spikes).spikes["hidden"]
        hidden = hidden.to_dense() if isinstance(hidden, ss.SpikeBatch) else hidden
        n_spikes += int(hidden.sum())
        for c in network.connections:
            sent = dense if c.pre == "input" else hidden
            weight = matrix(engine.model.layers[c.post], c)
            effective += sum(
                int((weight[m] != 0).sum())
                for t, _, m in sent.nonzero().tolist()
                if t + c.delay + (m % 4 if c.axonal else 0) < T
            )
    found = operations.neurobench({"accuracy": 0.25})
    assert n_spikes > 10
    assert found["synaptic_operations"] == {
        "Effective_MACs": 0.0,
        "Effective_ACs": effective / (2 * B),
        "Dense": T * (3 * N_IN * 7 + 7 * 7 + 7 * 3),
    }
    assert found["activation_sparsity"] == pytest.approx(1 - n_spikes / (2 * B * T * 7))
    assert found["classification_accuracy"] == 0.25
    weights = [matrix(engine.model.layers[c.post], c) for c in network.connections]
    zeros = sum(int((w == 0).sum()) for w in weights)
    assert found["connection_sparsity"] == pytest.approx(zeros / sum(w.numel() for w in weights))
    assert found["footprint"] == sum(4 * x.numel() for x in (*engine.model.parameters(), *engine.model.buffers()))


def test_operations_of_any_model() -> None:
    """`count_operations` has the numbers of NeuroBench by its names, and leaves the model as it was."""
    network = ss.Network.chain(ss.Input(N_IN), ss.LIF(7, recurrent=True, capacity=3), ss.LI(3))
    model = ss.Model(network)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4)
    model.layers["output"].eval()
    batches = [
        ss.SpikeBatch.from_dense(
            (torch.rand(T, n, N_IN, generator=torch.Generator().manual_seed(n)) < 0.3).float() * value,
            graded=value != 1,
        )
        for n, value in ((B, 1), (2, 3))
    ]
    found = ss.count_operations(model, [batches[0], (batches[1], torch.zeros(2))])
    n_samples = B + 2
    with torch.no_grad():
        hidden = [model.eval()(x).spikes["hidden"].to_dense() for x in batches]
    effective = sum(int(h[: T - 1].sum()) * 7 + int(h.sum()) * 3 for h in hidden) + int(batches[0].n_spikes.sum()) * 7
    n_spikes = sum(int(h.sum()) for h in hidden)
    assert found == {
        "Footprint": sum(x.numel() * x.element_size() for x in (*model.parameters(), *model.buffers())),
        "ParameterCount": N_IN * 7 + 7 * 7 + 7 * 3,
        "ConnectionSparsity": 0.0,
        "ActivationSparsity": 1 - n_spikes / (n_samples * T * 7),
        "SynapticOperations": {
            "Effective_MACs": int(batches[1].n_spikes.sum()) * 7 / n_samples,
            "Effective_ACs": effective / n_samples,
            "Dense": T * (N_IN * 7 + 7 * 7 + 7 * 3),
        },
    }
    assert n_spikes > 10


def test_the_model_keeps_its_modes_and_counters() -> None:
    model = ss.Model(ss.Network.chain(ss.Input(N_IN), ss.LIF(7, capacity=3), ss.LI(3)))
    model.layers["output"].eval()
    found = ss.count_operations(model, ss.SpikeBatch.from_dense(torch.ones(T, B, N_IN)))
    assert found["SynapticOperations"]["Effective_ACs"] >= T * N_IN * 7
    assert [layer.training for layer in model.layers.values()] == [True, False]
    assert int(model.layers["hidden"].training_steps) == 0


def test_currents_cost_no_operation() -> None:
    network = ss.Network.chain(ss.Input(6, currents=True), ss.LIF(6, recurrent=True), ss.LI(3))
    model = ss.Model(network)
    currents = torch.rand(T, B, 6, generator=torch.Generator().manual_seed(0))
    found = ss.count_operations(model, currents)
    hidden = model(currents).spikes["hidden"].to_dense()
    assert found["SynapticOperations"] == {
        "Effective_MACs": 0.0,
        "Effective_ACs": (int(hidden[: T - 1].sum()) * 6 + int(hidden.sum()) * 3) / B,
        "Dense": T * (6 * 6 + 6 * 3),
    }
    assert int(hidden.sum()) > 10
    wrapped = NeuroBenchModel(model)
    wrapped.register_hooks()
    assert torch.equal(wrapped(currents.transpose(0, 1)).transpose(0, 1), model(currents).potentials)
    assert [hook.c.name for hook in wrapped.connection_hooks] == ["hidden->hidden", "hidden->output"]
    assert [hook.inputs[0].shape for hook in wrapped.connection_hooks] == [(T * B, 6)] * 2


@pytest.mark.parametrize("given", [[], [torch.ones(T, B, N_IN)], [(torch.ones(1),)]])
def test_other_batches_are_refused(given: Any) -> None:
    with pytest.raises(ss.errors.ShapeError, match=r"count_operations.*(SpikeBatch\.from_dense|at least one)"):
        ss.count_operations(ss.Model(ss.parse_net("13-3")), given)


MAPS = ss.Network.chain(
    ss.Input(shape=(6, 6, 2)),
    ss.Conv2d(3, 3, padding=1),
    ss.LIF(),
    ss.Pool("sum", 2),
    ss.Conv2d(2, 2),
    ss.LIF(),
    ss.LI(3),
)
DELAYED = ss.Network(
    {"input": ss.Input(N_IN), "hidden": ss.CubaLIF(6, recurrent=True), "output": ss.LI(3)},
    (
        ss.Connection("input", "hidden", 2, ss.Sparse(0.4)),
        ss.Connection("input", "hidden", axonal=DELAYS),
        ss.Connection("hidden", "output", 20),
    ),
)


@pytest.mark.parametrize("network", [MAPS, DELAYED])
@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_hooks_that_are_read_as_neurobench_reads_them_have_the_same_counts(network: ss.Network, backend: str) -> None:
    """NeuroBench copies a layer, sets its nonzero weights to 1, or all of them, likewise the input, and sums the result."""
    model = ss.Model(network, backend=backend)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(5)
            p[torch.rand(p.shape, generator=torch.Generator().manual_seed(0)) < 0.2] = 0
    n = network.populations["input"].n
    dense = (torch.rand(B, T, n, generator=torch.Generator().manual_seed(1)) < 0.3).float()
    wrapped = NeuroBenchModel(model)
    wrapped.register_hooks()
    wrapped(dense)
    counts = {"Effective_ACs": 0, "Dense": 0}
    for hook in wrapped.connection_hooks:
        for inputs in hook.inputs:
            for name, which in (("Effective_ACs", lambda x: (x != 0).float()), ("Dense", torch.ones_like)):
                layer = copy.deepcopy(hook.layer)
                layer.weight.data = which(layer.weight.data)
                counts[name] += int(layer(which(inputs)).sum())
    expected = ss.count_operations(model, ss.SpikeBatch.from_dense(dense, batch_first=True))
    assert counts["Effective_ACs"] > 100
    assert {name: x / B for name, x in counts.items()} == {
        name: expected["SynapticOperations"][name] for name in counts
    }
    outputs = torch.cat([hook.activation_outputs[0].flatten() for hook in wrapped.activation_hooks])
    assert 1 - float(outputs.count_nonzero()) / outputs.numel() == pytest.approx(expected["ActivationSparsity"])
    weights = [layer.weight for layer in wrapped.__net__().children()]
    if network is DELAYED:  # of maps, the weights that places share count once
        zeros = sum(int((w == 0).sum()) for w in weights)
        assert zeros / sum(w.numel() for w in weights) == pytest.approx(expected["ConnectionSparsity"])
    wrapped.reset_hooks()
    assert [hook.inputs for hook in wrapped.connection_hooks] == [[]] * len(network.connections)
    wrapped.cleanup_hooks()
    assert wrapped.connection_hooks == wrapped.activation_hooks == []
