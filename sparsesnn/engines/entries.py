"""The arrays of a population's neurons in the form that compiled code reads: the entries of a shape, see `sparsesnn.layers.shapes`."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from sparsesnn.bounds import bounded
from sparsesnn.errors import DescriptionError, NumericError
from sparsesnn.layers import Neuron
from sparsesnn.layers.arrays import NeuronArrays, arrays_of, derivatives
from sparsesnn.layers.recorded import OPERATIONS, Formula, Recording, entries_with_u
from sparsesnn.layers.shapes import Shape, shape_of

THRESHOLD = "threshold"
_FUNCTIONS = dict(zip(OPERATIONS, (operator.add, operator.sub, operator.mul, operator.truediv), strict=True))


def neuron_tensors(layer: Any) -> dict[str, Tensor]:
    """The parameters of a layer's neurons, by name; those that learn within their range and [n], others as they are."""
    found = {}
    for name, low, high in layer.population.parameters:
        value: Tensor = layer.tensor(name)
        if value.requires_grad:
            value = bounded(value, low, high)
            if value.ndim == 0:
                value = layer.part.own_neurons(value) if layer.part else value.expand(layer.population.n)
        found[name] = value
    return found


class Entries(NamedTuple):
    """The values of a shape's entries, [] or [N] each, and their derivatives by each trained parameter, None for 0."""

    values: list[Any]
    derivatives: list[list[Any]]


class EntriesOf:
    """Computes the entries of a population from its parameters; made once, and called in every step of training.

    Args:
        population: of a linear model.
        learnt: names of the trained parameters.
    """

    def __init__(self, population: Neuron, learnt: Sequence[str] = ()) -> None:
        self.population, self.learnt, self.shape = population, tuple(learnt), shape_of(population)
        try:
            self._formula: _InOrder | None = _InOrder.of(population, self.shape, self.learnt)
        except DescriptionError:  # not a list of + - × ÷
            self._formula = None

    def __call__(self, parameters: Mapping[str, Any]) -> Entries:
        """The entries; empty arrays for no neurons.

        Args:
            parameters: by name, [] or [N] each, NumPy arrays or tensors; those outside their range are read as its nearest end.
                Arrays must be finite; tensors, which may be on a GPU, are not checked.

        Errors: `NumericError` for a parameter that is not finite.
        """
        if any(not math.prod(x.shape) for x in parameters.values()):  # a rank without neurons of the population
            nothing = np.zeros(0, np.float32)
            return Entries(
                [nothing for _ in self.shape.entries], [[None for _ in self.shape.entries] for _ in self.learnt]
            )
        p = {q.name: _in_range(q.name, parameters[q.name], q.low, q.high) for q in self.population.parameters}
        if self._formula:
            return self._formula(list(p.values()))
        arrays = arrays_of(self.population, p)
        by = derivatives(self.population, p, self.learnt) if self.learnt else {}
        values = _in_order(self.shape, arrays, p.get(THRESHOLD, 0))
        return Entries(
            [0 if x is None else x for x in values],
            [_in_order(self.shape, by[name], 1 if name == THRESHOLD else None, derived=True) for name in self.learnt],
        )


@functools.lru_cache(maxsize=256)
def _kept(population: Neuron, learnt: tuple[str, ...]) -> EntriesOf:
    return EntriesOf(population, learnt)


def entries_of(population: Neuron, parameters: Mapping[str, Any], learnt: Sequence[str] = ()) -> Entries:
    """The entries of a population, see `EntriesOf`."""
    return _of(population, learnt)(parameters)


def has_formula(population: Neuron) -> bool:
    """Whether the entries are a list of + - × ÷, so that no Python of the model's class runs in a step."""
    return _of(population)._formula is not None


def _of(population: Neuron, learnt: Sequence[str] = ()) -> EntriesOf:
    try:
        return _kept(population, tuple(learnt))
    except TypeError:  # a field of a user's own class that cannot be hashed
        return EntriesOf(population, learnt)


class _InOrder:
    """A formula for the entries of a shape and their derivatives.

    Args:
        formula: of those that are not 0.
        places: of each entry, and of each of its derivatives, its number among the results; None: 0.
    """

    def __init__(self, formula: Formula, places: list[list[int | None]]) -> None:
        self._constants = formula.constants
        self._steps = [(_FUNCTIONS[OPERATIONS[operation]], a, b) for operation, a, b in formula.steps]
        self._results, self._places = formula.results, places

    @classmethod
    def of(cls, population: Neuron, shape: Shape, learnt: Sequence[str]) -> _InOrder:
        recording = Recording(population)
        found = {**recording.entries, "order": float(shape.in_order)}
        if THRESHOLD in recording.parameters:
            found[THRESHOLD] = recording.parameters[THRESHOLD]
        rows = [[found.get(name, 0.0) for name in shape.entries]]
        for name in learnt:
            by = recording.parameters[name]
            rows.append([recording.derivative(found.get(entry), by) for entry in shape.entries])
        results: list[Any] = []

        def place(x: Any) -> int | None:
            if x is None:
                return None
            results.append(x)
            return len(results) - 1

        places = [[place(x) for x in row] for row in rows]
        return cls(recording.formula(results, list(recording.parameters.values())), places)

    def __call__(self, inputs: Sequence[Any]) -> Entries:
        # as NumPy numbers: NumPy 1 computes two of Python's in float64
        as_number = np.float32 if isinstance(inputs[0], np.ndarray) else float
        values = [*map(as_number, self._constants), *inputs]
        for function, a, b in self._steps:
            values.append(function(values[a], values[b]))
        results = [values[place] for place in self._results]
        rows = [[None if place is None else results[place] for place in row] for row in self._places]
        return Entries(rows[0], rows[1:])


def _in_range(name: str, x: Any, low: float, high: float) -> Any:
    if isinstance(x, np.ndarray) and not np.isfinite(x).all():
        k = int(np.argmin(np.isfinite(x)))
        raise NumericError(f"{name} of neuron {k} is {float(x.reshape(-1)[k])}; it must be finite")
    x = x.reshape(-1)  # [1] for one number: NumPy 1 computes [] with Python's numbers in float64
    return x if (low, high) == (-math.inf, math.inf) else x.clip(low, high)


def _in_order(shape: Shape, arrays: NeuronArrays, threshold: Any, *, derived: bool = False) -> list[Any]:
    """The entries of arrays in full shape, in the order of the shape; None: absent."""
    found = entries_with_u(arrays)
    found.update(threshold=threshold, order=None if derived else float(shape.in_order))
    return [found.get(name) for name in shape.entries]


def as_float32(x: Any) -> np.ndarray:
    """An entry as the engine reads it: [] for one number, else [N]."""
    found = np.ascontiguousarray(x, np.float32)
    return found.reshape(()) if found.size == 1 else found
