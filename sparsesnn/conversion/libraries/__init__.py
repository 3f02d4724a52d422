"""The neuron modules of other libraries, a file each. A library is imported only if a network has a module of it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from sparsesnn.conversion.libraries.spec import Spec

#: the library of a module, by the first part of its class's module
FILES = {"snntorch": "snntorch", "spikingjelly": "spikingjelly", "norse": "norse", "sinabs": "sinabs"}


def spec_of(module: nn.Module, where: str) -> Spec | None:
    """The module as a neuron; None if it is not one. Errors: `DescriptionError` for a neuron without an equivalent."""
    library = FILES.get(type(module).__module__.partition(".")[0])
    if library is None:
        return None
    read: Callable[[Any, str], Spec | None] = import_module(f"sparsesnn.conversion.libraries.{library}").spec_of
    return read(module, where)
