"""The dense baseline by itself: shapes, delays, chunks, states, precision, errors. Its gradients: test_reference.py."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sparsesnn import reference
from sparsesnn.engines.module import Layer, Model
from sparsesnn.errors import DescriptionError, ShapeError
from sparsesnn.layers import LI, LIF, CubaLIF, Input
from sparsesnn.network import Connection, Network
from sparsesnn.output import LayerState
from sparsesnn.spikes import SpikeBatch
from sparsesnn.surrogate import KINDS, Surrogate


def random_spikes(n_steps: int, n_samples: int, n: int, seed: int = 0, rate: float = 0.3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(n_steps, n_samples, n, generator=generator) < rate).float()


def branched_network() -> Network:
    """Two hidden populations, a skip connection, delays 0 to 3, a spiking and a leaky end."""
    return Network(
        {
            "input": Input(7),
            "a": LIF(9, recurrent=True, grad_threshold=0.5, bias=True),
            "b": CubaLIF(5, alpha=0.7, reset="zero", grad_threshold=0.5),
            "out": LI(3, beta=0.8),
        },
        (
            Connection("input", "a", 2),
            Connection("input", "b"),
            Connection("a", "b", 1),
            Connection("a", "out", 3),
            Connection("b", "out"),
        ),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_surrogates_are_the_same_in_pytorch(kind: str) -> None:
    surrogate, x = Surrogate(kind, 1.7), np.linspace(-2, 2, 101)
    for formula in (surrogate.derivative, surrogate.smooth_step):
        np.testing.assert_allclose(formula(torch.from_numpy(x)).numpy(), formula(x), rtol=1e-12, atol=1e-15)
    assert surrogate.derivative(torch.ones(3)).dtype == torch.float32


@pytest.mark.parametrize(("n_steps", "n_samples"), [(1, 1), (13, 1), (1, 3), (17, 5)])
def test_network_is_the_reference(n_steps: int, n_samples: int) -> None:
    network = branched_network()
    model = Model(network, backend="dense", seed=1).double()
    parameters = {name: reference.Parameters.from_layer(layer) for name, layer in model.layers.items()}
    x = random_spikes(n_steps, n_samples, 7)
    output = model(SpikeBatch.from_dense(x))
    records = reference.network_forward(network, parameters, x.double().numpy())
    for name in ("a", "b"):
        np.testing.assert_array_equal(output.spikes[name].detach().numpy(), records[name].sent)
    np.testing.assert_allclose(output.potentials.detach().numpy(), records["out"].v[:-1], rtol=1e-12, atol=1e-14)
    assert output.activity()["a"] == pytest.approx(records["a"].sent.mean())
    assert output.dropped() == {"a": 0, "b": 0}


def test_network_gradients_are_the_reference() -> None:
    network = branched_network()
    model = Model(network, backend="dense", seed=1).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    parameters = {name: reference.Parameters.from_layer(layer) for name, layer in model.layers.items()}
    x = random_spikes(11, 3, 7)
    records = reference.network_forward(network, parameters, x.double().numpy())
    d_out, d_counts = torch.randn(11, 3, 3).double(), torch.randn(3, 9).double()
    output = model(SpikeBatch.from_dense(x))
    ((output.potentials * d_out).sum() + (output.counts("a") * d_counts).sum()).backward()
    want = reference.network_backward(
        network, parameters, records, {"out": d_out.numpy(), "a": d_counts.expand(11, 3, 9).numpy()}
    )
    for name, layer in model.layers.items():
        for k, weight in enumerate(layer.sender_weights):
            gradient = want[name].weights[k]
            assert np.abs(gradient).max() > 0
            np.testing.assert_allclose(weight.grad.numpy(), gradient, rtol=1e-9, atol=1e-10 * np.abs(gradient).max())
    gradient = want["a"].loops[0]
    got = model.layers["a"].loop_weight.grad.numpy()
    np.testing.assert_allclose(got, gradient, rtol=1e-9, atol=1e-10 * np.abs(gradient).max())


@pytest.mark.parametrize("cuts", [(4,), (1, 2, 3), (2, 2, 9)])
def test_chunks_equal_one_call(cuts: tuple[int, ...]) -> None:
    """Chunks shorter than the longest delay, and one without a step."""
    model = Model(branched_network(), backend="dense", seed=1).double()
    x = SpikeBatch.from_dense(random_spikes(13, 2, 7))
    with torch.no_grad():
        whole = model(x)
        state, parts = None, []
        for start, stop in zip((0, *cuts), (*cuts, 13), strict=True):
            part = model(x.steps(start, stop), state)
            state = part.state
            parts.append(part)
    np.testing.assert_array_equal(torch.cat([p.spikes["b"] for p in parts]), whole.spikes["b"])
    np.testing.assert_allclose(torch.cat([p.potentials for p in parts]), whole.potentials, rtol=1e-12, atol=1e-14)


def test_state_carries_no_gradient() -> None:
    layer = Layer(LIF(4, recurrent=True), 3, backend="dense")
    out, state = layer(random_spikes(5, 2, 3))
    assert out.requires_grad
    assert not state.v.requires_grad
    assert not state.history.requires_grad
    assert state.history.shape == (1, 2, 4)
    assert state.step == 5
    assert layer(random_spikes(3, 2, 3), state)[1].step == 8


@pytest.mark.parametrize("delay", [0, 1, 4, 9])
def test_delay_shifts_what_arrives(delay: int) -> None:
    layer = Layer(LI(2), 3, delays=[delay], backend="dense")
    plain = Layer(LI(2), 3, backend="dense")
    plain.load_state_dict(layer.state_dict())
    x = random_spikes(6, 2, 3)
    shifted = torch.cat([torch.zeros(delay, 2, 3), x])[:6]
    torch.testing.assert_close(layer(x)[0], plain(shifted)[0])


def test_gradient_stops_at_the_secondary_threshold() -> None:
    """Potentials 0.3, 0.7 and 1.2: the last two are listed with θ_grad = 0.5, the last alone with θ_grad = 2."""
    for grad_threshold, listed in [(-math.inf, [1, 1, 1]), (0.5, [0, 1, 1]), (2.0, [0, 0, 1])]:
        layer = Layer(LIF(3, grad_threshold=grad_threshold), 1, backend="dense")
        with torch.no_grad():
            layer.weights[0].copy_(torch.tensor([[0.3, 0.7, 1.2]]))
        out, _ = layer(torch.ones(1, 1, 1))
        out.sum().backward()
        assert (layer.weights[0].grad[0] != 0).int().tolist() == listed


def test_decays_are_clamped() -> None:
    layer = Layer(LI(2, learn_beta=True), 1, backend="dense")
    with torch.no_grad():
        layer.weights[0].fill_(1.0)
        layer.beta.fill_(1.5)
    out, _ = layer(torch.ones(3, 1, 1))
    assert out[:, 0, 0].tolist() == [1, 2, 3]


def test_float64_and_mixed_inputs() -> None:
    layer = Layer(LIF(4), 3, backend="dense").double()
    out, state = layer(random_spikes(2, 1, 3).bool())
    assert out.dtype == state.v.dtype == torch.float64


@pytest.mark.parametrize("population", [LI(4), LIF(4), CubaLIF(4, recurrent=True)])
def test_no_step_and_no_sample(population: LI | LIF) -> None:
    layer = Layer(population, 3, backend="dense")
    out, state = layer(torch.zeros(0, 2, 3))
    assert out.shape == (0, 2, 4)
    assert state.v.shape == (2, 4)
    out, _ = layer(torch.zeros(5, 0, 3))
    assert out.shape == (5, 0, 4)


def test_inference_keeps_no_graph() -> None:
    layer = Layer(LIF(4), 3, backend="dense")
    with torch.no_grad():
        out, _ = layer(random_spikes(3, 2, 3))
    assert out.grad_fn is None


def test_capacity_is_refused() -> None:
    layer = Layer(LIF(4, capacity=2), 3, backend="dense")
    with pytest.raises(DescriptionError, match=r"LIF: capacity is 2.*'dense' has no lists.*backend='cpu'"):
        layer(random_spikes(3, 2, 3))


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([SpikeBatch.from_dense(torch.zeros(4, 2, 3)), torch.zeros(4, 2, 5)], r"source 0 is a SpikeBatch.*to_dense"),
        ([torch.zeros(4, 2, 4), torch.zeros(4, 2, 5)], r"source 0 is \(4, 2, 4\); give \[T, B, 3\]"),
        ([torch.zeros(4, 3), torch.zeros(4, 2, 5)], r"source 0 is \(4, 3\); give \[T, B, 3\]"),
        ([torch.zeros(4, 2, 3), torch.zeros(5, 2, 5)], r"source 1 brings T, B = \(5, 2\), source 0 brings \(4, 2\)"),
        ([torch.zeros(4, 2, 3), torch.zeros(4, 1, 5)], r"source 1 brings T, B = \(4, 1\)"),
    ],
)
def test_sources_that_do_not_fit(sources: list[torch.Tensor], message: str) -> None:
    layer = Layer(LIF(4), [3, 5], delays=[0, 1], backend="dense")
    with pytest.raises(ShapeError, match=message):
        layer(sources)


def test_states_that_do_not_fit() -> None:
    layer = Layer(CubaLIF(4, recurrent=True), 3, delays=[2], backend="dense")
    x = torch.zeros(5, 2, 3)
    with pytest.raises(ShapeError, match=r"state\.v is \(3, 4\).*need \(2, 4\)"):
        layer(x, LayerState({"v": torch.zeros(3, 4), "i_syn": torch.zeros(2, 4)}))
    with pytest.raises(ShapeError, match="recurrent, but the state's history is NoneType"):
        layer(x, LayerState({"v": torch.zeros(2, 4), "i_syn": torch.zeros(2, 4)}))
    with pytest.raises(ShapeError, match=r"source 0 has 1 step and the delay is 2; .* give the 2 steps before"):
        layer(x[:1], LayerState({"v": torch.zeros(2, 4), "i_syn": torch.zeros(2, 4)}))
