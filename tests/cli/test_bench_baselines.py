"""The race of the dense modes: its report, and the refusal of modes that disagree."""

from __future__ import annotations

import json

import pytest

from sparsesnn.bench import Workload
from sparsesnn.bench.baselines import Baseline, _agree, bench_baselines, table
from sparsesnn.cli import main
from sparsesnn.errors import DescriptionError, NumericError

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore:init_activity")  # a net as small as this jumps over the wanted activity
def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--net", "40-64r-4", "--steps", "20", "--batch", "6", "--modes", "step,fused", "--repeats", "2"]
    assert main(["bench", "baselines", *small, "--threads", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["mode"], row["n_samples"]) for row in rows] == [("step", 6), ("fused", 6)]
    for row in rows:
        assert row["samples_per_s"] == pytest.approx(1e3 * row["n_samples"] / row["step_ms"])
        assert row["peak_bytes"] is None or row["peak_bytes"] > 0
    assert rows[0]["loss"] == pytest.approx(rows[1]["loss"], rel=1e-5)


def test_table_compares_with_the_first() -> None:
    common = {"loss": 1.0, "net": "3-4-2", "n_steps": 5, "n_samples": 6, "threads": 2, "machine": "M"}
    rows = [Baseline("step", 100.0, 200 << 20, 60.0, **common), Baseline("fused", 250.0, 80 << 20, 24.0, **common)]
    head, first, second = table(rows).splitlines()
    assert head == "3-4-2, T=5, batch 6, 2 threads, M"
    assert "1.00x" in first
    assert "2.50x" in second
    assert "80 MiB   0.40x" in second


def test_what_has_no_meaning_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DescriptionError, match="dense_mode is 'quick'"):
        bench_baselines([Workload()], ["quick"])
    with pytest.raises(NumericError, match="mode 'fused' has a loss of 1.1, others 1: a bug"):
        _agree({"step": 1.0, "fused": 1.1})
    assert main(["bench", "baselines", "--batch", "4,x"]) == 2
    assert "--batch: is '4,x'; give whole numbers from 1 to 1,000,000" in capsys.readouterr().err
