"""The self-test for people with IPUs, through the fakes; and that it can fail."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import sparsesnn as ss
from sparsesnn.poptorch import selftest
from sparsesnn.selftest import N_INPUT, cases

pytestmark = pytest.mark.slow


def test_it_passes_on_the_emulated_machine(fake_sdk: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import fake_popart

    fake_popart.machine.update(tiles=16, checks="always")
    assert selftest.main(["--tiles", "16", "--ipu-model", "--json", str(tmp_path / "report.json")]) == 0
    assert "17 of 17 passed" in capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["versions"]["poptorch"] == "3.4.0+fake"
    assert [f["case"] for f in report["findings"]] == [case.name for case in cases() if case.ops]
    assert set(report["findings"][-1]["differences"]) > {"layers.a.a->a", "layers.out.b->out"}
    assert all(f["passed"] and f["output"] == 0 for f in report["findings"])


def test_its_loop_is_that_of_the_dense_backend() -> None:
    for name, network in ((case.name, case.network) for case in cases() if case.ops):
        model = ss.Model(network, backend="dense", dense_mode="step", seed=1)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(3)
        x = (torch.rand(5, 4, N_INPUT) < 0.5).float()
        expected = model(ss.SpikeBatch.from_dense(x))
        last = expected.potentials if expected.potentials is not None else expected.spikes[network.output]
        found = selftest.dense(network, dict(model.layers.items()), x)[network.output]
        torch.testing.assert_close(found, last, msg=name)
        factors = torch.randn_like(last)
        a = torch.autograd.grad((found * factors).sum(), list(model.parameters()))
        b = torch.autograd.grad((last * factors).sum(), list(model.parameters()))
        for got, wanted in zip(a, b, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5, msg=name)


def test_a_wrong_gradient_is_noticed(
    fake_sdk: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import fake_popart

    fake_popart.machine.update(tiles=16, checks="never")
    real = fake_popart.Op.backward

    def wrong(self: Any, *given: Any) -> Any:
        return [None if g is None else g * 1.001 for g in real(self, *given)]

    monkeypatch.setattr(fake_popart.Op, "backward", wrong)
    assert selftest.main(["--tiles", "16"]) == 1
    assert "0 of 17 passed" in capsys.readouterr().out


def test_an_op_that_fails_is_reported(fake_sdk: None, capsys: pytest.CaptureFixture[str]) -> None:
    import fake_popart

    fake_popart.machine.update(tiles=4, checks="never")
    assert selftest.main(["--tiles", "1472"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"PopartError: IPU program: input: collectors: tile \d+; there are 4", out)


def test_without_poptorch_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        selftest.main([])
    assert "PopTorch is not installed; source the SDK's enable.sh" in capsys.readouterr().err
