"""Weights that PyTorch computes from others: every reader of a layer reads the numbers of its forward pass."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import sparsesnn as ss
from sparsesnn import integers
from sparsesnn.errors import DescriptionError
from sparsesnn.init import init_activity
from sparsesnn.onnx import StepModule
from sparsesnn.reference import Parameters
from sparsesnn.traces import replay


class Affine(nn.Module):
    """Not linear: a map of zeros is not zero."""

    def forward(self, x: Tensor) -> Tensor:
        return 1.5 * x + 0.1


def older(function: Any) -> Callable[[nn.Module, str], None]:
    def compute(layer: nn.Module, name: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            function(layer, name)

    return compute


WAYS: dict[str, Callable[[nn.Module, str], Any]] = {
    "prune": lambda layer, name: prune.random_unstructured(layer, name, amount=0.5),
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "older weight_norm": older(nn.utils.weight_norm),
    "older spectral_norm": older(nn.utils.spectral_norm),
    "own": lambda layer, name: parametrize.register_parametrization(layer, name, Affine()),
}
WEIGHTS = ("input->hidden", "hidden->hidden")
CASES = [
    *((way, "hidden", name) for way in WAYS for name in WEIGHTS),
    *((way, "hidden", name) for way in ("prune", "own") for name in ("bias", "beta")),
    ("own", "hidden", "threshold"),
    *((way, "out", name) for way in ("prune", "own") for name in ("hidden->out", "hidden->out:delays")),
]


def network() -> ss.Network:
    hidden = ss.LIF(7, beta=(0.9,) * 7, bias=True, learn_beta=True, recurrent=True)
    return ss.Network(
        {"input": ss.Input(12), "hidden": hidden, "out": ss.LI(3)},
        (
            ss.Connection("input", "hidden", synapses=ss.Sparse(0.5)),
            ss.Connection("hidden", "out", axonal=ss.Delays(3, learn=True)),
        ),
    )


def spikes() -> ss.SpikeBatch:
    return ss.SpikeBatch.from_dense((torch.rand(9, 4, 12, generator=torch.Generator().manual_seed(0)) < 0.4).float())


def changed(way: str, population: str, name: str, backend: str) -> ss.Model:
    """A model with a tensor that is computed, changed since its last pass, which was one of training."""
    torch.manual_seed(1)  # of masks and power iterations
    model = ss.Model(network(), backend=backend)
    with torch.no_grad():
        model.layers["hidden"].bias += 0.2
    WAYS[way](model.layers[population], name)
    model(spikes())
    with torch.no_grad():
        for p in model.layers[population].parameters():
            p.mul_(1.7)
    return model


@pytest.mark.parametrize("backend", ["cpu", "dense"])
@pytest.mark.parametrize(("way", "population", "name"), CASES)
def test_everybody_reads_the_tensors_that_the_forward_pass_reads(
    way: str, population: str, name: str, backend: str, tmp_path: Path
) -> None:
    model, data = changed(way, population, name, backend), spikes()
    live, step, twin = model.live(), StepModule(model), copy.deepcopy(model)
    average = torch.optim.swa_utils.AveragedModel(model)
    integers.save(model, tmp_path / "net", "int8")
    read = Parameters.from_layer(model.layers[population])
    wanted = model.eval()(data).potentials.detach()

    assert torch.equal(live(data).potentials, wanted)
    assert torch.equal(twin.eval()(data).potentials, wanted)
    assert torch.equal(average.eval()(data).potentials, wanted)
    states, stepped = step.first_states(4), []
    for x in data.to_dense():
        out, *states = step(x, *states)
        stepped.append(out)
    torch.testing.assert_close(torch.stack(stepped), wanted, atol=1e-5, rtol=1e-5)
    now = Parameters.from_layer(model.layers[population])
    for a, b in zip((*read.weights, *read.loops), (*now.weights, *now.loops), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(read.neuron["beta"], now.neuron["beta"])
    loaded = integers.load(tmp_path / "net", backend=backend).eval()
    for layer in model.layers.values():
        layer.weight_dtype = "int8"
    torch.testing.assert_close(loaded(data).potentials, model(data).potentials.detach())


@pytest.mark.parametrize("backend", ["cpu", "dense"])
@pytest.mark.parametrize("way", WAYS)
def test_such_weights_learn_and_are_recorded_as_they_were_in_the_pass(way: str, backend: str) -> None:
    model, data = changed(way, "hidden", "input->hidden", backend), spikes()
    twin = copy.deepcopy(model)
    value, _ = model.learn(data, lambda output: output.potentials.square().sum())
    output = twin(data, record=["hidden"])
    loss = output.potentials.square().sum()
    loss.backward()
    assert torch.equal(value, loss)
    for (name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=name)
    with torch.no_grad():
        again = replay(twin.layers["hidden"], [twin.readable(data)], output.spikes["hidden"], None, torch.arange(7))
    if "spectral" not in way:  # in training each pass continues the power iteration
        assert torch.equal(output.traces["hidden"].v, again.v)
    v, fired = output.traces["hidden"].v, output.spikes["hidden"]
    fired = fired.to_dense() if isinstance(fired, ss.SpikeBatch) else fired
    assert torch.equal((v > 1).float(), fired.detach())


def test_reading_does_not_go_on_with_a_power_iteration() -> None:
    model = changed("spectral_norm", "hidden", "input->hidden", "cpu")
    before = copy.deepcopy(model.state_dict())
    model.live()
    StepModule(model)
    for name, x in model.state_dict().items():
        assert torch.equal(x, before[name]), name
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_weights_of_a_functional_call_are_those_that_are_read(backend: str) -> None:
    model, data = ss.Model(network(), backend=backend), spikes()
    others = {name: (1.5 * p).detach().requires_grad_() for name, p in model.named_parameters()}
    found = torch.func.functional_call(model, others, (data,)).potentials
    before = model(data).potentials
    model.load_state_dict({**model.state_dict(), **others})
    assert torch.equal(found, model(data).potentials)
    assert not torch.equal(found, before)
    gradients = torch.autograd.grad(found.sum(), list(others.values()), allow_unused=True)
    model.learn(data, lambda output: output.potentials.sum())
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad, gradient)


def test_a_tensor_that_an_unknown_hook_sets_is_refused_outside_a_pass() -> None:
    model = ss.Model(network())
    layer = model.layers["hidden"]
    original = layer._parameters.pop("bias")

    def set_bias(module: Any, _: Any) -> None:
        module.bias = 2 * original

    layer.bias = original.detach()
    layer.register_forward_pre_hook(set_bias)
    model(spikes())
    for read in (lambda: model.live(), lambda: StepModule(model)):
        with pytest.raises(DescriptionError, match=r"hidden: bias.*set_bias.*parametrize"):
            read()


def test_what_changes_weights_refuses_computed_ones_by_name() -> None:
    model = changed("prune", "hidden", "input->hidden", "cpu")
    with pytest.raises(DescriptionError, match=r"init_activity: hidden: input->hidden.*prune\.remove"):
        init_activity(model, [spikes()], 0.1)


def test_live_rounds_delays_that_learn_whatever_the_mode_of_the_model() -> None:
    network = ss.Network(
        {"input": ss.Input(12), "hidden": ss.LIF(6, threshold=0.3), "out": ss.LI(2)},
        (
            ss.Connection("input", "hidden"),
            ss.Connection("hidden", "hidden", axonal=ss.Delays(4, learn=True)),
            ss.Connection("hidden", "out"),
        ),
    )
    model = ss.Model(network)
    live = model.live()
    assert torch.equal(live(spikes()).potentials, model.eval()(spikes()).potentials)
