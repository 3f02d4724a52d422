"""Removed barriers and bounds of the kernels are found; `python tests/gpu/mutations.py --all` removes every one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).with_name("mutations.py")
TEXT = """
KERNEL(k, Args, 256) {
  if (k >= a.n) return;  // if (this) were code
  const bool exists = k < a.n;
  if (exists) { barrier(); warp_barrier(); }
  if (a.x) a.x[k] = 0; else a.y[k] = 0;
  for (;;) if (f(k, (1))) { g(); continue; }
  if constexpr (FIRES) barrier();
}
"""


@pytest.fixture
def mutations(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("mutations", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mutations", module)
    spec.loader.exec_module(module)
    return module


def test_changes_of_a_source(mutations: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "codelets/gpu/toy.cu"
    path.parent.mkdir(parents=True)
    path.write_text(TEXT)
    found = mutations.changes(tmp_path)
    assert [(change.name, change.by) for change in found] == [
        ("toy.cu: if (k >= a.n) return", "false"),
        ("toy.cu: bool exists = k < a.n", "true"),
        ("toy.cu: if (exists)", "true"),
        ("toy.cu: without if (exists) { barrier();", ";"),
        ("toy.cu: without if (exists) { barrier(); warp_barrier();", ";"),
        ("toy.cu: if (f(k, (1))) continue", "false"),
        ("toy.cu: without if constexpr (FIRES) barrier();", ";"),
    ]
    for change in found:
        path.write_text(TEXT)
        change.apply(tmp_path)
        before, after = (text.splitlines() for text in (TEXT, path.read_text()))
        assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


def test_answers_of_processes(mutations: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutations, "SECONDS", 0.2)

    def forever() -> str:
        while True:
            pass

    assert mutations.attempt(None, lambda: "different") == "different"
    assert mutations.attempt(None, lambda: "") == ""
    assert mutations.attempt(None, lambda: str(1 // 0)).startswith("ZeroDivisionError: ")
    assert mutations.attempt(None, forever) == "ended by SIGPROF"
    assert mutations.attempt(None, lambda: os._exit(3)) == "ended with 3"


def test_a_sample_of_changes_is_found() -> None:
    """Each would be a race, an access out of bounds, or other numbers than those of the engine `cpu`."""
    ended = subprocess.run([sys.executable, str(SCRIPT), "--sample"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(" found ") == 6
    assert "6 of 6 changes are as expected" in ended.stdout
