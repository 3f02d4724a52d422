"""Options: fields of frozen dataclasses that declare their meaning and allowed values.

    lr: float = option(1e-3, "learning rate after the warm-up", low=0)

Checks, error messages, the reader of configurations, command line flags and the comments of a printed configuration are
all derived from these declarations (see `sparsesnn.config`). This file must work in Python 3.8, like the neuron models.
"""

from __future__ import annotations

import functools
import math
import numbers
import operator
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any, Callable, Dict, Optional, Sequence, Type, Union  # noqa: UP035

from sparsesnn.wording import meant


@functools.lru_cache(maxsize=None)  # noqa: UP033 - Python 3.8 has no cache
def is_union(kind: Any) -> bool:
    """Whether a type is a union, X | Y."""
    return typing.get_origin(kind) in (Union, getattr(types, "UnionType", Union))


@functools.lru_cache(maxsize=None)  # noqa: UP033 - Python 3.8 has no cache
def is_table(kind: Any) -> bool:
    """Whether a type is a table: dict[str, X], Mapping[str, X]."""
    return kind is dict or typing.get_origin(kind) in (dict, Mapping)


@dataclass(frozen=True)
class Option:
    """One option: `option` declares it, `options_of` adds the dataclass's information (name, type, default).

    Args:
        help: its meaning, in one line.
        low, high: bounds of a number, or of each number in a list. An infinity is allowed only if it is a bound.
        above, below: exclusive bounds.
        choices: the allowed texts; a function if they are known later.
        none: represents None in a text, such as 0.
        free: results do not depend on it, so it may differ between a run and its continuation.
        local: it may differ between the ranks of a run.
        flag: a short flag on the command line; for a switch that is on by default, the flag that turns it off.
        metavar: name of the value in the command line's help.
        former: a former name, which files and scripts may still use.
    """

    help: str
    low: Optional[float] = None  # noqa: UP045
    high: Optional[float] = None  # noqa: UP045
    above: Optional[float] = None  # noqa: UP045
    below: Optional[float] = None  # noqa: UP045
    choices: Union[Sequence[str], Callable[[], Sequence[str]]] = ()  # noqa: UP007
    none: Any = None
    free: bool = False
    local: bool = False
    flag: str = ""
    metavar: str = ""
    former: str = ""
    name: str = ""
    type: Any = Any
    default: Any = None

    @property
    def texts(self) -> Sequence[str]:
        """The allowed texts; empty if there is no list of them."""
        return self.choices() if callable(self.choices) else self.choices

    @property
    def meaning(self) -> str:
        """Its meaning, with the allowed values if they are more specific than a type."""
        bounds = (self.low, self.high, self.above, self.below)
        return f"{self.help} ({self.allowed})" if self.texts or any(b is not None for b in bounds) else self.help

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        return self._words(self.type)

    def check(self, value: Any, place: str, error: Type[Exception]) -> Any:  # noqa: UP006
        """`value` in the declared type, converting whole numbers to floats and lists to tuples if needed.

        Tensors, arrays and NumPy scalars become Python numbers.

        Args:
            place: for the message, with {} for the option's name: "optim.{}:" or "LIF: {}".
            error: raised for an invalid value.
        """
        if hasattr(value, "to_dense"):  # a sparse tensor
            value = value.to_dense()
        if getattr(value, "requires_grad", False):
            raise error(
                f"{place.format(self.name)} is a tensor that requires a gradient, which a number in a description cannot have; give the "
                "tensor's detach(); to train a parameter, see the options learn_…"
            )
        try:
            return self._fit(value, self.type)
        except _MisfitError as misfit:
            where = place.format(self.name + misfit.place)
            infinite = isinstance(misfit.value, float) and math.isinf(misfit.value)
            finite = ", finite" if infinite and "finite" not in self.allowed else ""
            no_number = self.type is float and not isinstance(misfit.value, (int, float))
            kind, example = ("numbers, ", f", such as {self.default!r}") if no_number else ("", "")
            # values are short, and similar ones have different meanings, such as gpu and ipu
            near = meant(misfit.value, self.texts, 0.8) if isinstance(misfit.value, str) else ""
            raise error(f"{where} is {misfit.value!r}; {near}allowed: {kind}{self.allowed}{finite}{example}") from None

    def _fit(self, value: Any, wanted: Any) -> Any:
        value, origin, inner = plain(value), typing.get_origin(wanted), typing.get_args(wanted)
        if wanted is Any or (wanted is type(None) and value is None):
            return value
        if is_union(wanted):
            nearest = _MisfitError(value)
            for kind in inner:
                try:
                    return self._fit(value, kind)
                except _MisfitError as misfit:
                    nearest = nearest if misfit.value is value else misfit
            raise nearest
        if origin is tuple and isinstance(value, (list, tuple)):
            return tuple(self._fit(v, inner[0]) for v in value)
        if is_table(wanted) and isinstance(value, Mapping):
            return {key: self._entry(key, v, inner[1]) for key, v in value.items()}
        if wanted in (int, float):
            x = whole(value) if wanted is int else number(value)
            if x is not None and self._within(x):
                return x
        elif (
            origin is None
            and isinstance(wanted, type)
            and isinstance(value, wanted)
            and (not self.texts or value in self.texts)
        ):
            return value
        raise _MisfitError(value)

    def _entry(self, key: str, value: Any, wanted: Any) -> Any:
        try:
            return self._fit(value, wanted)
        except _MisfitError as misfit:
            raise _MisfitError(misfit.value, f".{key}{misfit.place}") from None

    def _within(self, x: float) -> bool:
        if isinstance(x, int) and x.bit_length() > 1023:  # larger than any float
            return False
        if math.isnan(x) or math.isinf(x):
            return x in (self.low, self.high)
        return (
            (self.low is None or x >= self.low)
            and (self.high is None or x <= self.high)
            and (self.above is None or x > self.above)
            and (self.below is None or x < self.below)
        )

    def _words(self, wanted: Any) -> str:
        origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
        if is_union(wanted):
            return ", or ".join(self._words(kind) for kind in inner)
        if origin is tuple:
            return "a list of them" if self.type is not wanted else f"a list, each {self._words(inner[0])}"
        if wanted is Any or is_table(wanted):
            return "a table" + (f", each {self._words(inner[1])}" if inner and inner[1] is not Any else "")
        if wanted in (int, float):
            return ("whole numbers, " if wanted is int else "") + self._range()
        if self.texts and wanted is not type(None):
            return ", ".join(self.texts)
        if isinstance(wanted, type) and is_dataclass(wanted):
            example = f", such as {self.default!r}" if isinstance(self.default, wanted) else ""
            return f"a {wanted.__name__} ({', '.join(options_of(wanted))}){example}"
        none = "None" if self.none is None else f"None ({self.none} in TOML)"
        return {bool: "true or false", str: "a text"}.get(wanted, none)

    def _range(self) -> str:
        low = "" if self.low is None else _number(self.low)
        high = "" if self.high is None else _number(self.high)
        low = low if self.above is None else f"above {_number(self.above)}"
        high = high if self.below is None else f"below {_number(self.below)}"
        if low and high:
            return f"{low} to {high}"
        return high or (low if self.above is not None else f"{low} or more" if low else "finite numbers")


class _MisfitError(ValueError):
    """An invalid value, possibly in a list or table, and its place there."""

    def __init__(self, value: Any, place: str = "") -> None:
        super().__init__(value)
        self.value = value
        self.place = place


def plain(value: Any) -> Any:
    """A tensor, an array or a NumPy scalar as a number or a list of numbers; anything else unchanged."""
    return plain(value.tolist()) if hasattr(value, "tolist") else value  # an array of objects may contain NumPy numbers


def whole(value: Any) -> Optional[int]:  # noqa: UP045
    """The whole number represented by a value; None for any other value.

    Accepts Python and NumPy integers, arrays and tensors of shape [] with one, and other types with `__index__`.
    Rejects floats, even 4.0, and bools: as counts, both are usually mistakes.
    """
    value = plain(value)
    if isinstance(value, bool):
        return None
    try:
        return int(operator.index(value))
    except TypeError:
        return None


def number(value: Any) -> Optional[float]:  # noqa: UP045
    """The number represented by a value; None for any other value.

    Accepts whole numbers (see `whole`), and floats in the same forms; rejects bools and texts.
    """
    value = plain(value)
    integer = whole(value)
    if integer is None and (isinstance(value, bool) or not isinstance(value, numbers.Real)):
        return None
    try:
        return float(value if integer is None else integer)
    except OverflowError:  # beyond the largest float
        return None


def _number(x: float) -> str:
    return f"{x:g}" if isinstance(x, float) else str(x)


def option(default: Any, help: str, **declared: Any) -> Any:
    """A field of a frozen dataclass with its declaration.

    Args:
        default: of the field; a function makes a new one each time.
        help: its meaning, in one line: shown in --help and, as a comment, in a printed configuration.
        declared: see `Option`.
    """
    made: Any = {"default_factory": default} if callable(default) else {"default": default}
    return field(metadata={"option": Option(help, **declared)}, **made)


def options_of(cls: Any) -> Mapping[str, Option]:
    """The options declared by a dataclass, by name, in order."""
    if cls not in _KNOWN:
        kinds = types_of(cls)
        options = {}
        for f in fields(cls):
            if "option" in f.metadata:
                default = f.default if f.default_factory is MISSING else f.default_factory()
                options[f.name] = replace(f.metadata["option"], name=f.name, type=kinds[f.name], default=default)
        _KNOWN[cls] = types.MappingProxyType(options)
    return _KNOWN[cls]


def types_of(cls: Any) -> Dict[str, Any]:  # noqa: UP006
    """The types of a dataclass's fields.

    Annotations that are texts are looked up in the module of their class. Those of a class in a function, or in code that is executed
    without a module, may name something that is not there: the type of a field then is `type` of its metadata, or Any.
    """
    try:
        return typing.get_type_hints(cls)
    except NameError:
        bases = reversed(cls.__mro__)
        found = {name: _type_of(base, name) for base in bases for name in getattr(base, "__annotations__", {})}
        return {**found, **{f.name: f.metadata["type"] for f in fields(cls) if "type" in f.metadata}}


def _type_of(cls: Any, name: str) -> Any:
    """The type of one annotation of a class; Any if it names something unknown."""
    alone = type(cls.__name__, (), {"__annotations__": {name: cls.__annotations__[name]}, "__module__": cls.__module__})
    try:
        return typing.get_type_hints(alone)[name]
    except NameError:
        return Any


def former_names(known: Mapping[str, Option]) -> Dict[str, str]:  # noqa: UP006
    """Current names of options by their former names."""
    return {option.former: name for name, option in known.items() if option.former}


#: cache of `options_of`
_KNOWN: Dict[Any, Mapping[str, Option]] = {}  # noqa: UP006


def part_of(instance: Any, cls: Any) -> Any:
    """An instance of the dataclass `cls` from an instance of a subclass."""
    return cls(**{f.name: getattr(instance, f.name) for f in fields(cls)})


def check(instance: Any, place: str, error: Type[Exception]) -> None:  # noqa: UP006
    """Checks every option of a frozen dataclass, and converts it to its type; for `__post_init__`.

    Args:
        place: see `Option.check`.
        error: raised for the first invalid value.
    """
    for name, known in options_of(type(instance)).items():
        value = known.check(getattr(instance, name), place, error)
        object.__setattr__(instance, name, value)
