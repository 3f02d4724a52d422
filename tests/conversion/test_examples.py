"""The scripts of examples/convert: each trains, and its network is the library's to the last spike."""

from __future__ import annotations

import importlib
import math
import runpy
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from comparing import compare

FOLDER = Path(__file__).parents[2] / "examples" / "convert"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*_*.py"))


@pytest.fixture(autouse=True)
def beside_the_scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Scripts import `patterns` from their own folder."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    sys.modules.pop("patterns", None)


def test_five_for_each_library() -> None:
    libraries = [name.partition("_")[0] for name in SCRIPTS]
    assert {library: libraries.count(library) for library in libraries} == {
        "norse": 5,
        "sinabs": 5,
        "snntorch": 5,
        "spikingjelly": 5,
    }


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    library = name.partition("_")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # SpikingJelly compiles by torch.jit when it is imported
        pytest.importorskip(library, reason=f"needs {library}")
        script: dict[str, Any] = runpy.run_path(str(FOLDER / f"{name}.py"))
        network, x = script["example"]()

        def reset() -> None:
            torch.manual_seed(4)  # an encoder draws the same spikes
            if library == "spikingjelly":
                importlib.import_module("spikingjelly.activation_based.functional").reset_net(network)
            elif library == "sinabs":
                for module in network.modules():
                    for state in ("v_mem", "i_syn"):
                        if isinstance(getattr(module, state, None), torch.Tensor):
                            setattr(module, state, torch.zeros(0))

        compare(network, x, reset=reset)
        assert math.isfinite(script["main"](2))
    assert "% of the last batch right" in capsys.readouterr().out
