"""The convergence benchmark: intervals, variants, its files, and resuming where it stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparsesnn.cli import main
from sparsesnn.errors import ConfigError
from studies.__main__ import parser
from studies.convergence import (
    DENSE,
    Variant,
    as_settings,
    bench_convergence,
    default_base,
    interval,
    summarize,
)

pytestmark = pytest.mark.slow


def test_interval_is_students() -> None:
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2
    assert half == pytest.approx(4.303 / 3**0.5)
    assert interval([5.0]) == (5.0, None)


def test_variants_become_configurations() -> None:
    base = default_base("digits", [{"net": {"text": "auto-40-auto"}}])
    config = Variant("cpu", 0.05, 0.5).config(base, 3, 0.02)
    assert (
        config.net.neurons["capacity"],
        config.net.neurons["grad_threshold"],
        config.train.seed,
        config.init.activity,
    ) == (
        2,
        0.5,
        3,
        0.02,
    )
    assert DENSE.config(base, 0, 0.02).train.backend == "dense"
    assert DENSE.config(base, 0, 0.02).net.neurons["grad_threshold"] == float("-inf")
    with pytest.raises(ConfigError, match="max activity is 2; give a share"):
        Variant("cpu", 2.0)
    uneven = default_base("digits", [{"net": {"text": "auto-40-20-auto"}}])
    with pytest.raises(ConfigError, match="hidden layers have one size"):
        Variant("cpu", 0.05).config(uneven, 0, 0.02)


def test_differences_are_taken_seed_by_seed() -> None:
    common = {"valid_accuracy": 0.5, "epochs_to_best": 2, "samples_per_s": 10.0, "activity": {"h": 0.1}}
    rows = [
        {"variant": name, "seed": seed, "test_accuracy": accuracy, "dropped_in_test": {"h": 1}, **common}
        for name, accuracies in (("dense", (0.5, 0.9)), ("sparse", (0.4, 0.8)))
        for seed, accuracy in enumerate(accuracies)
    ]
    sparse = summarize(rows, ["dense", "sparse"])[1]
    assert sparse["against_dense"] == pytest.approx(-0.1)
    assert sparse["against_dense_ci95"] == pytest.approx(0, abs=1e-12)
    assert sparse["dropped_in_test"] == 2


@pytest.mark.slow
def test_command_line_leaves_files_that_explain_themselves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is optional")
    arguments = ["convergence", "synthetic", "--out", str(tmp_path), "--epochs", "1", "--net", "auto-20-auto"]
    more = ["--seeds", "0,1", "--settings", "20:0.9", "--threads", "1", "--set", "init.activity=0.1", "--json"]
    assert main([*arguments, *more], parser()) == 0
    first = capsys.readouterr()
    summary = json.loads(first.out)
    assert [row["variant"] for row in summary] == [
        "dense", "sparse, no limit, grad_threshold 0.9", "sparse, max 20 %, grad_threshold 0.9",
    ]  # fmt: skip
    assert "[6/6]" in first.err
    text = (tmp_path / "summary.md").read_text()
    assert "| dense |" in text
    assert "95 % confidence interval" in text
    assert (tmp_path / "convergence.png").stat().st_size > 1000
    assert main([*arguments, *more], parser()) == 0
    again = capsys.readouterr()
    assert json.loads(again.out) == summary
    assert "6 of 6 points are measured already" in again.err


def test_what_has_no_meaning_is_refused(tmp_path: Path) -> None:
    base = default_base("digits", [])
    with pytest.raises(ConfigError, match="data.valid is 'none'"):
        bench_convergence(base.with_values({"data": {"valid": "none"}}), tmp_path)
    with pytest.raises(ConfigError, match="two settings are the same"):
        bench_convergence(base, tmp_path, settings=((0.1, 0.9), (0.1, 0.9)))
    with pytest.raises(ConfigError, match="--settings: is '5;0.9'"):
        as_settings("5;0.9")
    assert as_settings("5:0.9,2:-1") == ((0.05, 0.9), (0.02, -1.0))
    assert as_settings("") == ()
