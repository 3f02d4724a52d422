"""The moving average of weights: its numbers, and that it is evaluated, saved as best and read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sparsesnn.engines import Training, Updates, make_engine
from sparsesnn.engines.average import Average, evaluated_tensors
from sparsesnn.errors import CheckpointError, ConfigError
from sparsesnn.network import parse_net
from sparsesnn.train import Config, evaluate_run, load_run, prepare, train


def make_config(**sections: dict[str, Any]) -> Config:
    small = {
        "data": {"name": "synthetic", "n_neurons": 17, "n_classes": 3, "n_steps": 11, "n_samples": 70, "activity": 0.2,
                 "valid": "random:0.15"},
        "net": {"text": "auto-9r-auto"},
        "init": {"activity": 0.1, "tolerance": 0.5},
        "optim": {"lr": 0.02, "ema": 0.8},
        "train": {"epochs": 3, "batch": 8, "tensorboard": False, "plots": False},
    }  # fmt: skip
    return Config.resolve(small, sections)


def test_an_average_by_hand() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    average = Average(model, decay=0.25)
    values = [1.0, 5.0, -2.0, 3.0]
    for value in values:
        model.weight.data.fill_(value)
        average.update()
    # decays 2/11 for the first sum, 0.25 = min(0.25, 3/12) for the second, then 0.25
    want = (1.0 * 3 / 12 + 5.0 * 9 / 12) * 0.25 - 2.0 * 0.75
    want = want * 0.25 + 3.0 * 0.75
    assert float(average.values["weight"]) == pytest.approx(want, rel=1e-6)
    shown = evaluated_tensors({"model/weight": model.weight.detach(), **average.tensors()}, {"weight": 0.5})
    assert float(shown["model/weight"]) == pytest.approx(want * 0.5, rel=1e-6)
    again = Average(torch.nn.Linear(1, 1, bias=False), decay=0.25)
    again.load(average.tensors(), "here")
    assert (again.n_steps, again.values) == (4, average.values)
    for tensors in ({}, {"ema/steps": torch.tensor(3)}, {**average.tensors(), "ema/weight": torch.zeros(2, 2)}):
        with pytest.raises(CheckpointError, match=r"here: holds no moving average .*optim\.ema"):
            again.load(tensors, "here")


@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_the_average_is_evaluated_and_saved(tmp_path: Path, backend: str) -> None:
    config = make_config(train={"backend": backend})
    result = train(config, out=tmp_path / "ema")
    plain = train(config.with_values({"optim": {"ema": 0.0}}), out=tmp_path / "plain")
    assert result.weights_sha256 == plain.weights_sha256, "training continues with the weights themselves"
    best = evaluate_run(tmp_path / "ema")
    assert (best["epoch"], best["accuracy"], best["loss"]) == (
        result.best_epoch,
        result.test_accuracy,
        pytest.approx(result.test_loss, abs=1e-12),
    )
    last, own = load_run(tmp_path / "ema", weights="last"), load_run(tmp_path / "plain", weights="last")
    names = list(dict(own.model.named_parameters()))
    assert all(not torch.equal(last.model.state_dict()[name], own.model.state_dict()[name]) for name in names)
    assert evaluate_run(tmp_path / "ema", weights="last")["accuracy"] == result.test_accuracy_last


def test_pictures_and_the_best_epoch_have_the_average(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("sparsesnn.train.loop.plot_run", lambda run, *_: seen.append(run.engine.weights()))
    train(make_config(train={"plots": True}), out=tmp_path)
    chosen = load_run(tmp_path).engine.weights()
    assert all(torch.equal(x, chosen[name]) for name, x in seen[0].items())


def test_a_run_ends_where_validation_gets_no_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation is best after epoch 2; with patience 3 the run ends after epoch 5, also when it is resumed."""
    accuracies = iter([0.5, 0.7, 0.6, 0.7, 0.1, 0.9, 0.9])

    def note(progress: Any, accuracy: float, loss: float) -> bool:
        found = next(accuracies)
        better = found > progress.best_score
        if better:
            progress.best_epoch, progress.best_score, progress.best_loss = progress.epoch, found, loss
        return better

    monkeypatch.setattr("sparsesnn.train.metrics.Progress.note_validation", note)
    config = make_config(train={"epochs": 7, "patience": 3})
    result = train(config, out=tmp_path)
    assert (result.n_epochs, result.best_epoch) == (5, 2)
    assert train(config, out=tmp_path, resume=True) == result


def test_a_plateau_lowers_the_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def note(progress: Any, accuracy: float, loss: float) -> bool:
        progress.best_loss = loss
        return progress.epoch in (1, 3)

    monkeypatch.setattr("sparsesnn.train.metrics.Progress.note_validation", note)
    optim = {"schedule": "plateau", "plateau_factor": 0.5, "plateau_patience": 2, "lr": 0.5, "ema": 0.0}
    train(make_config(optim=optim, train={"epochs": 8}), out=tmp_path)
    rates = [record["lr"] for record in loop_records(tmp_path)]
    assert rates == [0.5] * 5 + [0.25] * 2 + [0.125]


def loop_records(folder: Path) -> list[dict[str, Any]]:
    from sparsesnn.train.metrics import read_metrics

    return read_metrics(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": {"patience": 2}}, "train.patience: needs validation, but data.valid is 'none'"),
        ({"optim": {"schedule": "plateau"}}, "optim.schedule: needs validation"),
    ],
)
def test_what_waits_for_a_validation_that_there_is_not(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train(make_config(data={"valid": "none"}).with_values(changes), out=tmp_path / "run")


def test_groups_have_their_rate_and_decay() -> None:
    network = parse_net("5-4r-3", bias=True, learn_beta=True)
    updates = Updates(
        lr=0.5,
        weight_decay=0.25,
        lr_factors={"neurons": 0.5, "readout": 0.0},
        weight_decays={"recurrent": 0.75, "bias": 0.125},
    )
    for name in ("cpu", "dense"):
        engine = make_engine(name, network, Training(n_classes=3, decoding="max", updates=updates))
        names = {id(p): key for key, p in engine.model.named_parameters()}
        from sparsesnn.engines.optimizers import set_learning_rate

        set_learning_rate(engine.optimizer, 0.5)
        found = {
            names[id(p)].removeprefix("layers."): (g["lr"], g["weight_decay"])
            for g in engine.optimizer.param_groups
            for p in g["params"]
        }
        assert found == {
            "hidden.input->hidden": (0.5, 0.25),
            "hidden.hidden->hidden": (0.5, 0.75),
            "hidden.bias": (0.5, 0.125),
            "hidden.beta": (0.25, 0.0),
            "output.hidden->output": (0.0, 0.25),
        }
    with pytest.raises(
        ConfigError, match="optim.lr_factors: 'neuron' is not a group; allowed: weights, recurrent, readout"
    ):
        make_config(optim={"lr_factors": {"neuron": 0.5}})


def test_validation_that_overrates_is_questioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    import numpy as np

    from sparsesnn.train import Report

    load, lines = prepare.load_split, []

    def with_speakers(config: Any, split: str) -> Any:
        made = load(config, split)
        return dataclasses.replace(made, groups={"speakers": np.arange(len(made)) % 2})

    class Lines(Report):
        def note(self, text: str) -> None:
            lines.append(text)

    monkeypatch.setattr(prepare, "load_split", with_speakers)
    train(make_config(train={"epochs": 1}), out=tmp_path / "a", report=Lines())
    assert any("note    data.valid: 'random:0.15'" in line and "speakers" in line for line in lines)
