"""Neuron models in a user's own file, as FILE.py:CLASS. Only a command line or a program may name such a file, never another file."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, Tuple  # noqa: UP035

from sparsesnn.errors import DescriptionError
from sparsesnn.layers.catalog import define

#: modules by file and its time of change
_LOADED: Dict[Tuple[Path, int], ModuleType] = {}  # noqa: UP006


def load_model(place: str) -> type[Any]:
    """The class named by FILE.py:CLASS, which is then found by its name; the file is run once.

    Errors: `DescriptionError` for a missing file or class, one that extends no `Neuron`, and an exception of the file, with its line.
    """
    match = re.fullmatch(r"(?P<path>.+\.py):(?P<name>[A-Za-z_]\w*)", place)
    if match is None:
        raise DescriptionError(f"{place!r}: give FILE.py:CLASS, such as alif.py:ALIF")
    path, name = Path(match["path"]).expanduser().absolute(), match["name"]
    if not path.is_file():
        raise DescriptionError(f"{place}: {path} is not a file; give FILE.py:CLASS")
    module = _module(path, place)
    if not hasattr(module, name):
        raise DescriptionError(f"{place}: {path.name} has no class {name}; give one that it defines")
    model: type[Any] = getattr(module, name)
    define(model, f"{place}: {name}")
    return model


def _module(path: Path, place: str) -> ModuleType:
    key = path, path.stat().st_mtime_ns
    if key in _LOADED:
        return _LOADED[key]
    name = f"_sparsesnn_neurons_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a file that ends in .py has a loader"
    assert spec.loader is not None, "a file that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up the names of types there
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the file raises
        del sys.modules[name]
        last = traceback.extract_tb(error.__traceback__)[-1]
        line, file = (error.lineno, error.filename) if isinstance(error, SyntaxError) else (last.lineno, last.filename)
        raise DescriptionError(
            f"{place}: ended with {type(error).__name__}: {error} (line {line} of {file})"
        ) from error
    _LOADED[key] = module
    return module
