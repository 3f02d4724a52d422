"""`sparsesnn eval` with predictions, confusion and classes; `sparsesnn show`."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsesnn.cli import main
from sparsesnn.train import Config, load_run, train

pytest.importorskip("matplotlib", reason="matplotlib is optional")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "a"
    config = Config.resolve(
        {
            "data": {
                "name": "synthetic",
                "n_neurons": 17,
                "n_classes": 3,
                "n_steps": 11,
                "n_samples": 70,
                "activity": 0.2,
            },
            "net": {"text": "auto-9r-auto"},
            "init": {"activity": 0.1, "tolerance": 0.5},
            "train": {"epochs": 2, "batch": 8, "tensorboard": False, "plots": False},
        }
    )
    train(config, out=out)
    return out


def test_result_holds_the_work_of_the_test_part(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    found = result["neurobench"]
    assert set(found) == {
        "footprint", "connection_sparsity", "classification_accuracy", "activation_sparsity", "synaptic_operations",
    }  # fmt: skip
    assert found["activation_sparsity"] == pytest.approx(1 - result["activity"]["hidden"])
    assert found["synaptic_operations"]["Dense"] == 11 * (17 * 9 + 9 * 9 + 9 * 3)
    assert 0 < found["synaptic_operations"]["Effective_ACs"] < found["synaptic_operations"]["Dense"]


def test_eval_says_what_was_read_of_every_sample(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "test.csv"
    arguments = ["eval", str(run), "--predictions", str(table), "--confusion", "--per-class"]
    assert main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    with table.open() as file:
        rows = list(csv.DictReader(file))
    labels = np.array([int(row["label"]) for row in rows])
    predicted = np.array([int(row["predicted"]) for row in rows])
    logits = np.array([[float(row[f"logit_{k}"]) for k in range(3)] for row in rows])
    assert len({row["sample"] for row in rows}) == len(rows) == result["n_samples"]
    assert (logits.argmax(1) == predicted).all()
    assert (labels == predicted).mean() == pytest.approx(result["accuracy"])
    confusion = np.array(result["confusion"])
    assert confusion.tolist() == [[int(((labels == a) & (predicted == b)).sum()) for b in range(3)] for a in range(3)]
    for k, row in enumerate(result["per_class"]):
        assert (row["class"], row["n_samples"]) == (k, confusion[k].sum())
        assert row["recall"] == pytest.approx(confusion[k, k] / confusion[k].sum())
        assert row["precision"] == pytest.approx(confusion[k, k] / max(1, confusion[:, k].sum()))
        assert row["f1"] == pytest.approx(2 * confusion[k, k] / (confusion[k].sum() + confusion[:, k].sum()))
    assert result["per_class"] == json.loads((run / "result.json").read_text())["per_class"]
    assert (run / "confusion.png").read_bytes()[:4] == b"\x89PNG"
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("class ") for line in lines) == 3
    assert [int(n) for n in lines[-2].split()] == confusion[2].tolist()


def test_show_draws_a_sample(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(run), "--sample", "3"]) == 0
    assert (run / "sample-3.png").read_bytes()[:4] == b"\x89PNG"
    assert "sample-3.png: class" in capsys.readouterr().out
    svg = tmp_path / "x.svg"
    assert main(["show", str(run / "checkpoint.json"), "--split", "train", "--neurons", "0", "--out", str(svg)]) == 0
    assert svg.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--sample", "500"], "--sample: is 500; the test part has 0 to"),
        (["--neurons", "-1"], "--neurons: is -1"),
        (["--out", "x.bmp"], "x.bmp.*.png, .svg or .pdf"),
    ],
)
def test_show_refuses(run: Path, arguments: list[str], facts: str, capsys: pytest.CaptureFixture[str]) -> None:
    import re

    assert main(["show", str(run), *arguments]) == 2
    assert re.search(facts, capsys.readouterr().err)


@pytest.mark.filterwarnings("default:confusion.png")
def test_numbers_do_not_depend_on_their_picture(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no backend")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    assert main(["eval", str(run), "--confusion", "--json"]) == 0
    said = capsys.readouterr()
    assert len(json.loads(said.out)["confusion"]) == 3
    assert "sparsesnn: warning: confusion.png: " in said.err
    assert main(["show", str(run)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "sample-0.png: cannot be drawn: ValueError: no backend" in line


@pytest.mark.parametrize("backend", ["cpu", "dense"])
@pytest.mark.parametrize("bits", [8, 4])
def test_integers_of_a_run_are_evaluated(
    run: Path, bits: int, backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "net.safetensors"
    assert main(["quantize", str(run), str(file), "--bits", str(bits)]) == 0
    said = capsys.readouterr().out
    assert f"int{bits} weights after epoch" in said
    assert "trained with float32 weights" in said
    assert main(["eval", str(run), "--integers", str(file), "--json", "--backend", backend]) == 0
    result = json.loads(capsys.readouterr().out)
    assert main(["eval", str(run), "--json", "--backend", backend]) == 0
    float32 = json.loads(capsys.readouterr().out)
    assert result["loss"] != float32["loss"]
    assert result["loss"] == pytest.approx(float32["loss"], rel=0.5)


def test_a_run_that_learns_with_integers_gives_the_same_from_its_file(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_run(run).config.with_values({"train": {"weight_dtype": "int4"}})
    result = train(config, out=tmp_path / "run")
    file = tmp_path / "net.safetensors"
    assert main(["quantize", str(tmp_path / "run"), str(file)]) == 0
    said = capsys.readouterr().out
    assert "int4 weights" in said
    assert "float32" not in said
    assert main(["eval", str(tmp_path / "run"), "--integers", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] == result.test_loss
    assert main(["eval", str(run), "--integers", str(run / "config.toml")]) == 1
    assert "is damaged or not a file with integer weights" in capsys.readouterr().err
