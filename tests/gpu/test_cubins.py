"""The cache of machine code: right or not used, whatever happens to its folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sparsesnn.engines.gpu import cubins
from sparsesnn.engines.gpu.nvrtc import options, source_files

CODE = b"\x7fELF" + bytes(range(256)) * 7


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cubins, "_warned", False)
    return tmp_path / "sparsesnn" / "cubins"


class Compiler:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> bytes:
        self.calls += 1
        return CODE


def test_code_is_compiled_once(folder: Path) -> None:
    compiler = Compiler()
    assert [cubins.cached("a" * 64, compiler) for _ in range(3)] == [CODE] * 3
    assert compiler.calls == 1
    assert [path.name for path in folder.iterdir()] == ["a" * 64 + ".cubin"]
    assert cubins.cached("b" * 64, compiler) == CODE
    assert compiler.calls == 2
    cubins.forget("a" * 64)
    cubins.forget("a" * 64)
    assert [path.name for path in folder.iterdir()] == ["b" * 64 + ".cubin"]


def test_every_damage_is_noticed_and_repaired(folder: Path) -> None:
    compiler = Compiler()
    cubins.cached("a", compiler)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    damaged = [b"", whole[:5], whole[:-1], whole + b"x", b"x" * len(whole)]
    damaged += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in (0, 20, 49, 50, len(whole) - 1)]
    for k, data in enumerate(damaged):
        file.write_bytes(data)
        assert cubins.cached("a", compiler) == CODE
        assert compiler.calls == k + 2
        assert file.read_bytes() == whole


@pytest.mark.parametrize("kind", ["file", "file above", "folder of the name"])
def test_a_folder_that_cannot_be_used_costs_one_warning(folder: Path, kind: str) -> None:
    """Permissions do not stop root, so files lie in the way."""
    if kind == "file":
        folder.parent.mkdir()
        folder.write_text("not a folder")
    elif kind == "file above":
        folder.parent.write_text("not a folder")
    else:
        (folder / "a.cubin").mkdir(parents=True)
    compiler = Compiler()
    with pytest.warns(RuntimeWarning, match="cannot be cached .*XDG_CACHE_HOME") as caught:
        assert cubins.cached("a", compiler) == CODE
    assert len(caught) == 1
    assert cubins.cached("a", compiler) == CODE  # warnings are errors here
    assert compiler.calls == 2


def test_no_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.warns(RuntimeWarning, match="HOME is not set"):
        assert cubins.cached("a", Compiler()) == CODE


def test_an_interrupted_write_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cubins.cached("a", Compiler())
    assert list(folder.iterdir()) == []


#: loads the file alone, without the package and PyTorch; argument: path of cubins.py
WRITER = """
import importlib.util, sys, warnings
spec = importlib.util.spec_from_file_location("cubins", sys.argv[1])
cubins = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cubins)
warnings.simplefilter("error")
code = b"code" * 1000
for _ in range(1000):
    cubins.forget("a")
    assert cubins.cached("a", lambda: code) == code
"""


def test_processes_share_a_folder(folder: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(cubins.__file__)]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert [path.name for path in folder.iterdir() if path.name != "a.cubin"] == []


def test_the_key_names_all_that_code_depends_on() -> None:
    sources = source_files("step.cu")
    assert {"codelets/gpu/step.cu", "codelets/gpu/device.h", "codelets/number.h", "codelets/surrogate.h"} <= set(
        sources
    )
    assert not any(".." in name for name in sources)
    flags = options("sm_90", {"COLUMNS": "4"})
    base = cubins.key(sources, flags, (13, 0))
    others = [
        cubins.key({**sources, "codelets/number.h": sources["codelets/number.h"] + b"\n"}, flags, (13, 0)),
        cubins.key({k: v for k, v in sources.items() if k != "codelets/number.h"}, flags, (13, 0)),
        cubins.key(sources, options("sm_89", {"COLUMNS": "4"}), (13, 0)),
        cubins.key(sources, options("sm_90", {"COLUMNS": "2"}), (13, 0)),
        cubins.key(sources, options("sm_90", {}), (13, 0)),
        cubins.key(sources, flags, (13, 1)),
    ]
    assert len({base, *others}) == 7
    assert base == cubins.key(dict(reversed(sources.items())), flags, (13, 0))
