"""The self-test passes on the emulated IPU, and fails where numbers differ or the machine is not there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sparsesnn.ipu import selftest

pytestmark = pytest.mark.slow


def test_all_cases_pass_on_the_emulated_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest.main(["--json", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["findings"]) == len(selftest.cases())
    assert all(f["passed"] and f["lists_equal"] and f["backend"] == "ipu-model" for f in report["findings"])
    assert capsys.readouterr().out.count("ok   ipu-model") == len(selftest.cases())


def test_wrong_numbers_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    case = selftest.cases()[0]
    on_host = selftest.torch_optimiser
    monkeypatch.setattr(selftest, "torch_optimiser", lambda m, o: on_host(m, replace(o, lr=2 * o.lr)))
    finding = selftest.run_case(case, "ipu-model", tiles=16, n_batches=2)
    assert not finding.passed
    assert finding.worst_weight > selftest.TOLERANCE
    assert finding.line().startswith("FAIL ipu-model")


def test_a_machine_that_is_not_there_fails_with_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest.main(["--backend", "sdk-model"]) == 1
    assert "backend 'sdk-model' needs the Poplar SDK" in capsys.readouterr().out
