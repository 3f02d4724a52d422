"""The structs of arguments of kernels, as ctypes lays them out: read from the kernels' own sources, so that they stand in one place.

A struct in codelets/gpu holds, in this order, other structs, pointers (`Global<…>`) and 32-bit numbers (`int32`, `float`).
"""

from __future__ import annotations

import ctypes
import functools
import re
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parents[2] / "codelets" / "gpu"

_STRUCT = re.compile(r"^struct (\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
_CONSTANTS = re.compile(r"^constexpr int (.*?);", re.MULTILINE | re.DOTALL)
_MEMBERS = re.compile(r"(Global<[\w ]+>|\w+) ([\w\[\], ]+);")
_NUMBERS = {"int32": ctypes.c_int32, "float": ctypes.c_float}


@functools.cache
def structs(source: str) -> dict[str, type[ctypes.Structure]]:
    """The structs of arguments in a file of codelets/gpu and in layout.h, by name."""
    shared = dict(_layout()[0])
    return {**shared, **_read(source, shared, _layout()[1])}


@functools.cache
def _layout() -> tuple[dict[str, Any], dict[str, int]]:
    """The structs and constants of layout.h, which all kernels share."""
    lines = _CONSTANTS.findall((SOURCES / "layout.h").read_text())
    constants = {name: int(value) for line in lines for name, value in re.findall(r"(\w+) = (\d+)", line)}
    return _read("layout.h", {}, constants), constants


def _read(file: str, known: dict[str, Any], constants: dict[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, body in _STRUCT.findall(re.sub(r"//.*", "", (SOURCES / file).read_text())):
        if "(" not in body:
            found[name] = type(name, (ctypes.Structure,), {"_fields_": _fields(body, {**known, **found}, constants)})
    return found


def _fields(body: str, known: dict[str, Any], constants: dict[str, int]) -> list[tuple[str, Any]]:
    fields = []
    for kind, names in _MEMBERS.findall(body):
        made: Any = ctypes.c_uint64 if kind.startswith("Global") else _NUMBERS.get(kind) or known[kind]
        for name, _, length in re.findall(r"(\w+)(\[(\w+)\])?", names):
            fields.append((name, made * constants[length] if length else made))
    return fields


def make(source: str, name: str, **values: Any) -> ctypes.Structure:
    """A struct of arguments; members that are left out are 0, a list fills the first places of an array."""
    kind = structs(source)[name]
    made = kind()
    for member, value in values.items():
        if isinstance(value, list):
            for k, one in enumerate(value):
                getattr(made, member)[k] = one
        else:
            setattr(made, member, value)
    return made
