"""Connections between populations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from sparsesnn.arguments import named
from sparsesnn.delays import MAX_DELAY, Delays
from sparsesnn.errors import DescriptionError
from sparsesnn.options import plain
from sparsesnn.subclasses import as_described
from sparsesnn.synapses import Dense, Synapses, described_synapses, synapses_from_dict


@named
@dataclass(frozen=True)
class Connection:
    """The synapses from population `pre` to population `post`.

    Args:
        pre, post: names of the populations; the same name twice is a recurrent connection.
        delay: steps between a spike and its arrival; 0 to 2^20, for a recurrent connection 1 or more. None: 0, for a
            recurrent connection 1.
        synapses: their kind, see `sparsesnn.synapses`.
        axonal: delays of the sending neurons, added to `delay`; None: there are none.

    Two populations may have several connections, with different delays.

    Attributes:
        name: `pre->post`, which is also the name of its weight. If a network connects the two several times, `@delay` follows,
            except for a delay of 0 (1 for a recurrent connection).
    """

    pre: str
    post: str
    delay: int = None  # type: ignore[assignment]  # a number once the connection is created
    synapses: Synapses = field(default_factory=Dense)
    axonal: Optional[Delays] = None  # noqa: UP045  evaluated under Python 3.8
    name: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"{self.pre}->{self.post}")
        object.__setattr__(self, "delay", self.least_delay if self.delay is None else plain(self.delay))
        for end in (self.pre, self.post):
            if not isinstance(end, str):
                raise DescriptionError(
                    f"connection {self.pre}->{self.post}: {end!r} is not a population's name; give text"
                )
        least = self.least_delay
        if type(self.delay) is not int or not least <= self.delay <= MAX_DELAY:
            why = "; a recurrent connection needs at least 1" if least else ""
            raise DescriptionError(
                f"connection {self.pre}->{self.post}: delay is {self.delay!r}; allowed: whole numbers of steps from {least} to "
                f"{MAX_DELAY:,}{why}"
            )
        if not isinstance(self.synapses, Synapses):
            raise DescriptionError(
                f"connection {self.pre}->{self.post}: synapses is {self.synapses!r}; give a kind such as Dense()"
            )
        if self.axonal is not None and not isinstance(self.axonal, Delays):
            raise DescriptionError(
                f"connection {self.pre}->{self.post}: axonal is {self.axonal!r}; allowed: Delays(longest), None"
            )
        where = f"connection {self.pre}->{self.post}"
        object.__setattr__(self, "synapses", described_synapses(self.synapses, f"{where}: synapses"))
        if self.axonal is not None:
            object.__setattr__(self, "axonal", as_described(self.axonal, [Delays], f"{where}: axonal", "class"))

    @property
    def is_recurrent(self) -> bool:
        """Whether it connects a population to itself."""
        return self.pre == self.post

    @property
    def reach(self) -> int:
        """Number of steps until the last spikes of a step arrive."""
        return self.delay + (self.axonal.longest if self.axonal else 0)

    @property
    def least_delay(self) -> int:
        return int(self.is_recurrent)

    @property
    def name_with_delay(self) -> str:
        """`name` in the form for several connections between the two."""
        return f"{self.pre}->{self.post}" + (f"@{self.delay}" if self.delay != self.least_delay else "")

    def named(self, name: str) -> Connection:
        """The same connection with another name."""
        renamed = replace(self)
        object.__setattr__(renamed, "name", name)
        return renamed

    def to_dict(self) -> dict[str, Any]:
        """Plain data: numbers, strings, lists and dicts."""
        axonal = {"axonal": self.axonal.to_dict()} if self.axonal else {}
        synapses = self.synapses.to_dict()
        return {"pre": self.pre, "post": self.post, "delay": self.delay, "synapses": synapses, **axonal}

    @classmethod
    def from_dict(cls, data: Any) -> Connection:
        """The inverse of `to_dict`. Errors: `DescriptionError`."""
        if not isinstance(data, Mapping):
            raise DescriptionError(f"connection is {data!r}; give an object with pre and post")
        arguments = dict(data)
        if "synapses" in arguments:
            arguments["synapses"] = synapses_from_dict(arguments["synapses"])
        try:
            if isinstance(arguments.get("axonal"), Mapping):
                arguments["axonal"] = Delays(**arguments["axonal"])
            return cls(**arguments)
        except TypeError as error:
            raise DescriptionError(f"connection: {error}; allowed: pre, post, delay, synapses, axonal") from None
