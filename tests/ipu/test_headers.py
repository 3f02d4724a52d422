"""The stubs of closed headers: our sources compile against them, mistakes do not. `./dev headers` adds the open headers."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_headers", TESTS / "headers" / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_headers"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_our_sources_compile_against_the_stubs_and_mistakes_do_not(check: ModuleType) -> None:
    found = check.check_all(None, "g++")
    assert {Path(r.source).name for r in found["ours"]} >= {"program.cpp", "spec.cpp", "forward.cpp", "update.cpp"}
    assert [(r.source, r.error) for r in found["ours"] if not r.compiled] == []
    assert len(found["refused"]) >= 4
    assert [r.source for r in found["refused"] if r.compiled] == []
    assert all("error:" in r.error for r in found["refused"])


def test_a_folder_without_checkouts_is_named(
    check: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "popart" / "willow" / "include").mkdir(parents=True)
    with pytest.raises(SystemExit):
        check.main([str(tmp_path)])
    assert "has no poplibs, poprithms; clone them there" in capsys.readouterr().err
