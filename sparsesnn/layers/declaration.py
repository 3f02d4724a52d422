"""Declarations of a neuron model, for the engines that run it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Tuple  # noqa: UP035


class Parameter(NamedTuple):
    """A number per neuron, or one for all, that may be trained (`learn_<name>`).

    Args:
        name: attribute of the description and of the layer's module, name in the C++ model.
        low, high: range to which training clamps it when the network reads it, see `sparsesnn.bounds`.
    """

    name: str
    low: float = -math.inf
    high: float = math.inf


def fires(population: Any) -> bool:
    """Whether a population's neurons fire; those of an input or a readout do not."""
    return any(q.name == THRESHOLD.name for q in getattr(population, "parameters", ()))


def learnt(population: Any) -> Tuple[str, ...]:  # noqa: UP006
    """Names of its neurons' trained parameters."""
    names = (q.name for q in getattr(population, "parameters", ()))
    return tuple(name for name in names if getattr(population, f"learn_{name}", False))


def n_learnt(population: Any) -> int:
    """Number of its neurons' trained parameters."""
    return len(learnt(population))


def kept_states(population: Any) -> Tuple[str, ...]:  # noqa: UP006
    """Values of every step, besides the first state, kept by a machine that differentiates step by step; "i": the current."""
    read = {x for q in learnt(population) for x in population.reads.get(q, ())}
    return tuple(x for x in (*population.states[1:], "i") if x in read)


BETA = Parameter("beta", 0.0, 1.0)
ALPHA = Parameter("alpha", 0.0, 1.0)
THRESHOLD = Parameter("threshold")
