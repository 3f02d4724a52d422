"""The device `cuda` through the real package cuda.bindings, on a stand-in for NVIDIA's driver: whether arguments arrive as they are meant."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_kernels import sources_with

from sparsesnn.engines.gpu import cubins, nvrtc
from sparsesnn.engines.gpu.bindings import load_nvrtc

pytest.importorskip("cuda.bindings.nvrtc", reason="the package cuda-bindings is not installed")
HERE = Path(__file__).parent


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """The folder of a libcuda.so.1 that works in the host's memory."""
    source = HERE.parent / "fakes" / "cuda" / "driver.cpp"
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    library = tmp_path / "driver" / "libcuda.so.1"
    library.parent.mkdir()
    subprocess.run([os.environ.get("CXX", "c++"), *flags, "-o", str(library), str(source)], check=True)
    return library.parent


@pytest.mark.slow
def test_copies_launches_and_graphs(stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine code comes from the cache: NVRTC itself looks for the driver, and would ask the stand-in for calls that it lacks."""
    sources = sources_with(tmp_path, "scale.cu")
    monkeypatch.setattr(nvrtc, "ROOT", sources)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _, version = load_nvrtc()
    key = cubins.key(nvrtc.source_files("scale.cu"), nvrtc.options("sm_90", {}), version)
    cubins.cached(key, lambda: nvrtc.compile_source("scale.cu", "sm_90", {}).cubin)

    environment = {**os.environ, "LD_LIBRARY_PATH": str(stand_in), "STAND_IN_VERSION": str(1000 * version[0])}
    command = [sys.executable, str(HERE / "drive_stand_in.py"), str(sources)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.stdout == "done\n", ended.stderr
