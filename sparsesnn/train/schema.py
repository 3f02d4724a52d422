"""Plain data (TOML, JSON, command line) into frozen dataclasses and back, with errors that name the key."""

from __future__ import annotations

import difflib
import math
import sys
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar

import tomli_w

from sparsesnn.errors import ConfigError, DescriptionError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

T = TypeVar("T")


def build(cls: type[T], data: Mapping[str, Any], where: str = "") -> T:
    """The dataclass `cls` from a table; missing keys take their defaults.

    Args:
        data: what TOML or JSON holds; nested dataclasses are nested tables; "inf" and "-inf" stand for the numbers.
        where: name of the table, for messages, such as "net".

    Errors: `ConfigError` for unknown keys (names the nearest) and for values of the wrong type or range.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where or 'configuration'}: is {data!r}; give a table")
    types = typing.get_type_hints(cls)
    for key in data:
        if key not in types:
            raise ConfigError(unknown(key, list(types), where))
    arguments = {key: _convert(value, types[key], f"{where}.{key}" if where else key) for key, value in data.items()}
    try:
        return cls(**arguments)
    except DescriptionError as error:
        raise ConfigError(f"{where}: {error}") from None


def unknown(key: str, allowed: list[str], where: str = "") -> str:
    """The message for a key that does not exist."""
    near = difflib.get_close_matches(str(key), allowed, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{where or 'configuration'}: unknown key {key!r}; {hint}allowed: {', '.join(allowed)}"


def _convert(value: Any, wanted: Any, where: str) -> Any:
    if is_dataclass(wanted):
        return build(typing.cast(type[Any], wanted), value, where)
    origin = typing.get_origin(wanted)
    options = typing.get_args(wanted) if origin in (typing.Union, UnionType) else (wanted,)
    for option in options:
        if typing.get_origin(option) is tuple:
            if isinstance(value, (list, tuple)):
                return tuple(_convert(v, typing.get_args(option)[0], where) for v in value)
        elif typing.get_origin(option) is dict:
            if isinstance(value, Mapping):
                item = typing.get_args(option)[1]
                return {str(k): v if item is Any else _convert(v, item, f"{where}.{k}") for k, v in value.items()}
        elif option is float:
            if value in ("inf", "-inf") or (isinstance(value, (int, float)) and not isinstance(value, bool)):
                number = float(value)
                if math.isnan(number):
                    raise ConfigError(f"{where}: is NaN; give a number")
                return number
        elif isinstance(value, option) and (option is bool or not isinstance(value, bool)):
            return value
    names = " or ".join(_type_name(option) for option in options)
    raise ConfigError(f"{where}: is {value!r} ({type(value).__name__}); give {names}")


def _type_name(option: Any) -> str:
    if typing.get_origin(option) is tuple:
        return "a list"
    if typing.get_origin(option) is dict:
        return "a table"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", type(None): "nothing"}
    return names[option]


def plain(value: Any) -> Any:
    """Dataclasses to dicts, tuples to lists, infinities to "inf" and "-inf": what strict JSON can hold."""
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def defaults(cls: type[Any]) -> dict[str, Any]:
    """Field name → default value, as plain data."""
    found = {}
    for f in fields(cls):
        found[f.name] = plain(f.default_factory() if f.default_factory is not MISSING else f.default)
    return found


def merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """`low` with the entries of `high` on top; tables are merged key by key."""
    merged = dict(low)
    for key, value in high.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def flatten(table: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} → {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{where}.{key}" if where else key
        flat.update(flatten(value, name) if isinstance(value, Mapping) and value else {name: value})
    return flat


def read_toml(text: str, source: str) -> dict[str, Any]:
    """Parses TOML; `ConfigError` names the source and the line."""
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{source}: is not TOML: {error}") from None
    return table


def write_toml(table: Mapping[str, Any]) -> str:
    """TOML text; keys whose value is None are left out, for TOML has no null."""
    return tomli_w.dumps(_for_toml(table))


def _for_toml(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _for_toml(v) for key, v in value.items() if v is not None}
    if isinstance(value, (list, tuple)):
        return [_for_toml(v) for v in value]
    if value in ("inf", "-inf"):
        return float(value)
    return value


def read_assignment(text: str) -> dict[str, Any]:
    """`"optim.lr=1e-3"` → {"optim": {"lr": 0.001}}; a value that is not TOML is taken as a text."""
    name, equals, value = text.partition("=")
    keys = name.strip().split(".")
    if not equals or len(keys) < 2 or not all(keys):
        raise ConfigError(f"--set {text!r}: write section.key=value, such as optim.lr=0.001")
    try:
        parsed: Any = tomllib.loads(f"value = {value.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    for key in reversed(keys):
        parsed = {key: parsed}
    return typing.cast("dict[str, Any]", parsed)
