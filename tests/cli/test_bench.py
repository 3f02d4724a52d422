"""The numbers of the step benchmark mean what their names say; speed itself is not tested."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from sparsesnn import _core
from sparsesnn.bench import Workload, bench_step
from sparsesnn.bench.step import whole_steps
from sparsesnn.cli import main
from sparsesnn.errors import ConfigError

pytestmark = pytest.mark.slow

SMALL = Workload(net="40-64-32r-5", n_steps=20, n_samples=6, input_activity=0.1, hidden_activity=0.05)


def test_activity_is_reached_and_both_backends_compute_the_same_loss() -> None:
    sparse, dense = (bench_step(SMALL, backend, repeats=2, warm_up=1) for backend in ("cpu", "dense"))
    for name in ("hidden1", "hidden2"):
        assert sparse.activity[name] == pytest.approx(0.05, rel=0.1)
        assert sparse.listed[name] >= sparse.activity[name]
    assert sparse.loss == pytest.approx(dense.loss, rel=1e-5)
    assert sparse.samples_per_s == pytest.approx(1e3 * 6 / sparse.step_ms)
    assert {*_core.phase_seconds(reset=False), "optimizer", "other"} == sparse.phases_ms.keys()
    assert all(ms > 0 for name, ms in sparse.phases_ms.items() if name != "other")
    assert not dense.phases_ms


def test_whole_steps_are_those_of_training() -> None:
    spikes, labels = SMALL.spikes(), SMALL.labels()
    model = SMALL.model("dense", spikes)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    seconds = whole_steps(model, spikes, labels, 4, {"device": "cpu", "precision": "float32"})
    assert len(seconds) == 4
    assert min(seconds) > 0
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--net", "30-20-4", "--steps", "10", "--batch", "4", "--input-activity", "0.2", "--repeats", "2"]
    assert main(["bench", "step", *small, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["workload"]["net"] == "30-20-4"
    assert {"samples_per_s", "activity", "dropped", "peak_bytes", "isa", "threads", "phases_ms"} <= result.keys()
    assert main(["bench", "step", *small]) == 0
    assert "samples/s" in capsys.readouterr().out


def test_activities_without_meaning_are_refused() -> None:
    with pytest.raises(ConfigError, match="hidden_activity is 0; allowed: above 0, below 1"):
        Workload(hidden_activity=0)
    with pytest.raises(ConfigError, match="n_steps is 0"):
        Workload(n_steps=0)


def test_nothing_to_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="repeats is 0; give at least 1"):
        bench_step(SMALL, repeats=0)
    with pytest.raises(ConfigError, match="weight_dtype: is 'bfloat16' with backend 'dense'; only backend 'cpu'"):
        bench_step(replace(SMALL, weight_dtype="bfloat16"), "dense")
