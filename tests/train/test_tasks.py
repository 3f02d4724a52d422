"""Runs whose samples teach a class or values per step, or values: trained, interrupted, evaluated, and over ranks."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsesnn.cli import main
from sparsesnn.config import Config
from sparsesnn.errors import ConfigError
from sparsesnn.host.comm.simulated import simulate
from sparsesnn.train import evaluate_run, load_run, train
from sparsesnn.train.metrics import Result, read_metrics

SOURCE = '''
import numpy as np
from sparsesnn.datasets import EventSet

def sets(**label_of):
    """Each quarter of a sample has the spikes of one of three classes; some steps have no label."""
    made = {}
    for seed, (part, n) in enumerate((("train", 50), ("valid", 11), ("test", 13))):
        rng = np.random.default_rng(seed)
        classes = rng.integers(0, 3, (n, 4)).repeat(10, axis=1)
        steps = [np.flatnonzero(rng.random(40) < 0.8) for _ in range(n)]
        events = [(t * 1000.0, 4 * classes[s, t] + rng.integers(0, 5, t.size)) for s, t in enumerate(steps)]
        classes[rng.random(classes.shape) < 0.1] = -1
        labels = {name: make(classes) for name, make in label_of.items()}
        made[part] = EventSet.from_events(events, **labels, n_steps=40, dt_us=1000.0, n_neurons=13)
    return made

def plain():
    return sets(labels=lambda c: c[:, 0].clip(0))

def steps():
    return sets(step_labels=lambda c: c)

def values():
    return sets(targets=lambda c: np.stack([(c == 0).mean(1), (c == 1).mean(1)], 1))

def step_values():
    return sets(step_targets=lambda c: np.where(c < 0, np.nan, c / 2.0))
'''
TASKS = {"steps": "class per step", "values": "values", "step_values": "values per step"}


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return str(path)


def config(source: str, kind: str, **sections: Any) -> Config:
    own: dict[str, Any] = {
        "data": {"name": "events"},
        "net": {"text": "13-20r-auto"},
        "train": {"epochs": 2, "batch": 20, "threads": 1, "tensorboard": False, "plots": False},
        "optim": {"lr": 0.01},
    }
    for name, table in sections.items():
        own[name] = {**own.get(name, {}), **table}
    return Config.resolve(own).with_data_dir(f"{source}:{kind}")


def comparable(result: Result) -> dict[str, Any]:
    names = (
        "weights_sha256",
        "test_accuracy",
        "test_rmse",
        "test_r2",
        "test_loss",
        "valid_accuracy",
        "valid_rmse",
        "per_class",
    )
    return {name: getattr(result, name) for name in names}


@pytest.mark.parametrize("kind", TASKS)
def test_a_run_of_each_task(tmp_path: Path, source: str, kind: str) -> None:
    has_values = kind != "steps"
    result = train(config(source, kind, train={"epochs": 8}), out=tmp_path / "run")
    assert result.task == TASKS[kind]
    records = read_metrics(tmp_path / "run")
    key = "rmse" if has_values else "accuracy"
    assert all(r[key] is not None and r[f"valid_{key}"] is not None for r in records)
    assert records[-1]["loss"] < records[0]["loss"]
    if has_values:
        assert result.test_accuracy is result.valid_accuracy is None
        assert result.valid_rmse == min(r["valid_rmse"] for r in records)
        assert result.per_class == []
        assert result.neurobench["rmse"] == result.test_rmse
    else:
        assert result.valid_accuracy == max(r["valid_accuracy"] for r in records)
        assert result.test_accuracy is not None
        assert result.test_accuracy > 0.4
        assert sum(row["n_samples"] for row in result.per_class) == _n_labels(tmp_path / "run", f"{source}:{kind}")
    evaluated = evaluate_run(tmp_path / "run", data_dir=f"{source}:{kind}")
    assert evaluated[key] == getattr(result, f"test_{key}")
    assert evaluated["loss"] == result.test_loss
    assert evaluated["task"] == TASKS[kind]
    load_run(tmp_path / "run").save(tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    names = ["rmse", "r2"] if has_values else ["accuracy"]
    assert f"metrics: {json.dumps(names)}" in card
    assert f"| {key} | {evaluated[key]:.6g} |" in card
    assert str(tmp_path) not in card


def _n_labels(folder: Path, data: str) -> int:
    labels = load_run(folder, data=data).part("test").event_set.labels
    return int((labels >= 0).sum())


@pytest.mark.parametrize("kind", TASKS)
def test_the_numbers_do_not_depend_on_ranks(tmp_path: Path, source: str, kind: str) -> None:
    settings = config(source, kind, loss={"class_weights": "balanced"} if kind == "steps" else {})
    alone = train(settings, out=tmp_path / "1")
    for n in (2, 3):
        results = simulate(n, lambda world, n=n: train(settings, out=tmp_path / f"{n}", world=world))
        assert comparable(results[0]) == comparable(alone)
    shards = Config.resolve(settings.to_dict(), {"parallel": {"shards": 2}}).with_data_dir(f"{source}:{kind}")
    assert comparable(simulate(2, lambda world: train(shards, out=tmp_path / "shards", world=world))[0]) == comparable(
        alone
    )


@pytest.mark.parametrize("kind", TASKS)
def test_a_run_that_is_continued_ends_with_the_same_bits(tmp_path: Path, source: str, kind: str) -> None:
    settings = config(source, kind, augment={"time_shift": 3} if kind != "values" else {})
    whole = train(settings, out=tmp_path / "whole")

    class Stop(Exception):  # noqa: N818
        pass

    def stop(record: Any) -> None:
        raise Stop

    with pytest.raises(Stop):
        train(settings, out=tmp_path / "cut", on_epoch=stop)
    assert comparable(train(settings, out=tmp_path / "cut", resume=True)) == comparable(whole)


@pytest.mark.parametrize("kind", TASKS)
def test_dense_agrees(tmp_path: Path, source: str, kind: str) -> None:
    settings = {"net": {"grad_threshold": -math.inf}, "train": {"epochs": 1, "batch": 50}}
    cpu = train(config(source, kind, **settings), out=tmp_path / "cpu")
    dense = config(source, kind, **{**settings, "train": {**settings["train"], "backend": "dense"}})
    assert train(dense, out=tmp_path / "dense").test_loss == pytest.approx(cpu.test_loss, rel=0.02)


def test_written_predictions_give_the_result(tmp_path: Path, source: str) -> None:
    """Predictions of every step, written and read again, give the accuracy and loss of the result."""
    train(config(source, "steps"), out=tmp_path / "run")
    path = tmp_path / "test.csv"
    arguments = ["eval", str(tmp_path / "run"), "--data", f"{source}:steps", "--predictions", str(path), "--per-class"]
    assert main(arguments) == 0
    with path.open() as file:
        rows = list(csv.DictReader(file))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert len(rows) == 13 * 40
    labeled = [row for row in rows if row["label"]]
    right = [row["label"] == row["predicted"] for row in labeled]
    assert np.mean(right) == pytest.approx(result["test_accuracy"])
    logits = np.array([[float(row[f"logit_{c}"]) for c in range(3)] for row in labeled])
    logits -= np.log(np.exp(logits).sum(1, keepdims=True))
    losses = [-row[int(label["label"])] for row, label in zip(logits, labeled, strict=True)]
    assert np.mean(losses) == pytest.approx(result["test_loss"], rel=1e-5)


def test_values_written_as_a_table(tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str]) -> None:
    train(config(source, "values"), out=tmp_path / "run")
    path = tmp_path / "test.csv"
    assert main(["eval", str(tmp_path / "run"), "--data", f"{source}:values", "--predictions", str(path)]) == 0
    assert "test RMSE" in capsys.readouterr().out
    with path.open() as file:
        rows = list(csv.DictReader(file))
    errors = [float(row[f"output_{k}"]) - float(row[f"target_{k}"]) for row in rows for k in range(2)]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(result["test_rmse"])
    targets = np.array([[float(row[f"target_{k}"]) for k in range(2)] for row in rows])
    squared = np.reshape(errors, (-1, 2)) ** 2
    r2 = np.mean(1 - squared.sum(0) / ((targets - targets.mean(0)) ** 2).sum(0))
    assert r2 == pytest.approx(result["test_r2"])
    assert main(["eval", str(tmp_path / "run"), "--data", f"{source}:values", "--confusion"]) == 2


@pytest.mark.parametrize("kind", TASKS)
def test_pictures_of_outputs_and_targets(tmp_path: Path, source: str, kind: str) -> None:
    pytest.importorskip("matplotlib")
    train(config(source, kind, train={"plots": True}), out=tmp_path / "run")
    for name in ("curves.png", "outputs.png", "raster.png"):
        assert (tmp_path / "run" / name).stat().st_size > 1000
    assert (tmp_path / "run" / "confusion.png").exists() == (kind == "steps")
    assert main(["show", str(tmp_path / "run"), "--data", f"{source}:{kind}"]) == 0


def test_settings_that_do_not_fit_the_task_are_refused(tmp_path: Path, source: str) -> None:
    for kind, sections, message in (
        (
            "steps",
            {"loss": {"decoding": "max"}},
            "loss.decoding: is 'max', but the task of the data is: class per step; allowed: auto, step",
        ),
        ("values", {"loss": {"decoding": "step"}}, "loss.decoding: is 'step', but the task of the data is: values"),
        ("plain", {"loss": {"decoding": "step"}}, "loss.decoding: is 'step', but the task of the data is: class"),
        (
            "steps",
            {"net": {"text": "13-20-autos"}},
            "each step has a label, but 'output' is spiking; end the network in LI",
        ),
        (
            "values",
            {"loss": {"class_weights": "balanced"}},
            "loss.class_weights: is 'balanced', but the samples have values",
        ),
        ("steps", {"train": {"balance": True}}, "balance is True, samples with a class per step"),
        ("steps", {"augment": {"blend": 0.5}}, "augment: blend combines"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(config(source, kind, **sections), out=tmp_path / "x")  # type: ignore[arg-type]


def test_class_weights_raise_the_recall_of_rare_classes(tmp_path: Path, source: str) -> None:
    """The weights are 1 on average over labels, in inverse proportion to the number of labels."""
    from sparsesnn.train import prepare

    settings = config(source, "steps", loss={"class_weights": "balanced"})
    parts = prepare.load_parts(settings.data)
    weights = np.array(prepare.class_weights(settings, parts.train))
    labels = parts.train.event_set.labels
    n_of = np.bincount(labels[labels >= 0])
    np.testing.assert_allclose(weights * n_of, n_of.sum() / 3)
    assert prepare.class_weights(config(source, "steps"), parts.train) is None


def test_the_ipu_refuses_other_tasks(tmp_path: Path, source: str) -> None:
    pytest.importorskip("sparsesnn._ipu")
    with pytest.raises(
        ConfigError, match="backend 'ipu-model' trains a class per sample, but the task of this data is: values"
    ):
        train(config(source, "values", train={"backend": "ipu-model"}), out=tmp_path / "x")
