"""Users' own neuron models: on every engine, against their equations written out by hand in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import sparsesnn as ss
from sparsesnn.engines.dense.neuron import Spike
from sparsesnn.engines.module import Model
from sparsesnn.errors import DescriptionError, NumericError
from sparsesnn.layers.shapes import shape_of
from sparsesnn.network import Connection, Network
from sparsesnn.spikes import SpikeBatch


@dataclass(frozen=True)
class Rising(ss.Neuron):
    """Its threshold rises with every spike: x = v - strength·a is compared with the threshold."""

    beta: ss.PerNeuron = ss.parameter(0.9, "decay of the potential", low=0, high=1)
    rho: ss.PerNeuron = ss.parameter(0.97, "decay of the adaptation", low=0, high=1)
    strength: float = 1.8
    states: ClassVar = ("x", "a")

    def arrays(self, p: Any) -> ss.NeuronArrays:
        k, b, r = self.strength, p["beta"], p["rho"]
        return ss.NeuronArrays(
            A=[[b, k * (b - r)], [0, r]],
            R=[[0, -k], [0, 0]],
            r=[-p["threshold"], 0],
            f=[-k * (1 - r), 1 - r],
            B=[1, 0],
        )


def rising(m: Rising, p: Any, z: list[Tensor], reset: Tensor, s: Tensor, i: Tensor) -> list[Tensor]:
    """v ← β·v - (θ + k·a)·s + i in the variables v = x + k·a and a."""
    x, a = z
    k, b, r, theta = m.strength, p["beta"], p["rho"], p["threshold"]
    v = x + k * a
    v = b * v - reset * (theta + k * a) + i
    a_next = r * a + (1 - r) * s
    return [v - k * a_next, a_next]


@dataclass(frozen=True)
class Slow(ss.Neuron):
    """A synaptic current j, and an adaptation a that reads the potential and the spikes; the reset is to zero."""

    beta: ss.PerNeuron = ss.parameter(0.9, "decay of the potential", low=0, high=1)
    alpha: ss.PerNeuron = ss.parameter(0.8, "decay of the current", low=0, high=1)
    rho: ss.PerNeuron = ss.parameter(0.95, "decay of the adaptation", low=0, high=1)
    pull_: ss.PerNeuron = ss.parameter(0.2, "strength of the adaptation", low=0, high=2)
    states: ClassVar = ("v", "j", "a")

    def arrays(self, p: Any) -> ss.NeuronArrays:
        b, al, r, q = p["beta"], p["alpha"], p["rho"], p["pull_"]
        return ss.NeuronArrays(
            A=[[b, 1, -q], [0, al, 0], [0.1 * (1 - r), 0, r]],
            R=[[-b, 0, 0], [0, 0, 0], [-0.1 * (1 - r), 0, 0]],
            f=[0, 0, 1 - r],
            B=[0, 1, 0],
            c=[0.01, 0, 0],
            sequential=True,
        )


def slow(m: Slow, p: Any, z: list[Tensor], reset: Tensor, s: Tensor, i: Tensor) -> list[Tensor]:
    v, j, a = z
    b, al, r, q = p["beta"], p["alpha"], p["rho"], p["pull_"]
    kept = v * (1 - reset)
    a = r * a + (1 - r) * (0.1 * kept + s)
    j = al * j + i
    return [b * kept + j - q * a + 0.01, j, a]


@dataclass(frozen=True)
class Damped(ss.Neuron):
    """A resonator with its own damping and angle per neuron, given as a cosine."""

    damping: ss.PerNeuron = ss.parameter(0.9, "shrinks the state per step", low=0, high=1)
    cosine: ss.PerNeuron = ss.parameter(0.8, "of the angle per step", low=-1, high=1)
    states: ClassVar = ("v", "y")

    def arrays(self, p: Any) -> ss.NeuronArrays:
        d, c = p["damping"], p["cosine"]
        sine = 1 - c * c  # near enough to a rotation for a test
        return ss.NeuronArrays(A=[[d * c, -d * sine], [d * sine, d * c]], r=[-p["threshold"], 0], B=[0.7, 0.3])


def damped(m: Damped, p: Any, z: list[Tensor], reset: Tensor, s: Tensor, i: Tensor) -> list[Tensor]:
    v, y = z
    d, c = p["damping"], p["cosine"]
    sine = 1 - c * c
    return [
        d * (c * v - sine * y) - p["threshold"] * reset + 0.7 * i,
        d * (sine * v + c * y) + 0.3 * i,
    ]


@dataclass(frozen=True)
class Filtered(ss.Neuron):
    """A readout whose output is a filtered potential."""

    beta: ss.PerNeuron = ss.parameter(0.9, "decay of the potential", low=0, high=1)
    kappa: ss.PerNeuron = ss.parameter(0.8, "decay of the output", low=0, high=1)
    fires: ClassVar = False
    states: ClassVar = ("out", "v")

    def arrays(self, p: Any) -> ss.NeuronArrays:
        k = p["kappa"]
        return ss.NeuronArrays(A=[[k, 1 - k], [0, p["beta"]]], B=[0, 1 - p["beta"]], sequential=True)


def filtered(m: Filtered, p: Any, z: list[Tensor], i: Tensor) -> list[Tensor]:
    out, v = z
    v = p["beta"] * v + (1 - p["beta"]) * i
    return [p["kappa"] * out + (1 - p["kappa"]) * v, v]


BY_HAND: dict[type, Callable[..., list[Tensor]]] = {Rising: rising, Slow: slow, Damped: damped}
SIZES = {"in": 13, "a": 21, "b": 18, "out": 5}
T, B = 17, 9


def spread(low: float, high: float, n: int) -> tuple[float, ...]:
    return tuple(np.random.default_rng(n).uniform(low, high, n))


def model_of(kind: str, n: int, **more: Any) -> ss.Neuron:
    more = {"grad_threshold": 0.3, "surrogate": ss.Surrogate("fast_sigmoid", 3.0), **more}
    if kind == "rising":
        return Rising(
            n,
            beta=spread(0.7, 0.95, n),
            rho=spread(0.8, 0.95, n),
            strength=0.7,
            learn_beta=True,
            learn_rho=True,
            **more,
        )
    if kind == "slow":
        given = {"alpha": spread(0.3, 0.7, n), "rho": spread(0.8, 0.95, n), "pull_": spread(0.1, 0.4, n)}
        return Slow(n, **given, learn_alpha=True, learn_rho=True, learn_pull_=True, **more)
    given = {"damping": spread(0.8, 0.95, n), "cosine": spread(0.6, 0.9, n), "threshold": spread(0.8, 1.2, n)}
    return Damped(n, **given, learn_damping=True, learn_cosine=True, learn_threshold=True, **more)


def network_of(kind: str, **more: Any) -> Network:
    """Two populations of a model, the first one recurrent, with delays, and the filtered readout."""
    return Network(
        {
            "in": ss.Input(SIZES["in"]),
            "a": model_of(kind, SIZES["a"], bias=True, **more),
            "b": model_of(kind, SIZES["b"], **more),
            "out": Filtered(
                SIZES["out"],
                beta=(0.8, 0.85, 0.9, 0.93, 0.95),
                kappa=(0.5, 0.6, 0.7, 0.8, 0.9),
                learn_beta=True,
                learn_kappa=True,
                bias=True,
            ),
        },
        [
            Connection("in", "a"),
            Connection("in", "a", delay=2),
            Connection("a", "a", delay=1),
            Connection("a", "b", delay=1),
            Connection("b", "out"),
        ],
    )


def spikes() -> SpikeBatch:
    generator = torch.Generator().manual_seed(3)
    return SpikeBatch.from_dense((torch.rand(T, B, SIZES["in"], generator=generator) < 0.25).float())


def scaled(model: Model) -> Model:
    """Weights large enough to fire."""
    with torch.no_grad():
        for name, x in model.named_parameters():
            if "->" in name:
                x.mul_(3).add_(0.05)
    return model


def factors() -> Tensor:
    return torch.randn(T, B, SIZES["out"], generator=torch.Generator().manual_seed(4))


def gradients(model: Model) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    output = model(spikes())
    (output.potentials * factors()).sum().backward()
    dense = {k: x.to_dense() if isinstance(x, SpikeBatch) else x for k, x in output.spikes.items()}
    return {k: x.detach() for k, x in dense.items()}, {k: p.grad for k, p in model.named_parameters()}


def by_hand(model: Model) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Spikes and gradients from the equations above, in float64, with autograd."""
    p = {k: x.detach().double().requires_grad_() for k, x in model.named_parameters()}
    fixed = {k: x.detach().double() for k, x in model.named_buffers()}
    network = model.network
    past: dict[str, list[Tensor]] = {k: [] for k in SIZES}
    arriving = spikes().to_dense().double()
    states = {k: [torch.zeros(B, q.n, dtype=torch.float64) for _ in q.states] for k, q in network.receivers().items()}
    total = torch.zeros((), dtype=torch.float64)
    for t in range(T):
        past["in"].append(arriving[t])
        for name, q in network.receivers().items():
            own = {x.name: p.get(f"layers.{name}.{x.name}", fixed.get(f"layers.{name}.{x.name}")) for x in q.parameters}
            i = p.get(f"layers.{name}.bias", torch.zeros(q.n, dtype=torch.float64)).expand(B, q.n)
            for c in network.incoming(name):
                if t >= c.delay:
                    i = i + past[c.pre][t - c.delay] @ p[f"layers.{name}.{c.name}"]
            if isinstance(q, Filtered):
                states[name] = filtered(q, own, states[name], i)
                total = total + (states[name][0] * factors()[t]).sum()
                continue
            s = past[name][-1] if t else torch.zeros(B, q.n, dtype=torch.float64)
            reset = s.detach() if q.detach_reset else s
            states[name] = BY_HAND[type(q)](q, own, states[name], reset, s, i)
            listed = torch.tensor(q.grad_threshold, dtype=torch.float64)
            past[name].append(Spike.apply(states[name][0], own["threshold"], listed, q.surrogate))
    total.backward()
    found = {k: torch.stack(past[k]).detach().float() for k in ("a", "b")}
    return found, {k: x.grad for k, x in p.items()}


def check(found: dict[str, Tensor], want: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert found.keys() == want.keys()
    for name, x in want.items():
        error = float((found[name].double() - x).norm())
        assert error <= tolerance * float(x.norm()) > 0, (name, error, float(x.norm()))


CASES = [(kind, detached) for kind in ("rising", "slow", "damped") for detached in (True, False)]
CASES.remove(("rising", False))  # its reset reads another state


@pytest.mark.parametrize(("kind", "detached"), CASES)
def test_gradients_are_those_of_the_equations(kind: str, detached: bool) -> None:
    network = network_of(kind, detach_reset=detached)
    model = scaled(Model(network, seed=1))
    want_spikes, want = by_hand(model)
    for options in ({"backend": "cpu"}, *({"backend": "dense", "dense_mode": x} for x in ("step", "hoist", "fused"))):
        found_spikes, found = gradients(scaled(Model(network, seed=1, **options)))
        for name, x in want_spikes.items():
            assert 0.02 < float(x.mean()) < 0.9
            assert torch.equal(found_spikes[name].float(), x), (options, name)
        check(found, want)


def test_it_runs_with_capacity_dropout_and_small_weights() -> None:
    """One description, all options of a population: a step of training each, with lists at their limits."""
    for weight_dtype in ("float32", "bfloat16", "int8"):
        model = scaled(Model(network_of("slow", capacity=5), seed=1, weight_dtype=weight_dtype))
        output = model(spikes())
        assert max(output.dropped().values()) > 0
        output.potentials.sum().backward()
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_a_sequence_in_chunks_equals_one_call() -> None:
    model = scaled(Model(network_of("slow"), seed=1)).eval()
    with torch.no_grad():
        whole = model(spikes())
        first = model(spikes().steps(0, 7))
        second = model(spikes().steps(7, T), first.state)
    assert torch.equal(whole.potentials, torch.cat([first.potentials, second.potentials]))
    live = model.live()
    with torch.no_grad():
        steps = [live(spikes().steps(t, t + 1)).potentials for t in range(T)]
    assert torch.equal(whole.potentials, torch.cat([x.reshape(1, B, -1) for x in steps]))


def test_learn_equals_autograd() -> None:
    one, two = (scaled(Model(network_of("rising"), seed=1)) for _ in range(2))
    one.learn(spikes(), lambda output: (output.potentials * factors()).sum())
    (two(spikes()).potentials * factors()).sum().backward()
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


def test_an_attached_reset_that_reads_another_state_is_refused() -> None:
    with pytest.raises(DescriptionError, match=r"Rising: R\[0\]\[1\].*'a'.*detach_reset=True"):
        Model(network_of("rising", detach_reset=False))


def test_a_class_of_a_function_may_name_what_the_module_lacks() -> None:
    """Its annotations are texts, which cannot be evaluated later."""
    import sparsesnn as here

    @dataclass(frozen=True)
    class Local(here.Neuron):
        beta: here.PerNeuron = here.parameter(0.9, "decay", low=0, high=1)
        strength: here.PerNeuron = 0.5
        states: ClassVar = ("v",)

        def arrays(self, p: Any) -> ss.NeuronArrays:
            return here.NeuronArrays(A=[[p["beta"]]], r=[-p["threshold"]], B=[self.strength])

    assert Local(3, beta=np.full(3, 0.5)).beta == (0.5, 0.5, 0.5)
    with pytest.raises(DescriptionError, match="Local: beta has 2 values; give one number, or one per neuron"):
        Local(3, beta=(0.1, 0.2))


@pytest.mark.parametrize("name", ["weights", "forward"])
def test_a_parameter_with_a_name_of_a_layer_is_refused(name: str) -> None:
    fields = {name: ss.parameter(0.5, "a decay", low=0, high=1)}

    def arrays(self: Any, p: Any) -> ss.NeuronArrays:
        return ss.NeuronArrays(A=[[p[name]]], r=[-p["threshold"]], B=[1])

    body = {**fields, "__annotations__": {name: ss.PerNeuron}, "states": ("v",), "arrays": arrays}
    model = dataclass(frozen=True)(type("Named", (ss.Neuron,), {**body, "__module__": __name__}))
    with pytest.raises(DescriptionError, match=f"Named: a parameter is called '{name}'"):
        Model(Network.chain(ss.Input(3), model(4), ss.LI(2)))


def test_a_parameter_that_is_not_finite() -> None:
    model = Model(network_of("slow"))
    with torch.no_grad():
        model.layers["a"].alpha[3] = math.nan
    with pytest.raises(NumericError, match="a: alpha of neuron 3 is nan"):
        model(spikes())


def test_a_change_of_a_parameter_is_always_noticed() -> None:
    """Also through NumPy, which PyTorch does not see."""
    model = scaled(Model(Network.chain(ss.Input(13), Rising(8), ss.LI(5)), seed=1))
    before = model(spikes()).potentials
    model.layers["hidden"].beta.numpy()[...] = 0.5
    assert not torch.equal(model(spikes()).potentials, before)


def test_four_states_take_the_shape_with_every_entry() -> None:
    @dataclass(frozen=True)
    class Chain(ss.Neuron):
        beta: ss.PerNeuron = ss.parameter(0.8, "decay", low=0, high=1)
        states: ClassVar = ("v", "x", "y", "z")

        def arrays(self, p: Any) -> ss.NeuronArrays:
            b = p["beta"]
            rows = [[b if k == r else 0.5 if k == r + 1 else 0 for k in range(4)] for r in range(4)]
            jumps = [[0, -0.2, 0, 0], [0, 0, 0, 0.1 * b], [0, 0, 0, 0], [-0.1, 0, 0, 0]]
            return ss.NeuronArrays(A=rows, R=jumps, r=[-p["threshold"], 0, 0, 0], B=[0, 0, 0, 1], sequential=True)

    population = Chain(21, learn_beta=True, grad_threshold=0.3)
    assert shape_of(population).name == "any 4"
    network = Network.chain(ss.Input(13), population, ss.LI(5))
    found = [gradients(scaled(Model(network, seed=1, backend=backend))) for backend in ("cpu", "dense")]
    assert torch.equal(found[0][0]["hidden"], found[1][0]["hidden"])
    check(found[0][1], {k: x.double() for k, x in found[1][1].items()})


@pytest.mark.parametrize(("kind", "detached"), CASES)
def test_maps_of_neurons(kind: str, detached: bool) -> None:
    """Behind a convolution, whose receivers run row by row, for graded input spikes."""
    population = replace(model_of(kind, 1, detach_reset=detached), n=None)
    network = Network.chain(ss.Input(shape=(8, 9, 2)), ss.Conv2d(4, kernel=3), population, ss.LI(5))
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(12, 3, 144, generator=generator) < 0.2) * torch.rand(12, 3, 144, generator=generator)
    found = []
    for backend in ("cpu", "dense"):
        model = scaled(Model(network, seed=1, backend=backend))
        output = model(SpikeBatch.from_dense(x, graded=True))
        (output.potentials * torch.linspace(-1, 1, 5)).sum().backward()
        lists = output.spikes["hidden"]
        dense = lists.to_dense() if isinstance(lists, SpikeBatch) else lists
        found.append((dense.detach().float(), {k: p.grad for k, p in model.named_parameters()}))
    assert 0.005 < float(found[0][0].mean()) < 0.9
    assert torch.equal(found[0][0], found[1][0])
    check(found[0][1], {k: x.double() for k, x in found[1][1].items()})
