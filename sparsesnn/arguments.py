"""Arguments by name: a name that does not exist is refused with the nearest one and with all that there are.

Python 3.8 reads this file, as the neuron models that use it.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, TypeVar  # noqa: UP035

from sparsesnn.wording import unknown

_Called = TypeVar("_Called", bound=Callable[..., Any])


def named(called: _Called) -> _Called:
    """Decorator of a class or a function: its `TypeError` says `LIF: unknown argument 'bta'; did you mean 'beta'? allowed: …`.

    Of a class it is the constructor, and the other constructors that it has.
    """
    if not isinstance(called, type):
        return _named(called, called.__qualname__)  # type: ignore[return-value]
    called.__init__ = _named(called.__init__, called.__name__)  # type: ignore[misc]
    for name, member in list(vars(called).items()):
        if isinstance(member, classmethod) and not name.startswith("_"):
            setattr(called, name, classmethod(_named(member.__func__, f"{called.__name__}.{name}")))
    return called


def _named(function: Callable[..., Any], who: str) -> Callable[..., Any]:
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return function

    @functools.wraps(function)
    def checked(*values: Any, **by_name: Any) -> Any:
        for name in by_name:
            if name not in known:
                allowed = [name for name in known if name not in ("self", "cls")]
                raise TypeError(f"{who}: {unknown('argument', name, allowed)}")
        return function(*values, **by_name)

    return checked
