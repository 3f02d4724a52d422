"""help() explains every argument of a description."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any

import pytest

import sparsesnn as ss


@pytest.mark.parametrize("model", [ss.LIF, ss.CubaLIF, ss.LI])
def test_every_argument_is_explained(model: Any) -> None:
    text = inspect.getdoc(model)
    assert text is not None
    head, arguments = text.split("\nArgs:\n")
    explained = re.findall(r"^    (\w+): \S", arguments, re.MULTILINE)
    assert explained == [f.name for f in fields(model)]
    assert "[t] = " in head, "the equation"
    assert "beta: " in arguments
    assert re.search(
        r"gain: factor on the (readout's )?input current. Allowed: finite numbers. Default: 1\.0\.", arguments
    )
    assert max(map(len, text.splitlines())) <= 120
