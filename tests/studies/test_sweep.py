"""The sweep measures every factor on both backends, counts work as it is done, and leaves files that explain themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sparsesnn.cli import main
from sparsesnn.engines.module import Model
from sparsesnn.errors import ConfigError
from sparsesnn.network import parse_net
from sparsesnn.spikes import SpikeBatch
from studies.__main__ import parser
from studies.sweep import FACTORS, Settings, _work, bench_sweep

pytestmark = pytest.mark.slow

SMALL = Settings(batch=(4,), width=(16,), outputs=(10,), base_batch=4, base_width=16, n_steps=8, repeats=1, n_threads=1)


def test_every_factor_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is optional")
    rows = bench_sweep(SMALL, tmp_path)
    assert [row["factor"] for row in rows] == [p["factor"] for p in SMALL.points()]
    assert {row["factor"] for row in rows} == set(FACTORS)
    for row in rows:
        assert row["samples_per_s"] == pytest.approx(1e3 * row["n_samples"] / row["step_ms"])
        assert 0 <= row["neuron_share"] <= 1
        assert 0 < row["synapse_share"] <= 1
        assert row["events_per_s"] > 0
    for name in ("sweep.csv", "sweep.json", "sweep.png", "README.md"):
        assert (tmp_path / name).stat().st_size > 500
    assert bench_sweep(SMALL, tmp_path) == rows


def test_work_is_counted_by_hand() -> None:
    """Two spikes into three neurons, twice; every neuron listed: weights, input gradient and readout."""
    network = parse_net("5-3-2", threshold=1e30, grad_threshold=-float("inf"))
    x = torch.zeros(2, 1, 5)
    x[0, 0, 1] = x[1, 0, 4] = 1
    spikes = SpikeBatch.from_dense(x)
    output = Model(network)(spikes)
    assert _work(network, spikes, output, "cpu") == (2 * 3, 2 * 3 * (2 * 2) + 2 * 2 * (2 * 0 + 6))
    dense = Model(network, backend="dense")(spikes)
    assert _work(network, spikes, dense, "dense") == (2 * 3, 2 * 2 * (5 * 3 * 2 + 3 * 2 * 3))


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is optional")
    options = ["--batch", "4", "--width", "16", "--models", "lif", "--precisions", "float32", "--outputs", "20"]
    more = ["--backends", "cpu", "--steps", "6", "--repeats", "1", "--threads", "1", "--json", "--out", str(tmp_path)]
    assert main(["sweep", *options, *more], parser()) == 0
    captured = capsys.readouterr()
    rows = json.loads(captured.out)
    assert [(row["factor"], row["value"]) for row in rows] == [
        ("batch", 4), ("width", 16), ("model", "lif"), ("precision", "float32"), ("outputs", 20),
    ]  # fmt: skip
    assert "[5/5] factor outputs, value 20\n" in captured.err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": ("izhikevich",)}, "model is 'izhikevich'; allowed: lif, cuba_lif, recurrent"),
        ({"backends": ("gpu",)}, "backends is 'gpu'; allowed: cpu, dense"),
        ({"batch": (0,)}, "must be at least 1"),
    ],
)
def test_what_has_no_meaning_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings(**changes)


def test_fewer_outputs_than_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="5 outputs for 10 classes"):
        bench_sweep(Settings(batch=(), width=(), model=(), precision=(), outputs=(5,)), tmp_path)
