"""Checks that the population descriptions share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Tuple, Union  # noqa: UP035

from sparsesnn.errors import DescriptionError

#: a number for the whole population, or one per neuron
PerNeuron = Union[float, Tuple[float, ...]]  # noqa: UP006, UP007  evaluated under Python 3.8 by sparsesnn.poptorch


def check_size(model: str, n: object) -> None:
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise DescriptionError(f"{model}: n is {n!r}; give a whole number of neurons, at least 1")


def per_neuron(model: str, name: str, value: object, n: int, low: float, high: float) -> PerNeuron:
    """`value` as a float or a tuple of `n` floats, each in [low, high] (infinite bounds are reached only by bounds)."""
    many = isinstance(value, Sequence) and not isinstance(value, str)
    values: tuple[Any, ...] = tuple(value) if isinstance(value, Sequence) and many else (value,)
    if len(values) not in (1, n):
        raise DescriptionError(f"{model}: {name} has {len(values)} values; give one number, or one per neuron ({n})")
    for x in values:
        if not isinstance(x, (int, float)) or isinstance(x, bool) or math.isnan(x) or not low <= x <= high:
            raise DescriptionError(f"{model}: {name} is {x!r}; allowed: {low:g} to {high:g}")
    if many:
        return tuple(float(x) for x in values)
    return float(values[0])


def check_choice(model: str, name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise DescriptionError(f"{model}: {name} is {value!r}; allowed: {', '.join(map(repr, allowed))}")


def check_flags(model: str, **flags: object) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise DescriptionError(f"{model}: {name} is {value!r}; give True or False")


def check_finite(model: str, name: str, value: object) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise DescriptionError(f"{model}: {name} is {value!r}; give a finite number")
