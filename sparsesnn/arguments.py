"""Arguments by name: an unknown name is refused, with the nearest and all allowed names in the message.

This file must work in Python 3.8, like the neuron models that use it.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from typing import Any, Callable, Dict, Mapping, TypeVar  # noqa: UP035

from sparsesnn.wording import unknown

_Called = TypeVar("_Called", bound=Callable[..., Any])


def named(called: _Called) -> _Called:
    """Decorator of a class or a function, whose `TypeError` becomes `LIF: unknown argument 'bta'; did you mean 'beta'? allowed: …`.

    For a class it applies to all its constructors.
    """
    if not isinstance(called, type):
        return _named(called, called.__qualname__)  # type: ignore[return-value]
    called.__init__ = _named(called.__init__, called.__name__)  # type: ignore[misc]
    for name, member in list(vars(called).items()):
        if isinstance(member, classmethod) and not name.startswith("_"):
            setattr(called, name, classmethod(_named(member.__func__, f"{called.__name__}.{name}")))
    return called


def renamed(**former: str) -> Callable[[_Called], _Called]:
    """Decorator of a function under `named`: `former="name"` accepts an argument by its former name, with a `DeprecationWarning`."""

    def mark(function: _Called) -> _Called:
        function.former_names = former  # type: ignore[attr-defined]
        return function

    return mark


def current_names(given: Mapping[str, Any], former: Mapping[str, str], who: str, *, warn: int = 0) -> Dict[str, Any]:  # noqa: UP006
    """Arguments by their current names.

    Args:
        given: by any name.
        former: current names by former names.
        who: the owner of the arguments, for messages.
        warn: the stack level of a `DeprecationWarning`; 0: none, as for files.

    Errors: `TypeError` for two different values of one argument.
    """
    current = {name: value for name, value in given.items() if name not in former}
    for old, new in former.items():
        if old not in given:
            continue
        if new in given and given[new] != given[old]:
            raise TypeError(
                f"{who}: {new} is {given[new]!r}, and {old}, its former name, {given[old]!r}; leave {old} out"
            )
        if warn:
            warnings.warn(f"{who}: {old} is now called {new}; give {new}", DeprecationWarning, stacklevel=warn + 1)
        current[new] = given[old]
    return current


def _named(function: Callable[..., Any], who: str) -> Callable[..., Any]:
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return function
    former: Mapping[str, str] = getattr(function, "former_names", {})

    @functools.wraps(function)
    def checked(*values: Any, **by_name: Any) -> Any:
        if former:
            by_name = current_names(by_name, former, who, warn=2)
        for name in by_name:
            if name not in known:
                allowed = [name for name in known if name not in ("self", "cls")]
                raise TypeError(f"{who}: {unknown('argument', name, allowed)}")
        return function(*values, **by_name)

    return checked
