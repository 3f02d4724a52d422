"""The compiled shapes of neurons (codelets/neuron.h), for plans, which need no compiled engine."""

from __future__ import annotations

from typing import NamedTuple, Tuple  # noqa: UP035

from sparsesnn.layers.arrays import MAX_STATES, Structure


class Shape(NamedTuple):
    """A shape, as codelets/neuron.h declares it.

    Args:
        entries: names of the entries, in the order of their places.
        ones: those of B that are 1 without an entry.
        fires, in_order: whether its neurons fire, and rows run from last to first; None: either.
    """

    n_states: int
    entries: Tuple[str, ...]  # noqa: UP006
    ones: Tuple[str, ...] = ()  # noqa: UP006
    fires: object = True
    in_order: object = None


def _any(n: int) -> Shape:
    rows = range(n)
    squares = [f"{name}{r}{k}" for name in "AR" for r in rows for k in rows]
    columns = [f"{name}{r}" for name in "urfBc" for r in rows]
    return Shape(n, (*squares, *columns, *(["order"] if n > 1 else []), "threshold"), fires=None)


def _adaptive(*jumps: str) -> Shape:
    return Shape(2, ("A00", "A01", "A10", "A11", *jumps, "r1", "f1", "B0", "threshold"), in_order=True)


def _current(jump: str) -> Shape:
    return Shape(2, ("A00", "A01", "A11", jump, "threshold"), ("B1",), in_order=True)


#: in the order in which a model tries them
SHAPES = (
    Shape(1, ("A00", "B0"), fires=False),
    Shape(1, ("A00", "u0", "B0", "threshold")),
    Shape(1, ("A00", "R00", "B0", "threshold")),
    _any(1),
    _current("u0"),
    _current("R00"),
    Shape(2, ("A00", "A01", "A10", "A11", "u0", "u1", "B0", "threshold"), in_order=False),
    _adaptive("u0", "u1"),
    _adaptive("R00", "R10", "u1"),
    *map(_any, range(2, MAX_STATES + 1)),
)


def shape_entries(model: Structure) -> Tuple[str, ...]:  # noqa: UP006
    """The entries of the smallest shape that has all of a model's, in order."""
    return next(shape.entries for shape in SHAPES if _covers(shape, model))


def _covers(shape: Shape, model: Structure) -> bool:
    names = {*shape.entries, *shape.ones}
    return (
        shape.n_states == model.n_states
        and shape.fires in (None, model.fires)
        and (shape.n_states == 1 or shape.in_order in (None, model.sequential))
        and set(shape.ones) <= set(model.ones)
        and names.issuperset(model.step_entries)
    )
