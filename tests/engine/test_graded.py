"""Graded lists: spikes that carry a value each, against PyTorch, the reference and plain lists."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from sparsesnn import _core, reference
from sparsesnn.engines.module import Model
from sparsesnn.errors import ShapeError, SpikeListError
from sparsesnn.layers import LI, LIF, CubaLIF, Input
from sparsesnn.network import Network
from sparsesnn.output import Output
from sparsesnn.reference import Parameters
from sparsesnn.spikes import SpikeBatch

T, B, M = 9, 11, 37


def graded_input(seed: int, rate: float = 0.25) -> torch.Tensor:
    """[T, B, M], mostly 0, else any number."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(T, B, M, generator=generator)
    return x * (torch.rand(T, B, M, generator=generator) < rate)


def network(recurrent: bool, width: int = 45) -> Network:
    return Network.chain(
        Input(M),
        LIF(width, recurrent=recurrent, grad_threshold=-1e9, bias=True),
        CubaLIF(21, grad_threshold=-1e9),
        LI(5),
    )


def strong_model(net: Network, seed: int, backend: str = "cpu") -> Model:
    """A model whose weights are large enough to make all layers fire."""
    model = Model(net, seed=seed, backend=backend)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "->" in name:
                parameter.mul_(3)
            else:
                parameter.copy_(torch.linspace(-0.1, 0.2, parameter.numel()))
    return model


def loss_of(output: Output) -> torch.Tensor:
    """A loss with its own weight for every spike count and every potential."""
    generator = torch.Generator().manual_seed(0)
    parts = [output.potentials, *(output.counts(name) for name in output.spikes)]
    return sum((x * torch.randn(x.shape, generator=generator)).mean() for x in parts)


def gradients(model: Model, spikes: SpikeBatch) -> dict[str, torch.Tensor]:
    loss_of(model(spikes)).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm().clamp_min(1e-12))


@pytest.fixture(autouse=True)
def _usual_machine():
    yield
    _core.set_isa(_core.build_info()["isa_supported"][-1])


@pytest.mark.parametrize("recurrent", [False, True])
def test_gradients_equal_pytorch(recurrent: bool) -> None:
    x = graded_input(3)
    sparse, dense = strong_model(network(recurrent), 4), strong_model(network(recurrent), 4, "dense")
    got = gradients(sparse, SpikeBatch.from_dense(x, graded=True))
    want = gradients(dense, SpikeBatch.from_dense(x, graded=True))
    assert got.keys() == want.keys()
    for name in want:
        assert relative_error(got[name], want[name]) <= 1e-5, name


def test_values_receive_their_gradient() -> None:
    found = []
    for backend in ("cpu", "dense"):
        x = graded_input(5).requires_grad_()
        model = strong_model(network(False), 6, backend)
        loss_of(model(SpikeBatch.from_dense(x, graded=True, gradient="all"))).backward()
        found.append(x.grad)
    assert found[1].abs().sum() > 0
    assert relative_error(found[0], found[1]) <= 1e-5


def test_lists_equal_the_references_exactly() -> None:
    x = graded_input(7)
    net = network(True)
    model = strong_model(net, 8)
    output = model(SpikeBatch.from_dense(x, graded=True))
    parameters = {name: Parameters.from_layer(layer, np.float32) for name, layer in model.layers.items()}
    records = reference.network_forward(net, parameters, x.numpy())
    for name, lists in output.spikes.items():
        np.testing.assert_array_equal(lists.ids.numpy(), reference.to_lists(records[name]).ids)
    np.testing.assert_array_equal(output.potentials.detach().numpy(), records["output"].v[:-1])


@pytest.mark.parametrize("recurrent", [False, True])
def test_values_of_one_give_the_bits_of_plain_lists(recurrent: bool) -> None:
    plain = SpikeBatch.from_dense((graded_input(9) != 0).float())
    graded = replace(plain, values=torch.ones(plain.ids.numel()), graded=True)
    models = [strong_model(network(recurrent), 10) for _ in range(2)]
    want, got = gradients(models[0], plain), gradients(models[1], graded)
    assert all(torch.equal(got[name], want[name]) for name in want)


@pytest.mark.parametrize("recurrent", [False, True])
def test_bit_equal_over_threads_and_instruction_sets(recurrent: bool) -> None:
    spikes = SpikeBatch.from_dense(graded_input(11), graded=True)
    want = None
    for isa, threads in itertools.product(_core.build_info()["isa_supported"], (1, 3)):
        _core.set_isa(isa)
        _core.set_num_threads(threads)
        got = gradients(strong_model(network(recurrent, 77), 12), spikes)
        want = want or got
        assert all(torch.equal(got[name], want[name]) for name in want), (isa, threads)


def test_events_are_counted() -> None:
    events = [(np.array([0, 10, 900, 2500, 2600]), np.array([3, 3, 4, 0, 0]))]
    counted = SpikeBatch.from_events(events, n_steps=3, n_neurons=5, dt_us=1000, count=True)
    assert counted.graded
    dense = counted.to_dense()[:, 0]
    assert dense.tolist() == [[0, 0, 0, 2, 1], [0, 0, 0, 0, 0], [2, 0, 0, 0, 0]]
    assert counted.counts().tolist() == [[2, 0, 0, 2, 1]]
    merged = SpikeBatch.from_events(events, n_steps=3, n_neurons=5, dt_us=1000)
    assert not merged.graded
    assert torch.equal(merged.ids, counted.ids)


def test_copies_keep_values() -> None:
    x = graded_input(13)
    spikes = SpikeBatch.from_dense(x, graded=True)
    assert torch.equal(spikes.to_dense(), x)
    assert torch.equal(spikes.samples([4, 0]).to_dense(), x[:, [4, 0]])
    assert torch.equal(spikes.steps(2, 6).then(spikes.steps(0, 2)).to_dense(), torch.cat([x[2:6], x[:2]]))
    assert SpikeBatch.cat([spikes, spikes]).graded
    assert "graded" in repr(spikes)


def test_what_is_no_graded_list_is_refused() -> None:
    spikes = SpikeBatch.from_dense(graded_input(14), graded=True)
    model = Model(network(False), seed=1)
    with pytest.raises(SpikeListError, match=r"entries must be 0 or 1; .* give graded=True"):
        SpikeBatch.from_dense(graded_input(14))
    with pytest.raises(SpikeListError, match=r"NaN or infinite"):
        SpikeBatch.from_dense(graded_input(14) * torch.inf, graded=True)
    with pytest.raises(ShapeError, match=r"values is a NoneType; give a tensor torch.float32 \[\d+\]"):
        model(replace(spikes, values=None))
    with pytest.raises(ShapeError, match=r"values is torch.float64"):
        model(replace(spikes, values=spikes.values.double()))
    broken = spikes.values.clone()
    broken[17] = torch.nan
    with pytest.raises(SpikeListError, match=r"input: list \d+ holds value nan; give finite numbers"):
        model(replace(spikes, values=broken))
    with pytest.raises(SpikeListError, match=r"holds value nan"):
        replace(spikes, values=broken).validate()


def test_values_changed_before_the_backward_pass_are_noticed() -> None:
    spikes = SpikeBatch.from_dense(graded_input(15), graded=True)
    loss = loss_of(strong_model(network(False), 16)(spikes))
    spikes.values.numpy()[:] = 2.0
    with pytest.raises(SpikeListError, match=r"values of the spike lists changed after the forward pass"):
        loss.backward()
