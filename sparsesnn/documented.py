"""Docstrings that explain every argument of a description, from its declared options.

This file must work in Python 3.8, like the neuron models that use it.
"""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import fields, is_dataclass
from typing import Any, Callable, TypeVar  # noqa: UP035

from sparsesnn.arguments import named
from sparsesnn.options import options_of

_Class = TypeVar("_Class", bound=type)
_WIDTH = 100


def documented(**undeclared: str) -> Callable[[_Class], _Class]:
    """Adds the arguments of a dataclass to its docstring, below its own text and that of the dataclasses it extends, and lists them
    all in the error for a misspelled one.

    Args:
        undeclared: the meaning of each field that is not an option.
    """

    def add(cls: _Class) -> _Class:
        texts = [inspect.cleandoc(base.__doc__ or "") for base in cls.__mro__ if is_dataclass(base)]
        cls.__doc__ = "\n\n".join([*texts, "Args:\n" + "\n".join(_arguments(cls, undeclared))])
        return named(cls)

    return add


def _arguments(cls: Any, undeclared: dict[str, str]) -> list[str]:
    lines = []
    for f in fields(cls):
        known = options_of(cls).get(f.name)
        text = undeclared[f.name] if known is None else _explained(known)
        lines.append(textwrap.fill(f"{f.name}: {text}", _WIDTH, initial_indent="    ", subsequent_indent=" " * 8))
    return lines


def _explained(option: Any) -> str:
    allowed = "" if option.type is bool else f"Allowed: {option.allowed}. "
    return f"{option.help}. {allowed}Default: {option.default!r}."
