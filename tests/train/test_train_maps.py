"""Training networks with convolutions: the shape comes from the data; runs stop, resume and are evaluated like all others."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from sparsesnn.config.net import NetConfig
from sparsesnn.errors import ConfigError, DescriptionError
from sparsesnn.network import parse_net
from sparsesnn.train import Config, Report, StoppedError, evaluate_run, train
from sparsesnn.train.metrics import Tally, read_metrics


class StopAt(Report):
    """Asks the run to stop after a number of batches."""

    def __init__(self, n_batches: int) -> None:
        super().__init__(quiet=True)
        self.left = n_batches

    def batch(self, tally: Tally) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)


def learned(folder: Path) -> list[tuple[float, float]]:
    return [(record["loss"], record["valid_loss"]) for record in read_metrics(folder)]


def make_config(**sections: dict[str, Any]) -> Config:
    small = {
        "data": {"name": "digits", "n_steps": 8, "valid": "random:0.2"},
        "net": {"text": "2x8x8:3C5p-MP2-auto", "grad_threshold": 0.2},
        "init": {"activity": 0.1, "tolerance": 0.5},
        "optim": {"lr": 0.02},
        "train": {"backend": "dense", "epochs": 2, "batch": 256, "tensorboard": False, "plots": False},
    }
    return Config.resolve(small, sections)


def test_a_run_with_convolutions_learns_stops_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    pytest.importorskip("matplotlib", reason="matplotlib is optional")
    config = make_config(train={"plots": True})
    whole = train(config, out=tmp_path / "whole", report=Report(quiet=True))
    assert whole.n_parameters == 5 * 2 * 9 + 4 * 4 * 5 * 10
    assert {"filters.png", "maps.png"} <= {path.name for path in (tmp_path / "whole").iterdir()}
    with pytest.raises(StoppedError):
        train(config, out=tmp_path / "parts", report=StopAt(6))
    parts = train(config, out=tmp_path / "parts", resume=True, report=Report(quiet=True))
    assert parts.weights_sha256 == whole.weights_sha256
    assert learned(tmp_path / "parts") == learned(tmp_path / "whole")
    (first, _), (second, _) = learned(tmp_path / "whole")
    assert second < first
    assert whole.neurobench["synaptic_operations"]["Effective_ACs"] > 0
    again = evaluate_run(tmp_path / "whole")
    assert again["accuracy"] == whole.test_accuracy


def test_the_data_gives_the_shape() -> None:
    shape = (34, 34, 2)
    network = NetConfig(text="auto:5C8s2-auto").network(2312, 10, shape=shape)
    assert network == parse_net("2x34x34:5C8s2-10")
    with pytest.raises(
        ConfigError, match=r"'auto:5C8s2-auto', but the data has no images; give channels, height and width"
    ):
        NetConfig(text="auto:5C8s2-auto").network(2312, 10)
    with pytest.raises(
        ConfigError, match=r"shape \(34, 2, 34\) with channels first.*images of \(34, 34, 2\).*2x34x34:"
    ):
        NetConfig(text="34x34x2:1C8-10").network(2312, 10, shape=shape)
    described = parse_net("2x34x34:5C8s2-10").to_dict()
    described["populations"]["input"]["channels_first"] = False
    for c in described["connections"]:
        c["synapses"].pop("channels_first", None)
    last = {"populations": described["populations"], "connections": tuple(described["connections"])}
    with pytest.raises(ConfigError, match=r"with channels last.*channels_first = true"):
        NetConfig(**last).network(2312, 10, shape=shape)
    with pytest.raises(
        ConfigError, match="2312 input and 7 output neurons, but the data has 2312 neurons and 10 classes"
    ):
        NetConfig(text="auto:5C8s2-7").network(2312, 10, shape=shape)


def test_the_event_sparse_engine_learns_the_same(tmp_path: Path) -> None:
    """Up to the last bits of its sums."""
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    runs = {}
    for backend in ("cpu", "dense"):
        config = make_config(train={"backend": backend, "epochs": 1}, net={"surrogate": {"slope": 2.0}})
        runs[backend] = train(config, out=tmp_path / backend, report=Report(quiet=True))
    losses = {backend: learned(tmp_path / backend)[-1] for backend in runs}
    assert losses["cpu"] == pytest.approx(losses["dense"], rel=2e-3)
    again = evaluate_run(tmp_path / "cpu")
    assert again["accuracy"] == runs["cpu"].test_accuracy


def test_other_backends_refuse_before_they_start(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    with pytest.raises(
        DescriptionError, match=r"input->hidden: its synapses are Conv2d, which the IPU program does not support"
    ):
        train(make_config(train={"backend": "ipu-model"}), out=tmp_path / "ipu", report=Report(quiet=True))
    assert not [path for path in (tmp_path / "ipu").glob("*") if path.suffix == ".safetensors"]
