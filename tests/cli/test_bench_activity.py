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
