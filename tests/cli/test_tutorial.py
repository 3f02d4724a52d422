"""The tutorial's code runs as it stands, block by block, in one session."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"


def test_tutorial(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn", reason="the tutorial ends with the digits of scikit-learn")
    text = TUTORIAL.read_text(encoding="utf-8")
    session: dict[str, object] = {}
    for match in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
        line = text.count("\n", 0, match.start(1))
        exec(compile("\n" * line + match[1], str(TUTORIAL), "exec", dont_inherit=True), session)
    assert "torch.Size([100, 16, 20])" in capsys.readouterr().out
