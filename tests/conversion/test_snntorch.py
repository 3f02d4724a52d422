"""Networks of snnTorch, converted: the same spikes, potentials and gradients."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from comparing import compare, linear, spikes
from torch import Tensor, nn
from torch.nn.utils import prune

import sparsesnn as ss

snn = pytest.importorskip("snntorch", reason="needs snntorch, in the extra 'test'")
from snntorch import surrogate  # noqa: E402

Make = Callable[[int], Any]


class Loop(nn.Module):
    """A loop over time in forward, as in the tutorials of snnTorch."""

    def __init__(self, sizes: list[int], neurons: Make, *, potentials: bool = True, repeats: int = 0) -> None:
        super().__init__()
        self.synapses = nn.ModuleList(linear(a, b) for a, b in itertools.pairwise(sizes))
        self.neurons = nn.ModuleList(neurons(n) for n in sizes[1:])
        self.potentials, self.repeats = potentials, repeats

    def forward(self, x: Tensor) -> Any:
        states = [m.reset_mem() for m in self.neurons]
        states = [s if isinstance(s, tuple) else (s,) for s in states]
        recorded, potentials = [], []
        for t in range(self.repeats or len(x)):
            y = x if self.repeats else x[t]
            for k, (synapses, neurons) in enumerate(zip(self.synapses, self.neurons, strict=True)):
                y, *after = neurons(synapses(y), *states[k])
                states[k] = (y, *after) if hasattr(neurons, "recurrent") else tuple(after)
            recorded.append(y)
            potentials.append(states[-1][-1])
        made = torch.stack(recorded), torch.stack(potentials)
        return made if self.potentials else made[0]


NEURONS: dict[str, Make] = {
    "Leaky": lambda n: snn.Leaky(beta=0.9),
    "Leaky zero": lambda n: snn.Leaky(beta=0.8, reset_mechanism="zero", spike_grad=surrogate.fast_sigmoid(slope=25)),
    "Leaky none": lambda n: snn.Leaky(
        beta=0.8, reset_mechanism="none", spike_grad=surrogate.straight_through_estimator()
    ),
    "Leaky per neuron": lambda n: snn.Leaky(beta=torch.rand(n), threshold=torch.rand(n) + 0.5),
    "Synaptic": lambda n: snn.Synaptic(alpha=0.6, beta=0.7, spike_grad=surrogate.fast_sigmoid()),
    "RLeaky": lambda n: snn.RLeaky(beta=0.9, linear_features=n),
    "RSynaptic": lambda n: snn.RSynaptic(alpha=0.5, beta=0.6, linear_features=n),
    "RLeaky, one to one": lambda n: snn.RLeaky(beta=0.9, all_to_all=False, V=torch.rand(n), learn_recurrent=False),
    "Alpha": lambda n: snn.Alpha(alpha=0.8, beta=0.7, reset_mechanism="none"),
}


@pytest.mark.parametrize("kind", NEURONS)
def test_neurons(kind: str) -> None:
    torch.manual_seed(3)
    network = Loop([31, 23, 7], NEURONS[kind])
    _, (fired, _) = compare(network, spikes(13, 3, 31), spikes(4, 2, 31))
    assert 0.01 < float(fired.mean()) < 0.9


@pytest.mark.parametrize(
    "neurons",
    [
        lambda n: snn.Leaky(beta=torch.rand(n), learn_beta=True),
        lambda n: snn.Leaky(beta=0.9, learn_beta=True, learn_threshold=True),
        lambda n: snn.Synaptic(alpha=0.6, beta=0.7, learn_alpha=True, learn_beta=True),
        lambda n: snn.RLeaky(beta=0.9, all_to_all=False, V=torch.rand(n)),
    ],
)
def test_trained_parameters(neurons: Make) -> None:
    torch.manual_seed(3)
    compare(Loop([31, 23, 7], neurons, potentials=False), spikes(13, 3, 31), spikes(4, 2, 31))


def test_a_hundred_random_networks() -> None:
    choose = random.Random(0)
    for seed in range(100):
        torch.manual_seed(seed)
        kinds = [kind for kind in NEURONS if kind not in ("Leaky none", "Alpha")]
        sizes = [choose.randint(1, 40) for _ in range(choose.randint(2, 4))]
        network = Loop(sizes, NEURONS[choose.choice(kinds)])
        x = spikes(choose.randint(2, 20), choose.randint(1, 5), sizes[0], share=choose.uniform(0.05, 0.4), seed=seed)
        compare(network, x, x[:2])


def test_an_image_at_every_step_is_computed_once() -> None:
    torch.manual_seed(0)
    network = Loop([31, 23, 7], NEURONS["Leaky"], repeats=9)
    calls: list[Any] = []
    x = torch.rand(3, 31)
    converted, _ = compare(network, x)
    network.synapses[0].register_forward_hook(lambda *given: calls.append(given[2].shape))
    converted(x)
    assert next(list(shape) for shape in calls if len(shape) == 2) == [3, 23]
    assert converted._engine.wiring.front.is_spikes is False


def test_another_number_of_steps() -> None:
    torch.manual_seed(0)
    network, x = Loop([31, 23, 7], NEURONS["Leaky"], repeats=9), torch.rand(3, 31)
    converted = ss.convert(network, x)
    for repeats in (4, 12):
        network.repeats = converted.repeats = repeats
        assert torch.equal(converted(x)[0], network(x)[0])
        assert len(converted(x)[0]) == repeats


def test_weighted_sums_as_output_and_gradients_of_the_input() -> None:
    class Sums(Loop):
        def forward(self, x: Tensor) -> Any:
            v, recorded = self.neurons[0].init_leaky(), []
            for step in x:
                s, v = self.neurons[0](self.synapses[0](step), v)
                recorded.append(self.synapses[1](s))
            return {"sums": torch.stack(recorded).mean(0)}

    torch.manual_seed(0)
    network, x = Sums([31, 23, 7], NEURONS["Leaky"]), spikes(13, 3, 31)
    gradients = []
    for model in (network, ss.convert(network, x)):
        given = x.clone().requires_grad_()
        made = model(given)["sums"]
        gradients.append((made, *torch.autograd.grad(made.square().sum(), given)))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)


def test_hooks_of_neurons_see_their_spikes() -> None:
    torch.manual_seed(0)
    network, x = Loop([31, 23, 7], NEURONS["Leaky"], potentials=False), spikes(13, 3, 31)
    seen: list[Tensor] = []
    network.neurons[0].register_forward_hook(lambda module, given, made: seen.append(made[0].detach()))
    converted = ss.convert(network, x)
    seen.clear()
    network(x)
    theirs = torch.stack(seen)
    seen.clear()
    converted(x)
    assert torch.equal(torch.stack(seen), theirs)


class Skip(nn.Module):
    """A recurrent matrix, a connection past a layer, and hidden records."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.own, self.past = linear(31, 23), linear(23, 23, 1.0, bias=False), linear(31, 7)
        self.last = linear(23, 7)
        self.hidden, self.output = snn.Leaky(beta=0.9), snn.Leaky(beta=0.8)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden, output = self.hidden.init_leaky(), self.output.init_leaky()
        s, recorded, self.seen = torch.zeros(x.shape[1], 23), [], []
        for step in x:
            s, hidden = self.hidden(self.first(step) + self.own(s), hidden)
            y, output = self.output(self.last(s) + self.past(step), output)
            self.seen.append(s)
            recorded.append(y)
        return torch.stack(recorded), torch.stack(self.seen).mean(0)


def test_recurrence_skip_connections_and_records() -> None:
    torch.manual_seed(0)
    x = spikes(13, 3, 31)
    network = Skip()
    converted, _ = compare(network, x, x[:3])
    names = [c.name for c in converted._engine.built.model.network.connections]
    assert names == ["input->hidden", "hidden->output", "input->output", "hidden->hidden"]
    network(x)
    converted(x)
    assert torch.equal(torch.stack(converted.seen), torch.stack(network.seen))


def test_one_linear_with_several_senders() -> None:
    """The bias is added once for each call."""

    class Twice(Skip):
        def __init__(self, twice: bool) -> None:
            super().__init__()
            self.second, self.other, self.twice = linear(31, 23), snn.Leaky(beta=0.7), twice

        def forward(self, x: Tensor) -> Any:
            a, b, c, recorded = self.hidden.init_leaky(), self.other.init_leaky(), self.output.init_leaky(), []
            for step in x:
                s, a = self.hidden(self.first(step), a)
                z, b = self.other(self.second(step), b)
                y, c = self.output(self.last(s) + self.last(z) if self.twice else self.last(s + z), c)
                recorded.append(y)
            return torch.stack(recorded)

    torch.manual_seed(0)
    for twice in (False, True):
        network = Twice(twice)
        with torch.no_grad():
            network.last.bias += 0.3
        compare(network, spikes(13, 3, 31))


def test_hidden_potentials_on_request() -> None:
    class Recorded(Skip):
        def forward(self, x: Tensor) -> Any:
            hidden, output, recorded = self.hidden.init_leaky(), self.output.init_leaky(), []
            for step in x:
                s, hidden = self.hidden(self.first(step), hidden)
                y, output = self.output(self.last(s), output)
                recorded.append(hidden)
            return y, torch.stack(recorded)

    torch.manual_seed(0)
    network, x = Recorded(), spikes(13, 3, 31)
    with pytest.raises(ss.errors.DescriptionError, match=r"hidden \(Leaky\).*record=\['hidden'\]"):
        ss.convert(network, x)
    theirs, ours = network(x), ss.convert(network, x, record=["hidden"])(x)
    assert torch.equal(ours[0], theirs[0])
    torch.testing.assert_close(ours[1], theirs[1])
    assert not ours[1].requires_grad


def test_layers_with_states_of_their_own() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                linear(31, 23),
                snn.Leaky(beta=0.9, init_hidden=True),
                linear(23, 7),
                snn.Leaky(beta=0.9, init_hidden=True, output=True),
            )

        def forward(self, x: Tensor) -> Any:
            for layer in (self.layers[1], self.layers[3]):
                layer.reset_mem()
            made = [self.layers(step) for step in x]
            return torch.stack([s for s, _ in made]), torch.stack([v for _, v in made])

    torch.manual_seed(0)
    compare(Own(), spikes(13, 3, 31))


def test_static_layers_in_front_stay() -> None:
    class Normed(Loop):
        def __init__(self) -> None:
            super().__init__([31, 23, 7], NEURONS["Leaky"])
            self.norm = nn.BatchNorm1d(23)

        def forward(self, x: Tensor) -> Any:
            a, b, recorded = self.neurons[0].init_leaky(), self.neurons[1].init_leaky(), []
            for step in x:
                s, a = self.neurons[0](torch.relu(self.norm(self.synapses[0](step))), a)
                s, b = self.neurons[1](self.synapses[1](s), b)
                recorded.append(s)
            return torch.stack(recorded)

    torch.manual_seed(0)
    network, x = Normed(), torch.rand(13, 4, 31)
    other = copy.deepcopy(network)
    converted, _ = compare(network, x)
    converted.norm.load_state_dict(other.norm.state_dict())
    converted(x)
    other(x)
    torch.testing.assert_close(converted.norm.running_mean, other.norm.running_mean)


def train(model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        optimizer.zero_grad()
        (model(x).sum(0) - 2).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("fused", [False, True])
def test_the_optimizer_and_the_state_dict_go_on(fused: bool) -> None:
    """Even a fused optimizer that has taken steps before, whose kernel reads parameters and its own state by address."""
    torch.manual_seed(0)
    network, x = Loop([31, 23, 7], NEURONS["Leaky"], potentials=False), spikes(13, 3, 31)
    other = copy.deepcopy(network)
    optimizer, others = (
        torch.optim.Adam(network.parameters(), 0.01, fused=fused),
        torch.optim.Adam(other.parameters(), 0.01),
    )
    train(network, x, optimizer)
    train(other, x, others)
    converted = ss.convert(network, x)
    assert isinstance(converted, Loop)
    assert list(converted.state_dict()) == list(network.state_dict())
    assert all(a is b for a, b in zip(converted.parameters(), network.parameters(), strict=True))
    train(converted, x, optimizer)
    train(other, x, others)
    for a, b in zip(network.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    other.load_state_dict(converted.state_dict())
    converted.load_state_dict(other.state_dict())
    assert torch.equal(converted(x), other(x))


def test_copies_have_parameters_of_their_own() -> None:
    torch.manual_seed(0)
    network, x = Loop([31, 23, 7], NEURONS["Leaky"], potentials=False), spikes(13, 3, 31)
    converted = ss.convert(network, x)
    copied = copy.deepcopy(converted)
    before = converted(x)
    with torch.no_grad():
        copied.synapses[0].weight.zero_()
    assert torch.equal(converted(x), before)
    assert not torch.equal(copied(x), before)


def test_fewer_listed_neurons_fire_the_same() -> None:
    torch.manual_seed(0)
    network, x = Loop([31, 23, 7], NEURONS["Leaky"], potentials=False), spikes(13, 3, 31)
    fast = ss.convert(network, x, grad_threshold=0.9)
    assert torch.equal(fast(x), network(x))
    assert fast._engine.built.model.network.populations["neurons_0"].grad_threshold == pytest.approx(0.9)


def test_pruned_weights() -> None:
    torch.manual_seed(0)
    network, x = Loop([31, 23, 7], NEURONS["Leaky"], potentials=False), spikes(13, 3, 31)
    prune.random_unstructured(network.synapses[0], "weight", amount=0.5)
    converted = ss.convert(network, x)
    with torch.no_grad():
        network.synapses[0].weight_orig *= 1.3
    assert torch.equal(converted(x), network(x))


def test_one_step_a_call_stays_with_the_library() -> None:
    class Step(Loop):
        def forward(self, x: Tensor, *states: Any) -> Any:
            y, *after = self.neurons[0](self.synapses[0](x), *states)
            return y, *after

    network, x = Step([31, 7], NEURONS["Leaky"]), spikes(5, 3, 31)
    with pytest.warns(UserWarning, match="one step a call"):
        converted = ss.convert(network, x[0])
    ours = converted(x[1], *converted(x[0])[1:])
    network.neurons[0].reset_mem()
    theirs = network(x[1], *network(x[0])[1:])
    assert torch.equal(ours[1], theirs[1])
