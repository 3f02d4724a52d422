"""Declarations of a neuron model, for the engines that run it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Tuple  # noqa: UP035

if TYPE_CHECKING:
    from typing import TypeGuard

    from sparsesnn.layers.neuron import Neuron


class Parameter(NamedTuple):
    """A number per neuron, or one for all, that may be trained (`learn_<name>`).

    Args:
        name: attribute of the description and of the layer's module, name in the C++ model.
        low, high: range to which training clamps it when the network reads it, see `sparsesnn.bounds`.
    """

    name: str
    low: float = -math.inf
    high: float = math.inf


def fires(population: Any) -> TypeGuard[Neuron]:
    """Whether a population's neurons fire; those of an input or a readout do not."""
    return bool(getattr(population, "fires", False))


def is_readout(population: Any) -> bool:
    """Whether a population's neurons never fire, so that their potentials are read; an input is not a readout."""
    return not getattr(population, "fires", True)


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


def trained_entries(population: Any) -> Tuple[str, ...]:  # noqa: UP006
    """The entries of its neurons' arrays that depend on trained parameters, "u0" for "r0" and "f0", and the threshold if trained."""
    names = learnt(population)
    depends = dict(population.structure.depends) if names else {}
    found = [f"u{entry[1:]}" if entry[0] in "rf" else entry for name in names for entry in depends[name]]
    return tuple(dict.fromkeys([*found, *(name for name in names if name == THRESHOLD.name)]))


def given_entries(population: Any) -> Tuple[str, ...]:  # noqa: UP006
    """The entries of its neurons' arrays that change when trained parameters do: `trained_entries`, and r and f of rows with f."""
    trained = set(trained_entries(population))
    if not trained:
        return ()
    moved = {entry for name, entries in population.structure.depends if name in learnt(population) for entry in entries}
    return tuple(x for x in (*population.structure.step_entries, THRESHOLD.name) if x in trained | moved)


THRESHOLD = Parameter("threshold")
