"""The arrays of neuron models: their step, its adjoint and their derivatives, the same formulas for every structure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import sparsesnn as ss
from sparsesnn.layers import LI, LIF, AdLIF, CubaLIF, Neuron, Resonator
from sparsesnn.layers import arrays as linear_step
from sparsesnn.layers.declaration import kept_states

B, N = 5, 7


@dataclass(frozen=True)
class Adapting(ss.Neuron):
    """A threshold that rises with every spike."""

    beta: ss.PerNeuron = ss.parameter(0.9, "decay of the potential", low=0, high=1)
    rho: ss.PerNeuron = ss.parameter(0.97, "decay of the adaptation", low=0, high=1)
    strength: float = 1.8
    states: ClassVar = ("x", "a")

    def arrays(self, p: Mapping[str, Any]) -> ss.NeuronArrays:
        k, b, r = self.strength, p["beta"], p["rho"]
        return ss.NeuronArrays(
            A=[[b, k * (b - r)], [0, r]], R=[[0, -k], [0, 0]], r=[-p["threshold"], 0], f=[-k * (1 - r), 1 - r], B=[1, 0]
        )


@dataclass(frozen=True)
class Everything(ss.Neuron):
    """Four states, and every entry that there may be, of all parameters."""

    u: ss.PerNeuron = ss.parameter(0.4, "a parameter", low=0, high=1)
    w: ss.PerNeuron = ss.parameter(0.6, "another one", low=-1, high=1)
    sequential: bool = False
    states: ClassVar = ("x", "a", "b", "d")

    def arrays(self, p: Mapping[str, Any]) -> ss.NeuronArrays:
        def entry(k: float) -> Any:
            by_theta = (
                0.1 * math.cos(3 * k) * (1 / (1 + p["threshold"]))
            )  # a number / a tensor has other bits than in NumPy
            return 0.3 * math.cos(k) + 0.2 * math.sin(2 * k) * p["u"] * p["w"] + by_theta

        def row(k: float) -> list[Any]:
            return [entry(k + 0.7 * j) for j in range(4)]

        return ss.NeuronArrays(
            A=[row(k) for k in range(4)],
            R=[row(k + 10) for k in range(4)],
            r=row(20),
            f=row(30),
            B=row(40),
            c=row(50),
            sequential=self.sequential,
        )


@dataclass(frozen=True)
class Smooth(ss.Neuron):
    """A readout with two states."""

    beta: ss.PerNeuron = ss.parameter(0.9, "decay", low=0, high=1)
    fires: ClassVar = False
    states: ClassVar = ("v", "j")

    def arrays(self, p: Mapping[str, Any]) -> ss.NeuronArrays:
        return ss.NeuronArrays(A=[[p["beta"], 1], [0, 0.5]], B=[0, 1], c=[0, 0.1], sequential=True)


POPULATIONS: list[Neuron] = [
    LI(N),
    *(model(N, reset=reset) for model in (LIF, CubaLIF) for reset in ("subtract", "zero", "none")),
    *(model(N, reset_decays=True, gain=0.7) for model in (LIF, CubaLIF)),
    *(AdLIF(N, order=o, reset=r, q=3.0) for o in ("symplectic", "explicit") for r in ("zero", "subtract")),
    AdLIF(N, order="sparch", q=3.0, gain=2.0),
    Resonator(N),
    Adapting(N),
    Everything(N),
    Everything(N, sequential=True),
    Smooth(N),
]


def draw(population: Neuron, rng: np.random.Generator, per_neuron: bool) -> dict[str, Any]:
    shape = (N,) if per_neuron else ()
    return {q.name: np.asarray(rng.uniform(max(q.low, 0.2), min(q.high, 1.3), shape)) for q in population.parameters}


def written_out(a: Any, z: Sequence[Any], reset: Any, s: Any, i: Any, *, sequential: bool) -> list[Any]:
    """The equation, entry by entry, with numbers in place of absent ones."""

    def number(x: Any) -> Any:
        return 0.0 if x is None else x

    n = len(z)
    after = list(z)
    for r in reversed(range(n)):
        read = [after[k] if sequential and k > r else z[k] for k in range(n)]
        after[r] = sum(number(a.A[r][k]) * read[k] for k in range(n)) + number(a.B[r]) * i + number(a.c[r])
        after[r] = after[r] + reset * (sum(number(a.R[r][k]) * z[k] for k in range(n)) + number(a.r[r]))
        after[r] = after[r] + s * number(a.f[r])
    return after


@pytest.mark.parametrize("per_neuron", [True, False])
@pytest.mark.parametrize("population", POPULATIONS, ids=lambda p: type(p).__name__)
def test_step_is_the_equation(population: Neuron, per_neuron: bool) -> None:
    rng = np.random.default_rng(1)
    p = draw(population, rng, per_neuron)
    states = [rng.normal(size=(B, N)) for _ in population.states]
    i, s, reset = rng.normal(size=(B, N)), rng.random((B, N)), rng.random((B, N))
    a = linear_step.arrays_of(population, p)
    if not population.fires:
        got, s, reset = population.step(p, states, None, None, i), 0 * s, 0 * s
    else:
        got = population.step(p, states, reset, s, i)
    for x, want in zip(got, written_out(a, states, reset, s, i, sequential=a.sequential), strict=True):
        assert x.shape == (B, N)
        assert np.abs(x - want).max() <= 1e-13


def as_leaf(x: Any) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("per_neuron", [True, False])
@pytest.mark.parametrize("population", POPULATIONS, ids=lambda p: type(p).__name__)
def test_pull_is_the_gradient_of_step(population: Neuron, per_neuron: bool) -> None:
    rng = np.random.default_rng(2)
    p, n = draw(population, rng, per_neuron), len(population.states)
    states, d = ([rng.normal(size=(B, N)) for _ in range(n)] for _ in range(2))
    i, s, reset = rng.normal(size=(B, N)), rng.random((B, N)), rng.random((B, N))
    pulled = population.pull(p, states, reset, s, i, d)
    leaves: dict[str, Any] = {"reset": as_leaf(reset), "s": as_leaf(s), "i": as_leaf(i)}
    own = {name: as_leaf(x) for name, x in p.items()}
    before = [as_leaf(z) for z in states]
    spikes = (leaves["reset"], leaves["s"]) if population.fires else (None, None)
    after = population.step(own, before, *spikes, leaves["i"])
    sum((x * torch.from_numpy(y)).sum() for x, y in zip(after, d, strict=True)).backward()  # type: ignore[union-attr]
    found = [*pulled.states, pulled.reset, pulled.spikes, pulled.current]
    for x, leaf in zip(found, [*before, *leaves.values()], strict=True):
        want = 0 if leaf.grad is None else leaf.grad.numpy()
        assert np.abs(x - want).max() <= 1e-12
    assert set(pulled.parameters) == set(p)
    for name, leaf in own.items():
        value = np.broadcast_to(pulled.parameters[name], (B, N))
        want = 0 if leaf.grad is None else leaf.grad.numpy()
        assert np.abs((value.sum(0) if per_neuron else value.sum()) - want).max() <= 1e-12


@pytest.mark.parametrize("population", POPULATIONS, ids=lambda p: type(p).__name__)
def test_derivatives_are_central_differences(population: Neuron) -> None:
    rng, h = np.random.default_rng(3), 1e-6
    for per_neuron in (True, False):
        p = draw(population, rng, per_neuron)
        found = linear_step.derivatives(population, p, [q.name for q in population.parameters])
        for name, of_p in found.items():
            entries = dict(of_p.entries())
            assert tuple(entries) == dict(population.structure.depends)[name]
            plus, minus = (
                dict(linear_step.arrays_of(population, {**p, name: p[name] + step}).entries()) for step in (h, -h)
            )
            for key in plus:
                difference = (plus[key] - minus[key]) / (2 * h)
                assert np.abs(entries.get(key, 0.0) - difference).max() <= 1e-8, (name, key)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_and_pytorch_agree(dtype: Any) -> None:
    rng = np.random.default_rng(4)
    for population in POPULATIONS:
        p = {name: x.astype(dtype) for name, x in draw(population, rng, True).items()}
        states = [rng.normal(size=(B, N)).astype(dtype) for _ in population.states]
        i, s = rng.normal(size=(B, N)).astype(dtype), (rng.random((B, N)) < 0.5).astype(dtype)
        spikes = s if population.fires else None
        want = population.step(p, states, spikes, spikes, i)
        tensors = {name: torch.from_numpy(x) for name, x in p.items()}
        same: Any = None if spikes is None else torch.from_numpy(spikes)
        got = population.step(tensors, [torch.from_numpy(z) for z in states], same, same, torch.from_numpy(i))
        for x, y in zip(got, want, strict=True):
            assert y.dtype == dtype
            np.testing.assert_array_equal(x.numpy(), y)
        names = list(p)
        by_numpy, by_torch = (linear_step.derivatives(population, values, names) for values in (p, tensors))
        for name, (key, x) in ((n, e) for n in names for e in by_numpy[n].entries()):
            assert x.dtype == dtype
            np.testing.assert_array_equal(dict(by_torch[name].entries())[key].numpy(), x)


def test_a_detached_reset_has_the_bits_of_an_attached_one() -> None:
    """And the gradient of s·f alone."""
    rng = np.random.default_rng(5)
    for population in (Adapting(N), Everything(N)):
        p = {name: torch.from_numpy(x.astype(np.float32)) for name, x in draw(population, rng, True).items()}
        states = [torch.randn(B, N) for _ in population.states]
        s, i = (torch.rand(B, N) < 0.5).float().requires_grad_(), torch.randn(B, N)
        cut, whole = population.step(p, states, s.detach(), s, i), population.step(p, states, s, s, i)
        assert all(torch.equal(x, y) for x, y in zip(cut, whole, strict=True))
        (d_s,) = torch.autograd.grad(sum(x.sum() for x in cut), s)  # type: ignore[arg-type]
        f = linear_step.arrays_of(population, p).f
        want = torch.stack([x.expand(N) for x in f if x is not None]).sum(0).expand(B, N)
        assert torch.allclose(d_s, want, rtol=0, atol=1e-6)


def test_integer_parameters_of_the_range_and_numpy_scalars() -> None:
    """A parameter whose value is 0 or 1 keeps its entry: the structure does not depend on values."""
    for value in (0.0, 1.0):
        p = {"beta": np.float64(value), "threshold": np.float64(1.0)}
        assert [name for name, _ in linear_step.arrays_of(LIF(3), p).entries()] == list(LIF(3).structure.entries)


def test_names_of_entries() -> None:
    wanted: list[tuple[Neuron, str, str]] = [
        (LIF(3), "A00 r0 B0", ""),
        (LIF(3, reset="zero"), "A00 R00 B0", ""),
        (LIF(3, reset="none"), "A00 B0", ""),
        (CubaLIF(3), "A00 A01 A11 r0 B1", "B1"),
        (AdLIF(3), "A00 A01 A10 A11 r0 r1 f1 B0", ""),
        (AdLIF(3, reset="zero"), "A00 A01 A10 A11 R00 R10 f1 B0", ""),
        (AdLIF(3, order="sparch"), "A00 A01 A10 A11 r0 f1 B0", ""),
        (Resonator(3), "A00 A01 A10 A11 r0 r1 B0", ""),
        (LI(3), "A00 B0", ""),
        (Adapting(3), "A00 A01 A11 R01 r0 f0 f1 B0", "B0"),
    ]
    for population, entries, ones in wanted:
        made = population.structure
        assert (" ".join(made.entries), " ".join(made.ones)) == (entries, ones)
        assert hash(made) == hash(type(population)(5).structure) or made != type(population)(5).structure
    assert [m(3).structure.sequential for m in (LIF, CubaLIF, AdLIF, Resonator)] == [False, True, True, False]


def test_what_gradients_of_parameters_read() -> None:
    def reads(population: Neuron) -> dict[str, tuple[str, ...]]:
        return dict(population.reads)

    assert reads(LIF(3)) == reads(LI(3)) == {}
    assert reads(CubaLIF(3)) == {"alpha": ("i_syn",)}
    for order, reset in itertools.product(("symplectic", "explicit"), ("zero", "subtract")):
        assert reads(AdLIF(3, order=order, reset=reset)) == {"beta": ("w", "i"), "rho": ("w",)}
    assert reads(Resonator(3)) == {"beta": ("y",), "turn": ("y",)}
    assert reads(Adapting(3)) == {"beta": ("a",), "rho": ("a",)}
    assert kept_states(AdLIF(3, learn_beta=True)) == ("w", "i")
    assert kept_states(Adapting(3, learn_threshold=True)) == ()


def test_operations_beyond_a_decay_of_each_state() -> None:
    assert [m(3).operations for m in (LIF, CubaLIF, LI)] == [(0, 0)] * 3
    assert AdLIF(3).operations == (8, 10)
    assert Resonator(3).operations == (8, 8)
