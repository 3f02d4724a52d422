"""The arrays of a model as lists of + - * /: their values have the bits of the arrays, their derivatives are autograd's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import sparsesnn as ss
from sparsesnn.errors import DescriptionError
from sparsesnn.layers.arrays import arrays_of, derivatives
from sparsesnn.layers.recorded import Formula, Recording, entries_with_u

N = 7


@dataclass(frozen=True)
class Ratio(ss.Neuron):
    """Divides, shares parts, and has NumPy's numbers on both sides of an operator."""

    beta: ss.PerNeuron = ss.parameter(0.8, "decay of the potential", low=0.1, high=1)
    rho: ss.PerNeuron = ss.parameter(0.6, "decay of the other", low=0.1, high=1)
    states: ClassVar = ("v", "w")

    def arrays(self, p: Any) -> ss.NeuronArrays:
        b, r = p["beta"], p["rho"]
        part = b / (1 + r * r)
        return ss.NeuronArrays(
            A=[[part, -part], [np.float32(0.5) * r - b / r, +r]],
            r=[-p["threshold"] * part, 0],
            f=[0.25, np.float64(2) - r],
            B=[1, 1 / b],
        )


MODELS = [
    ss.LIF(N, reset_decays=True, gain=0.7),
    ss.LIF(N, reset="zero"),
    ss.CubaLIF(N),
    ss.AdLIF(N, gain=0.3),
    ss.AdLIF(N, order="explicit", reset="zero"),
    ss.Resonator(N),
    ss.LI(N),
    ss.CubaLI(N, gain=0.3),
    Ratio(N),
]


def drawn(population: Any) -> dict[str, np.ndarray]:
    random = np.random.default_rng(4)
    found = {}
    for q in population.parameters:
        low, high = (q.low, q.high) if math.isfinite(q.low) and math.isfinite(q.high) else (0.2, 1.7)
        found[q.name] = (low + (high - low) * random.uniform(0.1, 0.9, N)).astype(np.float32)
    return found


def evaluated(formula: Formula, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """As a device does: in single precision, step by step."""
    values: list[Any] = [np.full(N, c, np.float32) for c in formula.constants] + inputs
    operations = (np.add, np.subtract, np.multiply, np.divide)
    for operation, a, b in formula.steps:
        values.append(operations[operation](values[a], values[b]))
    return [values[k] for k in formula.results]


@pytest.mark.parametrize("population", MODELS, ids=lambda p: type(p).__name__)
def test_values_have_the_bits_of_the_arrays(population: Any) -> None:
    p = drawn(population)
    recording = Recording(population)
    names = list(recording.entries)
    formula = recording.formula([recording.entries[name] for name in names], list(recording.parameters.values()))
    wanted = entries_with_u(arrays_of(population, p))
    assert list(wanted) == names
    for name, value in zip(names, evaluated(formula, list(p.values())), strict=True):
        np.testing.assert_array_equal(value, np.broadcast_to(np.asarray(wanted[name], np.float32), N), err_msg=name)


@pytest.mark.parametrize("population", MODELS, ids=lambda p: type(p).__name__)
def test_gradients_are_those_of_autograd(population: Any) -> None:
    p = {name: x.astype(np.float64) for name, x in drawn(population).items()}
    recording = Recording(population)
    by_p = derivatives(population, p, list(p))
    entries = [name for name in recording.entries if name[0] != "u"]
    d_entries = {name: np.random.default_rng(k).normal(size=N) for k, name in enumerate(entries)}
    inputs = {name: recording.input(("gradient", name)) for name in entries}
    found = recording.formula(
        [recording.gradient(q, inputs) for q in recording.parameters.values()],
        [*recording.parameters.values(), *inputs.values()],
    )
    values = evaluated(found, [x.astype(np.float32) for x in (*p.values(), *d_entries.values())])
    for name, value in zip(p, values, strict=True):
        by = dict(by_p[name].entries())
        want = sum((d_entries[e] * by[e] for e in entries if by.get(e) is not None), np.zeros(N))
        np.testing.assert_allclose(value, want, rtol=1e-4, atol=1e-4, err_msg=name)


def test_equal_operations_are_one_step() -> None:
    recording = Recording(Ratio(N))
    formula = recording.formula(list(recording.entries.values()), list(recording.parameters.values()))
    assert len(set(formula.steps)) == len(formula.steps)
    assert len(set(formula.constants)) == len(formula.constants)


@pytest.mark.parametrize(
    ("use", "what"),
    [
        (lambda x: torch.exp(-x), r"torch\.exp"),
        (lambda x: np.sqrt(x), r"np\.sqrt"),
        (lambda x: math.exp(x), "a comparison, or another operator"),
        (lambda x: x**2, "a comparison, or another operator"),
        (lambda x: x if x > 0 else 0 * x, "a comparison, or another operator"),
        (lambda x: x.clip(0, 1), r"\.clip"),
        (lambda x: x * np.ones(3), "an array"),
        (lambda x: torch.ones(3) * x, "an array"),
    ],
    ids=["torch", "np", "math", "power", "branch", "method", "array", "tensor"],
)
def test_what_is_not_recorded_is_refused_by_name(use: Any, what: str) -> None:
    recording = Recording(ss.LIF(N))
    with pytest.raises(DescriptionError, match=rf"LIF: arrays uses {what}; allowed on 'ipu'.*\+ - \* /"):
        use(recording.parameters["beta"])
