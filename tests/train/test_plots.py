"""The three pictures: they exist, are pictures, and show what they should."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsesnn.engines.module import Model
from sparsesnn.errors import MissingDependencyError
from sparsesnn.network import parse_net
from sparsesnn.spikes import SpikeBatch
from sparsesnn.train import plots
from sparsesnn.train.predictions import Confusion

pytest.importorskip("matplotlib", reason="matplotlib is optional")


def records(n: int, *, dropped: int = 0, valid: bool = True) -> list[dict[str, Any]]:
    return [
        {
            "epoch": k + 1,
            "loss": math.exp(-k),
            "accuracy": 1 - math.exp(-k),
            "valid_loss": 0.5 if valid else None,
            "valid_accuracy": 0.5 if valid else None,
            "activity": {"hidden1": 0.01 * k, "hidden2": 0.02},
            "dropped": {"hidden1": dropped * k, "hidden2": 0},
        }
        for k in range(n)
    ]


def is_picture(path: Path, least_width: int) -> bool:
    data = path.read_bytes()
    return data[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(data[16:20], "big") >= least_width


@pytest.mark.parametrize("n", [0, 1, 3, 100])
@pytest.mark.parametrize("valid", [True, False])
def test_curves(tmp_path: Path, n: int, valid: bool) -> None:
    plots.plot_curves(records(n, valid=valid), tmp_path / "curves.png", best_epoch=min(2, n), title="t")
    assert is_picture(tmp_path / "curves.png", 1000)
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]


def test_confusion_names_classes_and_counts(tmp_path: Path) -> None:
    confusion = Confusion(3)
    confusion.add([0, 0, 2, 2, 2], [0, 2, 2, 2, 0])
    assert confusion.counts.tolist() == [[1, 0, 1], [0, 0, 0], [1, 0, 2]]
    shares = [
        (row["name"], row["n_samples"], row["precision"], row["recall"]) for row in confusion.per_class(["a", "b"])
    ]
    assert shares == [("a", 2, 0.5, 0.5), ("b", 0, 0.0, 0.0), ("2", 3, 2 / 3, 2 / 3)]
    path = tmp_path / "confusion.svg"
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plots.plot_confusion(confusion.counts, ["left", "right"], path, title="the title")
    text = path.read_text()
    for word in ("left", "right", "class read", "share of the class", "the title"):
        assert word in text


@pytest.mark.parametrize("dropped", [0, 5])
def test_activity_gets_a_second_panel_where_something_was_dropped(tmp_path: Path, dropped: int) -> None:
    plots.plot_activity(records(4, dropped=dropped), tmp_path / "activity.png", title="t")
    assert is_picture(tmp_path / "activity.png", 1000) == (dropped > 0)


@pytest.mark.parametrize("backend", ["cpu", "dense"])
@pytest.mark.parametrize("net", ["13-300r-6-3", "13-5-9", "13-5-3s"])
def test_raster(tmp_path: Path, backend: str, net: str) -> None:
    model = Model(parse_net(net), backend=backend)
    spikes = SpikeBatch.from_dense((torch.rand(11, 1, 13) < 0.3).float())
    plots.plot_raster(model.network, spikes, model(spikes), 1, [0.0, 0.5, 1.0], tmp_path / "raster.png", title="t")
    assert is_picture(tmp_path / "raster.png", 1000)


def test_both_backends_draw_the_same_points() -> None:
    dense = (torch.rand(11, 1, 13) < 0.3).float()
    for got in (plots._points(SpikeBatch.from_dense(dense)), plots._points(dense)):
        assert torch.equal(
            torch.stack([torch.as_tensor(x.astype("int64")) for x in got], 1), torch.nonzero(dense[:, 0])
        )


def test_a_sample_without_spikes(tmp_path: Path) -> None:
    spikes = SpikeBatch.from_lists([[[] for _ in range(4)]], 13)
    model = Model(parse_net("13-5-3"))
    plots.plot_raster(model.network, spikes, model(spikes), 0, [0.0, 0.0, 0.0], tmp_path / "raster.png", title="t")
    assert is_picture(tmp_path / "raster.png", 1000)


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'sparsesnn\[plot\]'"):
        plots.plot_curves(records(2), tmp_path / "curves.png", best_epoch=1, title="t")


def test_raster_has_milliseconds_names_and_traces(tmp_path: Path) -> None:
    model = Model(parse_net("13-30r-3"))
    spikes = SpikeBatch.from_dense((torch.rand(11, 1, 13) < 0.3).float())
    output = model(spikes, record={"hidden": [2, 5]})
    path = tmp_path / "raster.svg"
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        names = ["one", "two", "three"]
        plots.plot_raster(model.network, spikes, output, 1, [0.0, 0.5, 1.0], path, title="t", dt_ms=4.0, names=names)
    text = path.read_text()
    for word in ("time, ms", "class two (right)", "class three (read)", "neuron 5", "v / threshold"):
        assert word in text
