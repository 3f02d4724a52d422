"""The code of pages runs as it stands, block by block, in one session for each page."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

DOCS = Path(__file__).resolve().parents[2] / "docs"


def run_blocks(page: Path, text: str = "") -> None:
    text = text or page.read_text(encoding="utf-8")
    session: dict[str, object] = {"__name__": "page"}
    for match in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
        line = text.count("\n", 0, match.start(1))
        exec(compile("\n" * line + match[1], str(page), "exec", dont_inherit=True), session)


def test_tutorial(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn", reason="the tutorial ends with the digits of scikit-learn")
    run_blocks(DOCS / "tutorial.md")
    assert "torch.Size([100, 16, 20])" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["networks", "engines"])
def test_pages_without_data(name: str) -> None:
    run_blocks(DOCS / f"{name}.md")


def test_own_data(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sections before recordings, which need files of a camera."""
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "data.md").read_text(encoding="utf-8")
    run_blocks(DOCS / "data.md", text[: text.index("## Recordings")])
    assert "SpikeBatch(T=100, B=16, N=921600: 3 spikes" in capsys.readouterr().out


def test_inside_pytorch(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn", reason="the page reads the digits of scikit-learn")
    # as errors, warnings that PyTorch's compiler hides would end it; Python shows no DeprecationWarning by default
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        run_blocks(DOCS / "pytorch.md")
        run_blocks(DOCS / "libraries.md")
    assert [str(x.message) for x in shown if not issubclass(x.category, DeprecationWarning)] == []
    assert "'Effective_ACs'" in capsys.readouterr().out


def test_spikes_and_neurons_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("nir", reason="needs the package nir, in the extra 'nir'")
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "nir.md").read_text(encoding="utf-8")
    run_blocks(DOCS / "nir.md", text[text.index("### NIR's events") : text.index("## ONNX")])
    assert capsys.readouterr().out.rstrip().endswith("0.97")


def test_two_processes_average_gradients(tmp_path: Path) -> None:
    text = (DOCS / "libraries.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```python title=\"ddp\.py\"\n(.*?)```", text, re.DOTALL)
    (tmp_path / "ddp.py").write_text(script + "print(f'equal {rank} {size}\\n', end='')\n", encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "ddp.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("equal")) == ["equal 0 2", "equal 1 2"]
