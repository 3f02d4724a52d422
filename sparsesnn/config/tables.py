"""Converts plain tables (TOML, JSON, command line) to frozen dataclasses and back, with errors that name section and key.

A dataclass is a table: its fields are the keys, as declared by `sparsesnn.options.option`. A field made by `spread` holds
entries that appear in the table next to the other keys; their set depends on the table: on the data set, or on the neuron
models.
"""

from __future__ import annotations

import math
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

import tomli_w

from sparsesnn import wording
from sparsesnn.errors import ConfigError, DescriptionError
from sparsesnn.options import Option, is_table, is_union, options_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

T = TypeVar("T")
Table = Mapping[str, Any]


@dataclass(frozen=True)
class Spread:
    """Options whose entries appear in the section itself.

    Args:
        options: returns the options of a table by name; for an empty table all possible ones.
        prefix: of their keys in the table.
    """

    options: Callable[[Table], Mapping[str, Option]]
    prefix: str = ""

    def keys(self, table: Table) -> dict[str, Option]:
        """The options by their keys."""
        return {
            self.prefix + name: replace(
                known, name=self.prefix + name, former=known.former and self.prefix + known.former
            )
            for name, known in self.options(table).items()
        }


def spread(options: Callable[[Table], Mapping[str, Option]], prefix: str = "") -> Any:
    """A field of a frozen dataclass for the values of a `Spread`, by the names of its options."""
    return field(default_factory=dict, metadata={"spread": Spread(options, prefix)})


def fill_spreads(instance: Any, place: str, error: type[Exception]) -> None:
    """Fills fields made by `spread` with defaults, and checks them; for `__post_init__`.

    Args:
        place, error: see `sparsesnn.options.check`.
    """
    for f in fields(instance):
        if "spread" in f.metadata:
            known = f.metadata["spread"].options({name: getattr(instance, name) for name in options_of(type(instance))})
            given = getattr(instance, f.name)
            if others := set(given) - set(known):
                raise error(unknown(min(others), known, place.format(f.name).rstrip(":")))
            whole = {name: o.check(given.get(name, o.default), place, error) for name, o in known.items()}
            object.__setattr__(instance, f.name, whole)


def keys_of(cls: Any, table: Table) -> dict[str, Option]:
    """The possible keys of a table: the options by key, in order."""
    kinds, declared = typing.get_type_hints(cls), options_of(cls)
    keys: dict[str, Option] = {}
    for f in fields(cls):
        if "spread" in f.metadata:
            keys.update(f.metadata["spread"].keys(table))
        else:
            keys[f.name] = declared.get(f.name, Option("", -math.inf, math.inf, name=f.name, type=kinds[f.name]))
    return keys


# ---- reading -------------------------------------------------------------------------------------------------------


class EntryError(ConfigError):
    """An unknown key, or an invalid value.

    Args:
        name: of the entry, such as "train.epochs".
        is_unknown: whether the key is unknown.
    """

    def __init__(self, message: str, name: str = "", *, is_unknown: bool = False) -> None:
        super().__init__(message)
        self.name = name
        self.is_unknown = is_unknown


class FileTable(dict[str, Any]):
    """A table and the file that it comes from, for messages."""

    source = ""


def build(cls: type[T], table: Any, where: str = "") -> T:
    """The dataclass `cls` from a table; missing keys take their defaults.

    Args:
        table: nested dataclasses are nested tables; "inf" and "-inf" mean the numbers.
        where: name of the table, for messages, such as "net".

    Errors: `ConfigError` for unknown keys, with the nearest known one, and for invalid values.
    """
    if not isinstance(table, Mapping):
        keys = ", ".join(keys_of(cls, {}))
        raise ConfigError(f"{where or 'configuration'}: is {table!r}; give a table with some of: {keys}")
    known = keys_of(cls, table)
    path = f"{where}." if where else ""
    for key in table:
        if key not in known:
            raise EntryError(unknown(key, known, where), f"{path}{key}", is_unknown=True)
    given = {}
    for key, value in table.items():
        typed = _typed(value, known[key], path + key)
        try:
            given[key] = known[key].check(typed, f"{path}{{}}:", ConfigError)
        except ConfigError as error:
            raise EntryError(str(error), path + key) from None
    arguments: dict[str, Any] = {}
    for f in fields(cls):  # type: ignore[arg-type]
        if "spread" in f.metadata:
            prefix = f.metadata["spread"].prefix
            names = f.metadata["spread"].options(table)
            arguments[f.name] = {name: given[prefix + name] for name in names if prefix + name in given}
        elif f.name in given:
            arguments[f.name] = given[f.name]
    try:
        return cls(**arguments)
    except DescriptionError as error:
        raise ConfigError(f"{where}: {error}") from None


def unknown(key: str, allowed: Iterable[str], where: str = "") -> str:
    """The message for an unknown key."""
    return f"{where or 'configuration'}: {wording.unknown('key', key, allowed)}"


def _typed(value: Any, known: Option, where: str) -> Any:
    """A plain value converted to None, infinities and dataclasses, which plain data cannot represent."""
    if known.none is not None and value == known.none and not isinstance(value, bool):
        return None
    return _shaped(value, known.type, where)


def _shaped(value: Any, wanted: Any, where: str) -> Any:
    inner = typing.get_args(wanted)
    if is_union(wanted):
        for kind in inner:
            value = _shaped(value, kind, where)
    elif isinstance(wanted, type) and is_dataclass(wanted) and not isinstance(value, wanted):
        return build(wanted, value, where)
    elif wanted is float and isinstance(value, str) and value in ("inf", "-inf"):
        return float(value)
    elif typing.get_origin(wanted) is tuple and isinstance(value, (list, tuple)):
        return [_shaped(v, inner[0], where) for v in value]
    elif is_table(wanted) and inner and isinstance(value, Mapping):
        return {str(k): _shaped(v, inner[1], f"{where}.{k}") for k, v in value.items()}
    return value


def from_text(text: str, known: Option) -> Any:
    """Parses a value from the command line."""
    return text.strip() if known.type is str else _toml_value(text)


def read_assignment(text: str) -> dict[str, Any]:
    """`"optim.lr=1e-3"` → {"optim": {"lr": 0.001}}; a value that is not TOML is a text."""
    name, equals, value = text.partition("=")
    keys = name.strip().split(".")
    if not equals or len(keys) < 2 or not all(keys):
        raise ConfigError(f"--set {text!r}: write section.key=value, such as optim.lr=0.001")
    return nested(keys, _toml_value(value))


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except (ValueError, RecursionError):
        return text.strip()


def read_toml(text: str, source: str) -> dict[str, Any]:
    """Parses TOML; `ConfigError` names the source and the line."""
    try:
        table = FileTable(tomllib.loads(text))
    except (ValueError, RecursionError) as error:  # ValueError: also numbers with thousands of digits
        raise ConfigError(f"{source}: is not TOML: {error}") from None
    table.source = source
    return table


# ---- writing -------------------------------------------------------------------------------------------------------


def plain(value: Any, *, infinite: Callable[[float], Any] = str) -> Any:
    """Converts dataclasses to tables and tuples to lists.

    Args:
        infinite: converts an infinity; strict JSON can hold it only as a text, "inf" or "-inf".
    """
    if is_dataclass(value):
        return _table_of(value, infinite)
    if isinstance(value, Mapping):
        return {key: plain(v, infinite=infinite) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v, infinite=infinite) for v in value]
    return infinite(value) if isinstance(value, float) and math.isinf(value) else value


def _table_of(instance: Any, infinite: Callable[[float], Any]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    declared = options_of(type(instance))
    for f in fields(instance):
        value = getattr(instance, f.name)
        if "spread" in f.metadata:
            s = f.metadata["spread"]
            known = s.options({})
            table.update({s.prefix + n: _known(v, known.get(n), infinite) for n, v in value.items()})
        else:
            table[f.name] = _known(value, declared.get(f.name), infinite)
    return table


def _known(value: Any, known: Option | None, infinite: Callable[[float], Any]) -> Any:
    return known.none if value is None and known is not None else plain(value, infinite=infinite)


def commented(cls: Any, table: Table, where: str = "") -> str:
    """TOML of the table of a dataclass, with a comment above each key about its meaning and allowed values.

    Keys whose value is None are left out, because TOML has no null.
    """
    known = keys_of(cls, table)
    own, below, comments, others = [], [], [], {}
    for key, value in table.items():
        option = known[key]
        if is_dataclass(option.type):
            below.append(_comment(option) + commented(option.type, value, f"{where}.{key}" if where else key))
        elif isinstance(value, Mapping) or (isinstance(value, list) and value and isinstance(value[0], Mapping)):
            comments.append(_comment(option, f"{key}: "))
            others[key] = value
        elif value is not None:
            own.append(_comment(option) + tomli_w.dumps({key: value}))
    if others:
        below.append("".join(comments) + tomli_w.dumps(nested(where.split("."), _without_none(others))))
    if own and where:
        own.insert(0, f"[{where}]\n")
    return "".join(own) + "".join(f"\n{text}" for text in below)


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(v) for key, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, list) else value


def _comment(known: Option, name: str = "") -> str:
    return f"# {name}{known.meaning}\n" if known.help else ""


# ---- tables --------------------------------------------------------------------------------------------------------


def nested(keys: list[str], value: Any) -> dict[str, Any]:
    """["a", "b"], 1 → {"a": {"b": 1}}."""
    for key in reversed(keys):
        value = {key: value}
    return typing.cast("dict[str, Any]", value)


def merge(low: Table, high: Table) -> dict[str, Any]:
    """`low` with the entries of `high` on top; tables are merged key by key."""
    merged = dict(low)
    for key, value in high.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def flatten(table: Table, where: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} → {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{where}.{key}" if where else key
        flat.update(flatten(value, name) if isinstance(value, Mapping) and value else {name: value})
    return flat
