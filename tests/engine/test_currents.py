"""Populations driven by currents, on the engine `cpu`: against the reference and the dense engine, and the bits that it promises."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sparsesnn as ss
from sparsesnn.errors import DescriptionError, NumericError, SecondDerivativeError, ShapeError
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.target import parse_target
from sparsesnn.reference import Parameters, network_backward, network_forward
from sparsesnn.synapses import OneToOne

T, B = 21, 11
LISTED: dict[str, Any] = {"grad_threshold": 0.3}
#: the first population, and a grad_threshold that lists many
NETS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("currents-70-40-10", LISTED),
    "wide": ("currents-257-10", {"bias": True, **LISTED}),
    "recurrent": ("currents-70r-33r-10", {"bias": True, **LISTED}),
    "zero": ("currents-37-10s", {"reset": "zero", "detach_reset": False, **LISTED}),
    "current-based": ("currents-70cr-10s", {"learn_beta": False, **LISTED}),
    "adaptive": ("currents-70a-10", {"gain": 8.0, **LISTED}),
    "learnt": ("currents-70-40r-10", {"learn_beta": True, "learn_threshold": True, "detach_reset": False, **LISTED}),
    "capacity": ("currents-70-40-10", {"capacity": 9, **LISTED}),
    "sparse": ("currents-70r-40p0.2-10", LISTED),
    "readout": ("currents-70", {}),
    "one": ("currents-1-2", {}),
    "all-listed": ("currents-130-33-10", {"grad_threshold": -float("inf")}),
}


@pytest.fixture(params=NETS)
def net(request: pytest.FixtureRequest) -> ss.Network:
    text, rules = NETS[request.param]
    return ss.parse_net(text, **rules)


@pytest.fixture(params=["changing", "constant"])
def currents(net: ss.Network, request: pytest.FixtureRequest) -> Tensor:
    n = net.populations["input"].n
    shape = (B, n) if request.param == "constant" else (T, B, n)
    return 1.2 * torch.randn(*shape, generator=torch.Generator().manual_seed(n))


def steps_of(x: Tensor) -> int | None:
    return T if x.ndim == 2 else None


def model_of(net: ss.Network, **more: Any) -> ss.Model:
    model = ss.Model(net, seed=3, **more)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "->" in name:
                p.mul_(3)
    return model


def loss_of(output: ss.Output) -> Tensor:
    """Of potentials and spikes, each number with another weight."""
    loss = torch.zeros(())
    if output.potentials is not None:
        weights = torch.linspace(-1, 1, output.potentials.numel()).view_as(output.potentials)
        loss = loss + (output.potentials * weights).sum() / 100
    for name in output.spikes:
        counts = output.counts(name)
        loss = loss + (counts * torch.linspace(-1, 1, counts.numel()).view_as(counts)).sum() / 100
    return loss


def train(model: ss.Model, x: Tensor, n_steps: int | None, *, potentials: bool = True) -> dict[str, Tensor]:
    """The output and all gradients of a step."""
    given = x.clone().requires_grad_()
    output = model(given, n_steps=n_steps, potentials=potentials)
    loss_of(output).backward()
    assert given.grad is not None
    found = {"currents": given.grad, **{k: p.grad for k, p in model.named_parameters() if p.grad is not None}}
    if output.potentials is not None:
        found["potentials"] = output.potentials.detach()
    return found


def check_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def trains_last(net: ss.Network) -> bool:
    """Whether parameters of a last population that fires are trained: then its potentials have no gradient on `cpu`."""
    last = net.populations[net.output]
    return any(getattr(last, f"learn_{p.name}", False) for p in last.parameters)


def test_gradients_are_those_of_the_dense_engine(net: ss.Network, currents: Tensor) -> None:
    if any(getattr(p, "capacity", None) for p in net.populations.values()):
        pytest.skip("the dense backend has no lists to fill")
    potentials = not trains_last(net)
    mine = train(model_of(net), currents, steps_of(currents), potentials=potentials)
    theirs = train(model_of(net, backend="dense"), currents, steps_of(currents), potentials=potentials)
    assert mine.keys() == theirs.keys()
    for name, expected in theirs.items():
        close(mine[name], expected, name)


def close(found: Tensor, expected: Tensor, name: str) -> None:
    """Float32 sums in another order, amplified over the steps by weights times 3."""
    scale = float(expected.abs().max())
    worst = float((found - expected).abs().max())
    assert worst <= 3e-4 * scale + 1e-7, f"{name}: differs by {worst:g} of {scale:g}"


def test_lists_and_gradients_are_those_of_the_reference(net: ss.Network, currents: Tensor) -> None:
    model = model_of(net)
    x = currents.clone().requires_grad_()
    last = net.populations[net.output]
    fires = ss.layers.fires(last)
    output = model(x, n_steps=steps_of(x), potentials=fires and not trains_last(net))
    weights = torch.linspace(-1, 1, T * B * last.n).view(T, B, last.n)
    values = output.spikes[net.output].to_dense() if fires else output.potentials
    assert values is not None
    loss = (values * weights).sum()
    if fires and output.potentials is not None:
        loss = loss + (output.potentials * weights).sum()
    loss.backward()
    parameters = {name: Parameters.from_layer(layer, np.float32) for name, layer in model.layers.items()}
    full = currents.expand(T, -1, -1) if currents.ndim == 2 else currents
    records = network_forward(net, parameters, full.numpy(), seed=3, training_step=1)
    for name, lists in output.spikes.items():
        assert isinstance(lists, ss.SpikeBatch)
        assert np.array_equal(lists.to_dense().detach().numpy(), records[name].sent), name
    if output.potentials is not None:
        assert np.array_equal(output.potentials.detach().numpy(), records[net.output].v[:-1])
    of_potentials = weights.numpy() if fires and output.potentials is not None else None
    found = network_backward(net, parameters, records, {net.output: weights.numpy()}, of_potentials)
    expected = found[next(iter(net.receivers()))].inputs[0]
    expected = expected.sum(0) if currents.ndim == 2 else expected
    assert x.grad is not None
    close(x.grad, torch.from_numpy(expected), "currents")


def test_constant_currents_have_the_bits_of_repeated_ones(net: ss.Network) -> None:
    """One copy in the forward pass; its gradient is the sum over the steps, from the last to the first."""
    n = net.populations["input"].n
    once = 1.2 * torch.randn(B, n, generator=torch.Generator().manual_seed(n))
    potentials = not trains_last(net)
    a = train(model_of(net), once, T, potentials=potentials)
    b = train(model_of(net), once.expand(T, -1, -1).contiguous(), None, potentials=potentials)
    total = torch.zeros(B, n)
    for d in reversed(b.pop("currents")):
        total = total + d
    assert torch.equal(a.pop("currents"), total)
    check_same(a, b)


def test_a_tensor_that_is_expanded_over_time_is_read_once() -> None:
    net = ss.parse_net("currents-70-10", **LISTED)
    once = torch.randn(B, 70).requires_grad_()
    output = model_of(net)(once.expand(T, -1, -1))
    loss_of(output).backward()
    again = train(model_of(net), once.detach(), T)
    assert once.grad is not None
    assert torch.equal(once.grad, again["currents"])


def test_chunks_and_live_equal_one_call(net: ss.Network, currents: Tensor) -> None:
    model = model_of(net).eval()
    n_steps = steps_of(currents)
    with torch.no_grad():
        whole = model(currents, n_steps=n_steps, potentials=True)
        live = model.live()
        state: Any = None
        parts = []
        for start, stop in ((0, 5), (5, 6), (6, T)):
            part, steps = (currents, stop - start) if n_steps else (currents[start:stop], None)
            output = model(part, state, n_steps=steps, potentials=True)
            now = live(part, n_steps=steps)
            state = output.state
            parts.append(output.potentials)
            for name, lists in output.spikes.items():
                a, b = now.spikes[name], lists
                assert isinstance(a, ss.SpikeBatch)
                assert isinstance(b, ss.SpikeBatch)
                assert torch.equal(a.to_dense(), b.to_dense())
                expected = whole.spikes[name]
                assert isinstance(expected, ss.SpikeBatch)
                assert torch.equal(b.to_dense(), expected.steps(start, stop).to_dense())
    assert whole.potentials is not None
    assert torch.equal(torch.cat(parts), whole.potentials)


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_bits_do_not_depend_on_threads(net: ss.Network, currents: Tensor, n_threads: int) -> None:
    before = ss.num_threads()
    potentials = not trains_last(net)
    expected = train(model_of(net), currents, steps_of(currents), potentials=potentials)
    ss.set_num_threads(n_threads)
    try:
        check_same(expected, train(model_of(net), currents, steps_of(currents), potentials=potentials))
    finally:
        ss.set_num_threads(before)


def test_learn_has_the_bits_of_autograd(net: ss.Network, currents: Tensor) -> None:
    potentials = not trains_last(net)
    expected = train(model_of(net), currents, steps_of(currents), potentials=potentials)
    del expected["currents"]
    model = model_of(net)
    if not any(p.requires_grad for p in model.parameters()):
        pytest.skip("nothing learns")
    _, output = model.learn(currents, loss_of, n_steps=steps_of(currents), potentials=potentials)
    found = {k: p.grad for k, p in model.named_parameters() if p.grad is not None}
    if output.potentials is not None:
        found["potentials"] = output.potentials.detach()
    check_same(found, expected)


def test_learn_trains_a_module_in_front() -> None:
    net = ss.parse_net("currents-70-10", **LISTED)
    images = torch.rand(B, 33)
    found = []
    for way in ("learn", "backward"):
        torch.manual_seed(1)
        front, model = nn.Linear(33, 70), model_of(net)
        if way == "learn":
            model.learn(front(images), loss_of, n_steps=T)
        else:
            loss_of(model(front(images), n_steps=T)).backward()
        found.append({k: p.grad for m in (front, model) for k, p in m.named_parameters()})
    check_same(*found)
    assert float(found[0]["weight"].abs().max()) > 0


def test_hooks_run_layers_one_by_one_with_the_same_bits(net: ss.Network, currents: Tensor) -> None:
    potentials = not trains_last(net)
    expected = train(model_of(net), currents, steps_of(currents), potentials=potentials)
    model = model_of(net)
    for layer in model.layers.values():
        layer.register_forward_hook(lambda *_: None)
    check_same(train(model, currents, steps_of(currents), potentials=potentials), expected)


def test_recordings_are_those_of_the_engine(net: ss.Network, currents: Tensor) -> None:
    model = model_of(net).eval()
    output = model(currents, n_steps=steps_of(currents), record=list(model.layers), potentials=True)
    assert output.potentials is not None
    assert torch.equal(output.traces[net.output].v, output.potentials)


# ---- other ways in -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_layers_behind_modules(backend: str) -> None:
    """The tutorial's form; a layer may have spikes in addition to its currents."""
    torch.manual_seed(0)
    first = ss.Layer(ss.LIF(70, **LISTED), backend=backend)
    stack = ss.Sequential(nn.Linear(33, 70), first, ss.Layer(ss.LI(10), 70, backend=backend))
    images = torch.rand(B, 33)
    out, states = stack(images, n_steps=T)
    assert out.shape == (T, B, 10)
    out.sum().backward()
    assert all(p.grad is not None and float(p.grad.abs().max()) > 0 for p in stack.parameters())
    with torch.no_grad():
        half, states = stack(images, n_steps=8)
        rest, _ = stack(images, states, n_steps=T - 8)
    assert torch.equal(torch.cat([half, rest]), out)

    spikes = (torch.rand(T, B, 5) < 0.5).float()
    two = ss.Layer(ss.LIF(70, **LISTED), [None, 5], backend=backend)
    assert two.senders[0].synapses == OneToOne()
    currents = stack[0](images).detach().requires_grad_()
    given = spikes if backend == "dense" else ss.SpikeBatch.from_dense(spikes)
    _, state, potentials = two([currents, given], n_steps=T, potentials=True)
    potentials.sum().backward()
    assert potentials.shape == (T, B, 70)
    assert currents.grad is not None
    assert currents.grad.shape == (B, 70)
    assert torch.equal(potentials[-1].detach(), state.v)


def test_sequential_batch_norm_and_convolution_per_step() -> None:
    class Front(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.conv(x.flatten(0, 1))).flatten(1).unflatten(0, x.shape[:2])

    stack = ss.Sequential(Front(), ss.Layer(ss.LIF(4 * 36, **LISTED)), ss.Layer(ss.LI(3), 4 * 36))
    out, _ = stack(torch.rand(T, B, 1, 8, 8))
    out.square().sum().backward()
    assert all(p.grad is not None and float(p.grad.abs().max()) > 0 for p in stack.parameters())


@pytest.mark.parametrize("weight_dtype", ["bfloat16", "int8"])
def test_rounded_weights_of_other_connections(weight_dtype: str) -> None:
    net = ss.parse_net("currents-70r-10", **LISTED)
    found = train(model_of(net, weight_dtype=weight_dtype), torch.randn(B, 70), T)
    assert float(found["currents"].abs().max()) > 0


def test_other_types_are_converted_and_get_their_own_gradient() -> None:
    net = ss.parse_net("currents-70-10", **LISTED)
    x = torch.randn(B, 70)
    expected = train(model_of(net), x, T)
    doubled = x.double().requires_grad_()
    loss_of(model_of(net)(doubled, n_steps=T)).backward()
    assert doubled.grad is not None
    assert doubled.grad.dtype == torch.float64
    assert torch.equal(doubled.grad.float(), expected["currents"])
    output = model_of(net)(x.numpy(), n_steps=T)
    assert output.potentials is not None
    assert torch.equal(output.potentials.detach(), expected["potentials"])


@pytest.mark.parametrize("shape", [(0, B, 70), (T, 0, 70), (1, 1, 70)])
def test_empty_and_single(shape: tuple[int, ...]) -> None:
    found = train(model_of(ss.parse_net("currents-70r-10", **LISTED)), torch.ones(shape), None)
    assert found["currents"].shape == shape
    assert found["potentials"].shape == (*shape[:2], 10)


def test_copies_and_pickles() -> None:
    model = model_of(ss.parse_net("currents-70-10", **LISTED))
    x = torch.randn(B, 70)
    check_same(train(copy.deepcopy(model), x, T), train(model, x, T))


# ---- descriptions and refusals ------------------------------------------------------------------------------------


def test_text_python_and_files_describe_the_same_network() -> None:
    by_text = ss.parse_net("currents-100r-10")
    assert by_text == ss.Network.chain(ss.Input(100, currents=True), ss.LIF(100, recurrent=True), ss.LI(10))
    assert by_text.connections[0].synapses == OneToOne()
    assert ss.Network.from_json(by_text.to_json()) == by_text
    assert by_text.n_weights() == 100 * 100 + 100 * 10
    assert "currents" not in ss.parse_net("100-10").to_json()


def refusals() -> Iterator[tuple[Any, str]]:
    net = ss.parse_net("currents-70-10")
    x = torch.zeros(T, B, 70)
    yield lambda: model_of(net)(x[0]), r"currents have shape \[11, 70\] and n_steps is None; give \[T, B, 70\]"
    yield lambda: model_of(net)(x, n_steps=T), r"shape \[21, 11, 70\] and n_steps is 21"
    yield lambda: model_of(net)(x[..., :3]), r"shape \[21, 11, 3\].*give \[T, B, 70\]"
    yield lambda: model_of(net)(x[0], n_steps=-1), r"n_steps is -1; give a whole number from 0"
    yield (
        lambda: model_of(net)(ss.SpikeBatch.from_dense(x)),
        r"input is currents but got SpikeBatch.*give a tensor \[T, B, 70\]",
    )
    yield lambda: model_of(net)(x * float("nan")), r"currents hold nan at \[0, 0, 0\]; give finite numbers"
    yield lambda: model_of(net)(x / 0 + float("inf")), r"currents hold .* at \[0, 0, 0\]"
    yield (
        lambda: model_of(ss.parse_net("70-10"))(ss.SpikeBatch.from_dense(x), n_steps=3),
        r"n_steps is 3, but the input is spikes",
    )
    yield lambda: ss.Layer(ss.LIF(5), [3, None]), r"1 of its sources give currents; allowed: one, the first"
    yield lambda: ss.Layer(ss.LIF(5), [None, None]), r"2 of its sources give currents; allowed: one, the first"
    yield lambda: ss.Layer(ss.LIF(5), None, delays=[2]), r"delay of its currents is 2; allowed: 0"
    yield (
        lambda: ss.Sequential(ss.Layer(ss.LIF(5)), ss.Layer(ss.LIF(5))),
        r"layer 1 reads currents, but layer 0 sends spikes",
    )
    yield (
        lambda: ss.parse_net("currents-70-10").with_delay(2),
        r"delay of 2, but currents arrive in their own step; allowed: 0",
    )
    yield (
        lambda: ss.Network.chain(ss.Input(70, currents=True), ss.LIF(69)),
        r"gives 70 currents to 69 neurons; make the two sizes equal",
    )
    yield (
        lambda: ss.Network.chain(ss.Input(70), OneToOne(), ss.LIF(70)),
        r"OneToOne\(\), which only an Input\(currents=True\) has",
    )
    yield (
        lambda: ss.parse_net("currents-70p0.1-10"),
        r"sender gives currents, one for each neuron; leave the synapses out",
    )
    yield lambda: ss.Input(shape=(2, 2, 1), currents=True), r"currents is True, shape \(2, 2, 1\)"
    yield lambda: ss.parse_net("currents"), r"write sizes joined by '-'.*currents-1000-10"
    yield lambda: ss.parse_net("currents-x-10"), r"'' is not a size"


@pytest.mark.parametrize("k", range(len(list(refusals()))))
def test_refusals(k: int) -> None:
    call, message = list(refusals())[k]
    with pytest.raises((ShapeError, DescriptionError, NumericError), match=message):
        call()


def test_a_second_derivative_is_refused() -> None:
    x = torch.randn(B, 70).requires_grad_()
    output = model_of(ss.parse_net("currents-70-10", **LISTED))(x, n_steps=T)
    (d,) = torch.autograd.grad(loss_of(output), x, create_graph=True)
    with pytest.raises(SecondDerivativeError, match="a layer of the backend 'cpu'"):
        d.sum().backward()


def test_potentials_of_neurons_whose_parameters_are_trained() -> None:
    """Dense gives their gradient; cpu refuses by name."""
    net = ss.parse_net("currents-7-3s", learn_beta=True)
    x = torch.randn(T, B, 7)
    output = model_of(net, backend="dense")(x, potentials=True)
    assert output.potentials is not None
    output.potentials.sum().backward()
    with pytest.raises(DescriptionError, match=r"potentials are an output.*use the backend 'dense'"):
        model_of(net)(x, potentials=True)


def test_potentials_are_only_given_when_they_are_asked_for() -> None:
    for text in ("currents-7-3s", "currents-7r-3s"):
        output = model_of(ss.parse_net(text))(torch.randn(T, B, 7))
        assert output.potentials is None


def test_what_does_not_run_currents_says_so(tmp_path: Path) -> None:
    net = ss.parse_net("currents-16-3")
    model = ss.Model(net)
    described = r"'input': gives currents .*, which {} does not support.*the backends 'cpu', 'gpu' and 'dense' run it"
    for who, call in (
        ("a plan", lambda: make_plan(net, 8, 5, parse_target("cpu"))),
        ("a plan", lambda: make_plan(net, 8, 5, parse_target("ipu-mk2"))),
        ("ONNX", lambda: ss.onnx.StepModule(model)),
        ("NIR", lambda: ss.nir.to_nir(model)),
        ("a file with integer weights", lambda: ss.integers.save(model, tmp_path / "net", "int8")),
    ):
        with pytest.raises(DescriptionError, match=described.format(who)):
            call()
