"""The self-test passes on the emulated IPU, and fails if numbers differ or the machine is absent."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sparsesnn.ipu import selftest
from sparsesnn.selftest import cases, run

pytestmark = pytest.mark.slow


def test_all_cases_pass_on_the_emulated_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest.main(["--json", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert [f["case"] for f in report["findings"]] == [case.name for case in cases()]
    assert all(f["passed"] and f["output"] == 0 and f["backend"] == "ipu-model" for f in report["findings"])
    out = capsys.readouterr().out
    assert out.count("ok   ipu-model") == len(cases())
    assert f"{len(cases())} of {len(cases())} passed" in out


def test_wrong_numbers_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in cases() if not case.ops)
    on_host = selftest.torch_optimizer
    monkeypatch.setattr(selftest, "torch_optimizer", lambda m, o: on_host(m, replace(o, lr=2 * o.lr)))
    compare = partial(selftest.compare, backend="ipu-model", tiles=16, n_batches=2)
    (finding,) = run([case], "ipu-model", compare, selftest.TOLERANCE)
    assert not finding.passed
    assert max(finding.differences.values()) > selftest.TOLERANCE
    assert finding.line().startswith("FAIL ipu-model")


def test_a_machine_that_is_not_there_fails_with_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest.main(["--backend", "sdk-model"]) == 1
    assert "backend 'sdk-model' needs the Poplar SDK" in capsys.readouterr().out
