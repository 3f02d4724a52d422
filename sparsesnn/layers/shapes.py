"""The compiled shapes of neurons (codelets/neuron.h), and the one that a model takes; plans need no compiled engine for that.

A shape determines at compile time which entries exist. A model takes the smallest one with all of its entries; those that it lacks are 0.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Optional, Tuple  # noqa: UP035

from sparsesnn.layers.arrays import MAX_STATES
from sparsesnn.layers.structure import Structure


class Shape(NamedTuple):
    """A shape, as a model takes it.

    Args:
        name: in codelets/neuron.h.
        entries: names of its entries, in order: those of `NeuronArrays`, u = r + f, whether rows run in order, the threshold.
        ones: entries of B that are 1 by the shape.
        fires: whether the neurons fire.
        in_order: whether rows run from last to first, see `NeuronArrays.sequential`.
    """

    name: str
    entries: Tuple[str, ...]  # noqa: UP006
    ones: Tuple[str, ...]  # noqa: UP006
    fires: bool
    in_order: bool


class Declared(NamedTuple):
    """A shape, as codelets/neuron.h declares it: None for `fires` or `in_order` means either."""

    name: str
    n_states: int
    entries: Tuple[str, ...]  # noqa: UP006
    ones: Tuple[str, ...] = ()  # noqa: UP006
    fires: Optional[bool] = True  # noqa: UP045
    in_order: Optional[bool] = None  # noqa: UP045


def _any(n: int) -> Declared:
    rows = range(n)
    squares = [f"{name}{r}{k}" for name in "AR" for r in rows for k in rows]
    columns = [f"{name}{r}" for name in "urfBc" for r in rows]
    return Declared(f"any {n}", n, (*squares, *columns, *(["order"] if n > 1 else []), "threshold"), fires=None)


def _adaptive(name: str, *jumps: str) -> Declared:
    return Declared(name, 2, ("A00", "A01", "A10", "A11", *jumps, "r1", "f1", "B0", "threshold"), in_order=True)


def _current(name: str, jump: str) -> Declared:
    return Declared(name, 2, ("A00", "A01", "A11", jump, "threshold"), ("B1",), in_order=True)


#: in the order in which a model tries them
SHAPES = (
    Declared("readout", 1, ("A00", "B0"), fires=False),
    Declared("subtract", 1, ("A00", "u0", "B0", "threshold")),
    Declared("zero", 1, ("A00", "R00", "B0", "threshold")),
    _any(1),
    _current("current.subtract", "u0"),
    _current("current.zero", "R00"),
    Declared("rotating", 2, ("A00", "A01", "A10", "A11", "u0", "u1", "B0", "threshold"), in_order=False),
    _adaptive("adaptive.subtract", "u0", "u1"),
    _adaptive("adaptive.zero", "R00", "R10", "u1"),
    *map(_any, range(2, MAX_STATES + 1)),
)


def shape_of(population: Any) -> Shape:
    """The smallest shape with all entries of a population's arrays. Errors: `DescriptionError` for a model that is not linear."""
    return find_shape(population.structure)


@functools.lru_cache(maxsize=1024)
def find_shape(model: Structure) -> Shape:
    """The same from the structure of the arrays."""
    found = next(shape for shape in SHAPES if _covers(shape, model))
    return Shape(found.name, found.entries, found.ones, model.fires, model.sequential)


def _covers(shape: Declared, model: Structure) -> bool:
    return (
        shape.n_states == model.n_states
        and shape.fires in (None, model.fires)
        and (shape.n_states == 1 or shape.in_order in (None, model.sequential))
        and set(shape.ones) <= set(model.ones)
        and {*shape.entries, *shape.ones}.issuperset(model.step_entries)
    )
