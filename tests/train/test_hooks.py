"""Callbacks, loggers, a run trained longer, weights of another run, and the result as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from sparsesnn.cli import main
from sparsesnn.errors import CheckpointError, ConfigError
from sparsesnn.host.comm import simulate
from sparsesnn.train import Config, Report, load_run, train
from sparsesnn.train.metrics import read_metrics

ROOT = Path(__file__).resolve().parents[2]


def make_config(**sections: Mapping[str, Any]) -> Config:
    small: dict[str, Mapping[str, Any]] = {
        "data": {"name": "synthetic", "n_neurons": 17, "n_classes": 3, "n_steps": 11, "n_samples": 70, "activity": 0.2},
        "net": {"text": "auto-9r-auto"},
        "init": {"activity": 0.1, "tolerance": 0.5},
        "train": {"epochs": 3, "batch": 8, "tensorboard": False, "plots": False},
    }
    return Config.resolve(small, sections)


class StopError(Exception):
    pass


# ---- callbacks and loggers -----------------------------------------------------------------------------------------


def test_a_callback_sees_every_epoch_and_may_end_the_run(tmp_path: Path) -> None:
    whole = train(make_config(), out=tmp_path / "whole")
    seen: list[Mapping[str, Any]] = []

    def call(record: Mapping[str, Any]) -> None:
        seen.append(record)
        if len(seen) == 2:
            raise StopError

    with pytest.raises(StopError):
        train(make_config(), out=tmp_path / "a", on_epoch=call)
    assert [record["epoch"] for record in seen] == [1, 2]
    result = train(make_config(), out=tmp_path / "a", resume=True, on_epoch=call)
    assert [record["epoch"] for record in seen] == [1, 2, 3]
    assert [dict(record) for record in seen] == read_metrics(tmp_path / "a")
    assert result.weights_sha256 == whole.weights_sha256


def test_only_the_first_rank_calls(tmp_path: Path) -> None:
    seen: list[int] = []
    simulate(
        2, lambda world: train(make_config(), out=tmp_path, world=world, on_epoch=lambda r: seen.append(r["epoch"]))
    )
    assert seen == [1, 2, 3]


class Kept:
    """A logger that keeps its records."""

    made: ClassVar[list[Kept]] = []

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder, self.records, self.results = config, folder, [], []
        Kept.made.append(self)

    def append(self, record: Mapping[str, Any]) -> None:
        self.records.append(record["epoch"])

    def close(self, result: Mapping[str, Any] | None) -> None:
        self.results.append(result)


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> list[Kept]:
    """A package that offers the logger `kept`."""
    point = metadata.EntryPoint("kept", f"{__name__}:Kept", "sparsesnn.loggers")
    monkeypatch.setattr(metadata.EntryPoint, "load", lambda self: Kept)
    monkeypatch.setattr("sparsesnn.train.loggers.entry_points", lambda group: [point] if group == point.group else [])
    Kept.made = []
    return Kept.made


def test_loggers_of_other_packages(offered: list[Kept], tmp_path: Path) -> None:
    config = make_config(train={"loggers": "kept"})
    result = train(config, out=tmp_path)
    (logger,) = offered
    assert (logger.config, logger.folder, logger.records) == (config, tmp_path, [1, 2, 3])
    assert [r["test_accuracy"] for r in logger.results if r] == [result.test_accuracy]


def test_loggers_are_closed_where_a_run_fails(offered: list[Kept], tmp_path: Path) -> None:
    def call(record: Mapping[str, Any]) -> None:
        raise StopError

    with pytest.raises(StopError):
        train(make_config(train={"loggers": "kept"}), out=tmp_path, on_epoch=call)
    assert offered[0].results == [None]


@pytest.mark.parametrize("hook", ["__init__", "append", "close", "load"])
def test_a_logger_that_raises_does_not_end_the_run(
    offered: list[Kept], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no network")

    if hook == "load":
        monkeypatch.setattr(metadata.EntryPoint, "load", fail)
    else:
        monkeypatch.setattr(Kept, hook, fail)
    with pytest.warns(UserWarning, match="logger kept: OSError: no network"):
        result = train(make_config(train={"loggers": "kept"}), out=tmp_path)
    assert json.loads((tmp_path / "result.json").read_text())["test_accuracy"] == result.test_accuracy
    if hook == "append":
        assert len(offered[0].results) == 1
    if hook == "close":
        assert offered[0].records == [1, 2, 3]


def test_a_package_of_the_current_folder_is_not_installed(tmp_path: Path) -> None:
    """`python -m` searches the current folder first, which may hold a stranger's files."""
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    (tmp_path / "evil-1.0.dist-info").mkdir()
    (tmp_path / "evil-1.0.dist-info" / "METADATA").write_text("Name: evil\nVersion: 1.0\n")
    (tmp_path / "evil-1.0.dist-info" / "entry_points.txt").write_text("[sparsesnn.loggers]\nevil = evil:Logger\n")
    config = make_config(train={"loggers": "evil", "epochs": 1})
    (tmp_path / "run.toml").write_text(config.to_toml())
    command = [sys.executable, "-m", "sparsesnn", "train", "--config", "run.toml", "--out", "run", "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "train.loggers: no installed package offers 'evil'" in done.stderr


def test_a_logger_that_nobody_offers(offered: list[Kept], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train.loggers: .*'absent'.*sparsesnn.loggers.*available: kept"):
        train(make_config(train={"loggers": "kept, absent"}), out=tmp_path)


def test_the_example_loggers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With stand-ins for wandb and mlflow, which take the arguments of the real ones."""
    said: list[tuple[Any, ...]] = []

    class Run:
        summary: ClassVar[dict[str, float]] = {}

        def log(self, values: Mapping[str, float], step: int) -> None:
            said.append(("log", step, values["valid_accuracy"]))

        def finish(self, exit_code: int) -> None:
            said.append(("finish", exit_code))

    wandb = types.SimpleNamespace(init=lambda **options: said.append(("init", options["name"])) or Run())
    mlflow = types.SimpleNamespace(
        start_run=lambda run_name: said.append(("init", run_name)),
        log_params=lambda table: said.append(("params", table["train.epochs"])),
        log_metrics=lambda values, step: said.append(("log", step, values["activity/hidden"])),
        log_metric=lambda name, value: said.append((name, value)),
        end_run=lambda status: said.append(("finish", status)),
    )
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import loggers

    for name, end in (("wandb", ("finish", 0)), ("mlflow", ("finish", "FINISHED"))):
        said.clear()
        loggers.main(["synthetic", "--to", name, "--out", str(tmp_path / name), "--epochs", "2"])
        assert said[0] == ("init", name)
        assert [entry[1] for entry in said if entry[0] == "log"] == [1, 2]
        assert said[-1] == end


@pytest.mark.slow
def test_optuna_prunes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna", reason="needs optuna")
    pytest.importorskip("sklearn", reason="scikit-learn is optional")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import optuna_digits

    class Second(optuna.pruners.BasePruner):  # type: ignore[misc, name-defined]
        def prune(self, study: Any, trial: Any) -> bool:
            return bool(trial.number == 1 and trial.last_step == 1)

    monkeypatch.setattr(optuna.pruners, "MedianPruner", lambda **_: Second())
    study = optuna_digits.main(["--trials", "2", "--epochs", "2", "--out", str(tmp_path)])
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED"]
    assert len(read_metrics(tmp_path / "trial-1")) == 1
    assert study.best_value == max(r["valid_accuracy"] for r in read_metrics(tmp_path / "trial-0"))


# ---- longer, and from another run ----------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_finished_run_is_trained_longer(schedule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short, long = make_config(optim={"schedule": schedule}), {"train": {"epochs": 5}}
    train(short, out=tmp_path / "a")
    assert main(["train", "--resume", "--out", str(tmp_path / "a"), "--epochs", "5"]) == 0
    assert f"3 epochs become 5; the schedule '{schedule}' now spans them all" in capsys.readouterr().err
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert (result["n_epochs"], result["extended"]) == (5, [3])
    assert [record["epoch"] for record in read_metrics(tmp_path / "a")] == [1, 2, 3, 4, 5]
    if schedule == "constant":  # then it is the run that had them from the beginning
        assert train(short.with_values(long), out=tmp_path / "b").weights_sha256 == result["weights_sha256"]
    rates = [record["lr"] for record in read_metrics(tmp_path / "a")]
    assert rates[3] >= rates[2]
    again = train(short.with_values(long), out=tmp_path / "a", resume=True)
    assert (again.n_epochs, again.extended) == (5, [3])


def test_an_unfinished_run_keeps_its_length(tmp_path: Path) -> None:
    def call(record: Mapping[str, Any]) -> None:
        raise StopError

    with pytest.raises(StopError):
        train(make_config(), out=tmp_path, on_epoch=call)
    with pytest.raises(CheckpointError, match="train.epochs: 3 → 5"):
        train(make_config(train={"epochs": 5}), out=tmp_path, resume=True)


class Lines(Report):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


@pytest.mark.parametrize("shards", [1, 2])
def test_weights_of_another_run(shards: int, tmp_path: Path) -> None:
    first = tmp_path / "first"
    train(make_config(net={"text": "auto-70r-auto", "beta": 0.8}), out=first)
    theirs = load_run(first).model
    sections: dict[str, Any] = {
        "data": {"n_classes": 4},
        "net": {"text": "auto-70r-auto", "beta": 0.9},
        "init": {"from_run": str(first)},
        "optim": {"lr": 1e-9},
        "train": {"epochs": 1},
        "parallel": {"shards": shards},
    }
    report = Lines()
    out = tmp_path / "second"
    config = make_config(**sections)
    simulate(shards, lambda world: train(config, out=out, world=world, report=report))
    ours = load_run(out).model
    for name in ("input->hidden", "hidden->hidden"):
        found, expected = (getattr(model.layers["hidden"], name) for model in (ours, theirs))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert ours.layers["hidden"].beta == torch.tensor(0.9)
    (line,) = [line for line in report.lines if line.startswith("init ")]
    assert "2 parameters" in line
    assert "new: output.hidden->output" in line


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    train(make_config(train={"epochs": 1}), out=tmp_path / "a")
    other = make_config(net={"text": "auto-8-auto"}, init={"from_run": str(tmp_path / "a")})
    with pytest.raises(ConfigError, match="init.from_run: no parameter .*it has .*layers.hidden.hidden->hidden"):
        train(other, out=tmp_path / "b")
    with pytest.raises(CheckpointError, match="absent: is not a folder; give the folder of a run"):
        train(make_config(init={"from_run": str(tmp_path / "absent")}), out=tmp_path / "c")


# ---- JSON ----------------------------------------------------------------------------------------------------------


def test_the_result_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "small.toml"
    config.write_text(make_config(train={"epochs": 1}).to_toml())
    assert main(["train", "--config", str(config), "--out", str(tmp_path / "a"), "--json"]) == 0
    shown = capsys.readouterr()
    assert "epoch   1" in shown.err
    (line,) = shown.out.splitlines()
    assert json.loads(line) == json.loads((tmp_path / "a" / "result.json").read_text())
    assert (
        main(["train", "--config", str(config), "--out", str(tmp_path / "b"), "--seeds", "1,2", "--quiet", "--json"])
        == 0
    )
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == json.loads((tmp_path / "b" / "summary.json").read_text())
