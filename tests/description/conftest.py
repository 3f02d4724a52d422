"""Other libraries, whose modules tests take by name."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def library() -> Iterator[Callable[[str], Any]]:
    """Imports a module, or skips the test; what PyTorch and nirtorch have deprecated is used without a warning in this test."""

    def module(name: str) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return importlib.import_module(name)
            except ImportError as error:
                pytest.skip(f"needs {name}: {error}")

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield module
