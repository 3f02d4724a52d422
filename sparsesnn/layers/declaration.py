"""What a neuron model declares of itself, for whoever runs it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Tuple  # noqa: UP035


class Parameter(NamedTuple):
    """A number per neuron, or one for all, that may be trained (`learn_<name>`).

    Args:
        name: attribute of the description and of the layer's module, name in the C++ model.
        low, high: the range that the network reads it in while it trains, see `sparsesnn.bounds`.
    """

    name: str
    low: float = -math.inf
    high: float = math.inf


def fires(population: Any) -> bool:
    """Whether a population has neurons that fire; an input or a readout has none."""
    return any(q.name == THRESHOLD.name for q in getattr(population, "parameters", ()))


def learnt(population: Any) -> Tuple[str, ...]:  # noqa: UP006
    """Names of its neurons' parameters that are trained."""
    names = (q.name for q in getattr(population, "parameters", ()))
    return tuple(name for name in names if getattr(population, f"learn_{name}", False))


def n_learnt(population: Any) -> int:
    """How many parameters of its neurons are trained."""
    return len(learnt(population))


def kept_states(population: Any) -> Tuple[str, ...]:  # noqa: UP006
    """What a machine that differentiates step by step keeps of every step besides the first state; "i": the current."""
    read = {x for q in learnt(population) for x in population.reads.get(q, ())}
    return tuple(x for x in (*population.states[1:], "i") if x in read)


BETA = Parameter("beta", 0.0, 1.0)
ALPHA = Parameter("alpha", 0.0, 1.0)
THRESHOLD = Parameter("threshold")
