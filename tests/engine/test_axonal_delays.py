"""Axonal delays, whole, between steps and trained: the engine against the reference and PyTorch."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sparsesnn import _core, reference
from sparsesnn.config.net import NetConfig
from sparsesnn.delays import Delays
from sparsesnn.engines.cpu import transforms
from sparsesnn.engines.cpu.single import apply
from sparsesnn.engines.module import Model
from sparsesnn.engines.optimizers import Updates, make_optimizer, set_learning_rate
from sparsesnn.errors import ConfigError, DescriptionError
from sparsesnn.init import init_activity
from sparsesnn.ipu.spec import check_network
from sparsesnn.layers import LI, LIF, AdLIF, CubaLIF, Input, Neuron
from sparsesnn.network import Connection, Network, parse_net
from sparsesnn.output import Output
from sparsesnn.reference import Parameters
from sparsesnn.spikes import SpikeBatch
from sparsesnn.surrogate import fast_sigmoid
from sparsesnn.synapses import Dense, Sparse, Synapses, sparse

T, B, M = 13, 5, 23
EVERY = -math.inf


def network(learn: bool, recurrent: bool = False, grad_threshold: float = EVERY, base: int = 0) -> Network:
    lif: dict[str, Any] = {"grad_threshold": grad_threshold, "bias": True, "surrogate": fast_sigmoid(3.0)}
    return Network(
        {"input": Input(M), "a": LIF(37, recurrent=recurrent, **lif), "b": CubaLIF(21, **lif), "out": LI(5)},
        (
            Connection("input", "a", base, axonal=Delays(4, learn=learn, seed=1)),
            Connection("a", "b", axonal=Delays(3, learn=learn, seed=2)),
            Connection("b", "out", axonal=Delays(2, learn=learn, seed=3)),
            Connection("a", "out", 1),
        ),
    )


def recurrent_network(
    learn: bool, population: Neuron | None = None, synapses: Synapses | None = None, grad_threshold: float = EVERY
) -> Network:
    """Two recurrent connections with axonal delays, and one without between them."""
    lif = LIF(37, grad_threshold=grad_threshold, bias=True, surrogate=fast_sigmoid(3.0))
    return Network(
        {"input": Input(M), "a": population or lif, "b": lif, "out": LI(5)},
        (
            Connection("input", "a"),
            Connection("a", "a", 1, synapses or Dense(), Delays(4, learn=learn, seed=1)),
            Connection("a", "a", 2),
            Connection("a", "a", 3, axonal=Delays(2, learn=learn, seed=2)),
            Connection("a", "b", 1, axonal=Delays(2, learn=learn, seed=3)),
            Connection("b", "b", 2, axonal=Delays(T + 3, learn=learn, seed=4)),
            Connection("b", "out"),
        ),
    )


RECURRENT: dict[str, tuple[Neuron | None, Synapses | None]] = {
    "plain": (None, None),
    "exact reset": (LIF(41, reset="zero", detach_reset=False, grad_threshold=EVERY, learn_beta=True), None),
    "current": (CubaLIF(21, alpha=0.4, beta=0.5, grad_threshold=EVERY, bias=True), None),
    "tiles": (LIF(70, grad_threshold=EVERY, surrogate=fast_sigmoid(3.0)), None),
    "adaptive": (AdLIF(33, q=5.0, gain=5.0, learn_a=True, grad_threshold=EVERY), None),
    "sparse": (None, Sparse(0.1)),
}


def strong_model(net: Network, seed: int, backend: str = "cpu") -> Model:
    model = Model(net, seed=seed, backend=backend)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.copy_(torch.linspace(-0.1, 0.2, parameter.numel()))
            elif "->" in name and "delays" not in name:
                parameter.mul_(3)
    return model


def data(seed: int, graded: bool = False) -> SpikeBatch:
    generator = torch.Generator().manual_seed(seed)
    fired = (torch.rand(T, B, M, generator=generator) < 0.2).float()
    return SpikeBatch.from_dense(fired * torch.randn(T, B, M, generator=generator) if graded else fired, graded=graded)


def loss_of(output: Output) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    parts = [output.potentials, *(output.counts(name) for name in output.spikes)]
    return sum((x * torch.randn(x.shape, generator=generator)).mean() for x in parts)


def gradients(model: Model, spikes: SpikeBatch) -> dict[str, torch.Tensor]:
    loss_of(model(spikes)).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm().clamp_min(1e-12))


@pytest.mark.parametrize(
    ("learn", "recurrent", "graded", "base"),
    [
        (False, False, False, 0),
        (True, False, False, 0),
        (True, True, False, 2),
        (False, True, True, 1),
        (True, False, True, 0),
    ],
)
def test_gradients_equal_pytorch(learn: bool, recurrent: bool, graded: bool, base: int) -> None:
    net = network(learn, recurrent, base=base)
    sparse, dense = strong_model(net, 4), strong_model(net, 4, "dense")
    for name, lists in sparse(data(3, graded)).spikes.items():
        assert torch.equal(lists.to_dense().detach(), dense(data(3, graded)).spikes[name].to_dense().detach())
    got, want = gradients(sparse, data(3, graded)), gradients(dense, data(3, graded))
    assert got.keys() == want.keys()
    assert sum(name.endswith(":delays") for name in got) == 3 * learn
    for name in want:
        assert want[name].abs().sum() > 0, name
        assert relative_error(got[name], want[name]) <= 1e-5, name


@pytest.mark.parametrize(("learn", "training"), [(False, True), (True, True), (True, False)])
def test_lists_and_gradients_equal_the_references(learn: bool, training: bool) -> None:
    net = network(learn, grad_threshold=0.5)
    model = strong_model(net, 8).train(training)
    check_against_reference(net, model, learn and training)


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("learn", [False, True])
def test_recurrent_gradients_equal_pytorch(kind: str, learn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "DENSEST", 1.0)
    net = recurrent_network(learn, *RECURRENT[kind])
    sparse_model, dense = strong_model(net, 4), strong_model(net, 4, "dense")
    for name, lists in sparse_model(data(3)).spikes.items():
        assert lists.activity() > 0.01
        assert torch.equal(lists.to_dense().detach(), dense(data(3)).spikes[name].to_dense().detach())
    got, want = gradients(sparse_model, data(3)), gradients(dense, data(3))
    assert got.keys() == want.keys()
    assert sum(name.endswith(":delays") for name in got) == 4 * learn
    for name in want:
        assert want[name].abs().sum() > 0, name
        assert relative_error(got[name], want[name]) <= 1e-5, name


@pytest.mark.parametrize(("learn", "training"), [(False, True), (True, True), (True, False)])
def test_recurrent_lists_and_gradients_equal_the_references(learn: bool, training: bool) -> None:
    net = recurrent_network(learn, grad_threshold=0.5)
    model = strong_model(net, 8).train(training)
    check_against_reference(net, model, learn and training)


def check_against_reference(net: Network, model: Model, learns: bool) -> None:
    spikes = data(7)
    output = model(spikes)
    parameters = {name: Parameters.from_layer(layer, np.float32) for name, layer in model.layers.items()}
    records = reference.network_forward(net, parameters, spikes.to_dense().numpy())
    rng = np.random.default_rng(9)
    d_out = {name: rng.normal(size=(T, B, net.populations[name].n)).astype(np.float32) for name in records}
    loss = (output.potentials * torch.from_numpy(d_out["out"])).sum()
    for name, lists in output.spikes.items():
        np.testing.assert_array_equal(lists.ids.numpy(), reference.to_lists(records[name]).ids)
        np.testing.assert_array_equal(lists.n_spikes.numpy(), reference.to_lists(records[name]).n_spikes)
        loss = loss + (lists.to_dense() * torch.from_numpy(d_out[name])).sum()
    loss.backward()
    want = reference.network_backward(net, parameters, records, d_out)
    for name, layer in model.layers.items():
        of = want[name]
        connections = [(k, c, of.weights[k]) for k, c in enumerate(layer.senders)]
        connections += [(f"loop {k}", c, of.loops[k]) for k, c in enumerate(layer.loops)]
        for key, c, weight in connections:
            assert relative_error(getattr(layer, c.name).grad, torch.from_numpy(weight)) <= 1e-5, c.name
            if c.axonal and learns:
                found = getattr(layer, f"{c.name}:delays").grad
                assert relative_error(found, torch.from_numpy(of.axonal[key])) <= 1e-5, c.name


def test_delays_of_the_smooth_twin_have_the_derivative_that_differences_see() -> None:
    net = network(True).with_population("a", detach_reset=False).with_population("b", detach_reset=False)
    model = strong_model(net, 11)
    parameters = {name: Parameters.from_layer(layer) for name, layer in model.layers.items()}
    x = data(12).to_dense().numpy().astype(float)
    rng = np.random.default_rng(13)
    d_out = {"out": rng.normal(size=(T, B, 5))}

    def loss(p: dict[str, Parameters]) -> float:
        return float((reference.network_forward(net, p, x, smooth=True)["out"].v[:-1] * d_out["out"]).sum())

    records = reference.network_forward(net, parameters, x, smooth=True)
    found = reference.network_backward(net, parameters, records, d_out)
    step = 1e-6
    for name in ("a", "b", "out"):
        delays = parameters[name].axonal[0]
        for m in range(0, len(delays), 5):
            ends = []
            for sign in (1, -1):
                moved = delays.copy()
                moved[m] += sign * step
                ends.append(loss({**parameters, name: replace(parameters[name], axonal={0: moved})}))
            assert found[name].axonal[0][m] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("backend", ["cpu", "dense"])
@pytest.mark.parametrize("training", [False, True])
def test_chunks_continue_a_sequence(backend: str, training: bool) -> None:
    net = network(True, recurrent=True, base=1)
    model = strong_model(net, 14, backend).train(training)
    spikes = data(15)
    with torch.no_grad():
        whole = model(spikes).potentials
        first = model(spikes.steps(0, 2))
        second = model(spikes.steps(2, 8), first.state)
        third = model(spikes.steps(8, T), second.state)
    parts = torch.cat([first.potentials, second.potentials, third.potentials])
    assert torch.allclose(parts, whole, atol=1e-6)


def test_bit_equal_over_threads_and_instruction_sets() -> None:
    try:
        want = None
        for isa, threads in itertools.product(_core.build_info()["isa_supported"], (1, 3)):
            _core.set_isa(isa)
            _core.set_num_threads(threads)
            got = gradients(strong_model(network(True, True, 0.4), 16), data(17))
            want = want or got
            assert all(torch.equal(got[name], want[name]) for name in want), (isa, threads)
    finally:
        _core.set_isa(_core.build_info()["isa_supported"][-1])


def test_whole_delays_move_entries_and_keep_lists_plain() -> None:
    spikes = SpikeBatch.from_lists([[[0, 2], [], [1], []], [[1], [2], [], [0]]], 3)
    moved = apply(transforms.delays(torch.tensor([0.0, 2.0, 1.0]), between=False), spikes)
    assert moved.values is None
    assert moved.ids.tolist() == [0, 2, 1, 2, 0]
    assert moved.offsets.tolist() == [0, 1, 1, 2, 2, 2, 4, 4, 5]


def test_a_sequence_may_be_shorter_than_a_delay() -> None:
    x = np.ones((7, 1, 1))
    for delay in (6, 7, 8, 13, 14, 20):
        assert reference.arrive(x, np.array([float(delay)])).sum() == max(0, 7 - delay)


def test_a_loss_pulls_delays_to_where_spikes_coincide() -> None:
    net = Network(
        {"input": Input(2), "out": LI(1, beta=0.0)},
        (Connection("input", "out", axonal=Delays(6, learn=True, given=(1.0, 4.5))),),
    )
    model = Model(net)
    layer = model.layers["out"]
    with torch.no_grad():
        getattr(layer, "input->out").fill_(1.0)
    spikes = SpikeBatch.from_lists([[[0, 1], *([[]] * 7)]], 2)
    optimizer = torch.optim.Adam([getattr(layer, "input->out:delays")], lr=0.05)
    target = torch.zeros(8, 1, 1)
    target[3] = 2.0
    for _ in range(400):
        optimizer.zero_grad()
        # a smoothed target, so that a distant spike feels where it is
        smooth = torch.nn.functional.conv1d(
            (model(spikes).potentials - target).view(1, 1, -1), torch.ones(1, 1, 7), padding=3
        )
        (smooth**2).sum().backward()
        optimizer.step()
    assert torch.allclose(getattr(layer, "input->out:delays"), torch.tensor([3.0, 3.0]), atol=0.3)
    assert model.eval()(spikes).potentials[3].item() == 2.0


def test_descriptions_come_back_from_json_and_wrong_ones_are_refused() -> None:
    net = network(True, base=2)
    assert Network.from_json(net.to_json()) == net
    given = Connection("input", "a", axonal=Delays(3, given=(0, 1, 3)))
    assert given.reach == 3
    small = Network({"input": Input(3), "a": LI(2)}, (given,))
    assert Network.from_json(small.to_json()) == small
    assert Model(small).layers["a"].state_dict()["input->a:delays"].tolist() == [0, 1, 3]
    with pytest.raises(
        DescriptionError, match=r"connection input->a: Delays: given has 3 numbers, but the sender has 4"
    ):
        Network({"input": Input(4), "a": LI(2)}, (given,))
    with pytest.raises(DescriptionError, match=r"longest is 0; allowed: whole numbers from 1"):
        Delays(0)
    with pytest.raises(DescriptionError, match=r"given holds 0.5; allowed: whole numbers from 0 to 4"):
        Delays(4, given=(0.5,))
    with pytest.raises(DescriptionError, match=r"connection a->a: axonal is 3; allowed: Delays\(longest\), None"):
        Connection("a", "a", axonal=3)  # type: ignore[arg-type]
    loop = recurrent_network(True)
    assert Network.from_json(loop.to_json()) == loop
    assert loop.history("b") == 2 + T + 3
    with pytest.raises(
        DescriptionError, match=r"input->a: it has axonal delays, which the IPU program does not support"
    ):
        check_network(small, "mean")


@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_traces_and_scaled_weights_see_the_delays(backend: str) -> None:
    net = network(False, recurrent=True)
    model = strong_model(net, 18, backend)
    spikes = data(19, graded=True)
    output = model(spikes, record=["b"])
    parameters = {name: Parameters.from_layer(layer, np.float32) for name, layer in model.layers.items()}
    records = reference.network_forward(net, parameters, spikes.to_dense().numpy())
    np.testing.assert_allclose(output.traces["b"].states["v"].numpy(), records["b"].v[:-1], rtol=1e-4, atol=1e-5)
    reached = init_activity(model, [spikes], {"a": 0.1})
    assert reached["a"] == pytest.approx(0.1, rel=0.2)
    assert model(spikes).spikes["a"].to_dense().mean().item() == pytest.approx(reached["a"], rel=1e-5)


@pytest.mark.parametrize("backend", ["cpu", "dense"])
@pytest.mark.parametrize("training", [False, True])
def test_recurrent_chunks_continue_a_sequence(backend: str, training: bool) -> None:
    model = strong_model(recurrent_network(True), 14, backend).train(training)
    spikes = data(15)
    whole = model(spikes)
    state, parts = None, []
    for first, last in itertools.pairwise((0, 2, 8, T)):
        output = model(spikes.steps(first, last), state)
        state = output.state
        parts.append(output.spikes["b"].to_dense().detach())
    same = torch.equal if backend == "cpu" else torch.allclose
    assert same(torch.cat(parts), whole.spikes["b"].to_dense().detach())
    if training:  # the last chunk's gradient, including that of the spikes before it
        loss_of(output).backward()
        grads = {name: p.grad for name, p in model.named_parameters()}
        other = strong_model(recurrent_network(True), 14, "dense" if backend == "cpu" else "cpu")
        state = None
        for first, last in itertools.pairwise((0, 2, 8, T)):
            output = other(spikes.steps(first, last), state)
            state = output.state
        loss_of(output).backward()
        for name, p in other.named_parameters():
            assert relative_error(grads[name], p.grad) <= 1e-5, name


def test_recurrent_bits_are_the_same_over_threads_and_instruction_sets() -> None:
    try:
        want = None
        for isa, threads in itertools.product(_core.build_info()["isa_supported"], (1, 3)):
            _core.set_isa(isa)
            _core.set_num_threads(threads)
            got = gradients(strong_model(recurrent_network(True, grad_threshold=0.4), 16), data(17))
            want = want or got
            assert all(torch.equal(got[name], want[name]) for name in want), (isa, threads)
    finally:
        _core.set_isa(_core.build_info()["isa_supported"][-1])


def test_recurrent_evaluation_rounds_delays() -> None:
    model = strong_model(recurrent_network(True), 21)
    fixed = strong_model(recurrent_network(False), 21)
    state = model.state_dict()
    fixed.load_state_dict({name: x.round() if name.endswith(":delays") else x for name, x in state.items()})
    got, want = model.eval()(data(22)), fixed(data(22))
    assert torch.equal(got.potentials, want.potentials.detach())
    live = model.live()
    steps = [live(data(22).steps(t, t + 1)).potentials for t in range(T)]
    assert torch.equal(torch.cat(steps), got.potentials)


def test_recurrent_delays_of_the_smooth_twin_have_the_derivative_that_differences_see() -> None:
    net = recurrent_network(True).with_population("a", detach_reset=False).with_population("b", detach_reset=False)
    model = strong_model(net, 11)
    parameters = {name: Parameters.from_layer(layer) for name, layer in model.layers.items()}
    x = data(12).to_dense().numpy().astype(float)
    d_out = {"out": np.random.default_rng(13).normal(size=(T, B, 5))}

    def loss(p: dict[str, Parameters]) -> float:
        return float((reference.network_forward(net, p, x, smooth=True)["out"].v[:-1] * d_out["out"]).sum())

    records = reference.network_forward(net, parameters, x, smooth=True)
    found = reference.network_backward(net, parameters, records, d_out)
    step = 1e-6
    for name, key in (("a", "loop 0"), ("a", "loop 2"), ("b", "loop 0")):
        delays = parameters[name].axonal[key]
        for m in range(0, len(delays), 9):
            ends = []
            for sign in (1, -1):
                moved = delays.copy()
                moved[m] += sign * step
                axonal = {**parameters[name].axonal, key: moved}
                ends.append(loss({**parameters, name: replace(parameters[name], axonal=axonal)}))
            assert found[name].axonal[key][m] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_traces_see_recurrent_delays(backend: str) -> None:
    model = strong_model(recurrent_network(False), 18, backend)
    first = model(data(19).steps(0, 5))
    output = model(data(19).steps(5, T), first.state, record=["a", "b"])
    for name in ("a", "b"):
        fired = output.traces[name].v > output.traces[name].threshold
        assert torch.equal(fired, output.spikes[name].to_dense().bool()), name


def test_training_trains_delays_at_a_rate_of_their_own() -> None:
    net = parse_net("5-7-3").with_axonal_delays(6, learn=True)
    optimizer = make_optimizer(Model(net), Updates(lr=0.01))
    set_learning_rate(optimizer, 0.01)
    factors = {
        tuple(p.shape): (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for p in group["params"]
    }
    assert factors[(5,)] == (1.0, 0.0)
    assert factors[(5, 7)] == (0.01, 0.0)


def test_options_give_axonal_delays() -> None:
    config = NetConfig(text="70-16r-10", axonal_delays_ms=60.0, learn_axonal_delays=True)
    first, readout, loop = config.network(70, 10, dt_ms=10.0).connections
    assert first.axonal == Delays(6, learn=True, seed=0)
    assert (readout.axonal, loop.axonal) == (None, None)
    other = NetConfig(text="70-16r-10", recurrent_axonal_delays=3)
    assert [c.axonal for c in other.network(70, 10).connections] == [None, None, Delays(3, seed=2)]
    with pytest.raises(ConfigError, match=r"net.recurrent_axonal_delays: is 3, but '70-16-10' has no recurrent"):
        NetConfig(text="70-16-10", recurrent_axonal_delays=3).network(70, 10)
    with pytest.raises(ConfigError, match=r"net.axonal_delays_ms: is 60.0, but the steps of this data have no width"):
        config.network(70, 10)
    with pytest.raises(ConfigError, match=r"give one of axonal_delays, axonal_delays_ms"):
        NetConfig(text="70-16r-10", axonal_delays_ms=60.0, axonal_delays=3)
