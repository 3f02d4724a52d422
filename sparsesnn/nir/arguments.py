"""Messages that speak of arguments, so that a command can speak of its options in the same words.

raise ArgumentError(Argument("target"), f" is {target!r}; give …")
str(error)                                  "target is 'x'; give …"
error.message.text(option)                  "--target is 'x'; give …", with what `option` says of an argument
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparsesnn.errors import DescriptionError


@dataclass(frozen=True)
class Argument:
    """An argument of `from_nir` or `to_nir`; with a value, that value for it."""

    name: str
    value: Any = None

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value!r}"


@dataclass(frozen=True)
class Message:
    """Text in which arguments are named."""

    parts: tuple[str | Argument, ...]

    def text(self, say: Callable[[Argument], str] = str) -> str:
        return "".join(part if isinstance(part, str) else say(part) for part in self.parts)


class ArgumentError(DescriptionError):
    """An argument is not allowed, or another one would help.

    Attributes:
        message: says it of arguments.
    """

    def __init__(self, *parts: str | Argument) -> None:
        self.message = Message(parts)
        super().__init__(self.message.text())


class ArgumentWarning(UserWarning):
    """The same of what is done all the same."""

    def __init__(self, *parts: str | Argument) -> None:
        self.message = Message(parts)
        super().__init__(self.message.text())
