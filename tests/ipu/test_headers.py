"""The emulator's headers as Poplar's: codelets compile as popc sees them, mistakes do not. `./dev headers` adds PopART's open headers."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def headers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_headers", TESTS / "headers" / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_our_codelets_compile_and_mistakes_do_not(headers: ModuleType) -> None:
    found = headers.check("g++", [])
    assert [(name, error) for name, good, error in found if not good] == []
    assert sum(name.startswith("refused") for name, _, _ in found) == 4
    assert sum(name.startswith("codelets/ipu") for name, _, _ in found) == len(
        list((TESTS.parent / "codelets" / "ipu").glob("*.cpp"))
    )


def test_a_folder_without_checkouts_is_named(
    headers: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "popart" / "willow" / "include").mkdir(parents=True)
    with pytest.raises(SystemExit):
        headers.main([str(tmp_path)])
    assert "has no poplibs, poprithms; clone them there" in capsys.readouterr().err
