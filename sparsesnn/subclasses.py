"""Subclasses of the parts of a description: an engine runs only known parts, and ignores additions of a subclass.

This file must work in Python 3.8, like the neuron models that use it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Iterable, Type  # noqa: UP035

from sparsesnn.errors import DescriptionError


@dataclass(frozen=True)
class _Plain:
    """A class with only a field and a check."""

    field: int = 0

    def __post_init__(self) -> None:
        pass


#: attributes added by Python and `dataclass`, and a check of the arguments: irrelevant for an engine
_HARMLESS = frozenset(vars(_Plain)) - {"field"}


def as_described(value: Any, known: Iterable[Type[Any]], where: str, what: str) -> Any:  # noqa: UP006
    """`value` as an instance of a dataclass in `known`: a subclass that only has other defaults or checks its arguments becomes the
    class that it extends, which engines run, save and compare.

    Args:
        known: the classes that engines run.
        where: the beginning of messages, such as "population 'hidden'".
        what: the kind of classes, such as "neuron model".

    Errors: `DescriptionError` for a subclass with its own methods, fields or attributes, which the engines would ignore.
    """
    known = tuple(known)
    cls = type(value)
    if cls in known:
        return value
    base = next((k for k in cls.__mro__ if k in known), None)
    if base is None:
        raise DescriptionError(
            f"{where} is of the class {cls.__name__}, which the engines do not support; use a {what} that they support: "
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
    """Names in an instance and its class that `base` lacks or that override it."""
    cls = type(value)
    declared = {f.name: f.init for f in fields(base)}
    names = {f.name for f in fields(cls) if declared.get(f.name) is not f.init} | (set(vars(value)) - set(declared))
    for k in cls.__mro__[: cls.__mro__.index(base)]:
        # without `@dataclass` the inherited __init__ keeps the old defaults
        is_dataclass = "__dataclass_fields__" in vars(k)
        for name, x in vars(k).items():
            is_default = name in declared and is_dataclass and not hasattr(x, "__get__")
            if name not in _HARMLESS and not is_default:
                names.add(name)
    return names
