"""The three pictures: they exist, are pictures, and show the right numbers."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparsesnn import figures
from sparsesnn.engines.module import Model
from sparsesnn.errors import MissingDependencyError, PictureError
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
    for word in ("left", "right", "predicted class", "share of the class", "the title"):
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
    plots.plot_raster(
        model.network,
        spikes,
        model(spikes),
        torch.tensor([1]),
        torch.tensor([[0.0, 0.5, 1.0]]),
        tmp_path / "raster.png",
        title="t",
    )
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
    plots.plot_raster(
        model.network, spikes, model(spikes), torch.tensor([0]), torch.zeros(1, 3), tmp_path / "raster.png", title="t"
    )
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
        plots.plot_raster(
            model.network,
            spikes,
            output,
            torch.tensor([1]),
            torch.tensor([[0.0, 0.5, 1.0]]),
            path,
            title="t",
            dt_ms=4.0,
            names=names,
        )
    text = path.read_text()
    for word in ("time, ms", "class two (correct)", "class three (predicted)", "neuron 5", "v / threshold"):
        assert word in text


# ---- texts of people, and what may fail --------------------------------------------------------------------------------

STRANGE = ["$a_$", "_b", r"\frac{", "日本", "c\x1b[2J", "\u202ed", "\udcff", "long" * 2000, ""]


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_names_are_never_markup(tmp_path: Path, kind: str) -> None:
    counts = np.eye(len(STRANGE), dtype=np.int64)
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "text.usetex": True}):
        plots.plot_confusion(counts, STRANGE, tmp_path / f"x.{kind}", title="of $x^{, by_\x07")
    if kind == "svg":
        text = (tmp_path / "x.svg").read_text()
        for word in ("$a_$", "_b", r"\frac{", "日本", r"c\x1b[2J", r"\u202ed", r"\udcff", "of $x^{, by_"):
            assert word in text, word
        assert "\x1b" not in text
        assert "long" * 20 not in text


@pytest.mark.parametrize("net", ["13-9r-3", "13-5-3s"])
def test_names_in_every_picture_of_a_run(tmp_path: Path, net: str) -> None:
    network = parse_net(net)
    model = Model(network)
    spikes = SpikeBatch.from_dense((torch.rand(11, 1, 13) < 0.3).float())
    title = "$a_$ of {"
    plots.plot_raster(
        network,
        spikes,
        model(spikes),
        torch.tensor([1]),
        torch.tensor([[0.0, 1.0, 0.5]]),
        tmp_path / "r.png",
        title=title,
        names=STRANGE,
    )
    strange = [{**r, "activity": {"_h": 0.1, "$h_$": 0.2}, "dropped": {"_h": 1}} for r in records(3)]
    plots.plot_activity(strange, tmp_path / "a.svg", title=title)
    plots.plot_curves(strange, tmp_path / "c.png", best_epoch=1, title=title)


def test_a_population_with_an_underscore_is_in_the_legend(tmp_path: Path) -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        strange = [{**r, "activity": {"_hidden": 0.1}, "dropped": {}} for r in records(3)]
        plots.plot_activity(strange, tmp_path / "a.svg", title="t")
    assert "_hidden" in (tmp_path / "a.svg").read_text()


def test_numbers_of_logarithmic_axes_stay_powers(tmp_path: Path) -> None:
    import matplotlib

    figure = figures.new_figure(4, 3)
    axes = figure.subplots()
    axes.plot([1, 1e5], [1, 1e5])
    axes.set(xscale="log", yscale="log")
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figures.save(figure, tmp_path / "x.svg", "t")
    drawn = [line for line in (tmp_path / "x.svg").read_text().splitlines() if "<tspan" in line or "<text" in line]
    assert drawn
    assert not [line for line in drawn if "mathdefault" in line]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_curves_without_numbers(tmp_path: Path, value: float) -> None:
    broken = [
        {**r, "loss": value, "accuracy": value, "valid_loss": value, "activity": {"h": value}} for r in records(3)
    ]
    plots.plot_curves(broken, tmp_path / "curves.png", best_epoch=1, title="t")
    plots.plot_activity(broken, tmp_path / "activity.png", title="t")
    plots.plot_activity([], tmp_path / "none.png", title="t")


def test_a_confusion_of_a_thousand_classes_has_bounded_size(tmp_path: Path) -> None:
    plots.plot_confusion(
        np.eye(1000, dtype=np.int64), [f"class {k}" for k in range(1000)], tmp_path / "x.png", title="t"
    )
    data = (tmp_path / "x.png").read_bytes()
    assert max(int.from_bytes(data[k : k + 4], "big") for k in (16, 20)) < 3000


def test_what_matplotlib_raises_names_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("of many\nlines")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    with pytest.raises(PictureError, match=r"curves\.png: .*ValueError: of many lines"):
        plots.plot_curves(records(2), tmp_path / "curves.png", best_epoch=1, title="t")
    assert not list(tmp_path.iterdir())


def test_a_broken_matplotlib_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "matplotlib.figure":
                raise ImportError("libfreetype is another one")

    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(PictureError, match="matplotlib: .*libfreetype is another one"):
        figures.new_figure(3, 3)


@pytest.mark.parametrize("backend", ["module://matplotlib_inline.backend_inline", "absent"])
def test_pictures_do_not_need_the_backend_of_the_environment(tmp_path: Path, backend: str) -> None:
    code = (
        "import os, sys; from pathlib import Path; from sparsesnn import figures; "
        "figure = figures.new_figure(3, 3); figure.subplots().plot([1, 2]); "
        "figures.save(figure, Path(sys.argv[1]), 't'); print(os.environ['MPLBACKEND'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x.png")],
        env={"MPLBACKEND": backend, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, backend), done.stderr
    assert is_picture(tmp_path / "x.png", 300)
