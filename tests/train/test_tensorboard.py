"""A run's files for TensorBoard, as TensorBoard itself reads them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsesnn.train import Config, train
from sparsesnn.train.tensorboard import MOST_NUMBERS, TensorBoard

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is optional")


SMALL = {
    "data": {"name": "synthetic", "n_neurons": 17, "n_classes": 3, "n_steps": 11, "n_samples": 70, "activity": 0.2},
    "net": {"text": "auto-9r-auto"},
    "train": {"epochs": 2, "batch": 8, "tensorboard": True, "plots": True},
}


def read(folder: Path) -> Any:
    found = events.EventAccumulator(str(folder / "tensorboard"), size_guidance={"images": 0, "histograms": 0})
    return found.Reload()


def test_numbers_and_histograms(tmp_path: Path) -> None:
    weights = {
        "model/layers.a.weight": torch.arange(3.0 * MOST_NUMBERS),
        "model/layers.a.silent": torch.empty(0, 3),
        "model/layers.a.infinite": torch.tensor([-math.inf]),
    }
    board = TensorBoard(Config.resolve(SMALL), tmp_path, 3, lambda: weights)
    board.append({"epoch": 3, "loss": 0.5, "valid_loss": None, "activity": {"hidden": 0.25}, "warnings": ["x"]})
    board.close(None)
    found = read(tmp_path)
    assert {name: found.Scalars(name)[0].value for name in found.Tags()["scalars"]} == {
        "loss": 0.5,
        "activity/hidden": 0.25,
    }
    assert found.Tags()["histograms"] == ["layers.a.weight"]
    (histogram,) = found.Histograms("layers.a.weight")
    assert histogram.step == 3
    of = histogram.histogram_value
    assert (of.num, of.min, of.max) == (MOST_NUMBERS, 0, 3 * MOST_NUMBERS - 3)


def test_a_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is optional")
    result = train(Config.resolve(SMALL), out=tmp_path)
    found = read(tmp_path)
    tags = found.Tags()
    assert [event.step for event in found.Scalars("loss")] == [1, 2]
    assert "layers.hidden.input->hidden" in tags["histograms"]
    assert {"raster", "confusion", "curves", "activity"} <= set(tags["images"])
    (accuracy,) = found.Scalars("result/test_accuracy")
    assert accuracy.value == pytest.approx(result.test_accuracy)
    from tensorboard.plugins.hparams import plugin_data_pb2

    content = plugin_data_pb2.HParamsPluginData.FromString(
        found.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    )
    given = content.session_start_info.hparams
    assert given["train.epochs"].number_value == 2
    assert given["optim.name"].string_value
