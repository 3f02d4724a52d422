"""Fixed against natural activity: lists are forced full or left alone, every layer is reported, T exceeds the depth."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sparsesnn.bench.activity import Settings, bench_activity, layer_sizes
from sparsesnn.cli import main
from sparsesnn.errors import ConfigError

pytestmark = pytest.mark.slow


def test_neurons_are_shared_out() -> None:
    for n_layers in (2, 3, 4, 5):
        sizes = layer_sizes(2944, n_layers)
        assert sum(sizes) == 2944
        assert max(sizes) - min(sizes) <= 1


def test_both_bounds(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is optional")
    settings = Settings(
        shapes=("shd",), layers=(2,), max_activity=(0.1, 0.5), natural_activity=0.05, n_hidden=60, n_steps=12,
        n_samples=3, repeats=1, n_threads=1,
    )  # fmt: skip
    rows = bench_activity(settings, tmp_path)
    assert [(r["kind"], r["max_activity"]) for r in rows] == [
        ("dense", None), ("natural", 0.1), ("fixed", 0.1), ("natural", 0.5), ("fixed", 0.5),
    ]  # fmt: skip
    dense = rows[0]
    assert dense["acceleration"] == 1
    assert dense["net"] == "700-30-30-20"
    for row in rows[1:]:
        assert row["acceleration"] == pytest.approx(row["samples_per_s"] / dense["samples_per_s"])
        if row["kind"] == "fixed":
            assert row["activity"] == pytest.approx([row["max_activity"]] * 2)
        else:
            assert all(0 < a <= row["max_activity"] for a in row["activity"])
            assert row["activity"][0] == pytest.approx(0.05, rel=0.2)
    assert (tmp_path / "activity.png").stat().st_size > 1000
    explained = (tmp_path / "README.md").read_text()
    assert all(re.search(rf"^\| .*\b{column}\b.* \| ", explained, re.MULTILINE) for column in rows[0])
    assert bench_activity(settings, tmp_path) == rows  # nothing is measured again


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is optional")
    small = [
        "--shapes",
        "shd",
        "--layers",
        "2",
        "--max-activity",
        "10",
        "--hidden",
        "20",
        "--steps",
        "6",
        "--batch",
        "2",
    ]
    more = ["--natural-activity", "10", "--repeats", "1", "--backends", "cpu", "--threads", "1"]
    assert main(["bench", "activity", "--out", str(tmp_path), *small, *more, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["kind"] for row in rows] == ["natural", "fixed"]
    assert rows[0]["acceleration"] is None  # nothing to compare with


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_steps": 5}, "5 steps for 5 hidden layers.*give at least 6 steps"),
        ({"shapes": ("mnist",)}, "shape is 'mnist'; allowed: shd, nmnist, dvsgesture"),
        ({"max_activity": (0.0,)}, "give numbers above 0"),
        ({"n_hidden": 3}, "a neuron in each layer"),
    ],
)
def test_what_has_no_meaning_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings(**changes)


@pytest.mark.parametrize("backends", [["--backend", "ipu-model"], ["--backends", "ipu-model,dense"]])
def test_on_an_emulated_ipu(backends: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both bounds by one command; cycles of the emulated machine next to those of the plan."""
    pytest.importorskip("matplotlib", reason="matplotlib is optional")
    small = [
        "bench", "activity", "--out", str(tmp_path), *backends, "--target", "ipu-mk2:1x8", "--shapes", "shd", "--layers", "2",
        "--max-activity", "20", "--natural-activity", "5", "--hidden", "40", "--steps", "8", "--batch", "3", "--threads", "1",
    ]  # fmt: skip
    assert main([*small, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    *dense, natural, fixed = rows
    assert [row["kind"] for row in rows] == ["dense"] * len(dense) + ["natural", "fixed"]
    assert fixed["activity"] == pytest.approx([0.2, 0.2])
    assert all(0 < a < 0.2 for a in natural["activity"])
    for row in (natural, fixed):
        assert row["how_timed"] == "cycles of the emulated machine"
        assert row["cycles"] > 0
        assert row["step_ms"] == pytest.approx(1e3 * row["cycles"] / 1.33e9, rel=0.01)
        assert row["samples_per_s"] == pytest.approx(3e3 / row["step_ms"])
        assert row["predicted_step_ms"] == pytest.approx(1e3 * row["predicted_cycles"] / 1.33e9, rel=0.01)
        assert 0.3 < row["predicted_cycles"] / row["cycles"] < 3
        assert (row["acceleration"] is None) == (not dense)
    assert fixed["cycles"] > natural["cycles"]
    assert "predicted_step_ms" in (tmp_path / "activity.csv").read_text().splitlines()[0]
    assert main([*small, "--json"]) == 0  # nothing is measured again
    assert json.loads(capsys.readouterr().out) == rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend", "gpu"], "--backend: is 'gpu'; give one of cpu, ipu, ipu-model"),
        (["--backends", "dense"], "--backends: is 'dense'; give one of cpu, ipu, ipu-model"),
        (["--backends", "cpu,ipu-model"], "--backends: is 'cpu,ipu-model'; give one of"),
        (["--backend", "cpu", "--backends", "cpu"], "--backend cpu, --backends cpu: give one"),
        (["--target", "ipu-mk2"], "--target: is 'ipu-mk2', which applies only to backend ipu or ipu-model"),
        (["--backend", "ipu-model", "--target", "cpu:4"], "--target: is 'cpu:4' with --backend ipu-model; give an IPU"),
        (["--backend", "ipu"], "backend 'ipu' needs the Poplar SDK"),
    ],
)
def test_backends_that_make_no_sense(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "activity", "--out", str(tmp_path), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_replicas_of_poprun_share_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(out: str, own: int) -> int:
        for name, value in (("TOTAL_REPLICAS", 2), ("LOCAL_REPLICAS", own), ("IPUS_PER_REPLICA", 1)):
            monkeypatch.setenv(f"POPDIST_NUM_{name}", str(value))
        monkeypatch.setenv("POPDIST_REPLICA_INDEX_OFFSET", "0")
        return main(
            ["bench", "activity", "--out", str(tmp_path / out), "--backend", "ipu-model", "--target", "ipu-mk2:1x8", "--shapes",
             "shd", "--layers", "1", "--max-activity", "20", "--hidden", "20", "--steps", "5", "--batch", "4", "--json"]
        )  # fmt: skip

    pytest.importorskip("matplotlib", reason="matplotlib is optional")
    assert run("one", 2) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["activity"] for row in rows][1] == [0.2]  # over the samples of both replicas
    assert run("two", 1) == 2
    assert "in 2 instances of PopRun" in capsys.readouterr().err
