"""Kernels compile for every architecture, without contracted multiply-adds, and their needs are those of the table. No GPU is needed."""

from __future__ import annotations

from pathlib import Path

import compiled
import pytest
from gpu_kernels import sources_with

from sparsesnn.engines.gpu import nvrtc
from sparsesnn.errors import DeviceError

pytest.importorskip("cuda.bindings.nvrtc", reason="the package cuda-bindings is not installed")


@pytest.fixture(autouse=True)
def compiler() -> str:
    try:
        return compiled.compiler()
    except DeviceError as error:
        pytest.skip(f"no NVRTC: {error}")


@pytest.mark.slow
@pytest.mark.parametrize("source", compiled.VARIANTS)
@pytest.mark.parametrize("architecture", compiled.ARCHITECTURES)
def test_kernels(source: str, architecture: str, compiler: str) -> None:
    made_by, table = compiled.read_table()
    differ = []
    for defines in compiled.variants(source, architecture):
        made = nvrtc.compile_source(source, architecture, defines)
        assert compiled.contracted(made.ptx) == [], f"{source} {defines}"
        for row in compiled.rows_of(architecture, defines, made):
            known = table.pop((row.kernel, row.macros, row.architecture), None)
            differ += [f"{row}, the table: {known}"] if row != known and compiler == made_by else []
    assert differ == [], "python tests/gpu/compiled.py rewrites the table"


def test_the_table_has_every_kernel_and_no_other() -> None:
    kernels = {
        name: source
        for source in compiled.VARIANTS
        for name in compiled.kernels_of((nvrtc.ROOT / "codelets" / "gpu" / source).read_text(encoding="utf-8"))
    }
    assert {path.name for path in (nvrtc.ROOT / "codelets" / "gpu").glob("*.cu")} == set(compiled.VARIANTS)
    expected = {
        (kernel, compiled.text_of(defines), architecture)
        for kernel, source in kernels.items()
        for architecture in compiled.ARCHITECTURES
        for defines in compiled.variants(source, architecture)
    }
    assert set(compiled.read_table()[1]) == expected


def test_layers_that_a_block_of_512_threads_runs_keep_their_numbers_in_registers() -> None:
    """Of wider ones, above 2,048 neurons, a thread has 64 registers, which is too few."""
    for row in compiled.read_table()[1].values():
        if "THREADS=1024" not in row.macros:
            assert row.spilled == row.stack == 0, row


def test_a_contraction_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "ROOT", sources_with(tmp_path, "scale.cu"))
    source = nvrtc.ROOT / "codelets" / "gpu" / "scale.cu"
    source.write_text(source.read_text().replace("a.factor * a.x[k]", "a.factor * a.x[k] + a.factor / a.x[k]"))
    assert compiled.contracted(nvrtc.compile_source("scale.cu", "sm_90", {}).ptx) == []
    monkeypatch.setattr(nvrtc, "OPTIONS", [x for x in nvrtc.OPTIONS if x != "--fmad=false"])
    (found,) = compiled.contracted(nvrtc.compile_source("scale.cu", "sm_90", {}).ptx)
    assert found.startswith("fma.rn.f32")


def test_local_memory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "ROOT", sources_with(tmp_path, "scale.cu"))
    source = nvrtc.ROOT / "codelets" / "gpu" / "scale.cu"
    text = source.read_text()
    body = "float y[40] = {}; for (int j = 0; j < a.n; ++j) y[j * k % 40] += a.x[j]; if (k < a.n) a.x[k] = y[k % 40]; "
    source.write_text(text.replace("if (k", body + "if (k", 1))
    use = nvrtc.uses(nvrtc.compile_source("scale.cu", "sm_90", {}).log)["scale"]
    assert use.stack >= 160
    assert use.registers > 8
    assert use.spilled == use.shared == 0
