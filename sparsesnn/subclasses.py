"""Subclasses of a described part: an engine runs the part that it knows, and reads nothing that a subclass adds to it.

Python 3.8 reads this file, as the neuron models that use it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Iterable, Type  # noqa: UP035

from sparsesnn.errors import DescriptionError


@dataclass(frozen=True)
class _Plain:
    """A class with no more than a field and a check."""

    field: int = 0

    def __post_init__(self) -> None:
        pass


#: what Python and `dataclass` put into a class, and a check of the arguments: nothing that an engine would have to read
_HARMLESS = frozenset(vars(_Plain)) - {"field"}


def as_described(value: Any, known: Iterable[Type[Any]], where: str, what: str) -> Any:  # noqa: UP006
    """`value`, an instance of a dataclass in `known`. Of a subclass that has other defaults or checks its arguments, the same part
    without the subclass, so that whatever reads, writes or compares it sees what runs.

    Args:
        known: the classes that engines run.
        where: what the message begins with, such as "population 'hidden'".
        what: what such classes are called, such as "neuron model".

    Errors: `DescriptionError` for a subclass with methods, fields or attributes of its own, which the engines would ignore.
    """
    known = tuple(known)
    cls = type(value)
    if cls in known:
        return value
    base = next((k for k in cls.__mro__ if k in known), None)
    if base is None:
        raise DescriptionError(
            f"{where} is of the class {cls.__name__}, which the engines do not run; use a {what} that they have: "
            f"{', '.join(k.__name__ for k in known)}"
        )
    own = sorted(_own_names(value, base))
    if own:
        raise DescriptionError(
            f"{where} is of the class {cls.__name__}, a subclass of {base.__name__} with its own {', '.join(own)}; the engines run "
            f"{base.__name__} and would ignore that; use {base.__name__}, or a subclass that only changes defaults (as a dataclass) and "
            "checks its arguments"
        )
    return base(**{f.name: getattr(value, f.name) for f in fields(base) if f.init})


def _own_names(value: Any, base: Type[Any]) -> set[str]:  # noqa: UP006
    """What an instance and its class have that `base` would not do."""
    cls = type(value)
    declared = {f.name: f.init for f in fields(base)}
    found = {f.name for f in fields(cls) if declared.get(f.name) is not f.init} | (set(vars(value)) - set(declared))
    for k in cls.__mro__[: cls.__mro__.index(base)]:
        is_dataclass = "__dataclass_fields__" in vars(
            k
        )  # of another class the inherited __init__ keeps the old defaults
        for name, x in vars(k).items():
            is_default = name in declared and is_dataclass and not hasattr(x, "__get__")
            if name not in _HARMLESS and not is_default:
                found.add(name)
    return found
