"""Wheel, sdist → wheel, and editable installation, each used in a fresh virtual environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml")
FOLDERS = ("cmake", "codelets", "datasets", "host", "launch", "sparsesnn")
# Kernels for the baseline alone: those of other instruction sets are the same files again, and take as long each. A debug
# build takes the compiler less than half the time.
QUICK = ("--config-settings=cmake.define.SPARSESNN_ISAS=", "--config-settings=cmake.build-type=Debug")
USE = """
import sparsesnn, sparsesnn.codelets, sparsesnn.datasets, sparsesnn.host, sparsesnn.launch, sparsesnn.layers, sparsesnn.partition
import torch
layer = sparsesnn.Layer(sparsesnn.LIF(5), n_pre=3)
out, state = layer(sparsesnn.SpikeBatch.from_dense(torch.ones(2, 1, 3)))
print(out.n_steps, sparsesnn.__version__, sparsesnn.__file__)
"""

pytestmark = [pytest.mark.install, pytest.mark.slow]

pytest.importorskip("scikit_build_core", reason="needs scikit-build-core and nanobind, in the extra 'dev'")
pytest.importorskip("nanobind", reason="needs scikit-build-core and nanobind, in the extra 'dev'")


def run(*command: str | Path, cwd: Path) -> str:
    # No index: the package comes from this source tree, and its dependencies are installed already.
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONWARNINGS": "ignore"}
    result = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{command}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
    return result.stdout


def fresh_environment(folder: Path) -> Path:
    """A virtual environment with pip that sees the packages of this one, but not its sparsesnn; returns its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    # A folder that a .pth file adds comes last, and its own .pth files (editable installations) are not read.
    (site / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def source_tree(folder: Path) -> Path:
    """A copy of what belongs to the package, so that a build finds nothing else."""
    folder.mkdir()
    for name in SOURCES:
        shutil.copy(ROOT / name, folder)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return folder


def use(python: Path, cwd: Path) -> Path:
    """Imports and runs the package from another directory; returns where it was imported from."""
    n_steps, version, file = run(python, "-c", USE, cwd=cwd).split(maxsplit=2)
    assert n_steps == "2"
    assert run(python.parent / "sparsesnn", "--version", cwd=cwd).split() == ["sparsesnn", version]
    return Path(file.strip())


def test_sdist_wheel_and_editable(tmp_path: Path) -> None:
    """Wheel and editable installation are built from the unpacked sdist, in one folder: everything is compiled once."""
    tree = source_tree(tmp_path / "tree")
    build = f"import scikit_build_core.build as b; print(b.build_sdist({str(tmp_path)!r}))"
    sdist = tmp_path / run(sys.executable, "-c", build, cwd=tree).split()[-1]
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / sdist.name.removesuffix(".tar.gz")
    files = {"_core.pyi", "codelets/cpu/simd.h", "datasets/__init__.py", "host/src/bindings/module.cpp"}
    assert {"CMakeLists.txt", "LICENSE", "cmake/isa.cmake", *(f"sparsesnn/{file}" for file in files)} <= names
    assert [name for name in names if name.startswith(("codelets", "datasets", "host", "launch"))] == []

    python = fresh_environment(tmp_path / "venv")
    options = ("--no-deps", "--no-build-isolation", *QUICK, f"--config-settings=build-dir={tmp_path / 'build'}")
    run(python, "-m", "pip", "wheel", *options, "--wheel-dir", tmp_path / "wheels", source, cwd=tmp_path)
    (wheel,) = (tmp_path / "wheels").glob("sparsesnn-*.whl")
    names = names_in(wheel)
    assert {
        "sparsesnn/__init__.py",
        "sparsesnn/_core.pyi",
        "sparsesnn/py.typed",
        "sparsesnn/codelets/cpu/simd.h",
        "sparsesnn/datasets/__init__.py",
        "sparsesnn/host/stream.py",
        "sparsesnn/launch/__init__.py",
    } <= names
    # codelets are compiled by popc where they run; everything else of C++ is in _core
    sources = [name for name in names if name.endswith(".cpp") and not name.startswith("sparsesnn/codelets/")]
    assert sources == []
    assert [name for name in names if name.startswith(("tests/", "sparsesnn/host/src"))] == []
    (core,) = [name for name in names if name.startswith("sparsesnn/_core.") and name.endswith(".so")]
    stable = sys.version_info >= (3, 12) and not sysconfig.get_config_var("Py_GIL_DISABLED")
    assert core.endswith(".abi3.so") == ("-cp312-abi3-" in wheel.name) == stable
    assert in_package(names) == in_package(names_in(wheel_without_engine(python, tree, tmp_path / "links")))

    run(python, "-m", "pip", "install", "--no-deps", wheel, cwd=tmp_path)
    assert tmp_path / "venv" in use(python, tmp_path).parents

    python = fresh_environment(tmp_path / "venv-editable")
    run(python, "-m", "pip", "install", *options, "--editable", source, cwd=tmp_path)
    assert use(python, tmp_path) == source / "sparsesnn" / "__init__.py"
    # From the root of the source tree as well, where the folder sparsesnn/ has no compiled engine.
    assert use(python, source) == source / "sparsesnn" / "__init__.py"
    # A file written after the installation is found.
    (source / "sparsesnn" / "datasets" / "written_later.py").write_text("answer = 42\n")
    (source / "sparsesnn" / "written_later.py").write_text("answer = 43\n")
    code = "import sparsesnn.datasets.written_later as a, sparsesnn.written_later as b; print(a.answer, b.answer)"
    assert run(python, "-c", code, cwd=tmp_path).split() == ["42", "43"]


def wheel_without_engine(python: Path, tree: Path, folder: Path) -> Path:
    """The wheel of a tree with links, as in a clone, without anything that is compiled."""
    pure = ("--config-settings=wheel.cmake=false", "--config-settings=wheel.py-api=py3")
    options = ("--no-deps", "--no-build-isolation", *pure, "--wheel-dir", folder)
    run(python, "-m", "pip", "wheel", *options, tree, cwd=tree)
    (wheel,) = folder.glob("sparsesnn-*.whl")
    return wheel


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def in_package(names: set[str]) -> set[str]:
    """The files of the package that are not compiled."""
    return {name for name in names if name.startswith("sparsesnn/") and not name.endswith(".so")}
